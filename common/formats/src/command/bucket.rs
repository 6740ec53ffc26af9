//! Commands that create, bind, freeze and delete buckets. Each is idempotent;
//! `metadata/src/catalogue/sagas.rs` runs them in order.

use crate::schema::{Binding, Bucket, LockDefault};

/// Takes a name and creates its bucket. Replies with the bucket, in state `Creating`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateBucket {
    /// Name of the bucket.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Owner id.
    #[prost(string, tag = "2")]
    pub owner: String,
    /// Creation time, milliseconds since the epoch.
    #[prost(int64, tag = "3")]
    pub created_ms: i64,
    /// LocationConstraint of the bucket.
    #[prost(string, tag = "4")]
    pub region: String,
    /// Origin of a remote-backed bucket.
    #[prost(message, optional, tag = "5")]
    pub binding: Option<Binding>,
    /// Group that holds the bucket's keys before the first split. Without one they belong to the group of the
    /// range before.
    #[prost(uint32, optional, tag = "6")]
    pub group: Option<u32>,
    /// Further ranges of the bucket, with ascending keys. Since cluster version 4; they need a `group`.
    #[prost(message, repeated, tag = "7")]
    pub splits: Vec<SplitKey>,
}

/// Start of a range of a new bucket.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SplitKey {
    /// First key of the range.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Group that holds the keys up to the next split. The node that creates the bucket chooses it.
    #[prost(uint32, tag = "2")]
    pub group: u32,
}

/// Sets a bucket's state if id and current state allow the step. Replies with the bucket, at the next epoch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetBucketState {
    /// Name of the bucket.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Id of the bucket.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
    /// The state to set.
    #[prost(enumeration = "crate::schema::BucketState", tag = "3")]
    pub state: i32,
}

/// Changes the origin of a remote-backed bucket if the current origin is `from`. Replies with the bucket.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RebindBucket {
    /// Name of the bucket.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Id of the bucket.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
    /// Expected current origin.
    #[prost(message, required, tag = "3")]
    pub from: Binding,
    /// New origin.
    #[prost(message, required, tag = "4")]
    pub to: Binding,
    /// Term of the duty node that moves the bucket; rejected if another term has begun.
    #[prost(uint64, optional, tag = "5")]
    pub duty_term: Option<u64>,
}

/// Frees the name of a bucket that is being deleted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveBucket {
    /// Name of the bucket.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Id of the bucket.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
}

/// Copies a bucket's definition to an object group. An epoch older than the group's is a no-op.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MirrorBucket {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// Versioning state of the bucket.
    #[prost(enumeration = "crate::schema::Versioning", tag = "2")]
    pub versioning: i32,
    /// Retention of new objects.
    #[prost(message, optional, tag = "3")]
    pub lock_default: Option<LockDefault>,
    /// Epoch of the bucket.
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
    /// Run of the saga, as in [`DropBucket::run`]. Rejected if a later run has dropped a bucket in the group.
    #[prost(uint64, optional, tag = "5")]
    pub run: Option<u64>,
}

impl From<&Bucket> for MirrorBucket {
    fn from(bucket: &Bucket) -> Self {
        Self {
            bucket_id: bucket.id,
            versioning: bucket.versioning,
            lock_default: bucket.lock_default,
            epoch: bucket.epoch,
            run: None,
        }
    }
}

/// Refuses object commands on a bucket from now on. Rejected if the bucket is not empty in this group.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct FreezeBucket {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// Epoch of the bucket when its deletion began. Rejected if the group has a higher one: the bucket became
    /// active again since. Since cluster version 4; without it, every epoch is accepted.
    #[prost(uint64, optional, tag = "2")]
    pub epoch: Option<u64>,
}

/// Accepts object commands on a frozen bucket again.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ThawBucket {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// Epoch with which the bucket becomes active again. Rejected if the group has a higher one. Since
    /// cluster version 4; without it, every epoch is accepted.
    #[prost(uint64, optional, tag = "2")]
    pub epoch: Option<u64>,
}

/// Rejects object commands on a bucket from now on that are of an earlier term of duty. Of cluster version 5.
/// Rejected if the group has a later term.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SetBucketTerm {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The term that has begun.
    #[prost(uint64, tag = "2")]
    pub duty_term: u64,
}

/// Deletes the rows of a frozen bucket and its uploads. Replies whether more rows are left.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DropBucket {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// Maximum number of uploads to drop in this step.
    #[prost(uint32, tag = "2")]
    pub rows_max: u32,
    /// Run of the saga: the index of its first command in the log of the system group. The group rejects
    /// mirrors of earlier runs from then on. Since cluster version 7; without it, none is rejected.
    #[prost(uint64, optional, tag = "3")]
    pub run: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::{CreateBucket, DropBucket, FreezeBucket, MirrorBucket, SplitKey, ThawBucket};
    use crate::schema::golden;

    #[test]
    fn a_split_bucket_has_these_bytes() {
        let split = |key: &str, group| SplitKey { key: key.into(), group };
        let create = CreateBucket {
            name: "data".into(),
            owner: "o".into(),
            created_ms: 1000,
            group: Some(2),
            splits: vec![split("h", 0), split("p", 1)],
            ..CreateBucket::default()
        };
        golden::check(&create, include_str!("golden/create_bucket_split.hex"));
    }

    #[test]
    fn mirrors_and_drops_have_these_bytes() {
        for (run, hex) in [(None, "01 0807 2002"), (Some(0), "01 0807 2002 2800")] {
            golden::check(&MirrorBucket { bucket_id: 7, epoch: 2, run, ..MirrorBucket::default() }, hex);
        }
        for (run, hex) in [(None, "01 0807 1009"), (Some(300), "01 0807 1009 18ac02")] {
            golden::check(&DropBucket { bucket_id: 7, rows_max: 9, run }, hex);
        }
    }

    #[test]
    fn freezes_and_thaws_have_these_bytes() {
        for (epoch, hex) in [(None, "01 0807"), (Some(0), "01 0807 1000"), (Some(300), "01 0807 10ac02")] {
            golden::check(&FreezeBucket { bucket_id: 7, epoch }, hex);
            golden::check(&ThawBucket { bucket_id: 7, epoch }, hex);
        }
    }
}
