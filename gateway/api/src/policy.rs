//! The running policy, its history, and changes of it.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// A file that a person wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyText {
    /// Its name, as messages give it.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A version of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyVersionInfo {
    /// Its number; the greatest one runs.
    pub version: u64,
    /// When it was made.
    pub time: String,
    /// Who made it: an access key, the files that were watched, or `learning`.
    pub who: String,
    /// `apply`, `rollback`, `reload`, `freeze`, `unfreeze` or `learn`.
    pub kind: String,
    /// What was said about it.
    pub message: String,
    /// What changed, in one sentence.
    pub changes: String,
    /// The version that brought its files; 0: it has none.
    pub files: u64,
    /// Of a roll-back, the version that it went back to; 0 is what comes with the server.
    pub back_to: Option<u64>,
    /// Whether a person has stopped the learning.
    pub frozen: bool,
}

/// The policy that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyInfo {
    /// Its version; none when nobody ever applied one, and what comes with the server holds alone.
    pub version: Option<PolicyVersionInfo>,
    /// Whether bounds may move by measured outcomes.
    pub learning: bool,
    /// Where the server runs, if that is said.
    pub environment: Option<String>,
    /// Policies that people wrote, the strongest first.
    pub files: Vec<PolicyText>,
    /// Plugins of frameworks that people wrote.
    pub frameworks: Vec<PolicyText>,
    /// Rules that act.
    pub rules_act: u64,
    /// Rules that only observe.
    pub rules_observe: u64,
    /// Why the files do not hold any more; then what comes with the server holds alone.
    pub fault: Option<String>,
    /// Why watched files, as they are now, are refused.
    pub refused: Option<String>,
}

/// What all layers come to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EffectivePolicy {
    /// The version that runs; 0: none was ever applied.
    pub version: u64,
    /// A policy file that comes to the same, with where each line is from.
    pub yaml: String,
    /// The same as a document.
    pub policy: serde_json::Value,
    /// Where each of its settings and rules is from.
    pub from: serde_json::Value,
}

/// Versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyHistory {
    /// The newest first.
    pub versions: Vec<PolicyVersionInfo>,
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    /// Whether anything was to change at all.
    pub changed: bool,
    /// The version that runs now; none when nobody ever applied one.
    pub version: Option<PolicyVersionInfo>,
}

/// Files that are to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Policies, the strongest first, in the place of all that run; without it those stay.
    #[serde(default)]
    pub files: Option<Vec<PolicyText>>,
    /// Plugins of frameworks that take the place of those that run; without it those stay.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
    /// Only if this version runs; 0: if none was ever applied.
    #[serde(default)]
    pub if_version: Option<u64>,
    /// What is to be said about it in the history.
    #[serde(default)]
    pub message: String,
}

/// Back to other files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// To those of this version, 0 being what comes with the server; without it to those that ran before the
    /// ones that do.
    #[serde(default)]
    pub version: Option<u64>,
    /// Only if this version runs.
    #[serde(default)]
    pub if_version: Option<u64>,
    /// What is to be said about it in the history.
    #[serde(default)]
    pub message: String,
}

/// The learning is to stop or to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreezeRequest {
    /// Only if this version runs.
    #[serde(default)]
    pub if_version: Option<u64>,
    /// What is to be said about it in the history.
    #[serde(default)]
    pub message: String,
}
