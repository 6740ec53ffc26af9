//! Tests: the engine on generated workloads, compared with references, and its invariants under arbitrary
//! accesses.

mod books;
mod cost;
mod folders;
mod found;
pub(super) mod kept;
mod orders;
mod ranks;
mod recent;
mod recycling;
mod released;
mod same;
