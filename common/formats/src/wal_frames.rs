//! Reader of the records of RocksDB's write-ahead log and MANIFEST, for verification.
//!
//! RocksDB stops silently at the first record of its write-ahead log that does not verify, because after
//! power loss that is the end of the log. Verification also detects records after that point. Both kinds of
//! file are blocks of 32 KiB with frames of `crc: u32, length: u16, type: u8, payload` (little-endian; the
//! masked CRC32C covers type and payload). RocksDB calls a frame a physical record, and its payload a
//! fragment of a record. A record is one full frame, or a first frame, middle frames and a last frame. The
//! format is LevelDB's (<https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format>).

use mlgw_common::checksum::crc32c;
use std::ops::Range;

/// Bytes of a block of the log.
pub const BLOCK_BYTES: usize = 32 << 10;
/// Bytes of a frame's header.
pub const HEAD_BYTES: usize = 7;

/// Type of a frame with a full record.
pub const FULL: u8 = 1;
/// Type of a frame with the first fragment of a record.
pub const FIRST: u8 = 2;
/// Type of a frame with a fragment between the first and the last. RocksDB's other types do not occur in
/// these files.
pub const MIDDLE: u8 = 3;
/// Type of a frame with the last fragment of a record.
pub const LAST: u8 = 4;

/// Content of a frame file at one offset.
pub(crate) enum WalItem<'b> {
    /// A frame that verifies; the next item begins at its end.
    Frame {
        /// Type of the frame.
        kind: u8,
        /// Payload of the frame.
        payload: &'b [u8],
        /// Offset of the first byte after the frame.
        end: usize,
    },
    /// The rest of a block, too short for a frame; the next item begins at this offset.
    Padding(usize),
    /// A frame that does not verify, with the byte range that it claims, cut at the end of the block.
    Bad(Range<usize>),
    /// Fewer bytes than a frame header are left.
    End,
}

/// Returns the item that begins at byte `at` of a file.
pub(crate) fn frame_at(bytes: &[u8], at: usize) -> WalItem<'_> {
    let block_end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
    if block_end - at < HEAD_BYTES {
        return if block_end < bytes.len() { WalItem::Padding(block_end) } else { WalItem::End };
    }
    let Some([c0, c1, c2, c3, l0, l1, kind]) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else {
        return WalItem::End;
    };
    let from = at + HEAD_BYTES;
    let end = from + usize::from(u16::from_le_bytes([*l0, *l1]));
    let stored = u32::from_le_bytes([*c0, *c1, *c2, *c3]);
    match (bytes.get(from - 1..end), bytes.get(from..end)) {
        (Some(covered), Some(payload)) if end <= block_end && mask_crc(crc32c(covered)) == stored => {
            WalItem::Frame { kind: *kind, payload, end }
        }
        _ => WalItem::Bad(at..end.min(block_end)),
    }
}

/// Applies RocksDB's mask, so that a checksum over data that contains checksums is not degenerate.
pub fn mask_crc(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Records of a frame file and the position of its first defect.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WalRecords {
    /// Records that verify, each with its offset in the file.
    pub records: Vec<(usize, Vec<u8>)>,
    /// Offset of the first frame that does not verify.
    pub first_defect: Option<usize>,
}

impl WalRecords {
    /// Returns the first record after the first frame that does not verify.
    pub fn first_record_after_defect(&self) -> Option<&(usize, Vec<u8>)> {
        let bad = self.first_defect?;
        self.records.iter().find(|(at, _)| *at > bad)
    }
}

/// Reads all records of a file into memory.
pub fn read_records(bytes: &[u8]) -> WalRecords {
    let mut records = Vec::new();
    let bad_at = for_each_record(bytes, &mut |at, record, _| records.push((at, record.to_vec())));
    WalRecords { records, first_defect: bad_at }
}

/// Calls `each` for every record of a file that verifies, with its offset, its bytes, and true if it is
/// after a frame that does not verify. Returns the offset of the first such frame.
pub fn for_each_record(bytes: &[u8], each: &mut dyn FnMut(usize, &[u8], bool)) -> Option<usize> {
    let mut bad_at = None;
    let mut partial: Option<(usize, Vec<u8>)> = None;
    let mut at = 0;
    loop {
        let (kind, payload, end) = match frame_at(bytes, at) {
            WalItem::Frame { kind, payload, end } => (kind, payload, end),
            WalItem::Padding(next) => {
                at = next;
                continue;
            }
            WalItem::Bad(_) => {
                bad_at.get_or_insert(at);
                partial = None;
                at += 1;
                continue;
            }
            WalItem::End => break,
        };
        let unfinished = partial.take();
        if let (FULL | FIRST, Some((from, _))) = (kind, &unfinished) {
            bad_at.get_or_insert(*from);
        }
        match (kind, unfinished) {
            (FULL, _) => each(at, payload, bad_at.is_some()),
            (FIRST, _) => partial = Some((at, payload.to_vec())),
            (MIDDLE, Some((from, mut record))) => {
                record.extend_from_slice(payload);
                partial = Some((from, record));
            }
            (LAST, Some((from, mut record))) => {
                record.extend_from_slice(payload);
                each(from, &record, bad_at.is_some());
            }
            // The rest of a record whose first frame did not verify, or a type that RocksDB does not write
            // here.
            _ => {}
        }
        at = end;
    }
    // Fewer bytes than a header are left: a torn frame, unless the file ends at a block boundary.
    if at < bytes.len() && !bytes.len().is_multiple_of(BLOCK_BYTES) {
        bad_at.get_or_insert(at);
    }
    if let Some((from, _)) = partial {
        bad_at.get_or_insert(from);
    }
    bad_at
}
