//! Names of tiers in requests and answers.
//!
//! The names are words of the API. Nothing is stored, so a power failure has no effect.

/// The memory tier: copies of the data that was read last, never the only copy.
pub const MEMORY: &str = "memory";
/// The hot tier: segments on the local disk.
pub const HOT: &str = "hot";
/// The cold tier: segments on slower disks.
pub const COLD: &str = "cold";
/// The upstream tier: segments in upstreams.
pub const UPSTREAM: &str = "upstream";
