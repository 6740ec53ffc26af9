//! Maps of bodies that do not fit in their records. Rows: `extent`, a page keyed by (body id, first logical
//! byte).
//!
//! A page holds either extents, in order and without gaps, or the part index of a multipart body: the parts
//! in order, with their lengths. Pages of one body also follow each other without gaps, so the page of a byte
//! is the last one that begins at or before it. An extent names a segment, an offset and lengths, never a
//! file or a tier: moving a segment changes no extent.

use crate::key::{self, BadKey, Family, KeyReader};
use mlgw_common::{BodyId, SegmentId};

/// A contiguous range of a body, stored as one chunk.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Extent {
    /// The segment that holds the chunk.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Offset of the chunk's record header in the segment.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// Bytes of header, key and block table; the payload follows them.
    #[prost(uint32, tag = "3")]
    pub head_bytes: u32,
    /// Bytes of the payload as stored.
    #[prost(uint64, tag = "4")]
    pub stored_bytes: u64,
    /// Bytes of the body that the chunk encodes.
    #[prost(uint64, tag = "5")]
    pub logical_bytes: u64,
    /// Encoding of the payload.
    #[prost(enumeration = "Encoding", tag = "6")]
    pub encoding: i32,
    /// The wrapped data key; empty if not encrypted.
    #[prost(bytes = "vec", tag = "7")]
    pub data_key: Vec<u8>,
}

impl Extent {
    /// Returns the segment that holds the chunk.
    #[must_use]
    pub const fn segment_id(&self) -> SegmentId {
        SegmentId(self.segment)
    }

    /// Returns the bytes of the segment that the extent keeps live.
    #[must_use]
    pub const fn record_bytes(&self) -> u64 {
        self.stored_bytes.saturating_add(self.head_bytes as u64)
    }
}

/// Encoding of an extent's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Encoding {
    /// Raw bytes.
    Raw = 0,
    /// Each block of 64 KiB is compressed with zstd on its own if that makes it smaller.
    Zstd = 1,
}

impl Encoding {
    /// Returns the name of the encoding, for display.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Zstd => "zstd",
        }
    }
}

/// A page of a body's map. Exactly one of its lists has entries.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExtentPage {
    /// Extents, in order.
    #[prost(message, repeated, tag = "1")]
    pub extents: Vec<Extent>,
    /// Parts, in order.
    #[prost(message, repeated, tag = "2")]
    pub parts: Vec<PartRange>,
}

impl ExtentPage {
    /// Returns the bytes of the body that the page covers.
    #[must_use]
    pub fn logical_bytes(&self) -> u64 {
        let extents = self.extents.iter().map(|e| e.logical_bytes);
        extents.chain(self.parts.iter().map(|p| p.bytes)).fold(0, u64::saturating_add)
    }
}

/// A part in a multipart body's index.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PartRange {
    /// Number of the part.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// Length of the part in bytes.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

/// Returns the row key of the page of `body` that begins at byte `first`.
#[must_use]
pub fn row(body: BodyId, first: u64) -> Vec<u8> {
    key::body_key(Family::Extent, body).u64(first).finish()
}

/// Returns the end of a body's row keys, exclusive.
#[must_use]
pub fn rows_end(body: BodyId) -> Vec<u8> {
    key::after_prefix(key::body_key(Family::Extent, body).finish())
}

/// Returns the body and the first byte in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<(BodyId, u64), BadKey> {
    let mut fields = KeyReader::new(Family::Extent, row)?;
    let key = (BodyId(fields.u64()?), fields.u64()?);
    fields.end()?;
    Ok(key)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Extent, ExtentPage, PartRange, key_of, row, rows_end};
    use crate::schema::golden;
    use mlgw_common::BodyId;
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    pub(crate) fn full() -> Extent {
        Extent {
            segment: 3,
            offset: 4096,
            head_bytes: 80,
            stored_bytes: 300,
            logical_bytes: 301,
            encoding: 1,
            data_key: vec![5, 6],
        }
    }

    proptest! {
        #[test]
        fn rows_sort_by_body_and_byte_and_give_them_back(
            a: u64, b: u64, x in any::<u64>(), y in any::<u64>()
        ) {
            let (p, q) = (row(BodyId(a), x), row(BodyId(b), y));
            prop_assert_eq!(p.cmp(&q), (a, x).cmp(&(b, y)));
            prop_assert_eq!(key_of(&p), Ok((BodyId(a), x)));
            prop_assert!(p < rows_end(BodyId(a)));
        }
    }

    #[test]
    fn the_records_have_these_bytes() {
        let page = ExtentPage { extents: vec![full()], parts: vec![] };
        golden::check(&page, include_str!("golden/extent.hex"));
        let index = ExtentPage {
            extents: vec![],
            parts: vec![PartRange { number: 1, bytes: 300 }, PartRange { number: 9, bytes: 1 }],
        };
        golden::check(&index, include_str!("golden/part_index.hex"));
        assert_eq!((page.logical_bytes(), index.logical_bytes()), (301, 301));
        assert_eq!(full().record_bytes(), 380);
    }
}
