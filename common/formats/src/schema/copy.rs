//! `copy`, `copy_block`, `copy_segment`, `copy_name`: what a node keeps of origins' objects, in a store of
//! its own, outside Raft.
//!
//! A copy is a row at (bucket id, escaped key): what the origin said of the object, and when. A small
//! object's extents stand in it; a larger one has a row for each block that is here, at (body id, number of
//! the block). Each block that is here, a small object being one, has a row at its id that names it. All of
//! it can be fetched again, so nothing of it is ever the only copy of anything.

use super::extent::ExtentPage;
use super::object::ObjectVersion;
use crate::key::{self, BadKey, Family, KeyReader, KeyWriter};
use mlgw_common::{BodyId, BucketId, SegmentId};
use std::borrow::Cow;

/// What is known of an origin's object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Copy {
    /// The object as its origin describes it, under a body id of this node. Without extents nothing of a
    /// small object is here.
    #[prost(message, required, tag = "1")]
    pub object: ObjectVersion,
    /// When the origin said so last, milliseconds since the epoch.
    #[prost(int64, tag = "2")]
    pub validated_ms: i64,
    /// Whether the origin was asked for its checksums, too.
    #[prost(bool, tag = "3")]
    pub with_checksums: bool,
    /// When it was read or fetched last, milliseconds since the epoch; it is noted now and then only.
    #[prost(int64, tag = "4")]
    pub read_ms: i64,
}

/// A segment of copies.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CopySegment {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What its checksums are seeded with besides.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Its length once sealed; 0 while it is open.
    #[prost(uint64, tag = "3")]
    pub length: u64,
    /// Bytes of the records in it that copies name; nothing when it was written before that was counted.
    #[prost(uint64, optional, tag = "4")]
    pub live_bytes: Option<u64>,
}

/// Which block an id stands for.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BlockName {
    /// The bucket's id.
    #[prost(uint64, tag = "1")]
    pub bucket: u64,
    /// The object's key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The number of the block in it.
    #[prost(uint64, tag = "3")]
    pub number: u64,
}

/// The row of a copy.
#[must_use]
pub fn row(bucket: BucketId, key: &[u8]) -> Vec<u8> {
    key::named(Family::Copy, bucket, key).finish()
}

/// The smallest row of a key that begins with `prefix` or comes after it.
#[must_use]
pub fn row_from(bucket: BucketId, prefix: &[u8]) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Copy, prefix.len() + 16).u64(bucket.0).name_prefix(prefix).finish()
}

/// The end of a bucket's rows.
#[must_use]
pub fn rows_end(bucket: BucketId) -> Vec<u8> {
    key::after_prefix(KeyWriter::new(Family::Copy).u64(bucket.0).finish())
}

/// The bucket and the key in a row.
///
/// # Errors
/// When it is no row of this family.
pub fn key_of(row: &[u8]) -> Result<(BucketId, Cow<'_, [u8]>), BadKey> {
    let mut fields = KeyReader::new(Family::Copy, row)?;
    let key = (BucketId(fields.u64()?), fields.name()?);
    fields.end()?;
    Ok(key)
}

/// The row of block `number` of a body; its value is an [`ExtentPage`].
#[must_use]
pub fn block_row(body: BodyId, number: u64) -> Vec<u8> {
    key::of_body(Family::CopyBlock, body).u64(number).finish()
}

/// The rows of all blocks of a body: the first, and the end.
#[must_use]
pub fn block_rows(body: BodyId) -> (Vec<u8>, Vec<u8>) {
    let first = key::of_body(Family::CopyBlock, body).finish();
    (first.clone(), key::after_prefix(first))
}

/// The number of the block in a row.
///
/// # Errors
/// When it is no row of this family.
pub fn block_of(row: &[u8]) -> Result<(BodyId, u64), BadKey> {
    let mut fields = KeyReader::new(Family::CopyBlock, row)?;
    let key = (BodyId(fields.u64()?), fields.u64()?);
    fields.end()?;
    Ok(key)
}

/// The row of a segment.
#[must_use]
pub fn segment_row(segment: SegmentId) -> Vec<u8> {
    key::numbered(Family::CopySegment, segment.0)
}

/// The row that names the block of an id.
#[must_use]
pub fn name_row(id: u64) -> Vec<u8> {
    key::numbered(Family::CopyName, id)
}

/// What a block's row holds.
pub type Block = ExtentPage;

#[cfg(test)]
mod tests {
    use super::{
        BlockName, Copy, CopySegment, block_of, block_row, block_rows, key_of, row, row_from, rows_end,
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
        let copy = Copy { object, validated_ms: 1000, with_checksums: true, read_ms: 0 };
        golden::check(&copy, include_str!("golden/copy.hex"));
        golden::check(&Copy { read_ms: 2000, ..copy }, include_str!("golden/copy_read.hex"));
        let segment = CopySegment { id: 7, generation: 9, length: 300, live_bytes: None };
        golden::check(&segment, include_str!("golden/copy_segment.hex"));
        let counted = CopySegment { live_bytes: Some(200), ..segment };
        golden::check(&counted, include_str!("golden/copy_segment_live.hex"));
        let name = BlockName { bucket: 3, key: "k".into(), number: 2 };
        golden::check(&name, include_str!("golden/copy_name.hex"));
    }
}
