//! Generated workloads, reference caches and the offline optimum, with which a policy is measured before it
//! is used in production.
//!
//! All results are functions of their inputs: the same settings give the same requests and the same hits on
//! every machine, and random values come from a seed that the caller supplies. Nothing here takes part in
//! serving requests: the references are baselines, and the workloads are input for experiments.

pub mod blocks;
pub mod caller_plans;
pub mod detection;
pub mod labelled;
pub mod latency;
pub(crate) mod naming;
pub mod race;
pub mod reference;
pub mod scene;
pub mod workload;

pub use naming::Naming;
