//! How far moving segments between tiers is.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// How far moving segments between the tiers is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovesInfo {
    /// Bytes of segments that were moved down, since the start.
    pub spilled_bytes: u64,
    /// Bytes of segments that were moved up, since the start.
    pub promoted_bytes: u64,
    /// Bytes that are chosen to be moved and are not yet.
    pub waiting_bytes: u64,
    /// Segments that were moved and whose old files go when a backup under way is done with them.
    pub draining_segments: u64,
    /// Moves that failed and will be tried again, since the start; the log says why.
    pub failed: u64,
    /// Objects in upstreams that nothing names and that could not be removed yet.
    pub leftover_objects: u64,
    /// Orders that were carried out as far as they could be, since the start.
    pub orders_done: u64,
    /// In the answer to an order: how many are done when it is.
    pub until_orders: Option<u64>,
}
