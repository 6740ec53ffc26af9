//! `partition` (group 0, at (bucket id, escaped first key)): which group holds which keys.
//!
//! A row says where the keys from its own on are, up to the next row. There always is a row at
//! the very beginning. A map of ranges, never a hash in code, so that a range can move.

use crate::key::{BadKey, Family, KeyReader, KeyWriter};
use mlgw_common::{BucketId, GroupId};

/// The group of a range of keys.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Partition {
    /// The Raft group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
}

/// Where a range begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartitionStart {
    /// The bucket of its first key.
    pub bucket: BucketId,
    /// Its first key; empty for the bucket's first.
    pub key: Vec<u8>,
}

impl Partition {
    /// The Raft group.
    #[must_use]
    pub const fn group_id(&self) -> GroupId {
        GroupId(self.group)
    }
}

/// The row of the range that begins at `start`.
#[must_use]
pub fn row(start: &PartitionStart) -> Vec<u8> {
    KeyWriter::new(Family::Partition).u64(start.bucket.0).name(&start.key).finish()
}

/// Where the range of a row begins.
///
/// # Errors
/// When it is no row of this family.
pub fn key_of(row: &[u8]) -> Result<PartitionStart, BadKey> {
    let mut fields = KeyReader::new(Family::Partition, row)?;
    let bucket = BucketId(fields.u64()?);
    let key = fields.name()?.into_owned();
    fields.end()?;
    Ok(PartitionStart { bucket, key })
}

#[cfg(test)]
mod tests {
    use super::{Partition, PartitionStart, key_of, row};
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
            prop_assert_eq!(row(&p).cmp(&row(&q)), p.cmp(&q));
            prop_assert_eq!(key_of(&row(&p)), Ok(p));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        golden::check(&Partition { group: 3 }, include_str!("golden/partition.hex"));
    }
}
