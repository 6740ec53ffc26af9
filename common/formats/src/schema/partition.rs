//! Assignment of ranges of keys to groups. Rows: `partition` in group 0, keyed by (bucket id, escaped first
//! key).
//!
//! A row assigns the keys from its own key up to the next row's key. A row at the lowest key always exists.
//! The assignment is a map of ranges and not a hash function, so that ranges can move.

use crate::key::{BadKey, Family, KeyReader, KeyWriter};
use mlgw_common::{BucketId, GroupId};

/// The group of a range of keys.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Partition {
    /// The Raft group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
}

/// Start of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartitionStart {
    /// Bucket of the first key.
    pub bucket: BucketId,
    /// First key; empty for the bucket's first.
    pub key: Vec<u8>,
}

impl Partition {
    /// Returns the Raft group.
    #[must_use]
    pub const fn group_id(&self) -> GroupId {
        GroupId(self.group)
    }
}

/// Returns the row key of the range that begins at `start`.
#[must_use]
pub fn row_key(start: &PartitionStart) -> Vec<u8> {
    KeyWriter::new(Family::Partition).u64(start.bucket.0).name(&start.key).finish()
}

/// Returns the start of the range in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn parse_row_key(row: &[u8]) -> Result<PartitionStart, BadKey> {
    let mut fields = KeyReader::new(Family::Partition, row)?;
    let bucket = BucketId(fields.u64()?);
    let key = fields.name()?.into_owned();
    fields.end()?;
    Ok(PartitionStart { bucket, key })
}

#[cfg(test)]
mod tests {
    use super::{Partition, PartitionStart, parse_row_key, row_key};
    use crate::schema::golden;
    use mlgw_common::BucketId;
    use proptest::prelude::prop;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_bucket_and_key(
            a: u64, x in prop::collection::vec(0u8..3, 0..6),
            b: u64, y in prop::collection::vec(0u8..3, 0..6),
        ) {
            let p = PartitionStart { bucket: BucketId(a), key: x };
            let q = PartitionStart { bucket: BucketId(b), key: y };
            prop_assert_eq!(row_key(&p).cmp(&row_key(&q)), p.cmp(&q));
            prop_assert_eq!(parse_row_key(&row_key(&p)), Ok(p));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        golden::check(&Partition { group: 3 }, include_str!("golden/partition.hex"));
    }
}
