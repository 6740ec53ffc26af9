//! Decisions: moves, retentions and evictions, with their reasons.
//!
//! Field names and their order are a stable interface for programs. Nothing is stored, so a power failure has
//! no effect.

use serde::{Deserialize, Serialize};

/// A decision, or several similar ones in quick succession merged into one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionInfo {
    /// Sequence number; later decisions have greater numbers.
    pub seq: u64,
    /// Time of the first merged decision.
    pub time: String,
    /// Time of the last merged decision.
    pub until: String,
    /// Action: `spill`, `promote`, `relocate`, `release`, `keep`, `evict`, `clear`, `delete`, `import`,
    /// `persist` or `migrate`.
    pub kind: String,
    /// Segment, if the decision is about one.
    pub segment: Option<u64>,
    /// Bucket, if the decision is about objects; its id after `#` if the bucket is gone.
    pub bucket: Option<String>,
    /// Key of the object, key of the first of several objects, or their common prefix.
    pub key: Option<String>,
    /// Number of merged decisions; repeated attempts are counted each.
    pub count: u64,
    /// Location before the action.
    pub from: String,
    /// Destination of the action.
    pub to: String,
    /// Total bytes.
    pub bytes: u64,
    /// Reason: `watermark`, `drain`, `compaction`, `asked`, `pressure`, `dead`, `heat`, `pin`, `read`, `job`,
    /// `write_back`, `policy` or `rule`.
    pub reason: String,
    /// Job that carried out the action, if any.
    pub job: Option<u64>,
    /// Rule that demanded the action, if any.
    pub rule: Option<String>,
    /// Outcome: `done`, `no_room`, `over_budget`, `damaged`, `foreign` or `failed`.
    pub outcome: String,
    /// Error of the last failed attempt.
    pub error: Option<String>,
}

/// A list of decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionList {
    /// Decisions, newest first.
    pub decisions: Vec<DecisionInfo>,
}
