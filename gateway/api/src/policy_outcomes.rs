//! What became of what was decided, by rule and by dataset.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// What became of what was decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyOutcomes {
    /// By who wanted the copies; the engine first.
    pub rules: Vec<RuleOutcomes>,
    /// What became of blocks that were read ahead.
    pub ahead: AheadOutcomes,
    /// The datasets of which most was read lately.
    pub datasets: Vec<DatasetOutcomes>,
}

/// What became of the copies that somebody wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleOutcomes {
    /// The rule, or `engine` where none spoke.
    pub rule: String,
    /// Bytes of copies that were made.
    pub kept_bytes: u64,
    /// Bytes of those of them that were read again.
    pub used_bytes: u64,
    /// Bytes of those that went, and nobody had read them.
    pub wasted_bytes: u64,
    /// Bytes of those that went, and were asked for afterwards.
    pub missed_bytes: u64,
    /// Bytes of blocks that passed by, and were asked for again.
    pub passed_again_bytes: u64,
}

/// What became of blocks that were read ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AheadOutcomes {
    /// There when they were asked for.
    pub used: u64,
    /// Asked for while they were under way.
    pub late: u64,
    /// Fetched, and never asked for.
    pub wasted: u64,
    /// Not fetched: there was no room, or they were there.
    pub declined: u64,
    /// Guessed, and not there.
    pub absent: u64,
    /// How many are read ahead of one reader at most by now.
    pub depth: u32,
}

/// What a dataset got, and would have got: shares of the bytes that were read of it lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DatasetOutcomes {
    /// Its bucket.
    pub bucket: String,
    /// What its keys are like.
    pub keys: String,
    /// What was here.
    pub here: f64,
    /// What LRU would have had.
    pub lru: f64,
    /// What S3-FIFO would have had.
    pub s3_fifo: f64,
    /// What would have been here if nothing was ever evicted.
    pub never_evict: f64,
}
