//! Explanation of the running policy's verdicts on one object.
//!
//! Field names and their order are a stable interface for programs. Nothing is stored, so a power failure has
//! no effect.

use crate::{ObjectInfo, PendingDeletionInfo};
use serde::{Deserialize, Serialize};

/// Verdicts of the running policy on one object, with their reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The object and the location of its bytes.
    pub object: ObjectInfo,
    /// Blocks kept as clean copies; remote-backed buckets only.
    pub kept: Option<CachedBlocksInfo>,
    /// Version of the running policy; 0 if none was ever applied.
    pub version: u64,
    /// Known facts, in the order of the language's tables.
    pub facts: Vec<FactInfo>,
    /// Rules, in the order of their evaluation.
    pub rules: Vec<RuleEvaluationInfo>,
    /// Actions due: at most one for each question.
    pub due: Vec<ActionInfo>,
    /// Actions that observe-only rules would request.
    pub observed: Vec<ActionInfo>,
    /// Actions overridden by stronger rules.
    pub overridden: Vec<OverriddenAction>,
    /// Actions of rules on the dataset, checkpoint or prefix of the object, as found in the last pass over
    /// all objects, no matter which object they matched.
    pub scoped: Vec<ScopedActionInfo>,
    /// Pending deletion of the checkpoint that the object is part of.
    pub deletion: Option<PendingDeletionInfo>,
    /// Recommended treatment of the object.
    pub recommendation: RecommendationInfo,
    /// Reason, in one sentence.
    pub reason: String,
}

/// Blocks of an object that are kept as clean copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedBlocksInfo {
    /// Blocks of the object, at most 10,000.
    pub blocks: u32,
    /// Blocks that are kept.
    pub kept: u32,
    /// Kept blocks that are pinned.
    pub pinned: u32,
    /// Kept blocks that an access plan names.
    pub planned: u32,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactInfo {
    /// Name of the property.
    pub property: String,
    /// Value of the property.
    pub value: String,
}

/// Evaluation of one rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleEvaluationInfo {
    /// Name of the rule.
    pub rule: String,
    /// Priority of the rule.
    pub priority: i32,
    /// File and line of the definition.
    pub from: String,
    /// True if the rule requires no framework, or the required one is detected.
    pub applies: bool,
    /// True if the rule matched.
    pub matched: bool,
    /// Share of the conditions that held, by weight, 0 to 1.
    pub score: f64,
    /// Conditions, with the facts they were evaluated on.
    pub conditions: Vec<ConditionResultInfo>,
}

/// Evaluation of one condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionResultInfo {
    /// True if the condition held.
    pub held: bool,
    /// Text of the condition, with the fact in brackets.
    pub says: String,
}

/// Action of a rule that matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionInfo {
    /// Name of the action.
    pub action: String,
    /// Target of the action.
    pub target: String,
    /// Name of the rule.
    pub rule: String,
    /// Reason why nothing is done now, or empty.
    pub note: String,
}

/// Action of a rule on a dataset, a checkpoint or a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopedActionInfo {
    /// Name of the action.
    pub action: String,
    /// Name of the rule or of the setting.
    pub rule: String,
    /// Scope of the action: `dataset`, `checkpoint` or `prefix`, and its name.
    pub of: String,
}

/// Action overridden by a stronger one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverriddenAction {
    /// Name of the overridden action.
    pub action: String,
    /// Name of its rule.
    pub rule: String,
    /// Action that is done instead.
    pub to_action: String,
    /// Rule of that action.
    pub to_rule: String,
    /// `same`, `weaker` or `contradicts`.
    pub why: String,
}

/// Recommended treatment of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecommendationInfo {
    /// True if a clean copy should be kept.
    pub cache: bool,
    /// Cache priority: `low`, `normal`, `high` or `urgent`.
    pub cache_priority: String,
    /// Eviction policy: `none`, `lru`, `training-aware` or `learned`.
    pub cache_policy: String,
    /// Blocks, shards or keys to read ahead; 0 leaves the depth to the strategy.
    pub prefetch_depth: u32,
    /// Maximum number of bytes to read ahead.
    pub prefetch_bytes: u64,
    /// Read-ahead strategy: `conservative`, `balanced`, `aggressive` or `adaptive`.
    pub prefetch_strategy: String,
}
