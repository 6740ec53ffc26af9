//! Policy engine: pure decisions from observed accesses about which bytes to cache, move and delete.
//!
//! Nothing here does I/O, reads a clock or draws an unseeded random number. Decisions follow from the inputs
//! alone, so the same accesses give the same decisions in a server and in a simulation. All memory use is
//! bounded. A crash loses what was learned since the last save; no stored byte depends on it.

pub mod access;
pub mod at_rest;
mod block;
pub mod checkpoints;
mod decision_fingerprint;
pub mod engine;
pub mod facts;
mod file_types;
mod key_parts;
pub mod language;
pub mod learned_bounds;
pub mod learning;
pub mod outcomes;
pub mod plan;
mod policy_engine;
pub mod reference;
pub mod shadow;
pub mod stable_hash;
pub mod trace;
pub mod workloads;

pub use access::{Access, Caller, Op};
pub use block::{BLOCK_ID_SEED, BuildPassThroughHasher, PassThroughHasher, block_id, touched_blocks};
pub use decision_fingerprint::DecisionFingerprint;
pub use file_types::{file_type, file_type_by_key};
pub use policy_engine::{
    PROPERTIES_AT_REST, PolicyEngine, PrefetchParameters, RequestRank, Ruling, TransferSharing,
    WatchedPrefixes, properties_used_at_rest,
};
