//! Commands of quotas. Each is repeatable, and in every group the same: `catalogue/quotas.rs` sends it to all
//! of them.

use crate::schema::Quota;

/// What a bucket may hold from now on. Answers the bucket, in group 0.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetBucketQuota {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its id.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
    /// The quota; nothing: there is none.
    #[prost(message, optional, tag = "3")]
    pub quota: Option<Quota>,
}

/// What an access key may hold from now on.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetKeyQuota {
    /// The access key.
    #[prost(string, tag = "1")]
    pub access_key: String,
    /// The quota; nothing: there is none.
    #[prost(message, optional, tag = "2")]
    pub quota: Option<Quota>,
}
