//! `/v1/config`: all settings in force and their sources.

use super::Admin;
use axum::Json;
use axum::extract::State;
use mlgw_api::SettingList;
use mlgw_config::list_settings;
use std::sync::Arc;

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Json<SettingList> {
    Json(list_settings(&admin.loaded.load(), &admin.machine))
}
