//! Settings in force and their sources.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingInfo {
    /// Key of the setting.
    pub key: String,
    /// Value in TOML notation.
    pub value: String,
    /// Bytes that `auto` resolves to on this machine.
    pub derived: Option<u64>,
    /// Source of the value.
    pub origin: String,
    /// True if the setting can change while the server runs.
    pub live: bool,
}

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingList {
    /// Settings, in the order of the documentation.
    pub settings: Vec<SettingInfo>,
}
