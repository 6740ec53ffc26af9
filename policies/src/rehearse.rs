//! What a policy is measured with before it is let loose: generated workloads, reference caches and the
//! offline optimum.
//!
//! Everything is a function of its input: the same settings give the same requests and the same hits on every
//! machine, and what is random comes from a seed that the caller names. Nothing here takes part in serving:
//! the references exist to be beaten, and the workloads to be learnt from.

pub mod blocks;
pub mod detection;
pub mod labelled;
pub mod latency;
pub(crate) mod naming;
pub mod race;
pub mod reference;
pub mod scene;
pub mod telling;
pub mod workload;

pub use naming::Naming;
