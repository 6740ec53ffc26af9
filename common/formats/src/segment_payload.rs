//! What a chunk is stored as: as it came, or compressed block by block. Immutable bytes, cheap to clone.
//!
//! Always: what is compressed says how long each of its blocks is as stored, in the bytes of the record's
//! extra; who moves a chunk elsewhere copies both as they are.

use crate::schema::Encoding;
use bytes::Bytes;

use crate::segment_record::Head;

/// The bytes of a chunk as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The bytes as they are stored.
    pub stored: Bytes,
    /// How they are encoded.
    pub encoding: Encoding,
    /// What stands between key and table of its record: nothing where it is raw.
    pub extra: Bytes,
    /// Bytes of the chunk before encoding.
    pub logical_bytes: usize,
}

impl Payload {
    /// Bytes that are stored as they came.
    #[must_use]
    pub const fn raw(bytes: Bytes) -> Self {
        let logical_bytes = bytes.len();
        Self { stored: bytes, encoding: Encoding::Raw, extra: Bytes::new(), logical_bytes }
    }

    /// What a record of this head holds.
    pub fn of(head: &Head<'_>, stored: Bytes) -> Self {
        let (encoding, logical_bytes) = (head.encoding, head.logical_bytes);
        Self { stored, encoding, extra: Bytes::copy_from_slice(head.extra), logical_bytes }
    }

    /// What is stored; of a raw one, the bytes as they came.
    #[must_use]
    pub const fn stored(&self) -> &Bytes {
        &self.stored
    }

    /// Bytes as stored.
    #[must_use]
    pub const fn stored_bytes(&self) -> usize {
        self.stored.len()
    }

    /// Bytes as clients see them.
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
