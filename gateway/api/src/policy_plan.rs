//! What other policies would do with what is stored.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use crate::PolicyText;
use serde::{Deserialize, Serialize};

/// Files that are not to run yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// Policies, the strongest first, in the place of all that run; without it those stay.
    #[serde(default)]
    pub files: Option<Vec<PolicyText>>,
    /// Plugins of frameworks in the place of those that run; without it those stay.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
    /// The plan that is gone on with, as the answer before this one said; then there are no files.
    #[serde(default)]
    pub plan: Option<u64>,
    /// Objects that are looked at with this request, at most 10,000.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// What would be otherwise, as far as objects were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPage {
    /// The version that runs; 0: none was ever applied.
    pub version: u64,
    /// Objects that were looked at.
    pub objects: u64,
    /// Those for which anything would be otherwise.
    pub changed: u64,
    /// What would, by rule and action.
    pub deeds: Vec<DeedInfo>,
    /// Settings that would be otherwise.
    pub settings: Vec<SettingPlanned>,
    /// Rules that are new or changed, ask how objects are read and matched none.
    pub not_judged: Vec<NotJudged>,
    /// Checkpoints that the running policy deletes, with the last answer.
    pub deletions: Vec<DeletionInfo>,
    /// Checkpoints that it lets stay and the other one would not, with the last answer.
    pub superfluous: Vec<SuperfluousInfo>,
    /// What the other one asks for that this server cannot do, with the last answer.
    pub impossible: Vec<String>,
    /// Objects that rules were heard about first, as they may speak of more than one.
    pub heard: u64,
    /// What to go on with; none when all objects were looked at.
    pub next: Option<u64>,
}

/// A setting that would be otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingPlanned {
    /// Its word.
    pub setting: String,
    /// What it is; none where it is left to the setting that it is a part of.
    pub before: Option<String>,
    /// What it would be.
    pub after: Option<String>,
}

/// What files begin or cease to do by one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeedInfo {
    /// `starts` or `stops`.
    pub change: String,
    /// `act` or `observe`.
    pub stance: String,
    /// The action and its target.
    pub action: String,
    /// The rule.
    pub rule: String,
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of those that are not in the tier where the action wants them.
    pub moved_bytes: u64,
    /// The first of them.
    pub examples: Vec<PlanExample>,
}

/// A checkpoint whose deletion waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletionInfo {
    /// What all its keys begin with.
    pub objects: String,
    /// The rule.
    pub rule: String,
    /// Since when it waits.
    pub noted: String,
    /// When it is deleted, unless it is read or written before, or the policy changes.
    pub due: String,
    /// Why it will not be as things are, or was not when that time had come.
    pub stays: Option<String>,
    /// How many objects it has.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A checkpoint that another policy would let go.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SuperfluousInfo {
    /// Its prefix.
    pub objects: String,
    /// The rule that keeps others.
    pub rule: String,
    /// Whether it would be deleted, and not only go down.
    pub is_deleted: bool,
    /// How long the deletion would wait.
    pub grace_seconds: u64,
    /// Why it would not be deleted all the same, by what is known of it now.
    pub stays: Option<String>,
    /// How many objects it has.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An object, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanExample {
    /// The object.
    pub object: String,
    /// Why, in one sentence.
    pub reason: String,
}

/// A rule that cannot be judged by what is known now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotJudged {
    /// The rule.
    pub rule: String,
    /// What it asks that is not known.
    pub asks: Vec<String>,
}
