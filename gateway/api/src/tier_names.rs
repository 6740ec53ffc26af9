//! Names of tiers in requests and answers.
//!
//! The names are words of the API. Nothing is stored, so a power failure has no effect.

use mlgw_common::Tier;

/// The memory tier: copies of the data that was read last, never the only copy.
pub const MEMORY: &str = Tier::Memory.name();
/// The hot tier: segments on the local disk.
pub const HOT: &str = Tier::Hot.name();
/// The cold tier: segments on slower disks.
pub const COLD: &str = Tier::Cold.name();
/// The upstream tier: segments in upstreams.
pub const UPSTREAM: &str = Tier::Upstream.name();
