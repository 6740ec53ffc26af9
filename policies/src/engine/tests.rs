//! Tests of the engine on short sequences of accesses, and of its invariants under arbitrary accesses. Those
//! on generated workloads are in `policies/lab`.

mod folders;
mod invariants;
mod orders;
mod ranks;
mod recent;
mod recycling;
mod released;
mod rules;
