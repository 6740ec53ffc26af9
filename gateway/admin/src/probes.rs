//! `/healthz`, `/readyz` and `/metrics`, for orchestrators and Prometheus, without a signature.
//!
//! `/healthz` succeeds if the process responds at all. `/readyz` succeeds while requests should be routed
//! here, which ends when the server begins to drain.

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

pub(super) async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let has_majorities = || admin.cluster.as_ref().is_none_or(ClusterNode::has_majorities);
    readiness(member_obstacle(admin.is_ready(), true, has_majorities, || false))
}

/// Returns the response of `/readyz` with the reason for which the server is not ready, if there is one.
pub(super) fn readiness(obstacle: Option<&'static str>) -> Response {
    match obstacle {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// Returns the reason for which a node is not ready, if there is one. A storage node needs no other one that
/// serves.
pub(super) fn member_obstacle(
    accepts: bool,
    is_storage: bool,
    has_majorities: impl FnOnce() -> bool,
    is_other_serving: impl FnOnce() -> bool,
) -> Option<&'static str> {
    match (accepts, is_storage) {
        (false, _) => Some("draining"),
        (true, true) => (!has_majorities()).then_some("most voters of a group do not answer"),
        (true, false) => (!is_other_serving()).then_some("no storage node serves, as far as this node knows"),
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
