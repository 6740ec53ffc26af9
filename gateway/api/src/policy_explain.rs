//! What the running policy makes of one object, and why.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use crate::{DeletionInfo, ObjectInfo};
use serde::{Deserialize, Serialize};

/// What the running policy makes of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The object, and where its bytes are.
    pub object: ObjectInfo,
    /// What of it is kept as clean copies, of an object of a bound bucket.
    pub kept: Option<KeptInfo>,
    /// The version that runs; 0: none was ever applied.
    pub version: u64,
    /// What is known, in the order of the language's tables.
    pub facts: Vec<FactInfo>,
    /// The rules that were tried, in that order.
    pub rules: Vec<RuleTried>,
    /// What is due: one answer for each question.
    pub due: Vec<ActionInfo>,
    /// What rules that only observe would do.
    pub observed: Vec<ActionInfo>,
    /// What stronger rules have kept from being due.
    pub lost: Vec<LostAction>,
    /// What rules say of what it belongs to, as found in the last round over all objects; whichever object
    /// they matched.
    pub belonging: Vec<BelongingInfo>,
    /// When the checkpoint that it is of is to be deleted.
    pub deletion: Option<DeletionInfo>,
    /// What is best done with it.
    pub recommendation: RecommendationInfo,
    /// Why, in one sentence.
    pub reason: String,
}

/// Blocks of an object that are kept as clean copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptInfo {
    /// Blocks that it has, at most 10,000.
    pub blocks: u32,
    /// Those of them that are kept.
    pub kept: u32,
    /// Those of these that stay whatever comes.
    pub pinned: u32,
    /// Those of these that an access plan asks for.
    pub planned: u32,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactInfo {
    /// Its word.
    pub property: String,
    /// Its value.
    pub value: String,
}

/// A rule that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleTried {
    /// The rule.
    pub rule: String,
    /// Its priority.
    pub priority: i32,
    /// File and line.
    pub from: String,
    /// Whether the framework that it is for, if any, is detected.
    pub applies: bool,
    /// Whether it matched.
    pub matched: bool,
    /// The share of the weights of conditions that held, 0 to 1.
    pub score: f64,
    /// Its conditions, with what they saw.
    pub conditions: Vec<ConditionSeen>,
}

/// A condition and what it saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionSeen {
    /// Whether it held.
    pub held: bool,
    /// What it asks, and the fact in brackets.
    pub says: String,
}

/// An action of a rule that matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionInfo {
    /// The action.
    pub action: String,
    /// What it is done to.
    pub target: String,
    /// The rule.
    pub rule: String,
    /// Why nothing is done now, if so.
    pub note: String,
}

/// What a rule says of a dataset, a checkpoint or a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BelongingInfo {
    /// The action.
    pub action: String,
    /// The rule, or the setting.
    pub rule: String,
    /// What it is said of: `dataset`, `checkpoint` or `prefix`, and its name.
    pub of: String,
}

/// An action that a stronger one has kept from being due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostAction {
    /// The action.
    pub action: String,
    /// The rule.
    pub rule: String,
    /// The action that is done instead.
    pub to_action: String,
    /// The rule that it is of.
    pub to_rule: String,
    /// `same`, `weaker` or `contradicts`.
    pub why: String,
}

/// What is best done with an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecommendationInfo {
    /// Whether a clean copy is kept.
    pub cache: bool,
    /// How dear it is: `low`, `normal`, `high` or `urgent`.
    pub cache_priority: String,
    /// Which copies stay when room is needed: `none`, `lru`, `training-aware` or `learned`.
    pub cache_policy: String,
    /// Blocks, shards or keys that are read ahead; 0: the strategy decides.
    pub prefetch_depth: u32,
    /// Bytes that are read ahead at most.
    pub prefetch_bytes: u64,
    /// How eagerly: `conservative`, `balanced`, `aggressive` or `adaptive`.
    pub prefetch_strategy: String,
}
