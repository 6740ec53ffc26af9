//! `/healthz`, `/readyz` and `/metrics`, for orchestrators and Prometheus, without a signature.
//!
//! `/healthz` succeeds if the process responds at all. `/readyz` succeeds while requests should be routed
//! here, which ends when the server begins to drain. A storage node of a cluster is ready while enough voters
//! answer it, its rows of buckets and access keys are recent, its clock is right, its disk is not slower than
//! those of the others, and the directory of its hot tier is used. Enough are most of the system group and of
//! one group of its sets; without sets, most of each group. A gateway is ready while a storage node serves.

use super::{Admin, ApiError};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use mlgw_metadata::ReadError;
use mlgw_node::ClusterNode;
use mlgw_telemetry::exposition::{CONTENT_TYPE, MetricFamily, text};
use std::sync::Arc;

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Reason for which a storage node is not ready while its hot directory is not used.
pub(super) const NO_SEGMENTS: &str = "the directory of the hot tier is not used";

pub(super) async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    if admin.is_ready() && !admin.stored.tiers.hot.can_append() {
        return readiness(Some(NO_SEGMENTS));
    }
    let obstacle = || admin.cluster.as_ref().and_then(cluster_obstacle);
    readiness(member_obstacle(admin.is_ready(), true, obstacle, || false))
}

/// Returns the response of `/readyz` with the reason for which the server is not ready, if there is one.
pub(super) fn readiness(obstacle: Option<&'static str>) -> Response {
    match obstacle {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// Returns the reason for which a node is not ready, if there is one. `storage_obstacle` is that of a storage
/// node, which needs no other one that serves.
pub(super) fn member_obstacle(
    accepts: bool,
    is_storage: bool,
    storage_obstacle: impl FnOnce() -> Option<&'static str>,
    is_other_serving: impl FnOnce() -> bool,
) -> Option<&'static str> {
    match (accepts, is_storage) {
        (false, _) => Some("draining"),
        (true, true) => storage_obstacle(),
        (true, false) => (!is_other_serving()).then_some("no storage node serves, as far as this node knows"),
    }
}

/// Returns the reason for which a storage node of a cluster is not ready, if there is one.
pub(super) fn cluster_obstacle(cluster: &ClusterNode) -> Option<&'static str> {
    let readiness = StorageReadiness {
        has_majorities: cluster.has_majorities(),
        has_recent_rows: cluster.has_recent_rows(),
        is_clock_wrong: cluster.clock().refused_skew_ms().is_some(),
        is_outpaced: cluster.is_outpaced(),
    };
    readiness.obstacle()
}

/// Facts that decide if a storage node of a cluster is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageReadiness {
    /// True if enough voters answer.
    pub(super) has_majorities: bool,
    /// True if a majority has confirmed the rows of the system group within the last 10 s.
    pub(super) has_recent_rows: bool,
    /// True if the clock deviates so much that changes are refused.
    pub(super) is_clock_wrong: bool,
    /// True if the disk is slow, and another storage node serves that is better.
    pub(super) is_outpaced: bool,
}

impl StorageReadiness {
    /// Returns the reason for which the node is not ready, if there is one.
    pub(super) const fn obstacle(self) -> Option<&'static str> {
        if !self.has_majorities {
            Some("most voters of a group do not answer")
        } else if !self.has_recent_rows {
            Some("no majority has confirmed the buckets and access keys of this node for 10 s")
        } else if self.is_clock_wrong {
            Some("the clock of this node deviates from those of the others")
        } else if self.is_outpaced {
            Some("syncs of this node's disk take longer than a second")
        } else {
            None
        }
    }
}

pub(super) async fn metrics(State(admin): State<Arc<Admin>>) -> Result<Response, ApiError> {
    answer(move || admin.families()).await
}

/// Returns the response with metrics. Counting the contents of buckets and segments reads the catalogue,
/// which would block an async worker thread too long.
pub(super) async fn answer(
    families: impl FnOnce() -> Result<Vec<MetricFamily>, ReadError> + Send + 'static,
) -> Result<Response, ApiError> {
    let families = tokio::task::spawn_blocking(families).await.map_err(|error| failed(&error))?;
    let text = text(families.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

pub(super) fn failed(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", error.to_string())
}
