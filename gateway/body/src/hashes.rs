//! Hashes of a body, computed in a single pass and each of them once.

use md5::Md5;
use mlgw_formats::checksum::{Algorithm, ChecksumHasher};
use sha2::{Digest, Sha256};

/// Hashes that are being computed.
#[derive(Default)]
pub(super) struct BodyHasher {
    md5: Option<Md5>,
    /// Serves both as the signed payload hash and as the SHA256 checksum.
    sha256: Option<Sha256>,
    sha256_is_checksum: bool,
    checksums: Vec<ChecksumHasher>,
}

/// Hashes of a whole body.
#[derive(Debug, Default)]
pub(super) struct BodyHashes {
    pub(super) md5: Option<[u8; 16]>,
    pub(super) sha256: Option<[u8; 32]>,
    pub(super) checksums: Vec<(Algorithm, Vec<u8>)>,
}

impl BodyHasher {
    /// Returns hashers for the checksums by these algorithms.
    pub(super) fn new(checksums: [Option<Algorithm>; 2]) -> Self {
        let mut hashes = Self::default();
        for algorithm in checksums.into_iter().flatten() {
            if algorithm == Algorithm::Sha256 {
                hashes.sha256.get_or_insert_with(Sha256::new);
                hashes.sha256_is_checksum = true;
            } else if hashes.checksums.iter().all(|running| running.algorithm() != algorithm) {
                hashes.checksums.push(ChecksumHasher::new(algorithm));
            }
        }
        hashes
    }

    /// Adds the MD5. To be called before the first byte.
    pub(super) fn add_md5(&mut self) {
        self.md5.get_or_insert_with(Md5::new);
    }

    /// Adds the SHA-256 of a signed body. To be called before the first byte.
    pub(super) fn add_sha256(&mut self) {
        self.sha256.get_or_insert_with(Sha256::new);
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
        for running in &mut self.checksums {
            running.update(bytes);
        }
    }

    pub(super) fn finish(self) -> BodyHashes {
        assert!(!self.sha256_is_checksum || self.sha256.is_some(), "a requested SHA-256 is computed");
        let sha256: Option<[u8; 32]> = self.sha256.map(|sha| sha.finalize().into());
        let mut checksums: Vec<_> =
            self.checksums.into_iter().map(|running| (running.algorithm(), running.finish())).collect();
        if let Some(hash) = sha256.filter(|_| self.sha256_is_checksum) {
            checksums.push((Algorithm::Sha256, hash.to_vec()));
        }
        BodyHashes { md5: self.md5.map(|md5| md5.finalize().into()), sha256, checksums }
    }
}
