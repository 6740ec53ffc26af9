//! Truncation of the torn end of a MANIFEST, before RocksDB opens its directory.
//!
//! RocksDB appends to its MANIFEST and syncs it before it acts on the new records. After a power loss in
//! between, any of the new sectors may be missing, and RocksDB refuses the whole directory because of a
//! checksum mismatch. Records that were never synced were never relied on, so the file is truncated at the
//! first such record. A sector that did not reach the disk reads as zeros from the end of the earlier data
//! on, and so does an append that was lost completely. Only a record with such a zeroed piece counts as torn,
//! so that corruption of synced data is still reported as corruption. The truncation is synced before RocksDB
//! opens the file, and a power loss during the truncation leaves a file that is truncated again.

use crate::store_files as files;
use crate::wal_frames::{FIRST, FULL, HEAD_BYTES, LAST, MIDDLE, WalItem, frame_at, mask_crc};
use mlgw_common::checksum::crc32c;
use mlgw_common::regular;
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Bytes that a disk writes atomically.
pub const SECTOR_BYTES: usize = 512;
/// Bytes of the checksum at the beginning of a frame.
const CRC_BYTES: usize = 4;
/// Maximum zeros at a frame's end that are tested by brute force: 65,536 checksums of at most 32 KiB.
const BRUTE_FORCE_BYTES_MAX: usize = 2;

/// Truncates the torn end of the MANIFEST that RocksDB in `dir` would read, if there is one. A directory with
/// another file type in the place of a regular file is refused first, because RocksDB would block on it.
pub fn truncate_torn_end(dir: &Path) -> io::Result<()> {
    files::check_regular_files(dir)?;
    let current = match regular::read_to_string(&dir.join("CURRENT")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let name = current.trim_end();
    if !name.starts_with("MANIFEST-") {
        // RocksDB reports this error in more detail.
        return Ok(());
    }
    let path = dir.join(name);
    let bytes = match regular::read(&path) {
        // RocksDB reports the error of such a directory in more detail.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let Some(keep) = torn_record_offset(&bytes) else { return Ok(()) };
    let cut = bytes.len() - keep;
    tracing::warn!(path = %path.display(), keep, cut,
        "power failed during an append; removed the unsynced end");
    let file = regular::open_with(OpenOptions::new().write(true), &path)?;
    file.set_len(keep as u64)?;
    file.sync_all()
}

/// Returns the offset of the first record that a power loss tore. Returns `None` if the file is whole, ends
/// early (RocksDB treats that as its end) or is damaged in another way.
pub fn torn_record_offset(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut record = 0;
    let mut inside = false;
    loop {
        if !inside {
            record = at;
        }
        at = match frame_at(bytes, at) {
            WalItem::Frame { kind, end, .. } => {
                inside = match (kind, inside) {
                    (FULL, false) | (LAST, true) => false,
                    (FIRST, false) | (MIDDLE, true) => true,
                    _ => return None,
                };
                end
            }
            WalItem::Padding(next) => next,
            WalItem::Bad(place) => return has_lost_sector(bytes, at, &place).then_some(record),
            WalItem::End => return None,
        };
    }
}

/// True if a sector within `place` was lost: it is all zeros from `from` on, or its part of `place` is (a
/// later append may have reached the disk where this one did not). Intact data may contain a few zeros next
/// to corruption elsewhere, so a single short piece counts as lost only if the frame can verify with other
/// bytes in the place of the zeros.
fn has_lost_sector(bytes: &[u8], from: usize, place: &Range<usize>) -> bool {
    let is_zero = |piece: &Range<usize>, min: usize| {
        let piece = bytes.get(piece.start..piece.end.min(bytes.len()));
        piece.is_some_and(|piece| piece.len() >= min && piece.iter().all(|byte| *byte == 0))
    };
    let first = place.start / SECTOR_BYTES;
    let sectors = (first..place.end.div_ceil(SECTOR_BYTES)).map(|sector| {
        let start = (sector * SECTOR_BYTES).max(from);
        start..(sector + 1) * SECTOR_BYTES
    });
    let lost = |sector: &Range<usize>| {
        is_zero(sector, 1) || is_zero(&(sector.start..sector.end.min(place.end)), HEAD_BYTES)
    };
    let lost: Vec<_> = sectors.filter(lost).collect();
    match lost.as_slice() {
        [piece] => is_possibly_lost(bytes, place, piece.start..piece.end.min(bytes.len())),
        lost => !lost.is_empty(),
    }
}

/// True if the frame at `place` can verify with other bytes in the place of the zeros of `piece` and all
/// other bytes as they are. Also true if the piece is too long to be tested.
fn is_possibly_lost(bytes: &[u8], place: &Range<usize>, piece: Range<usize>) -> bool {
    let payload = place.start + HEAD_BYTES;
    // No frame has a header of zeros: all of it was lost, and the frame's end is unknown.
    if bytes.get(place.start..payload).is_some_and(|head| head.iter().all(|byte| *byte == 0)) {
        return true;
    }
    // RocksDB treats a frame that extends past the end of the file as the end of the file.
    let Some(covered) = bytes.get(payload - 1..place.end) else { return false };
    let stored = &bytes[place.start..place.start + CRC_BYTES];
    let matches = |crc: u32, but: &Range<usize>| {
        let other = (place.start..).zip(mask_crc(crc).to_le_bytes()).zip(stored);
        other.into_iter().all(|((at, byte), stored)| byte == *stored || but.contains(&at))
    };
    if piece.end < place.start + CRC_BYTES {
        return matches(crc32c(covered), &piece);
    }
    if piece.len() > BRUTE_FORCE_BYTES_MAX || piece.end != place.end || piece.start < payload {
        return true;
    }
    let mut tried = covered.to_vec();
    (0..1_u32 << (8 * piece.len())).any(|value| {
        let end = tried.len() - piece.len();
        tried[end..].copy_from_slice(&value.to_le_bytes()[..piece.len()]);
        matches(crc32c(&tried), &(0..0))
    })
}
