//! Outcomes of cache decisions, by rule and by dataset.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Outcomes of cache decisions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyOutcomes {
    /// Outcomes by rule that requested the copies; the engine first.
    pub rules: Vec<RuleOutcomes>,
    /// Outcomes of read-ahead.
    pub ahead: ReadAheadOutcomes,
    /// Datasets with the most bytes read recently.
    pub datasets: Vec<DatasetOutcomes>,
}

/// Outcomes of the copies that one rule requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleOutcomes {
    /// Name of the rule, or `engine` where no rule matched.
    pub rule: String,
    /// Bytes of copies that were made.
    pub kept_bytes: u64,
    /// Bytes of these copies that were read again.
    pub used_bytes: u64,
    /// Bytes of copies evicted without ever having been read.
    pub wasted_bytes: u64,
    /// Bytes of copies evicted and requested afterwards.
    pub missed_bytes: u64,
    /// Bytes of blocks that were not kept and were requested again.
    pub passed_again_bytes: u64,
}

/// Outcomes of read-ahead, in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadAheadOutcomes {
    /// Present when requested.
    pub used: u64,
    /// Requested while being fetched.
    pub late: u64,
    /// Fetched and never requested.
    pub wasted: u64,
    /// Not fetched, because there was no room or they were present already.
    pub declined: u64,
    /// Predicted, and not present at the origin.
    pub absent: u64,
    /// Current maximum read-ahead depth per reader, in blocks.
    pub depth: u32,
}

/// Actual and simulated hit ratios of a dataset: shares of the bytes read recently.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetOutcomes {
    /// Bucket of the dataset.
    pub bucket: String,
    /// Key pattern of the dataset.
    pub keys: String,
    /// Share that was served from this server.
    pub mlgw: f64,
    /// Share that LRU would have served.
    pub lru: f64,
    /// Share that S3-FIFO would have served.
    pub s3_fifo: f64,
    /// Share that would have been served if nothing were ever evicted.
    pub never_evict: f64,
}
