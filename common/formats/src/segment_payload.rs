//! Stored form of a chunk: raw, or compressed block by block. Immutable bytes, cheap to clone.
//!
//! Invariant: a compressed payload carries the stored length of each of its blocks in the `extra` bytes of
//! its record. A chunk is moved by copying the stored bytes and `extra` unchanged.

use crate::schema::Encoding;
use bytes::Bytes;

/// Bytes of a chunk as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The bytes as they are stored.
    pub stored: Bytes,
    /// Encoding of the stored bytes.
    pub encoding: Encoding,
    /// Bytes between the key and the checksum table of the record; empty for a raw chunk.
    pub extra: Bytes,
    /// Bytes of the chunk before encoding.
    pub logical_bytes: usize,
}

impl Payload {
    /// Returns the payload of bytes that are stored raw.
    #[must_use]
    pub const fn raw(bytes: Bytes) -> Self {
        let logical_bytes = bytes.len();
        Self { stored: bytes, encoding: Encoding::Raw, extra: Bytes::new(), logical_bytes }
    }

    /// Returns the stored bytes; for a raw chunk these are the original bytes.
    #[must_use]
    pub const fn stored(&self) -> &Bytes {
        &self.stored
    }

    /// Returns the number of stored bytes.
    #[must_use]
    pub const fn stored_bytes(&self) -> usize {
        self.stored.len()
    }

    /// Returns the number of bytes before encoding, as clients see them.
    #[must_use]
    pub const fn logical_bytes(&self) -> usize {
        self.logical_bytes
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::raw(bytes)
    }
}
