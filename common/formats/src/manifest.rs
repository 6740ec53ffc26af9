//! The torn end of a MANIFEST, cut off before RocksDB opens its directory.
//!
//! RocksDB appends to its MANIFEST and syncs it before it acts on what it wrote. When power fails in between,
//! any of the new sectors may be missing, and RocksDB refuses the whole directory for a checksum that does
//! not match. What was never synced was never relied on, so the file is cut where the first such record
//! begins. A sector that never reached the disk reads as zeros from the end of what was there before, and so
//! does an append of which nothing did; only a record with such a piece in it is taken for torn, so that rot
//! in what was synced stays the error it is. The cut is synced before RocksDB sees it, and power that fails
//! during the cut leaves a file that is cut again.

use crate::store_files as files;
use crate::wal_frames::{FIRST, Found, HEAD_BYTES, LAST, MIDDLE, WHOLE, frame_at, masked};
use mlgw_common::checksum::crc32c;
use mlgw_common::regular;
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::path::Path;

/// What a disk writes as a whole, or not at all.
pub const SECTOR_BYTES: usize = 512;
/// The checksum at the beginning of a frame.
const CRC_BYTES: usize = 4;
/// So many zeros at a frame's end are tried to be anything else: 65,536 checksums of at most 32 KiB.
const TRIED_MAX: usize = 2;

/// Cuts the torn end off the MANIFEST that the RocksDB in `dir` would read, if there is one. A directory in
/// which something else is in the place of a file is refused first: RocksDB would wait for it.
pub fn cut_torn_end(dir: &Path) -> io::Result<()> {
    files::only_regular(dir)?;
    let current = match regular::read_to_string(&dir.join("CURRENT")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let name = current.trim_end();
    if !name.starts_with("MANIFEST-") {
        // RocksDB reports better what is wrong with it.
        return Ok(());
    }
    let path = dir.join(name);
    let bytes = match regular::read(&path) {
        // RocksDB says better what is wrong with such a directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let Some(keep) = torn_from(&bytes) else { return Ok(()) };
    let cut = bytes.len() - keep;
    tracing::warn!(path = %path.display(), keep, cut, "power failed during an append: cut off what was never synced");
    let file = regular::open_with(OpenOptions::new().write(true), &path)?;
    file.set_len(keep as u64)?;
    file.sync_all()
}

/// Where the first record begins that a power cut tore; none if the file is whole, merely ends
/// early (which RocksDB takes for its end), or is damaged in another way.
pub fn torn_from(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut record = 0;
    let mut inside = false;
    loop {
        if !inside {
            record = at;
        }
        at = match frame_at(bytes, at) {
            Found::Frame { kind, end, .. } => {
                inside = match (kind, inside) {
                    (WHOLE, false) | (LAST, true) => false,
                    (FIRST, false) | (MIDDLE, true) => true,
                    _ => return None,
                };
                end
            }
            Found::Padding(next) => next,
            Found::Bad(place) => return has_lost_piece(bytes, at, &place).then_some(record),
            Found::End => return None,
        };
    }
}

/// Whether one of the sectors under `place` is all zeros from `from` on, or all that it holds of `place` is:
/// the next append may have reached the disk where this one did not. A few zeros may stand there by nature
/// beside rot elsewhere: one piece that is so short is taken for lost only if the frame verifies with other
/// bytes in its stead.
fn has_lost_piece(bytes: &[u8], from: usize, place: &Range<usize>) -> bool {
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
        [piece] => could_be_lost(bytes, place, piece.start..piece.end.min(bytes.len())),
        lost => !lost.is_empty(),
    }
}

/// Whether the frame at `place` could verify if something else stood at the zeros of `piece`, and all else is
/// as it was written. True for what is too long to be tried.
fn could_be_lost(bytes: &[u8], place: &Range<usize>, piece: Range<usize>) -> bool {
    let payload = place.start + HEAD_BYTES;
    // No frame has such a head: all of it was lost, and where it ends is not known.
    if bytes.get(place.start..payload).is_some_and(|head| head.iter().all(|byte| *byte == 0)) {
        return true;
    }
    // RocksDB takes a frame that goes on behind the file's end for that end.
    let Some(covered) = bytes.get(payload - 1..place.end) else { return false };
    let stored = &bytes[place.start..place.start + CRC_BYTES];
    let matches = |crc: u32, but: &Range<usize>| {
        let other = (place.start..).zip(masked(crc).to_le_bytes()).zip(stored);
        other.into_iter().all(|((at, byte), stored)| byte == *stored || but.contains(&at))
    };
    if piece.end < place.start + CRC_BYTES {
        return matches(crc32c(covered), &piece);
    }
    if piece.len() > TRIED_MAX || piece.end != place.end || piece.start < payload {
        return true;
    }
    let mut tried = covered.to_vec();
    (0..1_u32 << (8 * piece.len())).any(|value| {
        let end = tried.len() - piece.len();
        tried[end..].copy_from_slice(&value.to_le_bytes()[..piece.len()]);
        matches(crc32c(&tried), &(0..0))
    })
}
