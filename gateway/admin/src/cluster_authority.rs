//! `/v1/cluster/authority/rotate`: begins to replace the authority of the cluster. Every node has this route.

use super::ApiError;
use super::change::{AuditedAction, AuditedChange, json, sentence};
use super::context::AdminContext;
use super::signed::AdminCaller;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use mlgw_api::ClusterAuthorityChange;
use mlgw_common::NodeId;
use mlgw_metadata::ProposeError;
use mlgw_node::{AuthorityChange, RotationError};
use mlgw_wire::error::S3Error;
use serde_json::Value;

pub(super) async fn rotate(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
) -> Result<Response, ApiError> {
    let cluster = context.cluster()?.clone();
    let action = AuditedAction {
        action: "cluster.authority.rotate",
        resource: String::new(),
        status: StatusCode::ACCEPTED,
    };
    let work = async move {
        let change = authority_change_info(&cluster.rotate_authority().await?);
        let resource = change.authority.to_string();
        Ok(AuditedChange { resource, before: Value::Null, after: json(&change)?, answer: None })
    };
    context.change(caller, action, work).await
}

/// Converts a replacement to its API type.
pub(super) fn authority_change_info(change: &AuthorityChange) -> ClusterAuthorityChange {
    let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.get()).collect();
    ClusterAuthorityChange {
        authority: change.authority,
        without_trust: ids(&change.without_trust),
        without_certificate: ids(&change.without_certificate),
    }
}

impl From<RotationError> for ApiError {
    fn from(error: RotationError) -> Self {
        let message = sentence(&error);
        match error {
            RotationError::Version { .. } => Self::new(StatusCode::CONFLICT, "ClusterVersion", message),
            RotationError::ClockSkew(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "ClockSkew", message),
            RotationError::NoAuthority => Self::new(StatusCode::SERVICE_UNAVAILABLE, "NoAuthority", message),
            RotationError::Barrier(_) | RotationError::Propose(ProposeError::UnknownOutcome) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "NotCurrent", message)
            }
            RotationError::Propose(error) => S3Error::from(error).into(),
            RotationError::Read(error) => S3Error::from(error).into(),
            RotationError::Row(_) | RotationError::Task(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
            }
        }
    }
}
