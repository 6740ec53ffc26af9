//! A change: done to its end, whoever listens, and written into the audit log.

use super::signed::Caller;
use super::{Admin, ApiError};
use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use mlgw_telemetry::audit::Line;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::future::Future;
use std::sync::Arc;

/// What a change did.
pub(super) struct Changed {
    /// What it did it to.
    pub(super) resource: String,
    /// What that was.
    pub(super) before: Value,
    /// What it is.
    pub(super) after: Value,
    /// What the caller is told, when that is more than `after` (or `before`, of what is gone).
    pub(super) answer: Option<Value>,
}

/// What is asked of a change's line before it is made.
pub(super) struct Asked {
    pub(super) action: &'static str,
    /// What it is to be done to, if the caller said.
    pub(super) resource: String,
    /// The status of success.
    pub(super) status: StatusCode,
}

impl Admin {
    /// Makes a change and writes its line. The work goes on when the caller is gone: a change
    /// without its line must not be.
    pub(super) async fn change<F>(
        self: &Arc<Self>,
        caller: Caller,
        asked: Asked,
        work: F,
    ) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<Changed, ApiError>> + Send + 'static,
    {
        let admin = Arc::clone(self);
        let done = tokio::spawn(async move { admin.change_and_write(caller, asked, work).await }).await;
        done.unwrap_or_else(|error| {
            tracing::error!(%error, "a change came to grief");
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "The change failed."))
        })
    }

    async fn change_and_write<F>(&self, caller: Caller, asked: Asked, work: F) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<Changed, ApiError>>,
    {
        let outcome = work.await;
        let mut line = Line {
            time: self.clock.now().to_string(),
            who: caller.access_key,
            from: caller.from,
            action: asked.action.to_owned(),
            resource: asked.resource,
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
            tracing::error!(%error, action = asked.action, "the audit log cannot be written");
            let message = "The change may have been made, but the audit log could not be written.";
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "AuditFailed", message));
        }
        outcome.map(|changed| {
            let told = changed.answer.unwrap_or(if changed.after.is_null() {
                changed.before
            } else {
                changed.after
            });
            (asked.status, Json(told)).into_response()
        })
    }
}

/// A value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(value)
        .map_err(|e| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", e.to_string()))
}

/// A body as what it should be.
pub(super) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("The body: {error}.")))
}
