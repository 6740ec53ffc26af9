//! Writes of write-back buckets that have not reached their origin yet.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Dirty state of a bucket: writes that have not reached its origin yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DirtyInfo {
    /// Number of dirty writes.
    pub writes: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// Time of the oldest dirty write.
    pub oldest: Option<String>,
    /// Dirty writes to keys that another client has written at the origin since; they wait for an operator's
    /// decision.
    pub foreign_writes: u64,
    /// First keys of these.
    pub foreign: Vec<String>,
    /// Error of the last attempt, if it failed.
    pub trouble: Option<String>,
    /// First keys that the origin acknowledged at the last attempt and did not show afterwards.
    pub unconfirmed: Vec<String>,
    /// True if there is no progress: everything that can be sent was sent, and the origin does not confirm
    /// it.
    pub stuck: bool,
}

/// Result of discarding dirty writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiscardResult {
    /// Number of discarded writes.
    pub writes: u64,
}
