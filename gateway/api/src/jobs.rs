//! Jobs on datasets, current and past.
//!
//! Field names and their order are a stable interface for programs.

use crate::MigrationTarget;
use crate::words::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A job and its progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobInfo {
    /// Number of the job.
    pub id: u64,
    /// Dataset that the job works on.
    pub dataset: String,
    /// Kind of the job.
    pub kind: DatasetJobKind,
    /// State of the job.
    pub state: DatasetJobState,
    /// Requester: an access key, or `schedule`.
    pub requested_by: String,
    /// Time of the request.
    pub created: String,
    /// Time of the first start.
    pub started: Option<String>,
    /// Time of the end.
    pub ended: Option<String>,
    /// Number of starts: more than one after a restart of the server.
    pub starts: u64,
    /// True if cancellation was requested.
    pub cancel_asked: bool,
    /// Eviction only: minimum time since the last read.
    pub older_than: Option<String>,
    /// Sync only: true to delete objects that are gone at their source.
    pub delete: bool,
    /// Prefix of the keys concerned.
    pub prefix: String,
    /// Warm only: order of the keys.
    pub order: Option<WarmOrder>,
    /// Migration only: new upstream of the bucket and prefix of the keys there.
    pub to: Option<MigrationTarget>,
    /// Objects processed.
    pub objects_done: u64,
    /// Objects in total, as far as counted.
    pub objects_total: u64,
    /// Bytes processed.
    pub bytes_done: u64,
    /// Bytes in total, as far as counted.
    pub bytes_total: u64,
    /// True if the totals are complete.
    pub counted: bool,
    /// Objects that were wholly or partly fetched, imported, promoted or evicted.
    pub moved_objects: u64,
    /// Bytes of these.
    pub moved_bytes: u64,
    /// Objects that failed.
    pub failed_objects: u64,
    /// Objects that were deleted.
    pub deleted_objects: u64,
    /// Bytes processed per second, while the job runs.
    pub bytes_per_second: Option<u64>,
    /// Estimated seconds until the end, while an estimate exists.
    pub eta_seconds: Option<u64>,
    /// Cause of the failure.
    pub error: Option<String>,
}

/// A list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobList {
    /// Jobs, newest first, at most 1,000.
    pub jobs: Vec<JobInfo>,
}

/// Request to run a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Kind of the job. `migrate` is refused: a migration is started by a request for its bucket.
    pub kind: DatasetJobKind,
    /// Eviction only, where it is required: minimum time since the last read, such as `7d`.
    #[serde(default)]
    pub older_than: Option<String>,
    /// Sync only: true to delete imported objects that are gone at their source.
    #[serde(default)]
    pub delete: bool,
    /// All but syncs: prefix of the keys concerned.
    #[serde(default)]
    pub prefix: String,
    /// Warm only: order of the keys; `sequential` if absent.
    #[serde(default)]
    pub order: Option<WarmOrder>,
}

words! {
    /// Kind of a job on a dataset.
    DatasetJobKind {
        /// Fetches the dataset ahead of use.
        Warm = "warm",
        /// Imports the dataset from its sources.
        Sync = "sync",
        /// Evicts clean copies that were not read for a given time.
        Evict = "evict",
        /// Evicts all clean copies.
        Clear = "clear",
        /// Moves a remote-backed bucket to another upstream.
        Migrate = "migrate",
    }
}

words! {
    /// State of a job on a dataset.
    DatasetJobState {
        /// Not started yet.
        Queued = "queued",
        /// In progress.
        Running = "running",
        /// Completed.
        Done = "done",
        /// Failed, wholly or in part.
        Failed = "failed",
        /// Cancelled on request.
        Cancelled = "cancelled",
    }
}

words! {
    /// Order in which a warm visits the keys of a dataset.
    WarmOrder {
        /// Order of the keys.
        Sequential = "sequential",
        /// Random order.
        Shuffled = "shuffled",
        /// Shards in random order, the objects of each in the order of the keys.
        ShardShuffled = "shard-shuffled",
    }
}
