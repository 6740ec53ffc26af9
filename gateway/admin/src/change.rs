//! Changes of state: each runs to completion even if the caller disconnects, and is recorded in the audit
//! log.

use super::context::AdminContext;
use super::signed::AdminCaller;
use super::{Admin, ApiError};
use axum::Json;
use axum::body::Bytes;
use axum::extract::FromRef as _;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use mlgw_telemetry::audit::AuditLine;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::future::Future;
use std::sync::Arc;

/// Result of a change.
pub(super) struct AuditedChange {
    /// Resource that was changed.
    pub(super) resource: String,
    /// State of the resource before the change.
    pub(super) before: Value,
    /// State of the resource after the change.
    pub(super) after: Value,
    /// Response to the caller, if it differs from `after` (or from `before`, for deleted resources).
    pub(super) answer: Option<Value>,
}

/// Audit log fields known before a change runs, and the status of its success.
pub(super) struct AuditedAction {
    pub(super) action: &'static str,
    /// Resource to be changed, if the caller named it.
    pub(super) resource: String,
    /// HTTP status of success.
    pub(super) status: StatusCode,
}

impl Admin {
    /// Runs a change and appends its audit log line. The work continues if the caller disconnects: no change
    /// may remain without its line.
    pub(super) async fn change<F>(
        self: &Arc<Self>,
        caller: AdminCaller,
        action: AuditedAction,
        work: F,
    ) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<AuditedChange, ApiError>> + Send + 'static,
    {
        AdminContext::from_ref(self).change(caller, action, work).await
    }
}

impl AdminContext {
    /// Runs a change like [`Admin::change`].
    pub(super) async fn change<F>(
        self,
        caller: AdminCaller,
        action: AuditedAction,
        work: F,
    ) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<AuditedChange, ApiError>> + Send + 'static,
    {
        let done = tokio::spawn(async move { self.change_and_write(caller, action, work).await }).await;
        done.unwrap_or_else(|error| {
            tracing::error!(%error, "the task of a change failed");
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "The change failed."))
        })
    }

    async fn change_and_write<F>(
        &self,
        caller: AdminCaller,
        action: AuditedAction,
        work: F,
    ) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<AuditedChange, ApiError>>,
    {
        let outcome = work.await;
        let mut line = AuditLine {
            time: self.clock.now().to_string(),
            who: caller.access_key,
            from: caller.from,
            action: action.action.to_owned(),
            resource: action.resource,
            before: Value::Null,
            after: Value::Null,
            outcome: "done".to_owned(),
        };
        match &outcome {
            Ok(changed) => {
                line.resource.clone_from(&changed.resource);
                line.before = changed.before.clone();
                line.after = changed.after.clone();
            }
            Err(error) => line.outcome = format!("refused: {}: {}", error.code, error.message),
        }
        if let Err(error) = self.audit.write(line).await {
            tracing::error!(%error, action = action.action, "cannot write the audit log");
            let message = "The change may have been made, but the audit log cannot be written.";
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "AuditFailed", message));
        }
        outcome.map(|changed| {
            let answer = changed.answer.unwrap_or(if changed.after.is_null() {
                changed.before
            } else {
                changed.after
            });
            (action.status, Json(answer)).into_response()
        })
    }
}

/// Serializes a value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(value)
        .map_err(|e| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", e.to_string()))
}

/// Returns the message of a response for an error: its text as a sentence.
pub(super) fn sentence(error: &impl ToString) -> String {
    let mut message = error.to_string();
    if let Some(first) = message.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    message.push('.');
    message
}

/// Deserializes a request body.
pub(super) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("Invalid body: {error}.")))
}

/// Deserializes a request body that may be absent.
pub(super) fn parse_optional<T: DeserializeOwned + Default>(body: &Bytes) -> Result<T, ApiError> {
    if body.is_empty() { Ok(T::default()) } else { parse(body) }
}
