//! Storage tiers: the places, from fast to slow, in which the bytes of an object can be.
//!
//! [`Tier`] has a name in the admin API, policies and metrics. [`SegmentTier`] is a tier that consists of
//! segments; its number is in segment records on disk and never changes.
//!
//! Clean copies of remote-backed buckets are in no tier. Where they count as a location, the admin API and
//! metrics name it `copies`. The residency of datasets combines the cold and the upstream tier as `cold`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A storage tier, from fast to slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// DRAM: copies of small objects that were read last, never the only copy.
    Memory,
    /// Segments on the local disk.
    Hot,
    /// Segments on slower disks.
    Cold,
    /// Segments in other object stores.
    Upstream,
}

impl Tier {
    /// All tiers, from fast to slow.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Hot, Self::Cold, Self::Upstream];

    /// Returns the name of the tier in the admin API, policies and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Hot => "hot",
            Self::Cold => "cold",
            Self::Upstream => "upstream",
        }
    }

    /// Returns the tier with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A tier that consists of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentTier {
    /// Segments on the local disk.
    Hot,
    /// Segments on slower disks.
    Cold,
    /// Segments in other object stores.
    Upstream,
}

impl SegmentTier {
    /// All tiers of segments, from fast to slow.
    pub const ALL: [Self; 3] = [Self::Hot, Self::Cold, Self::Upstream];

    /// Returns the number of the tier in segment records.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Hot => 0,
            Self::Cold => 1,
            Self::Upstream => 2,
        }
    }

    /// Returns the tier with this number in segment records.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.number() == number)
    }

    /// Returns the name of the tier.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.tier().name()
    }

    /// Returns the tier among all tiers.
    #[must_use]
    pub const fn tier(self) -> Tier {
        match self {
            Self::Hot => Tier::Hot,
            Self::Cold => Tier::Cold,
            Self::Upstream => Tier::Upstream,
        }
    }
}

impl fmt::Display for SegmentTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tier().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::{SegmentTier, Tier};

    #[test]
    fn names_and_numbers_are_those_on_disk_and_in_the_api() {
        assert_eq!(Tier::ALL.map(Tier::name), ["memory", "hot", "cold", "upstream"]);
        assert_eq!(SegmentTier::ALL.map(SegmentTier::number), [0, 1, 2]);
        assert_eq!(SegmentTier::ALL.map(SegmentTier::name), ["hot", "cold", "upstream"]);
        for tier in Tier::ALL {
            assert_eq!(Tier::from_name(tier.name()), Some(tier));
            assert_eq!(serde_json::to_value(tier).unwrap(), tier.name());
        }
        assert_eq!((Tier::from_name("warm"), SegmentTier::from_number(3)), (None, None));
    }
}
