//! The checksum algorithms of objects: names, lengths, the computation of each, and their stored form.

use crate::schema::{Checksum, ChecksumAlgorithm, ChecksumKind, Upload};
use crc_fast::CrcAlgorithm;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Algorithm used when a client requests none, as at AWS. A checksum of 4 KiB takes 0.1 µs.
pub const DEFAULT_ALGORITHM: Algorithm = Algorithm::Crc64Nvme;

/// A checksum algorithm of the S3 API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// CRC-32 (ISO-HDLC).
    Crc32,
    /// CRC-32C (Castagnoli).
    Crc32c,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: &[Self] = &[Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    /// Returns AWS's name, as in `x-amz-checksum-algorithm` and in XML.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    /// Returns the header or trailer that carries a value, in base64.
    #[must_use]
    pub const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// True if the values of parts combine into the value of the whole object.
    #[must_use]
    pub const fn is_crc(self) -> bool {
        match self {
            Self::Crc32 | Self::Crc32c | Self::Crc64Nvme => true,
            Self::Sha1 | Self::Sha256 => false,
        }
    }

    /// Returns the length of a value in bytes.
    #[must_use]
    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// Returns the algorithm with this name. Case is ignored, as at AWS.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// Returns the algorithm whose values this header carries.
    #[must_use]
    pub fn from_header(header: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.header().eq_ignore_ascii_case(header))
    }

    /// Returns the checksum of `bytes`, big-endian as S3 writes it.
    #[must_use]
    pub fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let mut running = ChecksumHasher::new(self);
        running.update(bytes);
        running.finish()
    }
}

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

/// Returns the algorithm of a stored checksum.
#[must_use]
pub const fn algorithm_from_stored(stored: ChecksumAlgorithm) -> Algorithm {
    match stored {
        ChecksumAlgorithm::Crc32 => Algorithm::Crc32,
        ChecksumAlgorithm::Crc32C => Algorithm::Crc32c,
        ChecksumAlgorithm::Crc64Nvme => Algorithm::Crc64Nvme,
        ChecksumAlgorithm::Sha1 => Algorithm::Sha1,
        ChecksumAlgorithm::Sha256 => Algorithm::Sha256,
    }
}

/// Returns a checksum as it is stored.
#[must_use]
pub fn stored_checksum(algorithm: Algorithm, kind: ChecksumKind, value: Vec<u8>) -> Checksum {
    Checksum { algorithm: ChecksumAlgorithm::from(algorithm) as i32, kind: kind as i32, value }
}

/// Returns the algorithm and kind that an upload was created with, or `None` if it has none.
#[must_use]
pub fn upload_checksum_type(upload: &Upload) -> Option<(Algorithm, ChecksumKind)> {
    let stored = ChecksumAlgorithm::try_from(upload.checksum_algorithm?).ok()?;
    let kind = ChecksumKind::try_from(upload.checksum_kind?).ok()?;
    Some((algorithm_from_stored(stored), kind))
}

/// A checksum that is being computed incrementally.
pub struct ChecksumHasher {
    algorithm: Algorithm,
    state: ChecksumHasherState,
}

enum ChecksumHasherState {
    Crc(crc_fast::Digest),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl ChecksumHasher {
    /// Starts the checksum of an empty input.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        let crc = |kind| ChecksumHasherState::Crc(crc_fast::Digest::new(kind));
        let state = match algorithm {
            Algorithm::Crc32 => crc(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 => ChecksumHasherState::Sha1(Sha1::new()),
            Algorithm::Sha256 => ChecksumHasherState::Sha256(Sha256::new()),
        };
        Self { algorithm, state }
    }

    /// Returns the algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            ChecksumHasherState::Crc(crc) => crc.update(bytes),
            ChecksumHasherState::Sha1(sha) => sha.update(bytes),
            ChecksumHasherState::Sha256(sha) => sha.update(bytes),
        }
    }

    /// Returns the checksum, big-endian as S3 writes it.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        match self.state {
            ChecksumHasherState::Crc(crc) => {
                let value = crc.finalize().to_be_bytes();
                value[value.len() - self.algorithm.value_bytes()..].to_vec()
            }
            ChecksumHasherState::Sha1(sha) => sha.finalize().to_vec(),
            ChecksumHasherState::Sha256(sha) => sha.finalize().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, algorithm_from_stored};
    use crate::schema::ChecksumAlgorithm;
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;

    #[test]
    fn stored_algorithms_round_trip() {
        for one in Algorithm::ALL {
            assert_eq!(algorithm_from_stored(ChecksumAlgorithm::from(*one)), *one);
        }
    }

    #[test]
    fn values_match_those_of_the_sdks() {
        for (algorithm, value) in [
            (Algorithm::Crc32, "y/Q5Jg=="),
            (Algorithm::Crc32c, "4waSgw=="),
            (Algorithm::Crc64Nvme, "rosUhgp5mIg="),
            (Algorithm::Sha1, "98O8HYCOBHMq32eZZczDTKeuNEE="),
            (Algorithm::Sha256, "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ] {
            assert_eq!(BASE64_STANDARD.encode(algorithm.digest(b"123456789")), value, "{}", algorithm.name());
            assert_eq!(algorithm.digest(b"123456789").len(), algorithm.value_bytes());
        }
    }

    #[test]
    fn names_and_headers_find_their_algorithm() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(&algorithm.name().to_lowercase()), Some(*algorithm));
            assert_eq!(Algorithm::from_header(algorithm.header()), Some(*algorithm));
        }
        assert_eq!(Algorithm::from_name("MD5"), None);
        assert_eq!(Algorithm::from_header("x-amz-checksum-type"), None);
    }
}
