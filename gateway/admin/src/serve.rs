//! Service of a listener: its routes, signatures, and connections reserved for probes.

use super::error::{no_such_route, probes_only_error, wrong_method};
use super::routes::{PROBE_ROUTES, api, probe_api};
use super::{Admin, signed};
pub use axum::Router;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Request, Version, header};
use mlgw_listener::Peer;
use mlgw_listener::pace::PacedRequestBody;
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

/// Handles one request. A connection beyond the limit may send probes only and is closed after the response.
pub async fn handle(router: Router, request: Request<PacedRequestBody>, peer: Peer) -> Response {
    let (is_probe_only, version) = (peer.is_probe_only, request.version());
    if is_probe_only && !PROBE_ROUTES.iter().any(|(_, path)| *path == request.uri().path()) {
        return with_connection_close(probes_only_error().into_response(), version);
    }
    let mut request = request.map(axum::body::Body::new);
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
