//! Who trains, evaluates or serves, in which phase and why, with what, and how far.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// Workloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadList {
    /// Who asked for something last is first.
    pub workloads: Vec<WorkloadInfo>,
    /// Of all that are remembered.
    pub totals: WorkloadTotals,
}

/// How many there are and what they have done since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadTotals {
    /// Workloads that are remembered.
    pub workloads: u64,
    /// Those of them that have asked for something lately.
    pub active: u64,
    /// Epochs that all have completed, those that are forgotten included.
    pub epochs: u64,
    /// Batches that all have read.
    pub batches: u64,
    /// Blocks that were kept, passed by and evicted for them.
    pub decisions: u64,
    /// Active workloads by phase.
    pub phases: Vec<PhaseCount>,
}

/// Active workloads of a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseCount {
    /// The phase; `unknown` as long as nobody can tell.
    pub phase: String,
    /// How many.
    pub workloads: u64,
}

/// A workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// Its id.
    pub id: String,
    /// The name that it gives itself.
    pub name: Option<String>,
    /// The user agent of its requests.
    pub user_agent: Option<String>,
    /// Whether it has asked for something lately.
    pub active: bool,
    /// What it is doing, as far as that is known.
    pub phase: Option<String>,
    /// What the policy's settings say for that, where no rule says otherwise.
    pub treatment: TreatmentInfo,
    /// Since when.
    pub since: String,
    /// Why that is thought, in a sentence.
    pub evidence: String,
    /// When it asked for something first.
    pub started: String,
    /// When it did last.
    pub last_access: String,
    /// Processes that read for it, as far as addresses tell.
    pub workers: u64,
    /// The datasets that it reads, by role; model files among them.
    pub datasets: Vec<WorkloadDataset>,
    /// Epochs that it has completed over what it trains with.
    pub epochs: u64,
    /// Batches that it has read.
    pub batches: u64,
    /// Objects, or ranges of them, that it reads at once, if that is known.
    pub batch_size: Option<f64>,
    /// Requests for data.
    pub items: u64,
    /// The same a second, lately.
    pub items_per_second: f64,
    /// Bytes that it has read.
    pub bytes_read: u64,
    /// Bytes that it has written.
    pub bytes_written: u64,
    /// Checkpoints that it has begun to write.
    pub checkpoints: u64,
    /// When it began the last one.
    pub last_checkpoint: Option<String>,
    /// What the keys of that begin with, where names tell.
    pub last_checkpoint_prefix: Option<String>,
    /// Seconds between two of them, lately.
    pub checkpoint_interval_seconds: Option<f64>,
    /// The frameworks that its user agent or the names of what it reads speak for.
    pub frameworks: Vec<String>,
}

/// How what a workload reads is treated by the settings of the policy, for the phase that it is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreatmentInfo {
    /// How far is read ahead: `basic`, `balanced`, `aggressive` or `maximum`.
    pub optimization: String,
    /// How eagerly: `conservative`, `balanced`, `aggressive` or `adaptive`.
    pub prefetch: String,
    /// Which copies stay: `none`, `lru`, `training-aware` or `learned`.
    pub cache: String,
}

/// A dataset that a workload reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadDataset {
    /// What it is to the workload: `training`, `validation`, `evaluation`, `model`, `small`, `serving` or
    /// `undecided`.
    pub role: String,
    /// Its bucket; its id after `#`, when it is gone.
    pub bucket: String,
    /// What its keys are like, with `#` for numbers; a folder with a slash at its end stands for all that is
    /// below it.
    pub keys: String,
    /// Requests that read it.
    pub reads: u64,
    /// Bytes that they asked for.
    pub bytes: u64,
    /// Times that a job of the workload has read all of it.
    pub passes: u64,
    /// When it was read last.
    pub last_read: String,
}
