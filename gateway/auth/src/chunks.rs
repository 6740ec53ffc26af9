//! Chain of signatures in a signed aws-chunked body.
//!
//! Each chunk's signature covers the previous signature, and the first covers the signature of the request,
//! so chunks cannot be changed, dropped, repeated or reordered.

use super::mismatch;
use super::signing_key::SigningKey;
use super::time::AmzDate;
use mlgw_common::hex;
use mlgw_wire::error::S3Error;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// SHA-256 of the empty string, which chunks sign in the place of headers.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Verifies the chunks of a body in order.
#[derive(Clone, Debug)]
pub struct ChunkSigner {
    key: Arc<SigningKey>,
    date: AmzDate,
    access_key: Box<str>,
    scope: Box<str>,
    previous: [u8; 64],
}

impl ChunkSigner {
    /// Starts a chain with the signature of a request that was verified with `key`.
    pub(super) fn new(key: Arc<SigningKey>, claim: &super::canonical::SignatureClaim<'_>) -> Self {
        let Ok(previous) = claim.signature.as_bytes().try_into() else {
            unreachable!("a signature that was verified has 64 digits");
        };
        let scope = claim.scope;
        Self {
            key,
            date: claim.date,
            access_key: scope.access_key.into(),
            scope: scope.text.into(),
            previous,
        }
    }

    /// Verifies the signature of the next chunk, whose bytes have this SHA-256.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`.
    pub fn verify_chunk(&mut self, sha256: &[u8; 32], signature: &[u8]) -> Result<(), S3Error> {
        let hash = hex::encode(sha256);
        self.verify("AWS4-HMAC-SHA256-PAYLOAD", &[EMPTY_SHA256.as_bytes(), b"\n", &hash], signature)
    }

    /// Verifies the signature of the trailers, whose lines `name:value\n` have this SHA-256.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`.
    pub fn verify_trailer(&mut self, sha256: &[u8; 32], signature: &[u8]) -> Result<(), S3Error> {
        let hash = hex::encode(sha256);
        self.verify("AWS4-HMAC-SHA256-TRAILER", &[&hash], signature)
    }

    fn verify(&mut self, algorithm: &str, hashes: &[&[u8]], signature: &[u8]) -> Result<(), S3Error> {
        let head: [&[u8]; 8] = [
            algorithm.as_bytes(),
            b"\n",
            self.date.as_str().as_bytes(),
            b"\n",
            self.scope.as_bytes(),
            b"\n",
            &self.previous,
            b"\n",
        ];
        let parts = [&head[..], hashes].concat();
        let right = hex::encode(&self.key.sign(&parts));
        if !bool::from(right.ct_eq(signature)) {
            return Err(mismatch(&self.access_key, &String::from_utf8_lossy(signature), &parts.concat()));
        }
        self.previous = right;
        Ok(())
    }
}
