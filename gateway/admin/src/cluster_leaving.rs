//! `/v1/cluster/nodes/{node}/…`: drains nodes of the cluster, ends that, and removes nodes. Every node has
//! these routes, because the node that an operator reaches need not be the one that has jobs and rules.

use super::ApiError;
use super::change::{AuditedAction, AuditedChange, json, parse, parse_optional, sentence};
use super::context::AdminContext;
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::words::cluster_node_state;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use mlgw_api::{ClusterNodeChange, DrainNodeRequest, RemoveNodeRequest, ReplaceNodeRequest};
use mlgw_common::NodeId;
use mlgw_formats::schema::Node;
use mlgw_metadata::ProposeError;
use mlgw_node::{ClusterNode, DRAIN_COPIES, DRAIN_COPIES_MIN, LeaveError, RemovedNode, ReplacedNode};
use mlgw_wire::error::S3Error;
use serde_json::Value;
use std::future::Future;

pub(super) async fn drain(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(node): AdminPath<u64>,
    body: Bytes,
) -> Result<Response, ApiError> {
    context.cluster()?;
    let copies = copies_of(&parse_optional(&body)?)?;
    let change = move |cluster: ClusterNode, node| async move { cluster.drain(node, copies).await };
    change_node(context, caller, "cluster.node.drain", node, change).await
}

pub(super) async fn undrain(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(node): AdminPath<u64>,
) -> Result<Response, ApiError> {
    let change = |cluster: ClusterNode, node| async move { cluster.undrain(node).await };
    change_node(context, caller, "cluster.node.undrain", node, change).await
}

pub(super) async fn remove(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(node): AdminPath<u64>,
    body: Bytes,
) -> Result<Response, ApiError> {
    context.cluster()?;
    let RemoveNodeRequest { lost } = parse_optional(&body)?;
    let fate = if lost { RemovedNode::Lost } else { RemovedNode::Drained };
    let change = move |cluster: ClusterNode, node| async move { cluster.remove(node, fate).await };
    change_node(context, caller, "cluster.node.remove", node, change).await
}

pub(super) async fn replace(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(node): AdminPath<u64>,
    body: Bytes,
) -> Result<Response, ApiError> {
    context.cluster()?;
    let ReplaceNodeRequest { with, lost } = parse(&body)?;
    let fate = if lost { ReplacedNode::Lost } else { ReplacedNode::Running };
    let change =
        move |cluster: ClusterNode, node| async move { cluster.replace(node, NodeId(with), fate).await };
    change_node(context, caller, "cluster.node.replace", node, change).await
}

/// Returns the copies that a drain keeps.
pub(super) fn copies_of(request: &DrainNodeRequest) -> Result<usize, ApiError> {
    let Some(copies) = request.to_copies else { return Ok(DRAIN_COPIES) };
    let asked = usize::try_from(copies).unwrap_or(usize::MAX);
    if !(DRAIN_COPIES_MIN..=DRAIN_COPIES).contains(&asked) {
        let why = format!("to_copies is {copies}; expected {DRAIN_COPIES_MIN} or {DRAIN_COPIES}.");
        return Err(ApiError::invalid(why));
    }
    Ok(asked)
}

/// Changes the state of a node. The answer has its new state.
async fn change_node<W>(
    context: AdminContext,
    caller: AdminCaller,
    action: &'static str,
    node: u64,
    change: impl FnOnce(ClusterNode, NodeId) -> W + Send + 'static,
) -> Result<Response, ApiError>
where
    W: Future<Output = Result<Node, LeaveError>> + Send + 'static,
{
    let cluster = context.cluster()?.clone();
    let action = AuditedAction { action, resource: node.to_string(), status: StatusCode::ACCEPTED };
    let work = async move {
        let known = cluster.status().nodes.into_iter().find(|known| known.id == NodeId(node));
        let before = known.map(|known| ClusterNodeChange { node, state: cluster_node_state(known.state) });
        let changed = change(cluster, NodeId(node)).await?;
        let after = ClusterNodeChange { node, state: cluster_node_state(changed.state()) };
        let before = before.map_or(Ok(Value::Null), |before| json(&before))?;
        Ok(AuditedChange { resource: node.to_string(), before, after: json(&after)?, answer: None })
    };
    context.change(caller, action, work).await
}

impl From<LeaveError> for ApiError {
    fn from(error: LeaveError) -> Self {
        let message = sentence(&error);
        let conflict = |code| Self::new(StatusCode::CONFLICT, code, message.clone());
        match error {
            LeaveError::NoSuchNode { .. } => Self::new(StatusCode::NOT_FOUND, "NoSuchNode", message),
            LeaveError::AtUpstream { .. } => conflict("SegmentsAtUpstream"),
            LeaveError::DutyStays { .. } => conflict("ClusterVersion"),
            LeaveError::TooFewNodes { .. } => conflict("TooFewNodes"),
            LeaveError::NotDraining { .. } | LeaveError::NotDrained { .. } | LeaveError::InSets { .. } => {
                conflict("NodeNotDrained")
            }
            LeaveError::Answers { .. } | LeaveError::AnswersAnother { .. } => conflict("NodeAnswers"),
            LeaveError::Silent { .. } => conflict("NodeSilent"),
            LeaveError::Gateway { .. } => conflict("WrongNodeRole"),
            LeaveError::NoReplacement { .. } => conflict("NoReplacement"),
            LeaveError::Propose(ProposeError::Rejected(_)) => conflict("WrongNodeState"),
            LeaveError::Propose(error) => S3Error::from(error).into(),
            LeaveError::Barrier(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "NotCurrent", message),
            LeaveError::Read(error) => S3Error::from(error).into(),
            LeaveError::Count(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message),
        }
    }
}
