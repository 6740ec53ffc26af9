//! Buckets and their contents.
//!
//! Field names and their order are a stable interface for programs.

use crate::{BindingInfo, QuotaInfo, UsedInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A bucket and the totals of its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BucketInfo {
    /// Name of the bucket.
    pub name: String,
    /// Id of the owner.
    pub owner: String,
    /// Time of creation.
    pub created: String,
    /// Region of the bucket.
    pub region: String,
    /// Keys with a current version.
    pub objects: u64,
    /// Versions, current ones included.
    pub versions: u64,
    /// Bytes of all versions.
    pub bytes: u64,
    /// Uploads in progress.
    pub uploads: u64,
    /// Bytes of the parts of uploads in progress.
    pub upload_bytes: u64,
    /// Binding to an origin, if the bucket is remote-backed.
    pub binding: Option<BindingInfo>,
    /// Quota of the bucket.
    pub quota: QuotaInfo,
    /// Usage counted against the quota.
    pub used: UsedInfo,
    /// Ranges of the keys, in order; one without split keys.
    // An earlier version of a node sends none.
    #[serde(default)]
    pub ranges: Vec<KeyRangeInfo>,
}

/// A range of keys of a bucket, up to the first key of the next range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyRangeInfo {
    /// First key of the range; empty for the first range.
    pub from: String,
    /// Id of the object group that holds the keys.
    pub group: u32,
}

/// A page of buckets, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BucketPage {
    /// Buckets of this page.
    pub buckets: Vec<BucketInfo>,
    /// Value of `after` in the request for the next page; absent on the last page.
    pub next: Option<String>,
}

/// Request to create a bucket.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBucketRequest {
    /// Name of the bucket.
    pub name: String,
    /// Region of the bucket; the server's region if absent.
    #[serde(default)]
    pub region: Option<String>,
    /// Keys at which the bucket is split into ranges, ascending by their bytes, at most 63. The ranges are
    /// spread over the object groups.
    #[serde(default)]
    pub split_keys: Vec<String>,
}
