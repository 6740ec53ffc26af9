//! The scan of a MANIFEST for a torn end, and the scan of a write-ahead log for damage. Properties: the
//! first never keeps more bytes than there are, and the kept prefix is not torn; the second reports
//! correctly if a record is before or after the damage. Checksums of whole frames are corrected first.

use crate::log::{frames, torn_from};
use mlgw_common::checksum::crc32c;

const HEADER_BYTES: usize = 7;

/// Scans the bytes of the file unchanged, and with corrected checksums for as many frames as are whole.
pub fn run(data: &[u8]) {
    check(data);
    let mut bytes = data.to_vec();
    let mut at = 0;
    while let Some([_, _, _, _, low, high, _]) =
        bytes.get(at..at + HEADER_BYTES).and_then(|head| head.first_chunk())
    {
        let end = at + HEADER_BYTES + usize::from(u16::from_le_bytes([*low, *high]));
        let Some(covered) = bytes.get(at + HEADER_BYTES - 1..end) else { break };
        let masked = crc32c(covered).rotate_right(15).wrapping_add(0xa282_ead8);
        bytes[at..at + 4].copy_from_slice(&masked.to_le_bytes());
        at = end;
    }
    check(&bytes);
}

fn check(bytes: &[u8]) {
    let (records, bad) = frames(bytes);
    assert!(bad.is_none_or(|bad| bad < bytes.len()));
    for (at, behind) in records {
        assert!(
            at < bytes.len() && behind == bad.is_some_and(|bad| bad < at),
            "after the first defect, or not"
        );
    }
    if let Some(keep) = torn_from(bytes) {
        assert!(keep < bytes.len());
        assert_eq!(torn_from(&bytes[..keep]), None, "one cut is enough");
    }
}
