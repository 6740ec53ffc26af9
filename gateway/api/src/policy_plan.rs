//! Dry runs: effect that other policies would have on stored objects.
//!
//! Field names and their order are a stable interface for programs.

use crate::PolicyText;
use crate::words::words;
use mlgw_common::limits::PLAN_OBJECTS_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Request for a dry run of files that do not run yet, or for its next page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// Policies, strongest first, that replace all running ones; if absent, the running ones remain.
    #[serde(default)]
    pub files: Option<Vec<PolicyText>>,
    /// Framework plugins that replace the running ones; if absent, the running ones remain.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
    /// Id of the plan to continue, from the previous response; then `files` and `frameworks` are absent.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub plan: Option<u64>,
    /// Maximum number of objects to visit in this request, at most 10,000.
    #[serde(default)]
    #[schemars(range(min = 1, max = PLAN_OBJECTS_MAX))]
    pub limit: Option<usize>,
}

/// Differences between the two policies, for the objects visited so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanPage {
    /// Version of the running policy; 0 if none was ever applied.
    pub version: u64,
    /// Objects visited.
    pub objects: u64,
    /// Objects for which anything differs.
    pub changed: u64,
    /// Differences by rule and action.
    pub actions: Vec<PlannedActionInfo>,
    /// Settings that differ.
    pub settings: Vec<PlannedSettingInfo>,
    /// New or changed rules that depend on access patterns and matched no object.
    pub not_judged: Vec<UndeterminedRule>,
    /// Checkpoints that the running policy deletes; last page only.
    pub deletions: Vec<PendingDeletionInfo>,
    /// Checkpoints that the running policy retains and the other one would not; last page only.
    pub expired: Vec<ExpiredCheckpointInfo>,
    /// Requests of the other policy that this server cannot carry out; last page only.
    pub impossible: Vec<String>,
    /// Objects on which rules were evaluated in the first pass, because rules may apply to more than one
    /// object.
    pub collected: u64,
    /// Id for the next request; absent when all objects were visited.
    #[schemars(range(min = 1))]
    pub next: Option<u64>,
}

/// A setting that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedSettingInfo {
    /// Name of the setting.
    pub setting: String,
    /// Current value; absent if it is inherited from the enclosing setting.
    pub before: Option<String>,
    /// Value under the other policy.
    pub after: Option<String>,
}

/// Actions that one rule starts or stops under the other files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedActionInfo {
    /// Change of the action.
    pub change: PlannedChange,
    /// Effect of the action.
    pub stance: RuleStance,
    /// Action and its target.
    pub action: String,
    /// Name of the rule.
    pub rule: String,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Bytes of the objects that are not in the action's target tier.
    pub moved_bytes: u64,
    /// First of these objects.
    pub examples: Vec<PlanExample>,
}

/// A checkpoint with a pending deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PendingDeletionInfo {
    /// Common prefix of its keys.
    pub objects: String,
    /// Name of the rule.
    pub rule: String,
    /// Time since which the deletion is pending.
    pub since: String,
    /// Time of the deletion, unless the checkpoint is read or written before, or the policy changes.
    pub due: String,
    /// Guard that prevents the deletion now, or that prevented it when it was due.
    pub guard: Option<String>,
    /// Number of objects.
    pub files: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// A checkpoint that another policy would not retain.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct ExpiredCheckpointInfo {
    /// Prefix of the checkpoint.
    pub objects: String,
    /// Retention rule that keeps other checkpoints.
    pub rule: String,
    /// True if the checkpoint would be deleted; false if it would only be moved to a lower tier.
    pub is_deleted: bool,
    /// Grace period of the deletion, in seconds.
    pub grace_seconds: u64,
    /// Guard that would prevent the deletion, by the facts known now.
    pub guard: Option<String>,
    /// Number of objects.
    pub files: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// An example object and the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanExample {
    /// Name of the object.
    pub object: String,
    /// Reason, in one sentence.
    pub reason: String,
}

/// A rule that cannot be evaluated on the facts known now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UndeterminedRule {
    /// Name of the rule.
    pub rule: String,
    /// Unknown properties that the rule depends on.
    pub asks: Vec<String>,
}

words! {
    /// Change of an action under other policy files.
    PlannedChange {
        /// The action is requested by the other files alone.
        Starts = "starts",
        /// The action is requested by the running files alone.
        Stops = "stops",
    }
}

words! {
    /// Effect of a rule's actions: carried out, or reported alone.
    RuleStance {
        /// The action is reported, not carried out.
        Observe = "observe",
        /// The action is carried out.
        Act = "act",
    }
}
