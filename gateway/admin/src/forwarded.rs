//! Forwards requests that only the duty node can carry out from any other node of the cluster to it.
//!
//! The receiving node authenticates the caller. The duty node carries the request out and writes its line of
//! the audit log. It never passes a request on: a node that has lost the duty meanwhile refuses it. A request
//! that may have been carried out is never sent again.

use super::ApiError;
use super::cluster::in_sentence;
use super::signed::{LongestBody, SignedHead};
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, StatusCode, Uri, header};
use mlgw_common::NodeId;
use mlgw_node::{AdminAnswer, AdminCallError, ClusterNode, ClusterStatus};
use tokio::sync::Mutex;

/// Reason for which a node that starts is not ready.
pub(super) const WAITING: &str = "this node starts, and waits until a majority of the voters answers";

/// Beginnings of the paths of what belongs to one node: its tiers and its data directory. A node serves some
/// of these itself ([`super::member`]); the others, such as the drain of a tier, only the duty node has.
const OF_ONE_NODE: [&str; 2] = ["/v1/tiers", "/v1/store"];

/// Forwards a signed request to the duty node. `one_plan` is locked while a plan is read and forwarded.
pub(super) async fn forward(
    cluster: &ClusterNode,
    one_plan: &Mutex<()>,
    signed: SignedHead,
    body: Body,
) -> Result<Response, ApiError> {
    let status = cluster.status();
    if OF_ONE_NODE.iter().any(|begin| signed.path().starts_with(begin)) {
        return Err(other_node(&status, signed.path()));
    }
    let duty = duty_elsewhere(&status)?;
    let longest = signed.longest_body();
    let _turn = match longest {
        LongestBody::Plan => Some(one_plan.lock().await),
        LongestBody::Short | LongestBody::Policy => None,
    };
    let (call, body) = signed.into_call(body, longest.bytes()).await?;
    match cluster.send_admin(duty, &call, body).await {
        Ok(answer) => Ok(response(answer)),
        Err(error) => Err(failure(&status, &error)),
    }
}

/// Refuses a request that another node sends to this one as the duty node.
pub(super) async fn refuse(uri: Uri) -> ApiError {
    let message = format!("This node does not have the duty, so it does not have {}. Try again.", uri.path());
    unavailable("NoDutyNode", message)
}

/// Error of a request to a storage node that waits at its start.
pub(super) fn starting() -> ApiError {
    unavailable("Starting", WAITING.to_owned())
}

pub(super) fn unavailable(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
}

/// Returns the duty node, if it is another one.
pub(super) fn duty_elsewhere(status: &ClusterStatus) -> Result<NodeId, ApiError> {
    match status.nodes.iter().find(|node| node.is_duty) {
        Some(duty) if duty.is_own => {
            Err(unavailable("NoDutyNode", "This node takes the duty over now. Try again.".to_owned()))
        }
        Some(duty) => Ok(duty.id),
        None => {
            Err(unavailable("NoDutyNode", "No duty node is recorded on this node. Try again.".to_owned()))
        }
    }
}

/// Returns the error for a path of one node.
pub(super) fn other_node(status: &ClusterStatus, path: &str) -> ApiError {
    let duty = status.nodes.iter().find(|node| node.is_duty && !node.is_own);
    let owner = duty.map_or_else(|| "the duty node".to_owned(), in_sentence);
    let message = format!(
        "{path} concerns the disks of one node; at present only {owner} serves it. Send the request to the \
         admin API of that node: run the command there, or give its URL with --endpoint."
    );
    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "OtherNode", message)
}

/// Returns the error for a request without an answer of the duty node.
pub(super) fn failure(status: &ClusterStatus, error: &AdminCallError) -> ApiError {
    let duty = status.nodes.iter().find(|node| node.is_duty);
    let named = duty.map_or_else(|| "the duty node".to_owned(), in_sentence);
    match error {
        AdminCallError::NotSent(why) => {
            let message = format!("The duty node, {named}, did not get the request: {why}. Try again.");
            unavailable("DutyNodeSilent", message)
        }
        AdminCallError::Unknown(why) => {
            let message = format!(
                "The duty node, {named}, may have carried out the request: {why}. Check that before you \
                 repeat it."
            );
            unavailable("DutyNodeLost", message)
        }
    }
}

fn response(answer: AdminAnswer) -> Response {
    let AdminAnswer { status, content_type, body } = answer;
    let mut response = Body::new(body).into_response();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    *response.status_mut() = status;
    if let Ok(content_type) = HeaderValue::from_str(&content_type) {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
