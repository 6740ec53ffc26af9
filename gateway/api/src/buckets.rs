//! Buckets and what they hold.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use crate::{BindingInfo, QuotaInfo, UsedInfo};
use serde::{Deserialize, Serialize};

/// A bucket and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketInfo {
    /// Its name.
    pub name: String,
    /// Its owner's id.
    pub owner: String,
    /// When it was created.
    pub created: String,
    /// Its region.
    pub region: String,
    /// Keys with a current version.
    pub objects: u64,
    /// Versions, current ones included.
    pub versions: u64,
    /// Bytes of all versions.
    pub bytes: u64,
    /// Uploads in progress.
    pub uploads: u64,
    /// Bytes of their parts.
    pub upload_bytes: u64,
    /// What it fronts, if it is bound.
    pub binding: Option<BindingInfo>,
    /// What it may hold.
    pub quota: QuotaInfo,
    /// What of it is held.
    pub used: UsedInfo,
}

/// Some buckets, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketPage {
    /// The buckets.
    pub buckets: Vec<BucketInfo>,
    /// What to ask for as `after` to get the next ones; nothing when these are the last.
    pub next: Option<String>,
}

/// A bucket to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewBucketRequest {
    /// Its name.
    pub name: String,
    /// Its region; the server's when not given.
    #[serde(default)]
    pub region: Option<String>,
}
