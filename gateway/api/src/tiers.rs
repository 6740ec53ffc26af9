//! Tiers, what scrubbing them found, and how far compaction is.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// A tier in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierInfo {
    /// Its name.
    pub tier: String,
    /// Bytes it may hold; 0 of upstreams, which have no bound that is known here.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Its segments.
    pub segments: u64,
    /// Stretches of objects that are damaged and listed.
    pub bad_blocks: u64,
}

/// The tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierList {
    /// The tiers, fastest first.
    pub tiers: Vec<TierInfo>,
}

/// A tier and what scrubbing it found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierDetail {
    /// The tier in short.
    #[serde(flatten)]
    pub info: TierInfo,
    /// Its scrub; none of the memory tier, which holds copies only.
    pub scrub: Option<ScrubInfo>,
    /// Of the memory tier: reads that it answered.
    pub hits: Option<u64>,
    /// Of the memory tier: reads that it would have answered, had it held what they asked for.
    pub misses: Option<u64>,
    /// What is damaged.
    pub bad: Vec<BadRange>,
}

/// How far a scrub is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubInfo {
    /// Whether a pass is under way.
    pub running: bool,
    /// When the newest pass began.
    pub began: String,
    /// Bytes that it has read.
    pub read_bytes: u64,
    /// Bytes there are to read.
    pub total_bytes: u64,
    /// Passes that came to their end.
    pub passes: u64,
    /// When the newest of them did.
    pub ended: Option<String>,
    /// Objects that all passes have compared with their checksums.
    #[serde(default)]
    pub compared_objects: u64,
}

/// A stretch of an object that is damaged on the disk: reads of it fail, reads of the rest do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRange {
    /// The bucket's name, or its id after `#`.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The part that the bytes are counted in, when the object was uploaded in parts.
    pub part: Option<u16>,
    /// The first bad byte.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// The segment.
    pub segment: u64,
    /// Where in its file.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// How far the compaction of a tier is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionInfo {
    /// The tier.
    pub tier: String,
    /// Bytes that nothing refers to, as of the last look.
    pub garbage_bytes: u64,
    /// Bytes of objects that were moved since the start.
    pub moved_bytes: u64,
    /// Bytes of segment files that were removed since the start.
    pub freed_bytes: u64,
    /// Segments that were released since the start.
    pub freed_segments: u64,
    /// Segments that cannot be emptied, because what lives in them does not verify.
    pub held_back_segments: u64,
    /// Segments that go when their last reader is done.
    pub draining_segments: u64,
    /// Rounds that have ended since the start.
    pub rounds: u64,
    /// In the answer to a request for a round: how many have ended when it has.
    pub until_rounds: Option<u64>,
}

/// A round of compaction that is asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactRequest {
    /// Percent of a segment's bytes that must be dead, 1 to 100; the setting's when not given.
    #[serde(default)]
    pub dead_percent: Option<u64>,
}
