//! Workloads: their phase with its evidence, their datasets and their progress.
//!
//! Field names and their order are a stable interface for programs. Nothing is stored, so a power failure has
//! no effect.

use serde::{Deserialize, Serialize};

/// All workloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadList {
    /// Workloads, the most recently active first.
    pub workloads: Vec<WorkloadInfo>,
    /// Totals of all remembered workloads.
    pub totals: WorkloadTotals,
}

/// Totals of workloads and of their activity since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadTotals {
    /// Remembered workloads.
    pub workloads: u64,
    /// Workloads that sent a request recently.
    pub active: u64,
    /// Epochs completed by all workloads, forgotten ones included.
    pub epochs: u64,
    /// Batches read by all workloads.
    pub batches: u64,
    /// Blocks kept, not kept and evicted for workloads.
    pub decisions: u64,
    /// Active workloads by phase.
    pub phases: Vec<PhaseCount>,
}

/// Number of active workloads in a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseCount {
    /// The phase; `unknown` while the evidence is insufficient.
    pub phase: String,
    /// Number of workloads.
    pub workloads: u64,
}

/// A workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// Id of the workload.
    pub id: String,
    /// Name under which the workload identifies itself.
    pub name: Option<String>,
    /// User agent of its requests.
    pub user_agent: Option<String>,
    /// True if the workload sent a request recently.
    pub active: bool,
    /// Phase of the workload, if known.
    pub phase: Option<String>,
    /// Treatment by the policy's settings for that phase, where no rule overrides it.
    pub treatment: TreatmentInfo,
    /// Start of the phase.
    pub since: String,
    /// Evidence for the phase, in a sentence.
    pub evidence: String,
    /// Time of the first request.
    pub started: String,
    /// Time of the last request.
    pub last_access: String,
    /// Reading processes, as far as addresses distinguish them.
    pub workers: u64,
    /// Datasets that the workload reads, by role; model files included.
    pub datasets: Vec<WorkloadDataset>,
    /// Completed epochs over the training dataset.
    pub epochs: u64,
    /// Batches read.
    pub batches: u64,
    /// Objects, or ranges of objects, per batch, if known.
    pub batch_size: Option<f64>,
    /// Requests for data.
    pub items: u64,
    /// Recent requests for data per second.
    pub items_per_second: f64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Checkpoints whose writing began.
    pub checkpoints: u64,
    /// Start of the last checkpoint.
    pub last_checkpoint: Option<String>,
    /// Prefix of the last checkpoint's keys, if their names reveal it.
    pub last_checkpoint_prefix: Option<String>,
    /// Recent seconds between two checkpoints.
    pub checkpoint_interval_seconds: Option<f64>,
    /// Frameworks indicated by the user agent or by the names of the objects read.
    pub frameworks: Vec<String>,
}

/// Treatment of a workload's reads by the policy's settings, for its phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreatmentInfo {
    /// Read-ahead distance: `basic`, `balanced`, `aggressive` or `maximum`.
    pub optimization: String,
    /// Read-ahead strategy: `conservative`, `balanced`, `aggressive` or `adaptive`.
    pub prefetch: String,
    /// Eviction policy: `none`, `lru`, `training-aware` or `learned`.
    pub cache: String,
}

/// A dataset that a workload reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadDataset {
    /// Role of the dataset for the workload: `training`, `validation`, `evaluation`, `model`, `small`,
    /// `serving` or `undecided`.
    pub role: String,
    /// Bucket of the dataset; its id after `#` if the bucket is gone.
    pub bucket: String,
    /// Key pattern, with `#` for numbers. A folder with a trailing slash includes everything below it.
    pub keys: String,
    /// Requests that read the dataset.
    pub reads: u64,
    /// Bytes requested.
    pub bytes: u64,
    /// Complete passes over the dataset by jobs of the workload.
    pub passes: u64,
    /// Time of the last read.
    pub last_read: String,
}
