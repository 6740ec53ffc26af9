//! Rehearses policies: simulation, shadow caches, generated workloads.

pub mod rehearsal;
