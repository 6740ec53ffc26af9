//! `/v1/upstreams`: the object stores of others that are configured, and whether they can do what is asked of them.

use super::extract::Path;
use super::{Admin, ApiError};
use crate::config::Value as _;
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use mlgw_common::hide_url_secrets;
use mlgw_metadata::schema::SegmentRecord;
use mlgw_tiering::hot::UPSTREAM_TIER;
use mlgw_tiering::upstream::{CheckStep, UpstreamSettings};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
    /// Whether segments are spilled to it.
    pub spilled_to: bool,
    /// Segments that are there.
    pub segments: u64,
    /// Bytes of them.
    pub segment_bytes: u64,
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

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Result<Json<UpstreamList>, ApiError> {
    let loaded = admin.loaded.load();
    let upstreams = loaded.config.upstreams.iter().map(|settings| admin.upstream_info(settings));
    Ok(Json(UpstreamList { upstreams: upstreams.collect::<Result<_, _>>()? }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
) -> Result<Json<UpstreamInfo>, ApiError> {
    let loaded = admin.loaded.load();
    let found = loaded.config.upstreams.iter().find(|settings| settings.name == name);
    let settings = found.ok_or_else(|| no_such_upstream(&name))?;
    Ok(Json(admin.upstream_info(settings)?))
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
    fn upstream_info(&self, settings: &UpstreamSettings) -> Result<UpstreamInfo, ApiError> {
        let mut segments = self.catalogue.segments().map_err(crate::s3::error::S3Error::from)?;
        segments.retain(|segment| is_in(segment, &settings.name));
        let buckets = self.catalogue.buckets(None, None, usize::MAX);
        let is_bound = |bucket: &mlgw_metadata::schema::Bucket| {
            bucket.binding.as_ref().is_some_and(|binding| binding.upstream == settings.name)
        };
        Ok(UpstreamInfo {
            name: settings.name.clone(),
            kind: settings.kind.to_text(),
            endpoint: settings.endpoint.as_deref().map(|url| hide_url_secrets(url).into_owned()),
            bucket: settings.bucket.clone(),
            prefix: settings.prefix.clone(),
            encrypt: settings.encrypt,
            bound: buckets
                .iter()
                .filter(|bucket| is_bound(bucket))
                .map(|bucket| bucket.name.clone())
                .collect(),
            spilled_to: self.loaded.load().config.cold.upstream.as_ref() == Some(&settings.name),
            segments: segments.len() as u64,
            segment_bytes: segments.iter().map(|segment| segment.length).sum(),
        })
    }
}

/// Whether a segment is in an upstream, and in this one.
fn is_in(segment: &SegmentRecord, upstream: &str) -> bool {
    segment.replicas.iter().any(|at| at.tier == UPSTREAM_TIER && at.location == upstream)
}
