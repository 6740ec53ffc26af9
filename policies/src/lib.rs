//! Why bytes move: pure decisions from observed accesses.
//!
//! Nothing here does I/O, reads a clock or draws a random number that was not seeded: what the engine decides
//! follows from what it was told, so that the same accesses give the same decisions in a server and in a
//! rehearsal. Everything in memory is bounded. What a crash loses is what was learnt since it was last
//! written down; no byte depends on it.

pub mod access;
pub mod at_rest;
mod block;
pub mod checkpoints;
mod decider;
pub mod engine;
pub mod facts;
mod file_types;
mod fingerprint;
mod key;
pub mod language;
pub mod learning;
pub mod outcomes;
pub mod plan;
pub mod rehearse;
pub mod shadow;
pub mod trace;
pub mod workloads;

pub use access::{Access, Caller, Op};
pub use block::{BLOCK_ID_SEED, block_id, touched};
pub use decider::{Decider, KNOWN_AT_REST, Prefetch, Rank, Ruling, Sharing, Watched, asked_at_rest};
pub use file_types::{file_type, file_type_by_key};
pub use fingerprint::Fingerprint;
