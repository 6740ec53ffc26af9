//! Tests: the engine on generated workloads, compared with references, and its invariants under arbitrary
//! accesses.

mod cost;
mod detection;
mod folders;
mod invariants;
mod orders;
mod ranks;
mod recent;
mod recycling;
mod released;
pub(super) mod retention;
mod same;
