//! The admin API: what a person or a script administers the server with.
//!
//! Everything under `/v1` needs a SigV4 signature (service `mlgw`) by a key that may administer the
//! whole server; probes and metrics need none. Each call that changes something runs to its end
//! even when its client goes away, and leaves one line in the audit log, synced before the answer.
//! docs/openapi.json describes it all, is served at `/v1/openapi.json`, and is held to the code by
//! tests.

mod bindings;
mod bound_object;
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
use mlgw_background::reconciler::Standing;
use mlgw_background::stored_objects::StoredObjects;
use mlgw_cache::policy::Keeper;
use mlgw_cache::writeback::WriteBack;
use mlgw_common::{Clock, Timestamp};
use mlgw_config::{Loaded, Machine};
use mlgw_credentials::Keyring;
use mlgw_listener::Peer;
use mlgw_listener::pace::Incoming;
use mlgw_objects::compressor::Compressor;
use mlgw_policy_runtime::Policies;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{Scrub, Upstreams};
use mlgw_telemetry::Metrics;
use mlgw_telemetry::audit::AuditLog;
use mlgw_telemetry::recent::Recent;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Mutex;
use tower::ServiceExt as _;

/// Everything the admin API may use.
pub struct Admin {
    /// Objects and where their bytes are.
    pub stored: StoredObjects,
    /// What of them is not at its origin yet.
    pub writeback: WriteBack,
    /// The object stores of others, by name.
    pub upstreams: Upstreams,
    /// What was moved, kept and let go of, and why.
    pub decisions: Decisions,
    /// The running policy.
    pub policies: Arc<Policies>,
    /// Who compresses what is stored, where rules want it.
    pub compressor: Arc<Compressor>,
    /// What is done with datasets in the background.
    pub jobs: Arc<Jobs>,
    /// Who may ask.
    pub keyring: Keyring,
    /// Most S3 connections at a time.
    pub connections_max: u64,
    /// What happened.
    pub metrics: Arc<Metrics>,
    /// What happened in the last minute.
    pub recent: Recent,
    /// Who changed what.
    pub audit: Arc<AuditLog>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// The configuration and where it came from.
    pub loaded: ArcSwap<Loaded>,
    /// What the machine has.
    pub machine: Machine,
    /// This node's name.
    pub node: String,
    /// Where S3 is served, as a URL.
    pub endpoint: String,
    /// When the server started.
    pub started: Timestamp,
    /// How signatures are checked.
    pub rules: AuthRules,
    /// Whether the server takes requests; `/readyz` says so.
    pub ready: AtomicBool,
    /// The newest backup.
    pub backups: Backups,
    /// Verifies what is stored.
    pub scrub: Arc<Scrub>,
    /// What rules did with objects at rest, and what waits to be deleted.
    pub standing: Arc<Standing>,
    /// Plans of what other policies would do, while they are made.
    pub policy_plans: PolicyPlans,
    /// The policy engine.
    pub keeper: Keeper,
    /// What it hears, recorded.
    pub traces: AccessTraces,
    /// What clients tell it that they will read.
    pub plans: AccessPlans,
    /// One simulation at a time.
    pub simulating: Mutex<()>,
}

impl Admin {
    /// The rules for signatures of the admin API.
    #[must_use]
    pub fn rules() -> AuthRules {
        let mut rules = AuthRules::new(SERVICE);
        rules.sigv2 = false;
        rules
    }

    /// Whether the server takes requests.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }
}

macro_rules! routes {
    ($($method:ident $path:literal => $handler:path;)*) => {
        /// Every route under `/v1`: method and path.
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

/// The routes that need no signature.
pub const PROBES: &[&str] = &["/healthz", "/readyz", "/metrics"];

/// What a listener of the admin side serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// `/v1` and the probes.
    All,
    /// `/v1`; the probes are elsewhere.
    Api,
    /// The probes and metrics.
    Probes,
}

/// The routes of a listener.
pub fn router(admin: &Arc<Admin>, served: Served) -> Router {
    let signed = axum::middleware::from_fn_with_state(Arc::clone(admin), signed::require);
    // How long a body may be depends on what it is for, and is looked at before it is read.
    let api = api().layer(axum::extract::DefaultBodyLimit::disable()).layer(signed);
    let routes = match served {
        Served::All => api.merge(probes::routes()),
        Served::Api => api,
        Served::Probes => probes::routes(),
    };
    routes
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::wrong_method)
        .with_state(Arc::clone(admin))
}

/// Answers one request.
pub async fn handle(router: Router, request: Request<Incoming>, peer: Peer) -> Response {
    let (is_spare, version) = (peer.is_spare, request.version());
    if is_spare && !PROBES.contains(&request.uri().path()) {
        return last(error::only_probes().into_response(), version);
    }
    let mut request = request.map(axum::body::Body::new);
    request.extensions_mut().insert(peer);
    let answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    if is_spare { last(answer, version) } else { answer }
}

/// The last answer of its connection: places for probes are for others next. (HTTP/2 has no such header;
/// there the connection ends soon without a request.)
fn last(mut answer: Response, version: Version) -> Response {
    if version <= Version::HTTP_11 {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

#[cfg(test)]
mod tests;
