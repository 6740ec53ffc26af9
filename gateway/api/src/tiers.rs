//! Tiers, results of their scrubs, and progress of compaction.
//!
//! Field names and their order are a stable interface for programs.

use mlgw_common::Tier;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Summary of a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierInfo {
    /// Name of the tier.
    pub tier: Tier,
    /// Capacity in bytes; 0 for upstreams, whose bound is unknown.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of damaged extents of objects that are listed.
    pub bad_blocks: u64,
}

/// All tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierList {
    /// Tiers, fastest first.
    pub tiers: Vec<TierInfo>,
}

/// A tier and the results of its scrubs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierDetail {
    /// Summary of the tier.
    #[serde(flatten)]
    pub info: TierInfo,
    /// Scrub of the tier; absent for the memory tier, which holds copies only.
    pub scrub: Option<ScrubInfo>,
    /// Memory tier only: reads served from it.
    pub hits: Option<u64>,
    /// Memory tier only: eligible reads that it could not serve because the data was not in it.
    pub misses: Option<u64>,
    /// Damaged ranges.
    pub bad: Vec<BadRange>,
}

/// Progress of a scrub. A pass reads the sealed segments of all local tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubInfo {
    /// True if a pass is running.
    pub running: bool,
    /// Start of the newest pass.
    pub began: String,
    /// Bytes that the pass has read.
    pub read_bytes: u64,
    /// Bytes to read in total.
    pub total_bytes: u64,
    /// Completed passes.
    pub passes: u64,
    /// End of the last completed pass.
    pub ended: Option<String>,
    /// Objects compared with their checksums by all passes.
    #[serde(default)]
    pub compared_objects: u64,
}

/// A range of an object that is damaged on disk. Reads of the range fail; reads of the rest of the object
/// succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BadRange {
    /// Name of the bucket, or its id after `#`.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Part to which the byte offsets are relative, if the object was uploaded in parts.
    pub part: Option<u16>,
    /// First damaged byte.
    pub first: u64,
    /// Last damaged byte, inclusive.
    pub last: u64,
    /// Id of the segment.
    pub segment: u64,
    /// Offset in the segment file.
    pub offset: u64,
    /// Description of the damage.
    pub what: String,
}

/// Progress of the compaction of a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompactionInfo {
    /// Name of the tier.
    pub tier: Tier,
    /// Bytes that nothing refers to, as of the last pass.
    pub garbage_bytes: u64,
    /// Bytes of objects moved since the start.
    pub moved_bytes: u64,
    /// Bytes of segment files removed since the start.
    pub freed_bytes: u64,
    /// Segments released since the start.
    pub freed_segments: u64,
    /// Segments that cannot be emptied, because their live data does not verify.
    pub held_back_segments: u64,
    /// Segments that are removed when their last reader is done.
    pub draining_segments: u64,
    /// Passes completed since the start.
    pub rounds: u64,
    /// In the response to a request for a pass only: value of `rounds` at which that pass is complete.
    pub until_rounds: Option<u64>,
}

/// Request for a pass of compaction.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompactRequest {
    /// Minimum percentage of dead bytes in a segment, 1 to 100; if absent, the setting applies.
    #[serde(default)]
    #[schemars(range(min = 1, max = 100))]
    pub dead_percent: Option<u64>,
}
