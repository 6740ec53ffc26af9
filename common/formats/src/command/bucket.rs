//! The steps of a bucket's life, each repeatable; `catalogue/bucket.rs` puts them in order.

use crate::schema::{Binding, Bucket, LockDefault};

/// Takes a name. Answers the bucket, in state `Creating`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateBucket {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Owner id.
    #[prost(string, tag = "2")]
    pub owner: String,
    /// When, milliseconds since the epoch.
    #[prost(int64, tag = "3")]
    pub created_ms: i64,
    /// Its LocationConstraint.
    #[prost(string, tag = "4")]
    pub region: String,
    /// What it fronts.
    #[prost(message, optional, tag = "5")]
    pub binding: Option<Binding>,
}

/// Sets a bucket's state if it has the id and the state it is expected to have. Answers the
/// bucket, with the next epoch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetBucketState {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its id.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
    /// The state to set.
    #[prost(enumeration = "crate::schema::BucketState", tag = "3")]
    pub state: i32,
}

/// Binds a bucket elsewhere, if it is bound as it is expected to be. Answers the bucket.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RebindBucket {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its id.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
    /// What it fronts.
    #[prost(message, required, tag = "3")]
    pub from: Binding,
    /// What it is to front.
    #[prost(message, required, tag = "4")]
    pub to: Binding,
}

/// Frees a name whose bucket is being deleted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveBucket {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its id.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
}

/// Tells an object group of a bucket. An older epoch than it knows changes nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MirrorBucket {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// Whether it keeps versions.
    #[prost(enumeration = "crate::schema::Versioning", tag = "2")]
    pub versioning: i32,
    /// Retention of new objects.
    #[prost(message, optional, tag = "3")]
    pub lock_default: Option<LockDefault>,
    /// Its epoch.
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
}

impl From<&Bucket> for MirrorBucket {
    fn from(bucket: &Bucket) -> Self {
        Self {
            bucket_id: bucket.id,
            versioning: bucket.versioning,
            lock_default: bucket.lock_default,
            epoch: bucket.epoch,
        }
    }
}

/// Refuses object commands of a bucket from now on, if it is empty here; else refused itself.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct FreezeBucket {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
}

/// Takes object commands of a bucket again.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ThawBucket {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
}

/// Forgets a frozen bucket and its uploads. Answers whether there is more to forget.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DropBucket {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// How many uploads to drop at most.
    #[prost(uint32, tag = "2")]
    pub rows_max: u32,
}
