//! Parts of single nodes in an answer of the whole cluster.
//!
//! Field names and their order are a stable interface for programs.

use crate::{
    HealthFinding, ProcessStatus, RecentStatus, S3Status, ServerState, Status, SyncStatus, TierStatus,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// A node whose part is missing in a list of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilentNode {
    /// Id of the node.
    pub node: u64,
    /// Its name; may be empty.
    pub name: String,
    /// Reason for which it has given no answer.
    pub reason: String,
}
