//! Laboratory for policies: they are validated, tested on keys and simulated before they run. The command
//! line and the admin API use it, and both return the same documents.
//!
//! - [`validate`]: checks files and returns all diagnostics;
//! - [`examine`]: evaluates rules on keys, without accesses;
//! - [`simulate`]: compares caches on a [`scenario`]: a recorded trace or a generated workload.
//!
//! Generated workloads ([`workload`], [`labelled`]), reference caches ([`reference`](mod@reference)) and the
//! offline optimum also measure the engine in tests and benchmarks. All results are functions of their
//! inputs: the same settings give the same requests and the same hits on every machine, and random values
//! come from a seed that the caller supplies. No simulation changes any state. Only traces are read from
//! disk, and nothing is written.

pub mod blocks;
pub mod caller_plans;
pub mod comparison;
pub mod detection;
pub mod examine;
pub mod labelled;
pub mod latency;
pub mod naming;
pub mod reference;
pub mod scenario;
pub mod scene;
pub mod simulate;
pub mod sizes;
pub mod validate;
pub mod workload;

#[cfg(test)]
mod tests;
