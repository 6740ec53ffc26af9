//! Ids that the catalogue allocates, with a type for each kind.
//!
//! Different ids cannot be confused in a call. Each type documents who allocates the number and if it is ever
//! reused. All are at most 64 bits and ordered by allocation.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number itself, for encoders.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

id! {
    /// A bucket for its whole lifetime; a bucket that is created again under the same name has another id.
    BucketId(u64)
}
id! {
    /// The bytes of exactly one object version, or of one multipart upload and the version that it becomes.
    /// Allocated by the catalogue, never reused; 0 means no body (a delete marker).
    BodyId(u64)
}
id! {
    /// A segment file. Allocated by the catalogue, never reused.
    SegmentId(u64)
}
id! {
    /// Number of times that a segment's bytes were written under one id; 1 for the first time.
    Generation(u32)
}
id! {
    /// A random number that is generated with a segment; 0 in segments of format 1.
    SegmentStamp(u64)
}
id! {
    /// A Raft group. Group 0 holds cluster-wide data.
    GroupId(u32)
}
id! {
    /// A member of the cluster.
    NodeId(u64)
}
id! {
    /// Position in its group's log at which an object version was written: the order of versions.
    Seq(u64)
}
id! {
    /// State of a bucket against which an object command was built; a command with a stale epoch is rejected.
    Epoch(u64)
}

impl NodeId {
    /// The node of a server that is not in a cluster.
    pub const SINGLE: Self = Self(1);
}

/// Seed of the checksums of a segment's records, in addition to the segment's id. Ids repeat between servers
/// and between the timelines of one server; stamps do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SegmentSeed {
    /// Number of times that the segment was written.
    pub generation: Generation,
    /// Stamp of the segment; 0 in a segment of format 1, whose checksums are seeded without one.
    pub stamp: SegmentStamp,
}

impl SegmentSeed {
    /// The seed of a segment of format 1.
    #[must_use]
    pub const fn unstamped(generation: Generation) -> Self {
        Self { generation, stamp: SegmentStamp(0) }
    }
}

/// The number of a part of a multipart upload, 1 to 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartNumber(u16);

impl PartNumber {
    /// `number` as a part number; `None` if it is outside 1 to
    /// [`limits::PART_NUMBER_MAX`](crate::limits::PART_NUMBER_MAX).
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number == 0 || number > crate::limits::PART_NUMBER_MAX as u32 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 10,000, checked above")]
        Some(Self(number as u16))
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for PartNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::PartNumber;

    #[test]
    fn part_numbers_run_from_1_to_10_000() {
        assert_eq!(PartNumber::new(0), None);
        assert_eq!(PartNumber::new(1).map(PartNumber::get), Some(1));
        assert_eq!(PartNumber::new(10_000).map(PartNumber::get), Some(10_000));
        assert_eq!(PartNumber::new(10_001), None);
        assert_eq!(PartNumber::new(65_537), None);
    }
}
