//! Decisions: what was moved, kept and let go of, and why.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// A decision that was made, or several that are alike and followed shortly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionInfo {
    /// Its number; a later one has a greater number.
    pub seq: u64,
    /// When it was made, the first of several.
    pub time: String,
    /// When the last of them was.
    pub until: String,
    /// What was to be done: `spill`, `promote`, `relocate`, `release`, `keep`, `evict`, `clear`, `delete`,
    /// `import`, `persist` or `migrate`.
    pub kind: String,
    /// The segment, when it is about one.
    pub segment: Option<u64>,
    /// The bucket, when it is about objects; its id after `#`, when it is gone.
    pub bucket: Option<String>,
    /// The object's key, or the first of several; or what all their keys begin with.
    pub key: Option<String>,
    /// How many it was, each as often as it was tried.
    pub count: u64,
    /// Where it was.
    pub from: String,
    /// Where it was to go.
    pub to: String,
    /// Bytes in all.
    pub bytes: u64,
    /// Why: `watermark`, `drain`, `compaction`, `asked`, `pressure`, `dead`, `heat`, `pin`, `read`, `job`,
    /// `write_back`, `policy` or `rule`.
    pub reason: String,
    /// The job, when one did it.
    pub job: Option<u64>,
    /// The rule, when one said it.
    pub rule: Option<String>,
    /// What came of it: `done`, `no_room`, `over_budget`, `damaged`, `foreign` or `failed`.
    pub outcome: String,
    /// What went wrong, the last time.
    pub error: Option<String>,
}

/// Decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionList {
    /// The newest first.
    pub decisions: Vec<DecisionInfo>,
}
