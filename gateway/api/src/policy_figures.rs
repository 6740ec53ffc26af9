//! The running policy in a status.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// The running policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Its version; 0: none was ever applied, and what comes with the server holds alone.
    pub version: u64,
    /// Rules that act.
    pub rules_act: u64,
    /// Rules that only observe.
    pub rules_observe: u64,
    /// Whether bounds may move by measured outcomes.
    pub learning: bool,
    /// Why the files do not hold any more; then what comes with the server holds alone.
    pub fault: Option<String>,
    /// Why watched files, as they are now, are refused.
    pub refused: Option<String>,
}
