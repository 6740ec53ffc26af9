//! Progress of segment moves between tiers.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Progress of segment moves between tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MovesInfo {
    /// Bytes of segments moved to a lower tier since the start.
    pub spilled_bytes: u64,
    /// Bytes of segments moved to a higher tier since the start.
    pub promoted_bytes: u64,
    /// Bytes selected for a move that are not moved yet.
    pub waiting_bytes: u64,
    /// Moved segments whose old files are removed when a running backup no longer needs them.
    pub draining_segments: u64,
    /// Failed moves since the start; each is retried, and the log has the cause.
    pub failed: u64,
    /// Objects in upstreams that no metadata refers to and that could not be removed yet.
    pub leftover_objects: u64,
    /// Orders since the start that were carried out as far as possible.
    pub orders_done: u64,
    /// In the response to an order only: value of `orders_done` at which the order is complete.
    pub until_orders: Option<u64>,
}
