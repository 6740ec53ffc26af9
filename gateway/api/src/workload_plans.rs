//! What workloads tell that they will read.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// A plan that is to be put.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewAccessPlan {
    /// The name that those give themselves who follow it.
    pub workload: String,
    /// What messages call the document.
    pub name: String,
    /// The document, in YAML or JSON.
    pub text: String,
}

/// A plan, and how far it is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPlanInfo {
    /// Its id.
    pub id: String,
    /// The name that those give themselves who follow it.
    pub workload: String,
    /// Its bucket.
    pub bucket: String,
    /// When it was put.
    pub put: String,
    /// Keys that it names.
    pub keys: u64,
    /// Who draws the order of an epoch.
    pub sampler: String,
    /// What it is drawn from.
    pub seed: u64,
    /// The first epoch.
    pub first_epoch: u32,
    /// How many there are.
    pub epochs: u32,
    /// Among how many ranks the order is dealt out.
    pub ranks: u32,
    /// Whose reads these are; those of all ranks without it.
    pub rank: Option<u32>,
    /// Whether what does not come out even among ranks is left out.
    pub drop_last: bool,
    /// Whether its workloads do what it says, so that it counts.
    pub trusted: bool,
    /// The epoch that they are in.
    pub epoch: u32,
    /// Reads of that epoch that they are through with.
    pub read: u64,
    /// Reads of that epoch.
    pub reads: u64,
    /// The ids of the workloads of that name that are known.
    pub workloads: Vec<String>,
}

/// Plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPlanList {
    /// By id.
    pub plans: Vec<AccessPlanInfo>,
}
