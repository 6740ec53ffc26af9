//! `/v1/cluster/rebalance`: begins to rebalance the cluster. Every node has this route.

use super::ApiError;
use super::change::{AuditedAction, AuditedChange, json, sentence};
use super::context::AdminContext;
use super::signed::AdminCaller;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use mlgw_api::ClusterRebalanceChange;
use mlgw_metadata::ProposeError;
use mlgw_node::{RebalanceError, RebalanceRequest};
use mlgw_wire::error::S3Error;
use serde_json::Value;

pub(super) async fn begin(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
) -> Result<Response, ApiError> {
    let cluster = context.cluster()?.clone();
    let action =
        AuditedAction { action: "cluster.rebalance", resource: String::new(), status: StatusCode::ACCEPTED };
    let by = caller.access_key.clone();
    let work = async move {
        let requested = cluster.rebalance(&by).await?;
        let change = ClusterRebalanceChange { already_running: requested == RebalanceRequest::Running };
        Ok(AuditedChange {
            resource: String::new(),
            before: Value::Null,
            after: json(&change)?,
            answer: None,
        })
    };
    context.change(caller, action, work).await
}

impl From<RebalanceError> for ApiError {
    fn from(error: RebalanceError) -> Self {
        let message = sentence(&error);
        let conflict = |code| Self::new(StatusCode::CONFLICT, code, message.clone());
        match error {
            RebalanceError::Version { .. } => conflict("ClusterVersion"),
            RebalanceError::TooFewNodes { .. } | RebalanceError::Balanced { .. } => conflict("NothingToMove"),
            RebalanceError::Barrier(_) | RebalanceError::Propose(ProposeError::UnknownOutcome) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "NotCurrent", message)
            }
            RebalanceError::Propose(error) => S3Error::from(error).into(),
        }
    }
}
