//! Datasets: names for some of a bucket, where their bytes are, and what is done with them by the clock.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use crate::JobInfo;
use serde::{Deserialize, Serialize};

/// A dataset, where it is, and what is done with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// Its name.
    pub name: String,
    /// The bucket that it is of.
    pub bucket: String,
    /// What its keys begin with; empty is the whole bucket.
    pub slices: Vec<String>,
    /// Where a sync imports it from.
    pub sources: Vec<SourceInfo>,
    /// When it was created.
    pub created: String,
    /// `ready`, `partial`, `cold`, `unknown` (nothing looked at all of it yet) or `broken`.
    pub readiness: String,
    /// Why it is broken.
    pub fault: Option<String>,
    /// Objects there are, as far as that is known.
    pub objects: Option<u64>,
    /// Their bytes.
    pub bytes: Option<u64>,
    /// Bytes that can be read without asking an origin and without a slow disk.
    pub cached_bytes: u64,
    /// Bytes that there is room for besides.
    pub space_left_bytes: u64,
    /// Bytes of its copies that are not evicted, if it is pinned.
    pub pinned_bytes_max: Option<u64>,
    /// Where its bytes are.
    pub residency: Vec<ResidencyInfo>,
    /// When they were counted.
    pub counted: Option<String>,
    /// What is done by the clock.
    pub schedules: Vec<ScheduleInfo>,
    /// The job that is queued or runs.
    pub job: Option<JobInfo>,
}

/// What of a dataset a node has in a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidencyInfo {
    /// The node's name.
    pub node: String,
    /// `hot`, `cold`, or `copies` of a bound bucket.
    pub tier: String,
    /// Bytes.
    pub bytes: u64,
}

/// A bucket elsewhere, or some of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceInfo {
    /// The upstream's name.
    pub upstream: String,
    /// What keys there begin with that are imported.
    #[serde(default)]
    pub prefix: String,
    /// What they begin with here, instead.
    #[serde(default)]
    pub into: String,
}

/// What is done by the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleInfo {
    /// `warm`, `sync`, `evict` or `clear`.
    pub kind: String,
    /// When, as a cron expression in UTC.
    pub cron: String,
    /// The next time.
    pub next: Option<String>,
}

/// All datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetList {
    /// By name, with bytes as they were counted last.
    pub datasets: Vec<DatasetInfo>,
}

/// A dataset to create.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDataset {
    /// Its name.
    pub name: String,
    /// The bucket that it is of.
    pub bucket: String,
    /// What its keys begin with; empty is the whole bucket.
    #[serde(default)]
    pub slices: Vec<String>,
    /// Where a sync imports it from.
    #[serde(default)]
    pub sources: Vec<SourceInfo>,
}

/// How much is pinned.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// Bytes at most, as `100GiB`; without it, as much as the dataset is known to have.
    #[serde(default)]
    pub bytes_max: Option<String>,
}

/// When something is done, and with what.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// A cron expression in UTC.
    pub cron: String,
    /// As of a job: of an eviction, how long nobody read what goes.
    #[serde(default)]
    pub older_than: Option<String>,
    /// As of a job: of a sync, whether what is gone at its source goes.
    #[serde(default)]
    pub delete: bool,
    /// As of a job: only keys that begin so.
    #[serde(default)]
    pub prefix: String,
    /// As of a job: of a warm, in which order.
    #[serde(default)]
    pub order: Option<String>,
}
