//! `/healthz`, `/readyz` and `/metrics`, for orchestrators and Prometheus, without a signature.
//!
//! `/healthz` succeeds if the process responds at all. `/readyz` succeeds while requests should be routed
//! here, which ends when the server begins to drain.

use super::member::member_obstacle;
use super::{Admin, ApiError};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
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

pub(super) async fn metrics(State(admin): State<Arc<Admin>>) -> Result<Response, ApiError> {
    // Counting the contents of buckets reads the catalogue, which would block an async worker thread too
    // long.
    let families = tokio::task::spawn_blocking(move || admin.families()).await.map_err(|e| failed(&e))?;
    exposition(families.map_err(|e| failed(&e))?)
}

/// Returns the response with these metrics.
pub(super) fn exposition(families: Vec<MetricFamily>) -> Result<Response, ApiError> {
    let text = text(families).map_err(|error| failed(&error))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

pub(super) fn failed(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", error.to_string())
}
