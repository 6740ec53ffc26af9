//! Workloads: their phase with its evidence, their datasets and their progress.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use crate::{CopyPolicy, ReadAheadStrategy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All workloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadList {
    /// Workloads, the most recently active first.
    pub workloads: Vec<WorkloadInfo>,
    /// Totals of all remembered workloads.
    pub totals: WorkloadTotals,
}

/// Totals of workloads and of their activity since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseCount {
    /// The phase.
    pub phase: CountedPhase,
    /// Number of workloads.
    pub workloads: u64,
}

/// A workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadInfo {
    /// Id of the workload.
    pub id: String,
    /// Name under which the workload identifies itself.
    pub name: Option<String>,
    /// User agent of its requests.
    pub user_agent: Option<String>,
    /// True if the workload sent a request recently.
    pub active: bool,
    /// Phase of the workload; absent while the evidence is insufficient.
    pub phase: Option<WorkloadPhase>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreatmentInfo {
    /// Effort of the policy engine, which bounds the read-ahead distance.
    pub optimization: OptimizationLevel,
    /// Read-ahead strategy.
    pub prefetch: ReadAheadStrategy,
    /// Cache policy.
    pub cache: CopyPolicy,
}

/// A dataset that a workload reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadDataset {
    /// Role of the dataset for the workload.
    pub role: WorkloadDatasetRole,
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

words! {
    /// Activity of a workload.
    WorkloadPhase {
        /// Reads models, indexes and configuration before anything else.
        Initialization = "initialization",
        /// Reads training data.
        Training = "training",
        /// Reads the validation set between epochs.
        Validation = "validation",
        /// Writes a checkpoint.
        CheckpointSave = "checkpoint_save",
        /// Reads a test set once.
        Evaluation = "evaluation",
        /// Serves a model.
        Inference = "inference",
        /// Reads the same data as many similar workloads that run with other parameters.
        Tuning = "tuning",
    }
}

words! {
    /// Activity of workloads that are counted together.
    CountedPhase {
        /// The evidence is insufficient.
        Unknown = "unknown",
        /// Reads models, indexes and configuration before anything else.
        Initialization = "initialization",
        /// Reads training data.
        Training = "training",
        /// Reads the validation set between epochs.
        Validation = "validation",
        /// Writes a checkpoint.
        CheckpointSave = "checkpoint_save",
        /// Reads a test set once.
        Evaluation = "evaluation",
        /// Serves a model.
        Inference = "inference",
        /// Reads the same data as many similar workloads that run with other parameters.
        Tuning = "tuning",
    }
}

words! {
    /// Effort of the policy engine.
    OptimizationLevel {
        /// Only optimizations without cost.
        Basic = "basic",
        /// Optimizations that pay off for most workloads.
        Balanced = "balanced",
        /// Optimizations that pay off when one workload matters most.
        Aggressive = "aggressive",
        /// All optimizations, at the cost of all other workloads.
        Maximum = "maximum",
    }
}

words! {
    /// Role of a dataset for a workload.
    WorkloadDatasetRole {
        /// Not known yet.
        Undecided = "undecided",
        /// The workload trains with it.
        Training = "training",
        /// Read between passes over the training set.
        Validation = "validation",
        /// Read once.
        Evaluation = "evaluation",
        /// A model, or its checkpoints.
        Model = "model",
        /// Configuration, indexes and similar files.
        Small = "small",
        /// Parts are read repeatedly, to answer requests.
        Serving = "serving",
    }
}
