//! Admin API: the HTTP interface through which operators and scripts administer the server.
//!
//! Everything under `/v1` needs a SigV4 signature (service `mlgw`) by an unrestricted key with the role
//! admin; probes and metrics need none. Each call that changes something runs to completion even if its
//! client disconnects, and appends one line to the audit log, synced before the answer. docs/openapi.json
//! describes the whole API and is served at `/v1/openapi.json`; it is generated from the table of routes and
//! from the types of mlgw-api.

mod bindings;
mod buckets;
mod change;
mod dataset_figures;
mod datasets;
mod decisions;
mod dirty;
mod drain;
mod error;
mod extract;
mod figures;
mod health;
mod jobs;
mod keys;
mod migrations;
mod objects;
mod openapi;
mod policy;
mod policy_explain;
mod policy_figures;
mod policy_outcomes;
mod policy_plan;
mod policy_trials;
mod probes;
mod remote_backed_object;
mod routes;
mod settings;
mod signed;
mod status;
mod store;
mod tiers;
mod traces;
mod upstreams;
mod words;
mod workload_plans;
mod workloads;

pub use error::ApiError;
pub use policy_plan::PolicyPlans;
pub use routes::{PROBE_ROUTES, ROUTES};
pub use store::Backups;

use arc_swap::ArcSwap;
use axum::Router;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Request, Version, header};
use mlgw_api::SERVICE;
use mlgw_auth::AuthRules;
use mlgw_background::access_plans::AccessPlans;
use mlgw_background::access_traces::AccessTraces;
use mlgw_background::jobs::Jobs;
use mlgw_background::reconciler::RetentionState;
use mlgw_background::stored_objects::StoredObjects;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::writeback::WriteBack;
use mlgw_common::{Clock, Timestamp};
use mlgw_config::{LoadedConfig, MachineSizes};
use mlgw_credentials::Keyring;
use mlgw_listener::Peer;
use mlgw_listener::pace::PacedRequestBody;
use mlgw_objects::compressor::Compressor;
use mlgw_policy_runtime::Policies;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{Scrub, Upstreams};
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::audit::AuditLog;
use mlgw_telemetry::recent::RecentCounters;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Mutex;
use tower::ServiceExt as _;

/// Shared state of the admin API handlers.
pub struct Admin {
    /// Objects and the location of their bytes.
    pub stored: StoredObjects,
    /// Dirty writes of write-back buckets, which have not reached their origin yet.
    pub writeback: WriteBack,
    /// Upstreams by name.
    pub upstreams: Upstreams,
    /// Log of moves, retentions and evictions, with their reasons.
    pub decisions: Decisions,
    /// The running policy.
    pub policies: Arc<Policies>,
    /// Compressor of stored objects, where rules demand it.
    pub compressor: Arc<Compressor>,
    /// Background jobs on datasets.
    pub jobs: Arc<Jobs>,
    /// Access keys.
    pub keyring: Keyring,
    /// Maximum number of open S3 connections.
    pub connections_max: u64,
    /// Metrics of the server.
    pub metrics: Arc<GatewayMetrics>,
    /// Metrics of the last minute.
    pub recent: RecentCounters,
    /// Audit log of all changes.
    pub audit: Arc<AuditLog>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Configuration and the source of each setting.
    pub loaded: ArcSwap<LoadedConfig>,
    /// Resources of the machine.
    pub machine: MachineSizes,
    /// Name of this node.
    pub node: String,
    /// URL of the S3 endpoint.
    pub endpoint: String,
    /// Start time of the server.
    pub started: Timestamp,
    /// Rules of signature verification.
    pub rules: AuthRules,
    /// True while the server accepts requests; reported by `/readyz`.
    pub ready: AtomicBool,
    /// State of the newest backup.
    pub backups: Backups,
    /// Scrub, which verifies stored data.
    pub scrub: Arc<Scrub>,
    /// Pending deletions, and the actions of rules on objects at rest.
    pub retention: Arc<RetentionState>,
    /// Dry runs of other policies that are in progress.
    pub policy_plans: PolicyPlans,
    /// Driver of the policy engine.
    pub policy_driver: PolicyDriver,
    /// Recorder of the accesses that the policy engine receives.
    pub traces: AccessTraces,
    /// Access plans: reads that clients announce in advance.
    pub plans: AccessPlans,
    /// Held while a simulation runs: at most one runs at a time.
    pub simulating: Mutex<()>,
}

impl Admin {
    /// Returns the rules of signature verification for the admin API.
    #[must_use]
    pub fn rules() -> AuthRules {
        let mut rules = AuthRules::new(SERVICE);
        rules.sigv2 = false;
        rules
    }

    /// Returns true if the server accepts requests.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }
}

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
    let api = routes::api().layer(axum::extract::DefaultBodyLimit::disable()).layer(signed);
    let routes = match served {
        ServedRoutes::All => api.merge(routes::probe_api()),
        ServedRoutes::Api => api,
        ServedRoutes::Probes => routes::probe_api(),
    };
    routes
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::wrong_method)
        .with_state(Arc::clone(admin))
}

/// Handles one request. A connection beyond the limit may send probes only and is closed after the answer.
pub async fn handle(router: Router, request: Request<PacedRequestBody>, peer: Peer) -> Response {
    let (is_probe_only, version) = (peer.is_probe_only, request.version());
    if is_probe_only && !PROBE_ROUTES.iter().any(|(_, path)| *path == request.uri().path()) {
        return with_connection_close(error::probes_only_error().into_response(), version);
    }
    let mut request = request.map(axum::body::Body::new);
    request.extensions_mut().insert(peer);
    let answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    if is_probe_only { with_connection_close(answer, version) } else { answer }
}

/// Marks an answer as the last one of its connection, so that the connections reserved for probes become free
/// again. HTTP/2 has no such header; there the connection is closed soon after it becomes idle.
fn with_connection_close(mut answer: Response, version: Version) -> Response {
    if version <= Version::HTTP_11 {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

#[cfg(test)]
mod tests;
