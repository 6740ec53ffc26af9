//! Service of a listener: its routes, signatures, and connections reserved for probes; and of the requests
//! that other nodes send.

use super::error::{no_such_route, probes_only_error, wrong_method};
use super::node_parts::{DECISIONS_PART, STATUS_PART};
use super::routes::{PROBE_ROUTES, api, probe_api};
use super::signed::AdminCaller;
use super::{Admin, ApiError, decisions, signed, status};
pub use axum::Router;
pub use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::{HeaderValue, Request, Version, header};
use mlgw_common::NodeId;
use mlgw_listener::Peer;
use mlgw_listener::pace::PacedRequestBody;
use mlgw_node::{AdminAnswer, AdminCall};
use std::sync::Arc;
use tower::ServiceExt as _;

/// Routes that a listener of the admin API serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedRoutes {
    /// `/v1` and the probes.
    All,
    /// `/v1` alone; another listener serves the probes.
    Api,
    /// Probes and metrics alone.
    Probes,
}

/// Returns the router of a listener.
pub fn router(admin: &Arc<Admin>, served: ServedRoutes) -> Router {
    let signed = axum::middleware::from_fn_with_state(Arc::clone(admin), signed::require_admin_signature);
    // The maximum length of a body depends on the route, and is checked before the body is read.
    let api = api().layer(axum::extract::DefaultBodyLimit::disable()).layer(signed);
    let routes = match served {
        ServedRoutes::All => api.merge(probe_api()),
        ServedRoutes::Api => api,
        ServedRoutes::Probes => probe_api(),
    };
    routes.fallback(no_such_route).method_not_allowed_fallback(wrong_method).with_state(Arc::clone(admin))
}

/// Returns the router of the requests that other nodes send to the duty node.
pub fn node_router(admin: &Arc<Admin>) -> Router {
    let bodies = axum::middleware::from_fn_with_state(Arc::clone(admin), signed::read_body_of_node);
    let parts: Router<Arc<Admin>> = Router::new()
        .route(STATUS_PART, get(status::show_own))
        .route(DECISIONS_PART, get(decisions::list_own));
    let routes = api().layer(axum::extract::DefaultBodyLimit::disable()).layer(bodies).merge(parts);
    routes.fallback(no_such_route).method_not_allowed_fallback(wrong_method).with_state(Arc::clone(admin))
}

/// Handles one request that the node `from` sends. That node has authenticated the caller, and the connection
/// that node.
pub async fn handle_call(router: Router, from: NodeId, call: AdminCall, body: Body) -> AdminAnswer {
    let (head, body) = answer_call(router, from, call, body).await.into_parts();
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    AdminAnswer::new(head.status.as_u16(), content_type.unwrap_or_default().to_owned(), body)
}

async fn answer_call(router: Router, from: NodeId, call: AdminCall, body: Body) -> Response {
    let AdminCall { method, target, access_key, from: client } = call;
    let request = Request::builder().method(method.as_str()).uri(target).body(body);
    let mut request = match request {
        Ok(request) => request,
        Err(error) => return ApiError::invalid(error.to_string()).into_response(),
    };
    // The audit log has the client of the other node.
    request
        .extensions_mut()
        .insert(AdminCaller { access_key, from: format!("{client} through node {from}") });
    router.oneshot(request).await.unwrap_or_else(|never| match never {})
}

/// Handles one request. A connection beyond the limit may send probes only and is closed after the response.
pub async fn handle(router: Router, request: Request<PacedRequestBody>, peer: Peer) -> Response {
    let (is_probe_only, version) = (peer.is_probe_only, request.version());
    if is_probe_only && !PROBE_ROUTES.iter().any(|(_, path)| *path == request.uri().path()) {
        return with_connection_close(probes_only_error().into_response(), version);
    }
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    let answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    if is_probe_only { with_connection_close(answer, version) } else { answer }
}

/// Marks a response as the last one of its connection, so that the connections reserved for probes become
/// free again. HTTP/2 has no such header; there the connection is closed soon after it becomes idle.
fn with_connection_close(mut answer: Response, version: Version) -> Response {
    if version <= Version::HTTP_11 {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}
