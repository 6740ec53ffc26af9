//! Names of tiers, as requests and answers give them.
//!
//! Always: they are words of the API. Nothing is stored, so a power failure changes nothing.

/// The tier of what was read last: copies only.
pub const MEMORY: &str = "memory";
/// The tier of segments on the local disk.
pub const HOT: &str = "hot";
/// The tier of segments on slower disks.
pub const COLD: &str = "cold";
/// The tier of segments in upstreams.
pub const UPSTREAM: &str = "upstream";
