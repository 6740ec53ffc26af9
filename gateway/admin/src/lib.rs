//! Admin API: the HTTP interface through which operators and scripts administer the server.
//!
//! Everything under `/v1` needs a SigV4 signature (service `mlgw`) by an unrestricted key with the role
//! admin; probes and metrics need none. Each call that changes something runs to completion even if its
//! client disconnects, and appends one line to the audit log, synced before the answer. docs/openapi.json
//! describes the whole API and is served at `/v1/openapi.json`; tests compare it with the code.

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
mod settings;
mod signed;
mod status;
mod store;
mod tiers;
mod traces;
mod upstreams;
mod workload_plans;
mod workloads;

pub use error::ApiError;
pub use policy_plan::PolicyPlans;
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

macro_rules! routes {
    ($($method:ident $path:literal => $handler:path;)*) => {
        /// All routes under `/v1`: method and path.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path),)*];

        fn api() -> Router<Arc<Admin>> {
            Router::new()$(.route($path, axum::routing::$method($handler)))*
        }
    };
}

routes! {
    get "/v1/openapi.json" => openapi::document;
    get "/v1/status" => status::show;
    get "/v1/config" => settings::list;
    get "/v1/upstreams" => upstreams::list;
    get "/v1/upstreams/{upstream}" => upstreams::show;
    post "/v1/upstreams/{upstream}/check" => upstreams::check;
    post "/v1/upstreams/{upstream}/adopt" => upstreams::adopt;
    get "/v1/tiers" => tiers::list;
    get "/v1/tiers/{tier}" => tiers::show;
    post "/v1/tiers/{tier}/scrub" => tiers::scrub;
    get "/v1/store/backup" => store::show;
    post "/v1/store/backup" => store::start;
    get "/v1/access/keys" => keys::list;
    post "/v1/access/keys" => keys::create;
    get "/v1/access/keys/{access_key}" => keys::show;
    patch "/v1/access/keys/{access_key}" => keys::update;
    delete "/v1/access/keys/{access_key}" => keys::delete;
    get "/v1/buckets" => buckets::list;
    post "/v1/buckets" => buckets::create;
    get "/v1/buckets/{bucket}" => buckets::show;
    delete "/v1/buckets/{bucket}" => buckets::delete;
    patch "/v1/buckets/{bucket}/quota" => buckets::change_quota;
    post "/v1/buckets/{bucket}/binding" => bindings::bind;
    delete "/v1/buckets/{bucket}/binding" => bindings::unbind;
    post "/v1/buckets/{bucket}/refresh" => bindings::refresh;
    post "/v1/buckets/{bucket}/migration" => migrations::begin;
    get "/v1/buckets/{bucket}/dirty" => dirty::show;
    post "/v1/buckets/{bucket}/discard" => dirty::discard;
    get "/v1/buckets/{bucket}/object" => objects::show;
    get "/v1/tiers/{tier}/compaction" => tiers::compaction;
    post "/v1/tiers/{tier}/compaction" => tiers::compact;
    get "/v1/tiers/{tier}/drain" => drain::show;
    post "/v1/tiers/{tier}/drain" => drain::begin;
    get "/v1/decisions" => decisions::list;
    get "/v1/traces" => traces::list;
    post "/v1/traces" => traces::start;
    post "/v1/traces/stop" => traces::stop;
    get "/v1/traces/{trace}" => traces::show;
    get "/v1/traces/{trace}/files/{number}" => traces::file;
    get "/v1/policy" => policy::show;
    post "/v1/policy" => policy::apply;
    get "/v1/policy/effective" => policy::effective;
    get "/v1/policy/history" => policy::history;
    post "/v1/policy/rollback" => policy::roll_back;
    post "/v1/policy/freeze" => policy::freeze;
    post "/v1/policy/unfreeze" => policy::unfreeze;
    post "/v1/policy/plan" => policy_plan::plan;
    get "/v1/policy/schema" => policy_trials::schema;
    post "/v1/policy/validate" => policy_trials::validate;
    post "/v1/policy/test" => policy_trials::test;
    post "/v1/policy/simulate" => policy_trials::simulate;
    get "/v1/policy/explain" => policy_explain::explain;
    get "/v1/policy/outcomes" => policy_outcomes::show;
    get "/v1/workloads" => workloads::list;
    get "/v1/workloads/{workload}" => workloads::show;
    get "/v1/workload-plans" => workload_plans::list;
    get "/v1/workload-plans/{plan}" => workload_plans::show;
    put "/v1/workload-plans/{plan}" => workload_plans::put;
    delete "/v1/workload-plans/{plan}" => workload_plans::delete;
    get "/v1/datasets" => datasets::list;
    post "/v1/datasets" => datasets::create;
    get "/v1/datasets/{dataset}" => datasets::show;
    delete "/v1/datasets/{dataset}" => datasets::delete;
    put "/v1/datasets/{dataset}/pin" => datasets::pin;
    delete "/v1/datasets/{dataset}/pin" => datasets::unpin;
    put "/v1/datasets/{dataset}/schedules/{kind}" => datasets::schedule;
    delete "/v1/datasets/{dataset}/schedules/{kind}" => datasets::unschedule;
    post "/v1/datasets/{dataset}/jobs" => jobs::create;
    get "/v1/jobs" => jobs::list;
    get "/v1/jobs/{job}" => jobs::show;
    post "/v1/jobs/{job}/cancel" => jobs::cancel;
}

/// Routes that need no signature.
pub const PROBES: &[&str] = &["/healthz", "/readyz", "/metrics"];

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
        ServedRoutes::All => api.merge(probes::routes()),
        ServedRoutes::Api => api,
        ServedRoutes::Probes => probes::routes(),
    };
    routes
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::wrong_method)
        .with_state(Arc::clone(admin))
}

/// Handles one request. A connection beyond the limit may send probes only and is closed after the answer.
pub async fn handle(router: Router, request: Request<PacedRequestBody>, peer: Peer) -> Response {
    let (is_probe_only, version) = (peer.is_probe_only, request.version());
    if is_probe_only && !PROBES.contains(&request.uri().path()) {
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
