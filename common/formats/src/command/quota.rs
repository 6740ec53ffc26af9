//! Commands that set and remove the quotas of buckets and access keys. Each is idempotent and the same in
//! every group; `metadata/src/catalogue/quotas.rs` sends it to all groups.

use crate::schema::Quota;

/// Sets a bucket's quota. Replies with the bucket, in group 0.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetBucketQuota {
    /// Name of the bucket.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Id of the bucket.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
    /// The quota; `None` removes it.
    #[prost(message, optional, tag = "3")]
    pub quota: Option<Quota>,
}

/// Sets an access key's quota.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetKeyQuota {
    /// The access key.
    #[prost(string, tag = "1")]
    pub access_key: String,
    /// The quota; `None` removes it.
    #[prost(message, optional, tag = "2")]
    pub quota: Option<Quota>,
}
