//! Usage counters of one group. Rows: `bucket_usage`, keyed by bucket id; `segment_usage`, keyed by segment
//! id.
//!
//! `apply` maintains the counters with every command. A bucket's usage is the sum over its groups. A
//! segment's dead bytes are its sealed length minus the sum over all groups. Payers have the same counters as
//! buckets, see `quota`.

use crate::key::{self, BadKey, Family};
use mlgw_common::{BucketId, SegmentId};

/// Usage of a bucket, in one group or summed over groups.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BucketUsage {
    /// Keys with a current version.
    #[prost(uint64, tag = "1")]
    pub objects: u64,
    /// Versions, current ones included.
    #[prost(uint64, tag = "2")]
    pub versions: u64,
    /// Bytes of all versions, as clients see them.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Uploads in progress.
    #[prost(uint64, tag = "4")]
    pub uploads: u64,
    /// Bytes of parts of uploads in progress.
    #[prost(uint64, tag = "5")]
    pub upload_bytes: u64,
}

impl BucketUsage {
    /// True if the bucket may be deleted. Uploads in progress do not prevent its deletion.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.objects == 0 && self.versions == 0
    }

    /// Adds the counters of another group.
    pub const fn add(&mut self, other: &Self) {
        self.objects += other.objects;
        self.versions += other.versions;
        self.bytes += other.bytes;
        self.uploads += other.uploads;
        self.upload_bytes += other.upload_bytes;
    }

    /// Returns the counters minus `other`, or `None` if one of them would be negative.
    #[must_use]
    pub fn without(&self, other: &Self) -> Option<Self> {
        Some(Self {
            objects: self.objects.checked_sub(other.objects)?,
            versions: self.versions.checked_sub(other.versions)?,
            bytes: self.bytes.checked_sub(other.bytes)?,
            uploads: self.uploads.checked_sub(other.uploads)?,
            upload_bytes: self.upload_bytes.checked_sub(other.upload_bytes)?,
        })
    }
}

/// A group's references to a segment.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SegmentUsage {
    /// Bytes of the referenced chunk records, heads included.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// Number of extents.
    #[prost(uint64, tag = "2")]
    pub extents: u64,
    /// True if the segment was fenced, so that no references are added.
    #[prost(bool, tag = "3")]
    pub fenced: bool,
}

impl SegmentUsage {
    /// Adds the counters of another group.
    pub const fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.extents += other.extents;
        self.fenced |= other.fenced;
    }
}

/// Returns the row key of a bucket's counters.
#[must_use]
pub fn bucket_row(bucket: BucketId) -> Vec<u8> {
    key::number_key(Family::BucketUsage, bucket.0)
}

/// Returns the row key of a segment's counters.
#[must_use]
pub fn segment_row(segment: SegmentId) -> Vec<u8> {
    key::number_key(Family::SegmentUsage, segment.0)
}

/// Returns the segment in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn segment_key_of(row: &[u8]) -> Result<SegmentId, BadKey> {
    key::parse_number_key(Family::SegmentUsage, row).map(SegmentId)
}

#[cfg(test)]
mod tests {
    use super::{BucketUsage, SegmentUsage, bucket_row, segment_key_of, segment_row};
    use crate::schema::golden;
    use mlgw_common::{BucketId, SegmentId};
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_id(a: u64, b: u64) {
            prop_assert_eq!(bucket_row(BucketId(a)).cmp(&bucket_row(BucketId(b))), a.cmp(&b));
            prop_assert_eq!(segment_row(SegmentId(a)).cmp(&segment_row(SegmentId(b))), a.cmp(&b));
            prop_assert_eq!(segment_key_of(&segment_row(SegmentId(a))), Ok(SegmentId(a)));
        }
    }

    #[test]
    fn the_records_have_these_bytes() {
        let bucket = BucketUsage { objects: 1, versions: 2, bytes: 300, uploads: 4, upload_bytes: 5 };
        golden::check(&bucket, include_str!("golden/bucket_usage.hex"));
        let segment = SegmentUsage { bytes: 300, extents: 2, fenced: false };
        golden::check(&segment, include_str!("golden/segment_usage.hex"));
        let fenced = SegmentUsage { fenced: true, ..segment };
        golden::check(&fenced, include_str!("golden/segment_usage_fenced.hex"));
    }
}
