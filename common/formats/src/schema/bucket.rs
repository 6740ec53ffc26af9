//! Buckets. Rows: `bucket` in group 0, keyed by name; `mirror` in each object group, keyed by bucket id.
//!
//! Group 0 owns a bucket's name, state and settings. Each object group keeps a mirror of the fields that its
//! `apply` needs. The epoch rises with every change, and an object command that was built against another
//! epoch than that of its group's mirror is rejected.

use super::quota::{Quota, QuotaSlice};
use crate::key::{self, BadKey, Family, KeyWriter};
use mlgw_common::{BucketId, Epoch};

/// A bucket.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Bucket {
    /// Id of the bucket; never changes.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name of the bucket.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Owner id.
    #[prost(string, tag = "3")]
    pub owner: String,
    /// Creation time, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub created_ms: i64,
    /// LocationConstraint; empty is us-east-1.
    #[prost(string, tag = "5")]
    pub region: String,
    /// State in the bucket's life cycle.
    #[prost(enumeration = "BucketState", tag = "6")]
    pub state: i32,
    /// Versioning state.
    #[prost(enumeration = "Versioning", tag = "7")]
    pub versioning: i32,
    /// Retention of new objects.
    #[prost(message, optional, tag = "8")]
    pub lock_default: Option<LockDefault>,
    /// Number of changes of the bucket.
    #[prost(uint64, tag = "9")]
    pub epoch: u64,
    /// Tags.
    #[prost(message, repeated, tag = "10")]
    #[serde(skip)]
    pub tags: Vec<super::Pair>,
    /// Origin of a remote-backed bucket; `None` for a native one.
    #[prost(message, optional, tag = "11")]
    #[serde(default)]
    pub binding: Option<Binding>,
    /// Quota of the bucket.
    #[prost(message, optional, tag = "12")]
    #[serde(default)]
    pub quota: Option<Quota>,
}

impl Bucket {
    /// Returns the bucket's id.
    #[must_use]
    pub const fn bucket_id(&self) -> BucketId {
        BucketId(self.id)
    }

    /// Returns the epoch that object commands carry.
    #[must_use]
    pub const fn current_epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }
}

/// Origin of a remote-backed bucket: a bucket of an upstream.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Binding {
    /// The upstream's name in the configuration.
    #[prost(string, tag = "1")]
    pub upstream: String,
    /// Prefix of the origin's keys that is stripped from the keys shown here; may be empty.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// Handling of writes.
    #[prost(enumeration = "BindMode", tag = "3")]
    pub mode: i32,
    /// Time for which metadata from the origin is valid, in milliseconds; `None` uses the configured default.
    #[prost(uint64, optional, tag = "4")]
    pub ttl_ms: Option<u64>,
}

/// Handling of writes to a remote-backed bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum BindMode {
    /// Writes are refused.
    ReadThrough = 0,
    /// Writes are acknowledged when they are stored at the origin.
    WriteThrough = 1,
    /// Writes are acknowledged when they are durable here.
    WriteBack = 2,
}

/// State in a bucket's life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum BucketState {
    /// The name is taken; not every object group has the bucket's mirror yet.
    Creating = 0,
    /// In use.
    Active = 1,
    /// The bucket is checked and removed; it becomes active again if it is not empty.
    Deleting = 2,
}

/// Versioning state of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Versioning {
    /// Never enabled.
    Never = 0,
    /// Every write creates a version.
    Enabled = 1,
    /// New writes replace the `null` version.
    Suspended = 2,
}

/// Object Lock's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum LockMode {
    /// No lock.
    None = 0,
    /// Users with the permission may lift the lock.
    Governance = 1,
    /// No user may lift the lock.
    Compliance = 2,
}

/// Default retention of a bucket's new objects.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct LockDefault {
    /// Lock mode.
    #[prost(enumeration = "LockMode", tag = "1")]
    pub mode: i32,
    /// Duration in days.
    #[prost(uint32, tag = "2")]
    pub days: u32,
}

/// An object group's copy of a bucket's definition.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mirror {
    /// Versioning state of the bucket.
    #[prost(enumeration = "Versioning", tag = "1")]
    pub versioning: i32,
    /// Default retention of the bucket.
    #[prost(message, optional, tag = "2")]
    pub lock_default: Option<LockDefault>,
    /// Epoch of the bucket when it was last copied to this group.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// True while object commands are refused because a deletion of the bucket is being decided.
    #[prost(bool, tag = "4")]
    pub frozen: bool,
    /// Quota of the bucket; may change without a new epoch.
    #[prost(message, optional, tag = "5")]
    pub quota: Option<Quota>,
    /// Term of the duty node that took the bucket over last; object commands of earlier terms are rejected.
    #[prost(uint64, tag = "6")]
    pub duty_term: u64,
    /// The group's slice of the quota, if it was divided.
    #[prost(message, optional, tag = "7")]
    pub slice: Option<QuotaSlice>,
}

/// Returns the row key of the bucket `name`.
#[must_use]
pub fn row(name: &str) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Bucket, name.len() + 1).raw(name.as_bytes()).finish()
}

/// Returns the row key of `bucket`'s mirror.
#[must_use]
pub fn mirror_row(bucket: BucketId) -> Vec<u8> {
    key::number_key(Family::Mirror, bucket.0)
}

/// Returns the bucket in the row key of a mirror.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn mirror_key_of(row: &[u8]) -> Result<BucketId, BadKey> {
    key::parse_number_key(Family::Mirror, row).map(BucketId)
}

#[cfg(test)]
mod tests {
    use super::{Binding, Bucket, LockDefault, Mirror, Quota, QuotaSlice, mirror_key_of, mirror_row, row};
    use crate::schema::{Pair, golden};
    use mlgw_common::BucketId;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_as_their_names(a in "[a-z0-9.-]{3,9}", b in "[a-z0-9.-]{3,9}") {
            prop_assert_eq!(row(&a).cmp(&row(&b)), a.cmp(&b));
        }

        #[test]
        fn mirrors_are_found_by_id(a: u64, b: u64) {
            prop_assert_eq!(mirror_row(BucketId(a)).cmp(&mirror_row(BucketId(b))), a.cmp(&b));
            prop_assert_eq!(mirror_key_of(&mirror_row(BucketId(a))), Ok(BucketId(a)));
        }
    }

    #[test]
    fn the_records_have_these_bytes() {
        let lock = Some(LockDefault { mode: 2, days: 30 });
        let bucket = Bucket {
            id: 1,
            name: "data".into(),
            owner: "o".into(),
            created_ms: 1_700_000_000_123,
            region: "eu-west-1".into(),
            state: 1,
            versioning: 2,
            lock_default: lock,
            epoch: 3,
            tags: vec![Pair::new("k", "v")],
            binding: None,
            quota: None,
        };
        golden::check(&bucket, include_str!("golden/bucket.hex"));
        let binding =
            Some(Binding { upstream: "u".into(), prefix: "p/".into(), mode: 2, ttl_ms: Some(30_000) });
        golden::check(&Bucket { binding, ..bucket }, include_str!("golden/bucket_bound.hex"));
        let quota = Some(Quota { bytes: Some(300), objects: None });
        let limited = Bucket { id: 1, quota, ..Bucket::default() };
        golden::check(&limited, include_str!("golden/bucket_limited.hex"));
        let mirror =
            Mirror { versioning: 2, lock_default: lock, epoch: 3, frozen: true, ..Mirror::default() };
        golden::check(&mirror, include_str!("golden/mirror.hex"));
        golden::check(&Mirror { epoch: 3, duty_term: 300, ..Mirror::default() }, "01 1803 30ac02");
        let slice = QuotaSlice { limits: Quota { bytes: Some(7), objects: None }, allotment: 300 };
        let divided = Mirror { epoch: 3, slice: Some(slice), ..Mirror::default() };
        golden::check(&divided, "01 1803 3a07 0a02 0807 10ac02");
        golden::check(&Mirror { quota, ..mirror }, include_str!("golden/mirror_limited.hex"));
    }
}
