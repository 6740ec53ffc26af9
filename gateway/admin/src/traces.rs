//! `/v1/traces`: access traces, recorded to simulate policies on them.

use super::change::{AuditedAction, AuditedChange, json, parse};
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http::{StatusCode, header};
use mlgw_api::{NewTrace, TraceFileInfo, TraceInfo, TraceList};
use mlgw_background::access_traces::{AccessTraceError, Trace};
use mlgw_common::limits::TRACE_BYTES_DEFAULT;
use serde_json::Value;
use std::sync::Arc;

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Result<Json<TraceList>, ApiError> {
    let traces = run_blocking(&admin, |admin| admin.traces.list()).await?;
    Ok(Json(TraceList { traces: traces.into_iter().map(trace_info).collect() }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(trace): AdminPath<String>,
) -> Result<Json<TraceInfo>, ApiError> {
    Ok(Json(trace_info(run_blocking(&admin, move |admin| admin.traces.show(&trace)).await?)))
}

pub(super) async fn file(
    State(admin): State<Arc<Admin>>,
    AdminPath((trace, number)): AdminPath<(String, u64)>,
) -> Result<Response, ApiError> {
    let bytes = run_blocking(&admin, move |admin| admin.traces.read(&trace, number)).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

pub(super) async fn start(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let NewTrace { name, bytes_max } = parse(&body)?;
    let action = AuditedAction { action: "trace.start", resource: name.clone(), status: StatusCode::CREATED };
    let shared = Arc::clone(&admin);
    let work = async move {
        let bytes_max = bytes_max.unwrap_or(TRACE_BYTES_DEFAULT);
        let started = {
            let name = name.clone();
            run_blocking(&shared, move |admin| admin.traces.start(&name, bytes_max)).await?
        };
        let (trace, removed) = started;
        let after = json(&TraceInfo { removed, ..trace_info(trace) })?;
        Ok(AuditedChange { resource: name, before: Value::Null, after, answer: None })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn stop(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
) -> Result<Response, ApiError> {
    let action = AuditedAction { action: "trace.stop", resource: String::new(), status: StatusCode::OK };
    let shared = Arc::clone(&admin);
    let work = async move {
        let trace = trace_info(run_blocking(&shared, |admin| admin.traces.stop()).await?);
        let resource = trace.name.clone();
        Ok(AuditedChange { resource, before: Value::Null, after: json(&trace)?, answer: None })
    };
    admin.change(caller, action, work).await
}

/// Runs work that waits for the disk on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    admin: &Arc<Admin>,
    work: impl FnOnce(&Admin) -> Result<T, AccessTraceError> + Send + 'static,
) -> Result<T, ApiError> {
    let admin = Arc::clone(admin);
    let done = tokio::task::spawn_blocking(move || work(&admin)).await;
    let failed = |why: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", why);
    Ok(done.map_err(|error| failed(error.to_string()))??)
}

impl From<AccessTraceError> for ApiError {
    fn from(error: AccessTraceError) -> Self {
        let message = format!("{error}.");
        match error {
            AccessTraceError::BadName(_) | AccessTraceError::TooSmall(_) => Self::invalid(message),
            AccessTraceError::Exists(_) => Self::new(StatusCode::CONFLICT, "TraceExists", message),
            AccessTraceError::Busy(_) => Self::new(StatusCode::CONFLICT, "TraceRunning", message),
            AccessTraceError::Idle => Self::new(StatusCode::CONFLICT, "NoTraceRunning", message),
            AccessTraceError::NoSuchTrace(_) | AccessTraceError::NoSuchFile(..) => {
                Self::new(StatusCode::NOT_FOUND, "NoSuchTrace", message)
            }
            AccessTraceError::Io(..) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
            }
        }
    }
}

fn trace_info(trace: Trace) -> TraceInfo {
    let Trace { name, files, recording, recorded } = trace;
    TraceInfo {
        name,
        bytes: files.iter().map(|(_, bytes)| bytes).sum(),
        files: files.into_iter().map(|(number, bytes)| TraceFileInfo { number, bytes }).collect(),
        recording_since: recording.map(|(since, _)| since.to_string()),
        bytes_max: recording.map(|(_, bytes_max)| bytes_max),
        accesses: recorded.map(|recorded| recorded.accesses),
        decisions: recorded.map(|recorded| recorded.decided.decisions),
        decisions_hash: recorded.map(|recorded| format!("{:016x}", recorded.decided.hash)),
        capacity_bytes: recorded.map(|recorded| recorded.capacity_bytes),
        fell_behind: recorded.map(|recorded| recorded.fell_behind),
        removed: Vec::new(),
    }
}
