//! `/v1/config`: every setting in force and where it was set.

use super::Admin;
use crate::config::{Loaded, Machine};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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

impl SettingList {
    /// The settings of `loaded` on `machine`.
    #[must_use]
    pub fn of(loaded: &Loaded, machine: &Machine) -> Self {
        let settings = loaded.values().map(|(setting, value, origin)| SettingInfo {
            key: setting.key.to_owned(),
            value,
            derived: loaded.derived(setting.key, machine),
            origin: origin.to_string(),
            live: setting.live,
        });
        Self { settings: settings.collect() }
    }
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Json<SettingList> {
    Json(SettingList::of(&admin.loaded.load(), &admin.machine))
}
