//! `bucket` (group 0, at the name) and `mirror` (each object group, at the bucket id).
//!
//! Group 0 owns a bucket's name, state and settings. Each object group keeps a mirror of what its
//! `apply` must know; the epoch rises with every change, and an object command that was built
//! against another epoch than its group's mirror has is refused.

use super::quota::Quota;
use crate::key::{self, BadKey, Family, KeyWriter};
use mlgw_common::{BucketId, Epoch};

/// A bucket.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Bucket {
    /// Its id, for its whole life.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Owner id.
    #[prost(string, tag = "3")]
    pub owner: String,
    /// When it was created, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub created_ms: i64,
    /// Its LocationConstraint; empty is us-east-1.
    #[prost(string, tag = "5")]
    pub region: String,
    /// Where it is in its life.
    #[prost(enumeration = "BucketState", tag = "6")]
    pub state: i32,
    /// Whether it keeps versions.
    #[prost(enumeration = "Versioning", tag = "7")]
    pub versioning: i32,
    /// Retention of new objects.
    #[prost(message, optional, tag = "8")]
    pub lock_default: Option<LockDefault>,
    /// How often it changed.
    #[prost(uint64, tag = "9")]
    pub epoch: u64,
    /// Tags.
    #[prost(message, repeated, tag = "10")]
    #[serde(skip)]
    pub tags: Vec<super::Pair>,
    /// What it fronts, if it is bound.
    #[prost(message, optional, tag = "11")]
    #[serde(default)]
    pub binding: Option<Binding>,
    /// What it may hold.
    #[prost(message, optional, tag = "12")]
    #[serde(default)]
    pub quota: Option<Quota>,
}

impl Bucket {
    /// Its id.
    #[must_use]
    pub const fn bucket_id(&self) -> BucketId {
        BucketId(self.id)
    }

    /// The epoch that object commands carry.
    #[must_use]
    pub const fn current_epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }
}

/// The bucket of an upstream that a bucket here fronts.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Binding {
    /// The upstream's name in the configuration.
    #[prost(string, tag = "1")]
    pub upstream: String,
    /// What the keys there begin with that are shown here without it; it may be empty.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// What becomes of writes.
    #[prost(enumeration = "BindMode", tag = "3")]
    pub mode: i32,
    /// How long an answer of the origin holds, in milliseconds; without one, as the configuration says.
    #[prost(uint64, optional, tag = "4")]
    pub ttl_ms: Option<u64>,
}

/// What becomes of writes to a bound bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum BindMode {
    /// They are refused.
    ReadThrough = 0,
    /// They are acknowledged when the origin has them.
    WriteThrough = 1,
    /// They are acknowledged when they are durable here.
    WriteBack = 2,
}

/// Where a bucket is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum BucketState {
    /// Its name is taken, not every object group knows it yet.
    Creating = 0,
    /// In use.
    Active = 1,
    /// Being checked and removed; becomes active again when it is not empty.
    Deleting = 2,
}

/// Whether a bucket keeps versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Versioning {
    /// Was never enabled.
    Never = 0,
    /// Every write makes a version.
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
    /// May be lifted by those allowed to.
    Governance = 1,
    /// May be lifted by nobody.
    Compliance = 2,
}

/// Retention that new objects of a bucket get.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct LockDefault {
    /// Its mode.
    #[prost(enumeration = "LockMode", tag = "1")]
    pub mode: i32,
    /// How long.
    #[prost(uint32, tag = "2")]
    pub days: u32,
}

/// What an object group knows of a bucket.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mirror {
    /// As in the bucket.
    #[prost(enumeration = "Versioning", tag = "1")]
    pub versioning: i32,
    /// As in the bucket.
    #[prost(message, optional, tag = "2")]
    pub lock_default: Option<LockDefault>,
    /// As in the bucket, when this group heard of it last.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// Whether object commands wait until a deletion is decided.
    #[prost(bool, tag = "4")]
    pub frozen: bool,
    /// As in the bucket; it may change without the epoch.
    #[prost(message, optional, tag = "5")]
    pub quota: Option<Quota>,
}

/// The row of the bucket `name`.
#[must_use]
pub fn row(name: &str) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Bucket, name.len() + 1).raw(name.as_bytes()).finish()
}

/// The row of `bucket`'s mirror.
#[must_use]
pub fn mirror_row(bucket: BucketId) -> Vec<u8> {
    key::numbered(Family::Mirror, bucket.0)
}

/// The bucket in a mirror's row.
///
/// # Errors
/// When it is no row of this family.
pub fn mirror_key_of(row: &[u8]) -> Result<BucketId, BadKey> {
    key::number_of(Family::Mirror, row).map(BucketId)
}

#[cfg(test)]
mod tests {
    use super::{Binding, Bucket, LockDefault, Mirror, Quota, mirror_key_of, mirror_row, row};
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
        let mirror = Mirror { versioning: 2, lock_default: lock, epoch: 3, frozen: true, quota: None };
        golden::check(&mirror, include_str!("golden/mirror.hex"));
        golden::check(&Mirror { quota, ..mirror }, include_str!("golden/mirror_limited.hex"));
    }
}
