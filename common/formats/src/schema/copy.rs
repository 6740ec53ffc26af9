//! Cached copies of origins' objects, in a store of each node, outside Raft. Rows: `copy`, `copy_block`,
//! `copy_segment`, `copy_name`.
//!
//! A copy is a row keyed by (bucket id, escaped key): the metadata of the object as the origin reported it,
//! and the time of the report. The row of a small object contains its extents. A larger object has a row for
//! each cached block, keyed by (body id, number of the block). Each cached block has a row keyed by its id
//! that names it; a small object is one block. Everything can be fetched again: no row is the only copy of
//! any data.

use super::extent::ExtentPage;
use super::object::ObjectVersion;
use crate::key::{self, BadKey, Family, KeyReader, KeyWriter};
use mlgw_common::{BodyId, BucketId, SegmentId};
use std::borrow::Cow;

/// Cached metadata of an origin's object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CopyRecord {
    /// The object as its origin describes it, under a body id of this node. A small object without extents
    /// has no cached data.
    #[prost(message, required, tag = "1")]
    pub object: ObjectVersion,
    /// Time of the last validation at the origin, milliseconds since the epoch.
    #[prost(int64, tag = "2")]
    pub validated_ms: i64,
    /// True if the checksums were requested from the origin, too.
    #[prost(bool, tag = "3")]
    pub with_checksums: bool,
    /// Time of the last read or fetch, milliseconds since the epoch; updated only occasionally.
    #[prost(int64, tag = "4")]
    pub read_ms: i64,
}

/// A segment of copies.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CopySegment {
    /// Id of the segment.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Generation, which is part of the seed of its checksums.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Length once sealed; 0 while the segment is open.
    #[prost(uint64, tag = "3")]
    pub length: u64,
    /// Bytes of the records in it that copies refer to. `None` if the row was written before they were
    /// counted.
    #[prost(uint64, optional, tag = "4")]
    pub live_bytes: Option<u64>,
}

/// The block that a block id refers to.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BlockName {
    /// The bucket's id.
    #[prost(uint64, tag = "1")]
    pub bucket: u64,
    /// The object's key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// Number of the block in the object.
    #[prost(uint64, tag = "3")]
    pub number: u64,
}

/// Returns the row key of a copy.
#[must_use]
pub fn row(bucket: BucketId, key: &[u8]) -> Vec<u8> {
    key::named_key(Family::Copy, bucket, key).finish()
}

/// Returns the smallest row key of an object key that begins with `prefix` or sorts after it.
#[must_use]
pub fn row_from(bucket: BucketId, prefix: &[u8]) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Copy, prefix.len() + 16).u64(bucket.0).name_prefix(prefix).finish()
}

/// Returns the end of a bucket's row keys, exclusive.
#[must_use]
pub fn rows_end(bucket: BucketId) -> Vec<u8> {
    key::after_prefix(KeyWriter::new(Family::Copy).u64(bucket.0).finish())
}

/// Returns the bucket and the object key in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<(BucketId, Cow<'_, [u8]>), BadKey> {
    let mut fields = KeyReader::new(Family::Copy, row)?;
    let key = (BucketId(fields.u64()?), fields.name()?);
    fields.end()?;
    Ok(key)
}

/// Returns the row key of block `number` of a body; the row's value is an [`ExtentPage`].
#[must_use]
pub fn block_row(body: BodyId, number: u64) -> Vec<u8> {
    key::body_key(Family::CopyBlock, body).u64(number).finish()
}

/// Returns the range of row keys of all blocks of a body: the first key and the exclusive end.
#[must_use]
pub fn block_rows(body: BodyId) -> (Vec<u8>, Vec<u8>) {
    let first = key::body_key(Family::CopyBlock, body).finish();
    (first.clone(), key::after_prefix(first))
}

/// Returns the body and the block number in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn block_of(row: &[u8]) -> Result<(BodyId, u64), BadKey> {
    let mut fields = KeyReader::new(Family::CopyBlock, row)?;
    let key = (BodyId(fields.u64()?), fields.u64()?);
    fields.end()?;
    Ok(key)
}

/// Returns the row key of a segment.
#[must_use]
pub fn segment_row(segment: SegmentId) -> Vec<u8> {
    key::number_key(Family::CopySegment, segment.0)
}

/// Returns the row key of the block name of `id`.
#[must_use]
pub fn name_row(id: u64) -> Vec<u8> {
    key::number_key(Family::CopyName, id)
}

/// Value of a block's row.
pub type CopyBlockRecord = ExtentPage;

#[cfg(test)]
mod tests {
    use super::{
        BlockName, CopyRecord, CopySegment, block_of, block_row, block_rows, key_of, row, row_from, rows_end,
    };
    use crate::schema::{ObjectVersion, golden};
    use mlgw_common::{BodyId, BucketId};
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_as_their_keys(a in any::<Vec<u8>>(), b in any::<Vec<u8>>(), bucket: u64) {
            let bucket = BucketId(bucket);
            prop_assert_eq!(row(bucket, &a).cmp(&row(bucket, &b)), a.cmp(&b));
            let row = row(bucket, &a);
            prop_assert_eq!(key_of(&row).unwrap(), (bucket, a.as_slice().into()));
            prop_assert!(row_from(bucket, &a) <= row && row < rows_end(bucket));
        }

        #[test]
        fn blocks_sort_by_body_and_number(body: u64, x: u64, y: u64) {
            let body = BodyId(body);
            prop_assert_eq!(block_row(body, x).cmp(&block_row(body, y)), x.cmp(&y));
            prop_assert_eq!(block_of(&block_row(body, x)), Ok((body, x)));
            let (first, end) = block_rows(body);
            prop_assert!(first <= block_row(body, x) && block_row(body, x) < end);
        }
    }

    #[test]
    fn the_records_have_these_bytes() {
        let object = ObjectVersion { size: 5, etag: "e".into(), ..ObjectVersion::default() };
        let copy = CopyRecord { object, validated_ms: 1000, with_checksums: true, read_ms: 0 };
        golden::check(&copy, include_str!("golden/copy.hex"));
        golden::check(&CopyRecord { read_ms: 2000, ..copy }, include_str!("golden/copy_read.hex"));
        let segment = CopySegment { id: 7, generation: 9, length: 300, live_bytes: None };
        golden::check(&segment, include_str!("golden/copy_segment.hex"));
        let counted = CopySegment { live_bytes: Some(200), ..segment };
        golden::check(&counted, include_str!("golden/copy_segment_live.hex"));
        let name = BlockName { bucket: 3, key: "k".into(), number: 2 };
        golden::check(&name, include_str!("golden/copy_name.hex"));
    }
}
