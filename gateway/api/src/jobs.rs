//! Jobs: what is being done with datasets, and what was.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use crate::MigrateRequest;
use serde::{Deserialize, Serialize};

/// A job, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Its number.
    pub id: u64,
    /// The dataset.
    pub dataset: String,
    /// `warm`, `sync`, `evict`, `clear` or `migrate`.
    pub kind: String,
    /// `queued`, `running`, `done`, `failed` or `cancelled`.
    pub state: String,
    /// Who asked for it: an access key, or `schedule`.
    pub requested_by: String,
    /// When it was asked for.
    pub created: String,
    /// When it was begun first.
    pub started: Option<String>,
    /// When it ended.
    pub ended: Option<String>,
    /// How often it was begun: more than once after a restart.
    pub starts: u64,
    /// Whether somebody wants it to end.
    pub cancel_asked: bool,
    /// Of an eviction: how long nobody read what goes.
    pub older_than: Option<String>,
    /// Of a sync: whether what is gone at its source goes.
    pub delete: bool,
    /// Only keys that begin so.
    pub prefix: String,
    /// Of a warm: `sequential`, `shuffled` or `shard-shuffled`.
    pub order: Option<String>,
    /// Of a migration: the upstream that the bucket is moved to, and what its keys there begin with.
    pub to: Option<MigrateRequest>,
    /// Objects that are seen to.
    pub objects_done: u64,
    /// Objects there are, as far as they are counted.
    pub objects_total: u64,
    /// Bytes that are seen to.
    pub bytes_done: u64,
    /// Bytes there are, as far as they are counted.
    pub bytes_total: u64,
    /// Whether all are counted.
    pub counted: bool,
    /// Objects of which something was fetched, imported, promoted or let go of.
    pub moved_objects: u64,
    /// Bytes of that.
    pub moved_bytes: u64,
    /// Objects that failed.
    pub failed_objects: u64,
    /// Objects that were deleted.
    pub deleted_objects: u64,
    /// Bytes that are seen to in a second, while it runs.
    pub bytes_per_second: Option<u64>,
    /// Seconds until it is done, while that can be said.
    pub eta_seconds: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
}

/// Jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    /// The newest first, 1,000 at most.
    pub jobs: Vec<JobInfo>,
}

/// A job to be done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// `warm`, `sync`, `evict` or `clear`.
    pub kind: String,
    /// Of an eviction, which needs it: how long nobody read what goes, as `7d`.
    #[serde(default)]
    pub older_than: Option<String>,
    /// Of a sync: whether what was imported and is gone at its source goes here, too.
    #[serde(default)]
    pub delete: bool,
    /// Of others than a sync: only keys that begin so.
    #[serde(default)]
    pub prefix: String,
    /// Of a warm: in which order; `sequential` when not given, or `shuffled` or `shard-shuffled`.
    #[serde(default)]
    pub order: Option<String>,
}
