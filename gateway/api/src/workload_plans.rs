//! Access plans: reads that workloads announce in advance.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use mlgw_common::limits::ACCESS_PLAN_WORKLOAD_BYTES_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Request to store an access plan.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAccessPlan {
    /// Name under which the plan's workloads identify themselves.
    #[schemars(length(max = ACCESS_PLAN_WORKLOAD_BYTES_MAX))]
    pub workload: String,
    /// Name of the document in messages.
    pub name: String,
    /// The document, in YAML or JSON.
    pub text: String,
}

/// An access plan and its progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccessPlanInfo {
    /// Id of the plan.
    pub id: String,
    /// Name under which the plan's workloads identify themselves.
    pub workload: String,
    /// Bucket of the keys.
    pub bucket: String,
    /// Time at which the plan was stored.
    pub put: String,
    /// Number of keys in the plan.
    pub keys: u64,
    /// Sampler that draws the order of an epoch.
    pub sampler: PlanSampler,
    /// Seed of the sampler.
    pub seed: u64,
    /// First epoch.
    pub first_epoch: u32,
    /// Number of epochs.
    pub epochs: u32,
    /// Number of ranks among which the order is distributed.
    pub ranks: u32,
    /// Rank whose reads the plan describes; if absent, the reads of all ranks.
    pub rank: Option<u32>,
    /// True if the remainder that does not divide evenly among ranks is dropped.
    pub drop_last: bool,
    /// True if the workloads follow the plan, so that the plan is used.
    pub trusted: bool,
    /// Current epoch of the workloads.
    pub epoch: u32,
    /// Completed reads of that epoch.
    pub read: u64,
    /// Total reads of that epoch.
    pub reads: u64,
    /// Ids of the known workloads with that name.
    pub workloads: Vec<String>,
}

/// All access plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccessPlanList {
    /// Plans, sorted by id.
    pub plans: Vec<AccessPlanInfo>,
}

words! {
    /// Sampler that draws the order of an epoch.
    PlanSampler {
        /// No sampler: keys are read in the order of the list.
        Sequential = "sequential",
        /// PyTorch's `DistributedSampler`, seeded by the sum of the plan's seed and the epoch.
        TorchDistributed = "torch_distributed",
        /// PyTorch's `DataLoader(shuffle=True)` with a generator that is seeded once for all epochs.
        TorchRandom = "torch_random",
        /// NumPy's `RandomState(seed + epoch).permutation`.
        NumpyPermutation = "numpy_permutation",
    }
}
