//! Settings in force, and where each was set.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingInfo {
    /// Its key.
    pub key: String,
    /// Its value as TOML writes it.
    pub value: String,
    /// What `auto` comes to on this machine, in bytes.
    pub derived: Option<u64>,
    /// Where it was set.
    pub origin: String,
    /// Whether it can change while the server runs.
    pub live: bool,
}

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingList {
    /// In the order of the documentation.
    pub settings: Vec<SettingInfo>,
}
