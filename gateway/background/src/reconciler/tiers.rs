//! Numbers of the tiers in the records of segments.

/// The hot tier.
pub(super) const HOT: u32 = 0;
/// The cold tier.
pub(super) const COLD: u32 = 1;
