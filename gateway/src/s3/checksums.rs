//! Checksums as they are stored, and as headers and documents carry them.

use super::response::header_value;
use crate::body::Algorithm;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_metadata::schema::{Checksum, ChecksumAlgorithm, ChecksumKind, ObjectVersion, Upload};
use std::fmt::Write;

impl From<Algorithm> for ChecksumAlgorithm {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Crc32 => Self::Crc32,
            Algorithm::Crc32c => Self::Crc32C,
            Algorithm::Crc64Nvme => Self::Crc64Nvme,
            Algorithm::Sha1 => Self::Sha1,
            Algorithm::Sha256 => Self::Sha256,
        }
    }
}

/// The stored algorithm as the protocol knows it.
#[must_use]
pub const fn algorithm(stored: ChecksumAlgorithm) -> Algorithm {
    match stored {
        ChecksumAlgorithm::Crc32 => Algorithm::Crc32,
        ChecksumAlgorithm::Crc32C => Algorithm::Crc32c,
        ChecksumAlgorithm::Crc64Nvme => Algorithm::Crc64Nvme,
        ChecksumAlgorithm::Sha1 => Algorithm::Sha1,
        ChecksumAlgorithm::Sha256 => Algorithm::Sha256,
    }
}

/// The element that carries a checksum of `algorithm`.
#[must_use]
pub const fn element(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Crc32 => "ChecksumCRC32",
        Algorithm::Crc32c => "ChecksumCRC32C",
        Algorithm::Crc64Nvme => "ChecksumCRC64NVME",
        Algorithm::Sha1 => "ChecksumSHA1",
        Algorithm::Sha256 => "ChecksumSHA256",
    }
}

/// A kind's name in headers and documents.
#[must_use]
pub const fn kind_name(kind: ChecksumKind) -> &'static str {
    match kind {
        ChecksumKind::FullObject => "FULL_OBJECT",
        ChecksumKind::Composite => "COMPOSITE",
    }
}

/// A checksum as headers and documents carry it; a composite one names its number of parts.
#[must_use]
pub fn text(checksum: &Checksum, part_count: u32) -> String {
    let mut text = BASE64.encode(&checksum.value);
    if checksum.kind() == ChecksumKind::Composite {
        // Writing to a String cannot fail.
        let _ = write!(text, "-{part_count}");
    }
    text
}

/// A checksum as it is stored.
#[must_use]
pub fn stored(algorithm: Algorithm, kind: ChecksumKind, value: Vec<u8>) -> Checksum {
    Checksum { algorithm: ChecksumAlgorithm::from(algorithm) as i32, kind: kind as i32, value }
}

/// The algorithm and kind that an upload was begun with, if it was with any.
#[must_use]
pub fn of_upload(upload: &Upload) -> Option<(Algorithm, ChecksumKind)> {
    let stored = ChecksumAlgorithm::try_from(upload.checksum_algorithm?).ok()?;
    let kind = ChecksumKind::try_from(upload.checksum_kind?).ok()?;
    Some((algorithm(stored), kind))
}

/// Repeats the checksums of a body that was put whole, as headers of the answer.
pub fn echo(checksums: &[Checksum], headers: &mut HeaderMap) {
    for checksum in checksums {
        let name = HeaderName::from_static(algorithm(checksum.algorithm()).header());
        headers.insert(name, header_value(&text(checksum, 0)));
    }
}

/// The checksums of a part of `object`, as headers, with the kind of the object's own.
pub fn describe_part(object: &ObjectVersion, part: &[Checksum], headers: &mut HeaderMap) {
    echo(part, headers);
    if let (Some(whole), false) = (object.checksums.first(), part.is_empty()) {
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(kind_name(whole.kind())));
    }
}

/// The checksums of an object, as headers, with their kind.
pub fn describe(object: &ObjectVersion, headers: &mut HeaderMap) {
    for checksum in &object.checksums {
        let name = HeaderName::from_static(algorithm(checksum.algorithm()).header());
        headers.insert(name, header_value(&text(checksum, object.part_count)));
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(kind_name(checksum.kind())));
    }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, algorithm, stored, text};
    use mlgw_metadata::schema::{ChecksumAlgorithm, ChecksumKind};

    #[test]
    fn algorithms_are_the_same_on_both_sides() {
        for one in Algorithm::ALL {
            assert_eq!(algorithm(ChecksumAlgorithm::from(*one)), *one);
        }
    }

    #[test]
    fn a_composite_checksum_names_its_parts() {
        let of = |kind| text(&stored(Algorithm::Crc32, kind, vec![0; 4]), 3);
        assert_eq!(of(ChecksumKind::FullObject), "AAAAAA==");
        assert_eq!(of(ChecksumKind::Composite), "AAAAAA==-3");
    }
}
