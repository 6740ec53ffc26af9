//! What was written back and is not at its origin yet.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// What of a bucket is not at its origin yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyInfo {
    /// Writes.
    pub writes: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// When the oldest was made.
    pub oldest: Option<String>,
    /// Writes to keys that somebody else has written at the origin since; they wait for a decision.
    pub foreign_writes: u64,
    /// The first of these keys.
    pub foreign: Vec<String>,
    /// Why the last try failed, if it did.
    pub trouble: Option<String>,
    /// The first keys that the origin claimed to have at the last try and did not show.
    pub unconfirmed: Vec<String>,
    /// Whether there is no progress: everything that can be sent was sent, and the origin does not confirm
    /// it.
    pub stuck: bool,
}

/// What was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discarded {
    /// Writes.
    pub writes: u64,
}
