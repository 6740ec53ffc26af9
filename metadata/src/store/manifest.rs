//! The torn end of a MANIFEST, cut off before RocksDB opens its directory.
//!
//! RocksDB appends to its MANIFEST and syncs it before it acts on what it wrote. When power fails
//! in between, any of the new sectors may be missing, and RocksDB refuses the whole directory for
//! a checksum that does not match. What was never synced was never relied on, so the file is cut
//! where the first such record begins. A sector that never reached the disk reads as zeros from
//! the end of what was there before; only a record with such a sector in it is taken for torn, so
//! that rot in what was synced stays the error it is. The cut is synced before RocksDB sees it,
//! and power that fails during the cut leaves a file that is cut again.
//!
//! The format is that of RocksDB's log files: blocks of 32 KiB, in them fragments of records, each
//! with a masked CRC32C of type and payload, a length and a type
//! (<https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format>).

use mlgw_common::checksum::crc32c;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::Path;

const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;

/// What a disk writes as a whole, or not at all.
const SECTOR_BYTES: usize = 512;

/// Types of fragments. RocksDB knows more; none of them occurs in a MANIFEST.
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Cuts the torn end off the MANIFEST that the RocksDB in `dir` would read, if there is one.
pub(super) fn cut_torn_end(dir: &Path) -> io::Result<()> {
    let current = match fs::read_to_string(dir.join("CURRENT")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let path = dir.join(current.trim_end());
    let bytes = match fs::read(&path) {
        // RocksDB says better what is wrong with such a directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let Some(keep) = torn_from(&bytes) else { return Ok(()) };
    let cut = bytes.len() - keep;
    tracing::warn!(path = %path.display(), keep, cut, "power failed during an append: cut off what was never synced");
    let file = OpenOptions::new().write(true).open(&path)?;
    file.set_len(keep as u64)?;
    file.sync_all()
}

/// Where the first record begins that a power cut tore; none if the file is whole, merely ends
/// early (which RocksDB takes for its end), or is damaged in another way.
pub(crate) fn torn_from(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut record = 0;
    let mut inside = false;
    loop {
        if !inside {
            record = at;
        }
        at = match fragment_at(bytes, at) {
            Found::Fragment { kind, end } => {
                inside = match (kind, inside) {
                    (FULL, false) | (LAST, true) => false,
                    (FIRST, false) | (MIDDLE, true) => true,
                    _ => return None,
                };
                end
            }
            Found::Padding(next) => next,
            Found::Bad(place) => return has_lost_sector(bytes, at, &place).then_some(record),
            Found::End => return None,
        };
    }
}

enum Found {
    /// A valid fragment; what follows begins at its end.
    Fragment { kind: u8, end: usize },
    /// The end of a block, too short for a header; what follows begins here.
    Padding(usize),
    /// No valid fragment; the bytes it claims.
    Bad(Range<usize>),
    /// Less than a header is left.
    End,
}

fn fragment_at(bytes: &[u8], at: usize) -> Found {
    let block_end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
    if block_end - at < HEADER_BYTES {
        return if block_end < bytes.len() { Found::Padding(block_end) } else { Found::End };
    }
    let Some([c0, c1, c2, c3, l0, l1, kind]) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else {
        return Found::End;
    };
    let payload = at + HEADER_BYTES;
    let end = payload + usize::from(u16::from_le_bytes([*l0, *l1]));
    let stored = u32::from_le_bytes([*c0, *c1, *c2, *c3]);
    match bytes.get(payload - 1..end) {
        Some(covered) if end <= block_end && masked(crc32c(covered)) == stored => {
            Found::Fragment { kind: *kind, end }
        }
        _ => Found::Bad(at..end.min(block_end)),
    }
}

/// RocksDB's mask, which keeps the checksum of a checksum from being a special one.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Whether one of the sectors under `place` is all zeros from `from` on.
fn has_lost_sector(bytes: &[u8], from: usize, place: &Range<usize>) -> bool {
    let first = place.start / SECTOR_BYTES;
    (first..place.end.div_ceil(SECTOR_BYTES)).any(|sector| {
        let start = (sector * SECTOR_BYTES).max(from);
        let end = ((sector + 1) * SECTOR_BYTES).min(bytes.len());
        bytes.get(start..end).is_some_and(|part| !part.is_empty() && part.iter().all(|byte| *byte == 0))
    })
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
