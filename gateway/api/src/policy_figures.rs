//! The running policy in a status document.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Summary of the running policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyStatus {
    /// Version of the policy; 0 if none was ever applied and only the built-in policy is in force.
    pub version: u64,
    /// Rules that act.
    pub rules_act: u64,
    /// Rules that only observe.
    pub rules_observe: u64,
    /// True if measured outcomes may move bounds.
    pub learning: bool,
    /// Cause, if the applied files are no longer valid; then only the built-in policy is in force.
    pub fault: Option<String>,
    /// Cause, if the watched files in their present state are refused.
    pub refused: Option<String>,
}
