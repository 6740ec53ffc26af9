//! `/v1/upstreams`: the object stores of others that are configured, and whether they can do what is asked of them.

use super::{Admin, ApiError};
use crate::config::Value as _;
use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use mlgw_tiering::upstream::{CheckStep, Upstream, UpstreamSettings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The object stores of others, by name.
pub type Upstreams = Arc<BTreeMap<String, Upstream>>;

/// An object store of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamInfo {
    /// Its name in the configuration.
    pub name: String,
    /// Whose protocol it speaks.
    pub kind: String,
    /// Its URL; none is the vendor's own.
    pub endpoint: Option<String>,
    /// Its bucket, container or directory.
    pub bucket: String,
    /// What keys of segments in it begin with.
    pub prefix: String,
    /// Whether segments are encrypted before they are sent there.
    pub encrypt: bool,
    /// The buckets that are bound to it.
    pub bound: Vec<String>,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamList {
    /// By name.
    pub upstreams: Vec<UpstreamInfo>,
}

/// A step of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInfo {
    /// What was asked for: `reach`, `credentials`, `list`, `write`, `read`, `range`, `multipart`, `abort`, `delete`.
    pub step: String,
    /// What went wrong, if anything.
    pub fault: Option<String>,
    /// The permission that is missing, when that is what the store says.
    pub missing: Option<String>,
}

impl From<CheckStep> for CheckInfo {
    fn from(step: CheckStep) -> Self {
        Self {
            step: step.verb.name().to_owned(),
            fault: step.fault,
            missing: step.missing.map(str::to_owned),
        }
    }
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Json<UpstreamList> {
    let loaded = admin.loaded.load();
    let upstreams = loaded.config.upstreams.iter().map(|settings| admin.upstream_info(settings)).collect();
    Json(UpstreamList { upstreams })
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
) -> Result<Json<UpstreamInfo>, ApiError> {
    let loaded = admin.loaded.load();
    let found = loaded.config.upstreams.iter().find(|settings| settings.name == name);
    found.map(|settings| Json(admin.upstream_info(settings))).ok_or_else(|| no_such_upstream(&name))
}

/// A check reads and writes there, and leaves nothing: nothing here changes, so no line of the audit log says so.
pub(super) async fn check(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
) -> Result<Json<Vec<CheckInfo>>, ApiError> {
    let upstream = admin.upstreams.get(&name).ok_or_else(|| no_such_upstream(&name))?;
    Ok(Json(upstream.check().await.into_iter().map(CheckInfo::from).collect()))
}

fn no_such_upstream(name: &str) -> ApiError {
    let message =
        format!("There is no upstream {name:?}; a section [upstream.{name}] in the configuration makes one.");
    ApiError::new(StatusCode::NOT_FOUND, "NoSuchUpstream", message)
}

impl Admin {
    fn upstream_info(&self, settings: &UpstreamSettings) -> UpstreamInfo {
        let buckets = self.catalogue.buckets(None, None, usize::MAX);
        let is_bound = |bucket: &mlgw_metadata::schema::Bucket| {
            bucket.binding.as_ref().is_some_and(|binding| binding.upstream == settings.name)
        };
        UpstreamInfo {
            name: settings.name.clone(),
            kind: settings.kind.to_text(),
            endpoint: settings.endpoint.clone(),
            bucket: settings.bucket.clone(),
            prefix: settings.prefix.clone(),
            encrypt: settings.encrypt,
            bound: buckets
                .iter()
                .filter(|bucket| is_bound(bucket))
                .map(|bucket| bucket.name.clone())
                .collect(),
        }
    }
}
