//! How a server is, in one document.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use crate::tier_names::{MEMORY, UPSTREAM};
use crate::{Finding, Health, PolicyStatus};
use serde::{Deserialize, Serialize};

/// How the server is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the binary.
    pub version: String,
    /// This node's name.
    pub node: String,
    /// `ready` or `draining`.
    pub state: String,
    /// The severity of the worst finding.
    pub health: Health,
    /// What is wrong and what to do about it, the worst first.
    pub findings: Vec<Finding>,
    /// When it started.
    pub started: String,
    /// Seconds since then.
    pub uptime_seconds: u64,
    /// Its data directory.
    pub data_dir: String,
    /// What an answer of success promises: `full` or `os`.
    pub durability: String,
    /// The S3 endpoint.
    pub s3: S3Status,
    /// What happened in the last minute.
    pub recent: RecentStatus,
    /// The catalogue.
    pub catalogue: CatalogueStatus,
    /// The tiers.
    pub tiers: Vec<TierStatus>,
    /// Syncs since the start, by kind of file.
    pub syncs: Vec<SyncStatus>,
    /// Background jobs.
    pub jobs: Vec<JobStatus>,
    /// The running policy.
    pub policy: PolicyStatus,
    /// What the process takes of the machine.
    pub process: ProcessStatus,
}

/// The S3 endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct S3Status {
    /// Its URL.
    pub endpoint: String,
    /// Open connections.
    pub connections: u64,
    /// Connections that may be open.
    pub connections_limit: u64,
    /// Requests in flight.
    pub inflight_requests: u64,
    /// What was done since the start, by operation.
    pub operations: Vec<OperationStatus>,
}

/// What was done of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationStatus {
    /// Its name.
    pub operation: String,
    /// Requests answered or given up.
    pub requests: u64,
    /// Those that failed because of the server.
    pub errors: u64,
    /// Those refused because the server was short of something.
    pub refused: u64,
    /// Bytes of bodies that came in.
    pub bytes_in: u64,
    /// Bytes of bodies that went out.
    pub bytes_out: u64,
    /// Half of them took no longer, from head to last byte.
    pub p50_seconds: Option<f64>,
    /// 99 in a hundred took no longer.
    pub p99_seconds: Option<f64>,
    /// Their durations: how many fell under each bound of the duration metrics but not under the one
    /// before, and above the last.
    pub duration_buckets: Vec<u64>,
}

/// What happened in the last minute, or since the start if that is less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentStatus {
    /// How long that is.
    pub seconds: f64,
    /// What was done, by operation.
    pub operations: Vec<OperationStatus>,
    /// What was short.
    pub throttled: Vec<Shortage>,
    /// Syncs of all files.
    pub syncs: u64,
    /// 99 in a hundred syncs took no longer.
    pub sync_p99_seconds: Option<f64>,
}

/// How often a client was made to wait or refused because something was short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortage {
    /// What was short.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// The catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogueStatus {
    /// Buckets.
    pub buckets: u64,
    /// Access keys, the root's included.
    pub access_keys: u64,
    /// Log entries applied since the start.
    pub entries_applied: u64,
    /// Commands of those entries that changed something.
    pub commands_applied: u64,
    /// Commands that the state did not allow.
    pub commands_rejected: u64,
    /// Commands that wait to be proposed.
    pub queued_commands: u64,
    /// Bytes of log that are not purged yet.
    pub log_bytes: u64,
    /// Bytes of log after which it is purged.
    pub log_bytes_max: u64,
    /// Times the state was flushed and the log purged since the start.
    pub snapshots: u64,
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// Its name.
    pub tier: String,
    /// Objects whose bytes it holds; the memory tier counts a long object's stored pieces.
    pub objects: u64,
    /// Bytes it may hold.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Bytes it can still take.
    pub room_bytes: u64,
    /// Bytes of its segments that nothing refers to.
    pub garbage_bytes: u64,
    /// Stored blocks of objects that are known to be bad.
    pub quarantined_blocks: u64,
}

impl TierStatus {
    /// Whether what it holds may be the only copy: such a tier must not be full, a tier of copies always is.
    #[must_use]
    pub fn holds_the_truth(&self) -> bool {
        self.tier != MEMORY
    }

    /// Whether it can be full. The upstream is an object store: it takes what it is given.
    #[must_use]
    pub fn has_an_end(&self) -> bool {
        self.tier != UPSTREAM
    }
}

/// Syncs of one kind of file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// Which kind.
    pub file: String,
    /// How many.
    pub count: u64,
    /// Half of them took no longer.
    pub p50_seconds: Option<f64>,
    /// 99 in a hundred took no longer.
    pub p99_seconds: Option<f64>,
}

/// A background job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its name.
    pub job: String,
    /// What it has still to do.
    pub waiting: u64,
}

/// What the process takes of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// CPU time since the start, user and system.
    pub cpu_seconds: f64,
    /// Memory in RAM.
    pub resident_bytes: u64,
    /// Open files and connections.
    pub open_files: u64,
    /// How many it may have open.
    pub open_files_max: u64,
}
