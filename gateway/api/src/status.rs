//! Status of a server in one document: in a cluster that of the responding node, with those of all nodes.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use crate::{Health, HealthFinding, PolicyStatus};
use mlgw_common::Tier;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Version of the binary.
    pub version: String,
    /// Name of this node.
    pub node: String,
    /// State of the server.
    pub state: ServerState,
    /// Severity of the worst finding, of all nodes.
    pub health: Health,
    /// Findings with advice, worst first. In a cluster those of all nodes, each once.
    pub findings: Vec<HealthFinding>,
    /// Start time of the server.
    pub started: String,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Data directory.
    pub data_dir: String,
    /// Durability of acknowledged writes.
    pub durability: WriteDurability,
    /// The S3 endpoint.
    pub s3: S3Status,
    /// Activity of the last minute.
    pub recent: RecentStatus,
    /// The catalogue.
    pub catalogue: CatalogueStatus,
    /// The tiers.
    pub tiers: Vec<TierStatus>,
    /// Syncs since the start, by kind of file.
    pub syncs: Vec<SyncStatus>,
    /// Background jobs.
    pub jobs: Vec<JobStatus>,
    /// The running policy; absent on a node of a cluster other than the duty node, which runs the rules.
    pub policy: Option<PolicyStatus>,
    /// Resource usage of the process.
    pub process: ProcessStatus,
    /// The duty node of the cluster, which has buckets, datasets, jobs and policies; absent on that node
    /// itself, and on a server without peers.
    pub duty_node: Option<String>,
    /// All nodes of the cluster, by id, with their figures; empty on a server without peers.
    pub nodes: Vec<ClusterNodeReport>,
}

/// A node of the cluster, as it reported itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterNodeReport {
    /// Id of the node.
    pub node: u64,
    /// Its name; may be empty.
    pub name: String,
    /// True for the responding node.
    pub own: bool,
    /// Reason for which it has given no answer; absent if it has.
    pub silent: Option<String>,
    /// Its figures; absent if it has given no answer.
    pub figures: Option<ReportedFigures>,
}

/// Figures of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportedFigures {
    /// Version of the binary.
    pub version: String,
    /// State of the node.
    pub state: ServerState,
    /// Findings of this node, worst first.
    pub findings: Vec<HealthFinding>,
    /// Start time of the node.
    pub started: String,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// The S3 endpoint.
    pub s3: S3Status,
    /// Activity of the last minute.
    pub recent: RecentStatus,
    /// The tiers; none on a gateway.
    pub tiers: Vec<TierStatus>,
    /// Syncs since the start, by kind of file.
    pub syncs: Vec<SyncStatus>,
    /// Resource usage of the process.
    pub process: ProcessStatus,
}

impl From<Status> for ReportedFigures {
    fn from(status: Status) -> Self {
        Self {
            version: status.version,
            state: status.state,
            findings: status.findings,
            started: status.started,
            uptime_seconds: status.uptime_seconds,
            s3: status.s3,
            recent: status.recent,
            tiers: status.tiers,
            syncs: status.syncs,
            process: status.process,
        }
    }
}

/// The S3 endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct S3Status {
    /// URL of the endpoint.
    pub endpoint: String,
    /// Open connections.
    pub connections: u64,
    /// Maximum number of open connections.
    pub connections_limit: u64,
    /// Requests in flight.
    pub inflight_requests: u64,
    /// Totals since the start, by operation.
    pub operations: Vec<OperationStatus>,
}

/// Totals of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperationStatus {
    /// Name of the operation.
    pub operation: String,
    /// Requests answered or aborted.
    pub requests: u64,
    /// Requests that failed because of the server.
    pub errors: u64,
    /// Requests refused because of a shortage in the server.
    pub refused: u64,
    /// Bytes of request bodies.
    pub bytes_in: u64,
    /// Bytes of response bodies.
    pub bytes_out: u64,
    /// Median duration, from head to last byte.
    #[schemars(range(min = 0.0))]
    pub p50_seconds: Option<f64>,
    /// 99th percentile of the duration.
    #[schemars(range(min = 0.0))]
    pub p99_seconds: Option<f64>,
    /// Histogram of durations: for each bound of the duration metrics, the number of requests below it and
    /// not below the previous bound; the last entry counts those above all bounds.
    pub duration_buckets: Vec<u64>,
}

/// Activity of the last minute, or since the start if that is shorter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecentStatus {
    /// Length of the period in seconds.
    #[schemars(range(min = 0.0))]
    pub seconds: f64,
    /// Totals by operation.
    pub operations: Vec<OperationStatus>,
    /// Shortages.
    pub throttled: Vec<Shortage>,
    /// Syncs of all files.
    pub syncs: u64,
    /// 99th percentile of the duration of a sync.
    #[schemars(range(min = 0.0))]
    pub sync_p99_seconds: Option<f64>,
}

/// Number of clients delayed or refused because of one shortage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Shortage {
    /// Resource that was short.
    pub reason: String,
    /// Number of occurrences.
    pub count: u64,
}

/// The catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CatalogueStatus {
    /// Number of buckets.
    pub buckets: u64,
    /// Number of access keys, the root key included.
    pub access_keys: u64,
    /// Log entries applied since the start.
    pub entries_applied: u64,
    /// Commands of those entries that changed something.
    pub commands_applied: u64,
    /// Commands that the state did not allow.
    pub commands_rejected: u64,
    /// Commands waiting to be proposed.
    pub queued_commands: u64,
    /// Bytes of log that are not purged yet.
    pub log_bytes: u64,
    /// Bytes of log at which it is purged.
    pub log_bytes_max: u64,
    /// Number of flushes of the state, each followed by a purge of the log, since the start.
    pub snapshots: u64,
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierStatus {
    /// Name of the tier.
    pub tier: Tier,
    /// Objects with bytes in the tier; the memory tier counts the stored pieces of a long object.
    pub objects: u64,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes free for new data.
    pub room_bytes: u64,
    /// Bytes of its segments that nothing refers to.
    pub garbage_bytes: u64,
    /// Stored blocks of objects that are known to be damaged.
    pub quarantined_blocks: u64,
}

impl TierStatus {
    /// Returns true if the tier may hold the only copy of an object. Such a tier must not be full, whereas a
    /// tier of copies always is.
    #[must_use]
    pub fn is_authoritative(&self) -> bool {
        self.tier != Tier::Memory
    }

    /// Returns true if the tier can become full. The upstream cannot: it is an object store without a known
    /// bound.
    #[must_use]
    pub fn can_be_full(&self) -> bool {
        self.tier != Tier::Upstream
    }
}

/// Syncs of one kind of file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SyncStatus {
    /// Kind of file.
    pub file: String,
    /// Number of syncs.
    pub count: u64,
    /// Median duration.
    #[schemars(range(min = 0.0))]
    pub p50_seconds: Option<f64>,
    /// 99th percentile of the duration.
    #[schemars(range(min = 0.0))]
    pub p99_seconds: Option<f64>,
}

/// A background job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobStatus {
    /// Name of the job.
    pub job: String,
    /// Amount of work left.
    pub waiting: u64,
}

/// Resource usage of the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessStatus {
    /// CPU time since the start, user and system.
    #[schemars(range(min = 0.0))]
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Open files and connections.
    pub open_files: u64,
    /// Maximum number of open files.
    pub open_files_max: u64,
}

words! {
    /// State of the server.
    ServerState {
        /// The server accepts requests.
        Ready = "ready",
        /// The server completes requests in flight and accepts no new ones.
        Draining = "draining",
    }
}

words! {
    /// Durability of acknowledged writes.
    WriteDurability {
        /// A write survives power loss.
        Full = "full",
        /// A write survives the end of the process, not power loss.
        Os = "os",
    }
}
