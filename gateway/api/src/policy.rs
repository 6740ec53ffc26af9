//! The running policy, its history, and changes of it.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A policy or plugin file written by a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyText {
    /// Name of the file in messages.
    pub name: String,
    /// Text of the file.
    pub text: String,
}

/// A version of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyVersionInfo {
    /// Version number; the greatest one is running.
    pub version: u64,
    /// Time of creation.
    pub time: String,
    /// Author: an access key, the watched files, or `learning`.
    pub who: String,
    /// Kind of the change that created the version.
    pub kind: PolicyChangeKind,
    /// Message that its author gave.
    pub message: String,
    /// Changes, in one sentence.
    pub changes: String,
    /// Version that introduced the files in force; 0 if there are none.
    pub files: u64,
    /// Rollback only: version whose files were restored; 0 is the built-in policy.
    pub back_to: Option<u64>,
    /// True if an operator has frozen the learning.
    pub frozen: bool,
}

/// The running policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyInfo {
    /// Version; absent if none was ever applied and only the built-in policy is in force.
    pub version: Option<PolicyVersionInfo>,
    /// True if measured outcomes may move bounds.
    pub learning: bool,
    /// Environment of the server, if configured.
    pub environment: Option<PolicyEnvironment>,
    /// Policies written by users, strongest first.
    pub files: Vec<PolicyText>,
    /// Framework plugins written by users.
    pub frameworks: Vec<PolicyText>,
    /// Rules that act.
    pub rules_act: u64,
    /// Rules that only observe.
    pub rules_observe: u64,
    /// Cause, if the applied files are no longer valid; then only the built-in policy is in force.
    pub fault: Option<String>,
    /// Cause, if the watched files in their present state are refused.
    pub refused: Option<String>,
}

/// Result of merging all policy layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EffectivePolicy {
    /// Version of the running policy; 0 if none was ever applied.
    pub version: u64,
    /// Equivalent policy file, with the source of each line.
    pub yaml: String,
    /// The same policy as a document.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub policy: serde_json::Value,
    /// Source of each setting and rule.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub from: serde_json::Value,
}

/// History of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyHistory {
    /// Versions, newest first.
    pub versions: Vec<PolicyVersionInfo>,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyChange {
    /// True if the request changed anything.
    pub changed: bool,
    /// Version that runs now; absent if none was ever applied.
    pub version: Option<PolicyVersionInfo>,
}

/// Request to apply files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Policies, strongest first, that replace all running ones; if absent, the running ones remain.
    #[serde(default)]
    pub files: Option<Vec<PolicyText>>,
    /// Framework plugins that replace the running ones; if absent, the running ones remain.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
    /// Precondition: the request is refused unless this version runs; 0 means that none was ever applied.
    #[serde(default)]
    pub if_version: Option<u64>,
    /// Message for the history.
    #[serde(default)]
    pub message: String,
}

/// Request to restore earlier files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Version whose files are restored, 0 being the built-in policy; if absent, the files that ran before
    /// the current ones.
    #[serde(default)]
    pub version: Option<u64>,
    /// Precondition: the request is refused unless this version runs.
    #[serde(default)]
    pub if_version: Option<u64>,
    /// Message for the history.
    #[serde(default)]
    pub message: String,
}

/// Request to freeze or unfreeze the learning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FreezeRequest {
    /// Precondition: the request is refused unless this version runs.
    #[serde(default)]
    pub if_version: Option<u64>,
    /// Message for the history.
    #[serde(default)]
    pub message: String,
}

words! {
    /// Kind of a change of the policy.
    PolicyChangeKind {
        /// Files were applied by a request.
        Apply = "apply",
        /// Earlier files were restored by a request.
        Rollback = "rollback",
        /// The watched files changed.
        Reload = "reload",
        /// An operator froze the learning.
        Freeze = "freeze",
        /// An operator resumed the learning.
        Unfreeze = "unfreeze",
        /// Measured outcomes moved bounds.
        Learn = "learn",
    }
}

words! {
    /// Environment in which a server runs.
    PolicyEnvironment {
        /// A developer's machine.
        Development = "development",
        /// Servers on which releases are tried.
        Staging = "staging",
        /// Servers with production workloads.
        Production = "production",
    }
}
