//! Division of objects into parts, and the checksums of parts. Pure.

use crate::s3::xml::PartReceipt;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use mlgw_common::limits::{GIB, MIB, PART_NUMBER_MAX, PUT_BYTES_MAX};
use std::ops::Range;

/// Size of the parts of an upload, if 10,000 of them suffice.
const PART_BYTES: u64 = 16 * MIB;
/// Largest part of an upload whose length is unknown.
const STREAM_PART_BYTES_MAX: u64 = 64 * MIB;
/// Number of parts of an unknown length after which parts get larger.
const STREAM_PARTS_OF_ONE_SIZE: u64 = 1000;
/// Size of the parts of a copy in the server, if 10,000 of them suffice.
const COPY_PART_BYTES: u64 = GIB;

/// A part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectPartRange {
    /// Number, from 1.
    pub(super) number: usize,
    pub(super) range: Range<u64>,
}

/// Bytes to send, with their CRC64NVME.
#[derive(Clone, Debug)]
pub(super) struct CheckedBytes {
    pub(super) bytes: Bytes,
    pub(super) crc: u64,
}

impl CheckedBytes {
    /// Computes the checksum of bytes.
    pub(super) fn new(bytes: Bytes) -> Self {
        let crc = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &bytes);
        Self { bytes, crc }
    }

    /// Number of bytes.
    pub(super) fn length(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// A part that the server has stored.
#[derive(Clone, Debug)]
pub(super) struct StoredPart {
    pub(super) receipt: PartReceipt,
    pub(super) crc: u64,
    pub(super) length: u64,
}

/// Returns a CRC64NVME in the form of headers and documents.
pub(super) fn crc_text(crc: u64) -> String {
    BASE64.encode(crc.to_be_bytes())
}

/// Returns the CRC64NVME of the object that consists of these parts.
pub(super) fn crc_of_parts(parts: &[StoredPart]) -> u64 {
    let combine = |before, part: &StoredPart| {
        crc_fast::checksum_combine(CrcAlgorithm::Crc64Nvme, before, part.crc, part.length)
    };
    parts.iter().fold(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &[]), combine)
}

/// Checks that an object can be stored in parts of the largest size.
///
/// # Errors
/// It is larger.
pub(super) fn check_fits_parts(object_bytes: u64) -> Result<(), &'static str> {
    match object_bytes <= PUT_BYTES_MAX * u64::from(PART_NUMBER_MAX) {
        true => Ok(()),
        false => Err("too large: an object has at most 10,000 parts of 5 GiB"),
    }
}

/// Returns the size of the parts of an upload. An object that is not larger is uploaded as a whole.
pub(super) fn upload_part_bytes(object_bytes: u64, given: Option<u64>) -> u64 {
    given.unwrap_or(PART_BYTES).max(part_bytes_min(object_bytes))
}

/// Returns the size of the parts of a copy in the server; `None` if the object is copied as a whole.
pub(super) fn copy_part_bytes(object_bytes: u64, given: Option<u64>) -> Option<u64> {
    let whole_max = given.unwrap_or(PUT_BYTES_MAX);
    let part = given.unwrap_or(COPY_PART_BYTES).max(part_bytes_min(object_bytes));
    (object_bytes > whole_max).then_some(part)
}

/// Returns the size of a part of an upload whose length is unknown. Parts get larger, so that half a
/// tebibyte fits.
pub(super) fn stream_part_bytes(number: usize, given: Option<u64>) -> u64 {
    let factor = (number as u64).saturating_sub(1) / STREAM_PARTS_OF_ONE_SIZE + 1;
    given.unwrap_or_else(|| STREAM_PART_BYTES_MAX.min(PART_BYTES * factor))
}

/// Returns the smallest size of parts, in whole MiB, with which 10,000 of them suffice.
fn part_bytes_min(object_bytes: u64) -> u64 {
    object_bytes.div_ceil(u64::from(PART_NUMBER_MAX)).next_multiple_of(MIB)
}

/// Returns the parts of an object.
pub(super) fn parts_of(object_bytes: u64, part_bytes: u64) -> impl Iterator<Item = ObjectPartRange> {
    assert!(part_bytes > 0, "parts of no bytes would never cover an object");
    let starts = (0..object_bytes).step_by(usize::try_from(part_bytes).unwrap_or(usize::MAX));
    starts.enumerate().map(move |(at, start)| ObjectPartRange {
        number: at + 1,
        range: start..object_bytes.min(start.saturating_add(part_bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        CheckedBytes, StoredPart, check_fits_parts, copy_part_bytes, crc_of_parts, crc_text, parts_of,
        stream_part_bytes, upload_part_bytes,
    };
    use crate::s3::xml::PartReceipt;
    use bytes::Bytes;
    use mlgw_common::limits::{GIB, MIB, PUT_BYTES_MAX};

    #[test]
    fn parts_cover_the_object_and_are_at_most_10000() {
        let parts: Vec<_> = parts_of(10, 4).map(|part| (part.number, part.range)).collect();
        assert_eq!(parts, [(1, 0..4), (2, 4..8), (3, 8..10)]);
        assert_eq!((parts_of(8, 4).count(), parts_of(0, 4).count()), (2, 0));
        for bytes in [1, 16 * MIB, 150 * GIB, 700 * GIB, 50_000 * GIB - 1, 50_000 * GIB] {
            let part_bytes = upload_part_bytes(bytes, None);
            assert!(bytes.div_ceil(part_bytes) <= 10_000 && part_bytes <= PUT_BYTES_MAX, "{bytes}");
            assert_eq!(check_fits_parts(bytes), Ok(()));
        }
        assert!(check_fits_parts(50_000 * GIB + 1).is_err() && check_fits_parts(u64::MAX).is_err());
        assert_eq!((upload_part_bytes(GIB, None), upload_part_bytes(600 * GIB, None)), (16 * MIB, 62 * MIB));
        assert_eq!(upload_part_bytes(GIB, Some(8 * MIB)), 8 * MIB);
    }

    #[test]
    fn the_server_copies_up_to_5_gib_as_a_whole() {
        assert_eq!(copy_part_bytes(5 * GIB, None), None);
        assert_eq!(copy_part_bytes(5 * GIB + 1, None), Some(GIB));
        assert_eq!(copy_part_bytes(20 * MIB, Some(8 * MIB)), Some(8 * MIB));
    }

    #[test]
    fn parts_of_a_stream_get_larger() {
        let size = |number| stream_part_bytes(number, None) / MIB;
        assert_eq!([size(1), size(1000), size(1001), size(2001), size(10_000)], [16, 16, 32, 48, 64]);
        assert_eq!(stream_part_bytes(9000, Some(8 * MIB)), 8 * MIB);
    }

    #[test]
    fn checksums_of_parts_make_that_of_the_object() {
        let part = |text: &'static str| {
            let CheckedBytes { bytes, crc } = CheckedBytes::new(Bytes::from(text));
            let receipt = PartReceipt { number: 1, etag: String::new(), checksum: None };
            StoredPart { receipt, crc, length: bytes.len() as u64 }
        };
        assert_eq!(crc_text(crc_of_parts(&[part("1234"), part("56789")])), "rosUhgp5mIg=");
        assert_eq!(crc_text(crc_of_parts(&[part("123456789")])), "rosUhgp5mIg=");
    }
}
