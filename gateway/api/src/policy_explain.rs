//! Explanation of the running policy's verdicts on one object.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use crate::{ObjectInfo, PendingDeletionInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Verdicts of the running policy on one object, with their reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FactInfo {
    /// Name of the property.
    pub property: String,
    /// Value of the property.
    pub value: String,
}

/// Evaluation of one rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConditionResultInfo {
    /// True if the condition held.
    pub held: bool,
    /// Text of the condition, with the fact in brackets.
    pub says: String,
}

/// Action of a rule that matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActionInfo {
    /// Name of the action.
    pub action: RuleActionKind,
    /// Target of the action.
    pub target: String,
    /// Name of the rule.
    pub rule: String,
    /// Reason why nothing is done now, or empty.
    pub note: String,
}

/// Action of a rule on a dataset, a checkpoint or a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScopedActionInfo {
    /// Name of the action.
    pub action: RuleActionKind,
    /// Name of the rule or of the setting.
    pub rule: String,
    /// Scope of the action: `dataset`, `checkpoint` or `prefix`, and its name.
    pub of: String,
}

/// Action overridden by a stronger one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OverriddenAction {
    /// Name of the overridden action.
    pub action: RuleActionKind,
    /// Name of its rule.
    pub rule: String,
    /// Action that is done instead.
    pub to_action: RuleActionKind,
    /// Rule of that action.
    pub to_rule: String,
    /// Reason why the action is overridden.
    pub why: OverrideReason,
}

/// Recommended treatment of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecommendationInfo {
    /// True if a clean copy should be kept.
    pub cache: bool,
    /// Priority of the copy.
    pub cache_priority: CachePriority,
    /// Cache policy of the copy.
    pub cache_policy: CopyPolicy,
    /// Blocks, shards or keys to read ahead; 0 leaves the depth to the strategy.
    pub prefetch_depth: u32,
    /// Maximum number of bytes to read ahead.
    pub prefetch_bytes: u64,
    /// Read-ahead strategy.
    pub prefetch_strategy: ReadAheadStrategy,
}

words! {
    /// Kind of an action of a rule.
    RuleActionKind {
        /// Keeps a clean copy of what is read; with `keep: false` keeps none.
        Cache = "cache",
        /// Keeps a clean copy after enough reads; scans leave no copies.
        IntelligentCache = "intelligent_cache",
        /// Reads ahead.
        Prefetch = "prefetch",
        /// Passes bytes through in chunks.
        Stream = "stream",
        /// Shares one read among workers that read the same bytes at the same time.
        Coordinate = "coordinate",
        /// Compresses samples in segments, where it saves space.
        Compress = "compress",
        /// Assigns requests to a lane and a rank.
        Prioritize = "prioritize",
        /// Moves the authoritative copy to a faster tier.
        Promote = "promote",
        /// Keeps the object in its tier, whatever else needs the space.
        Pin = "pin",
        /// Removes a pin that a rule has set.
        Unpin = "unpin",
        /// Moves the authoritative copy to a slower tier.
        Spill = "spill",
        /// Evicts clean copies.
        Evict = "evict",
        /// Keeps some of many checkpoints; unpins and spills the others.
        Retain = "retain",
    }
}

words! {
    /// Reason why an action is not carried out.
    OverrideReason {
        /// A stronger rule requests the same.
        Same = "same",
        /// A stronger rule requests something else for the same aspect.
        Weaker = "weaker",
        /// The action is incompatible with that of a stronger rule.
        Contradicts = "contradicts",
    }
}

words! {
    /// Importance of a copy.
    CachePriority {
        /// After all others.
        Low = "low",
        /// Default.
        Normal = "normal",
        /// Before most others.
        High = "high",
        /// Before all others.
        Urgent = "urgent",
    }
}

words! {
    /// Rule by which the cache selects the copies to keep.
    CopyPolicy {
        /// No copies are kept.
        None = "none",
        /// The least recently read copies are evicted first.
        Lru = "lru",
        /// Epochs, scans and checkpoints are distinguished.
        TrainingAware = "training-aware",
        /// Like training-aware; the setting `learning` decides whether measured outcomes move bounds.
        Learned = "learned",
    }
}

words! {
    /// Read-ahead strategy: share of the possible depth that is used.
    ReadAheadStrategy {
        /// A quarter of the depth.
        Conservative = "conservative",
        /// Half of the depth.
        Balanced = "balanced",
        /// The full depth.
        Aggressive = "aggressive",
        /// The full depth while recent read-ahead was useful.
        Adaptive = "adaptive",
    }
}
