//! Admin API of a node of a cluster that only forwards requests: it serves no objects and has no engine.
//!
//! It has its probes and metrics, its settings and the cluster. Everything else is refused with the node that
//! has it. A node is ready while the store of the cluster answers, because every S3 request is forwarded to
//! that node. Nothing is stored here besides lines of the audit log; the copies of segments on a storage node
//! are only counted.

use super::cluster::described;
use super::context::AdminContext;
use super::error::{no_such_route, wrong_method};
use super::figures::{level, process_families};
use super::replica_figures::progress_families;
use super::serve::ServedRoutes;
use super::signed::{SignedHead, require_member_signature};
use super::{ApiError, cluster, openapi, probes};
use arc_swap::ArcSwap;
use axum::extract::{DefaultBodyLimit, FromRef, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use http::StatusCode;
use mlgw_api::SettingList;
use mlgw_auth::AuthRules;
use mlgw_common::{Clock, Timestamp};
use mlgw_config::{LoadedConfig, MachineSizes, list_settings};
use mlgw_credentials::Keyring;
use mlgw_node::{ClusterNode, ClusterStatus, NodeStatus};
use mlgw_segments::hot::HotTier;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::audit::AuditLog;
use mlgw_telemetry::exposition::MetricFamily;
use mlgw_telemetry::table::CONNECTIONS_LIMIT;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Shared state of the handlers on a node that only forwards requests.
pub struct MemberAdmin {
    /// This node of the cluster.
    pub cluster: ClusterNode,
    /// Access keys.
    pub keyring: Keyring,
    /// Maximum number of open S3 connections.
    pub connections_max: u64,
    /// Metrics of the server.
    pub metrics: Arc<GatewayMetrics>,
    /// Audit log of all changes.
    pub audit: Arc<AuditLog>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Configuration and the source of each setting.
    pub loaded: ArcSwap<LoadedConfig>,
    /// Resources of the machine.
    pub machine: MachineSizes,
    /// Start time of the server.
    pub started: Timestamp,
    /// Rules of signature verification: those of [`super::Admin::rules`].
    pub rules: AuthRules,
    /// True while the server accepts requests; reported by `/readyz`.
    pub ready: AtomicBool,
    /// Segment store with the copies of this node; `None` on a node of the role `gateway`, which has none.
    pub segments: Option<HotTier>,
}

impl FromRef<Arc<MemberAdmin>> for AdminContext {
    fn from_ref(admin: &Arc<MemberAdmin>) -> Self {
        Self {
            keyring: admin.keyring.clone(),
            rules: admin.rules.clone(),
            clock: Arc::clone(&admin.clock),
            audit: Arc::clone(&admin.audit),
            cluster: Some(admin.cluster.clone()),
        }
    }
}

/// Returns the router of a listener of a node that only forwards requests.
pub fn member_router(admin: &Arc<MemberAdmin>, served: ServedRoutes) -> Router {
    let context = AdminContext::from_ref(admin);
    let signed = axum::middleware::from_fn_with_state(context, require_member_signature);
    let api: Router<Arc<MemberAdmin>> = Router::new()
        .route("/v1/openapi.json", get(openapi::document))
        .route("/v1/config", get(settings))
        .route("/v1/cluster", get(cluster::show))
        .route("/v1/cluster/tokens", post(cluster::create_token))
        .layer(DefaultBodyLimit::disable())
        .layer(signed)
        .route("/v1/{*path}", any(refuse));
    let probes: Router<Arc<MemberAdmin>> = Router::new()
        .route("/healthz", get(probes::healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics));
    let routes = match served {
        ServedRoutes::All => api.merge(probes),
        ServedRoutes::Api => api,
        ServedRoutes::Probes => probes,
    };
    routes.fallback(no_such_route).method_not_allowed_fallback(wrong_method).with_state(Arc::clone(admin))
}

async fn settings(State(admin): State<Arc<MemberAdmin>>) -> Json<SettingList> {
    Json(list_settings(&admin.loaded.load(), &admin.machine))
}

async fn metrics(State(admin): State<Arc<MemberAdmin>>) -> Result<Response, ApiError> {
    let mut families = admin.metrics.families();
    families.push(MetricFamily::single(CONNECTIONS_LIMIT, level(admin.connections_max)));
    families.extend(admin.segments.iter().flat_map(|segments| progress_families(&segments.replication())));
    families.extend(process_families(admin.started));
    probes::exposition(families)
}

async fn readyz(State(admin): State<Arc<MemberAdmin>>) -> Response {
    let reason = match admin.ready.load(Relaxed) {
        true if admin.cluster.is_store_serving() => None,
        true => store_obstacle(&admin.cluster.status())
            .or_else(|| Some("the node that stores all objects starts or stops".to_owned())),
        false => Some("draining".to_owned()),
    };
    match reason {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// Refuses a signed request for something that another node has. Its body is not read.
async fn refuse(State(admin): State<Arc<MemberAdmin>>, request: Request) -> ApiError {
    let (head, _) = request.into_parts();
    let path = head.uri.path().to_owned();
    match SignedHead::verify(&AdminContext::from_ref(&admin), head) {
        Ok(_) => other_node(&admin.cluster.status(), &path),
        Err(error) => error,
    }
}

/// Returns the error for a path that only the node with the objects has.
pub(super) fn other_node(status: &ClusterStatus, path: &str) -> ApiError {
    let owner = store_of(status).map_or_else(
        || "the node on which `mlgw cluster init` ran".to_owned(),
        |store| described(store).replacen("Node", "node", 1),
    );
    let message = format!(
        "This node only forwards S3 requests, and {owner} has {path}. Send the request to the admin API of \
         that node: run the command there, or give its URL with --endpoint."
    );
    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "OtherNode", message)
}

/// Returns the reason why S3 requests cannot be forwarded, if there is one.
pub(super) fn store_obstacle(status: &ClusterStatus) -> Option<String> {
    let Some(store) = store_of(status) else {
        return Some("the nodes of the cluster are not known yet".to_owned());
    };
    let named = described(store);
    match store.reachable {
        _ if store.is_own => None,
        Some(true) => None,
        Some(false) => Some(format!("{named} stores all objects and does not answer")),
        None => Some(format!("{named} stores all objects and was not called yet")),
    }
}

fn store_of(status: &ClusterStatus) -> Option<&NodeStatus> {
    status.nodes.iter().find(|node| node.is_store)
}
