//! Datasets: named subsets of a bucket, the tiers of their bytes, and their scheduled jobs.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use crate::{DatasetJobKind, JobInfo, WarmOrder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A dataset, its residency and its jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetInfo {
    /// Name of the dataset.
    pub name: String,
    /// Bucket that contains the dataset.
    pub bucket: String,
    /// Prefixes of the dataset's keys; empty means the whole bucket.
    pub slices: Vec<String>,
    /// Sources from which a sync imports objects.
    pub sources: Vec<SourceInfo>,
    /// Time of creation.
    pub created: String,
    /// Readiness of the dataset for local reads. In a cluster a byte may be on any node.
    pub readiness: DatasetReadiness,
    /// Cause, if the dataset is broken.
    pub fault: Option<String>,
    /// Number of objects, if known.
    pub objects: Option<u64>,
    /// Bytes of these objects, if known.
    pub bytes: Option<u64>,
    /// Bytes that can be read without a request to an origin and without a slow disk, on at least one node.
    pub cached_bytes: u64,
    /// Further bytes for which there is room.
    pub space_left_bytes: u64,
    /// Limit of bytes of clean copies that are exempt from eviction, if the dataset is pinned.
    pub pinned_bytes_max: Option<u64>,
    /// Bytes of the dataset by node and tier. Bytes with several replicas are counted on each node.
    pub residency: Vec<ResidencyInfo>,
    /// Time of the count.
    pub counted: Option<String>,
    /// Scheduled jobs.
    pub schedules: Vec<ScheduleInfo>,
    /// Job that is queued or running.
    pub job: Option<JobInfo>,
}

/// Bytes of a dataset on one node in one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResidencyInfo {
    /// Id of the node, as in the header `x-mlgw-node`; 1 for a server without peers.
    pub node: u64,
    /// Tier of the bytes.
    pub tier: ResidencyTier,
    /// Number of bytes.
    pub bytes: u64,
}

/// A source bucket at an upstream, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceInfo {
    /// Name of the upstream.
    pub upstream: String,
    /// Prefix of the source keys to import.
    #[serde(default)]
    pub prefix: String,
    /// Prefix that replaces the source prefix in the keys of this bucket.
    #[serde(default)]
    pub into: String,
}

/// A scheduled job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleInfo {
    /// Kind of the job.
    pub kind: DatasetJobKind,
    /// Schedule, as a cron expression in UTC.
    pub cron: String,
    /// Time of the next run.
    pub next: Option<String>,
}

/// All datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetList {
    /// Datasets sorted by name, with the byte counts of the last count.
    pub datasets: Vec<DatasetInfo>,
}

/// Request to create a dataset.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDataset {
    /// Name of the dataset.
    pub name: String,
    /// Bucket that contains the dataset.
    pub bucket: String,
    /// Prefixes of the dataset's keys; empty means the whole bucket.
    #[serde(default)]
    pub slices: Vec<String>,
    /// Sources from which a sync imports objects.
    #[serde(default)]
    pub sources: Vec<SourceInfo>,
}

/// Request to pin a dataset.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// Maximum number of pinned bytes, such as `100GiB`; if absent, the known size of the dataset.
    #[serde(default)]
    pub bytes_max: Option<String>,
}

/// Schedule of a job and the job's parameters.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// Cron expression in UTC.
    pub cron: String,
    /// Eviction only, as in a job request: minimum time since the last read.
    #[serde(default)]
    pub older_than: Option<String>,
    /// Sync only, as in a job request: true to delete objects that are gone at their source.
    #[serde(default)]
    pub delete: bool,
    /// Prefix of the keys concerned, as in a job request.
    #[serde(default)]
    pub prefix: String,
    /// Warm only, as in a job request: order of the keys.
    #[serde(default)]
    pub order: Option<WarmOrder>,
}

words! {
    /// Readiness of a dataset for local reads.
    DatasetReadiness {
        /// The total is unknown: no warm or sync has visited all of it yet.
        Unknown = "unknown",
        /// All bytes are on this server or its peers, in the fastest tier available to them.
        Ready = "ready",
        /// A part of the bytes is on this server or its peers.
        Partial = "partial",
        /// No bytes are on this server or its peers.
        Cold = "cold",
        /// Its bucket, or the upstream of its bucket, is gone.
        Broken = "broken",
    }
}

words! {
    /// Location of bytes of a dataset.
    ResidencyTier {
        /// Segments on the local disk.
        Hot = "hot",
        /// Segments below the hot tier: on slower disks and in upstreams together; `Tier` separates the two.
        Cold = "cold",
        /// Clean copies of a remote-backed bucket.
        Copies = "copies",
    }
}
