//! Admin API of a node of a cluster other than the duty node.
//!
//! It has its probes, metrics, settings and tiers, backups, the cluster, and with the parts of the other
//! nodes the status and the decisions. Everything else is forwarded to the duty node ([`super::forwarded`]).
//! [`super::probes`] decides if it is ready. Nothing is stored here besides lines of the audit log.

use super::context::AdminContext;
use super::decisions::{DecisionQuery, DecisionSources};
use super::error::{no_such_route, wrong_method};
use super::extract::AdminQuery;
use super::forwarded;
use super::node_figures::NodeFigures;
use super::node_parts::{DECISIONS_PART, STATUS_PART};
use super::node_status::with_findings;
use super::serve::ServedRoutes;
use super::signed::{AdminCaller, SignedHead, require_member_signature};
use super::storage_figures::StorageFigures;
use super::tiers::{NodeTiers, TierContext, TiersAbsent};
use super::whole_status::whole_status;
use super::{
    ApiError, Backups, cluster, cluster_authority, cluster_leaving, cluster_rebalance, disks, openapi,
    probes, status, store, tiers,
};
use arc_swap::ArcSwap;
use axum::extract::{DefaultBodyLimit, FromRef, RawQuery, Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Extension, Json, Router};
use mlgw_api::{DecisionList, SettingList, Status};
use mlgw_auth::AuthRules;
use mlgw_common::{Clock, Timestamp};
use mlgw_config::{LoadedConfig, MachineSizes, list_settings};
use mlgw_credentials::Keyring;
use mlgw_metadata::{Catalogue, ReadError};
use mlgw_node::ClusterNode;
use mlgw_objects::compressor::Compressor;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{Scrub, Upstreams};
use mlgw_segments::tiers::Tiers;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::audit::AuditLog;
use mlgw_telemetry::recent::{CounterSnapshot, RecentCounters};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Shared state of the handlers on a node other than the duty node.
pub struct MemberAdmin {
    /// This node of the cluster.
    pub cluster: ClusterNode,
    /// Access keys.
    pub keyring: Keyring,
    /// Maximum number of open S3 connections.
    pub connections_max: u64,
    /// Metrics of the server.
    pub metrics: Arc<GatewayMetrics>,
    /// Metrics of the last minute.
    pub recent: Arc<RecentCounters>,
    /// Audit log of all changes.
    pub audit: Arc<AuditLog>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Configuration and the source of each setting.
    pub loaded: Arc<ArcSwap<LoadedConfig>>,
    /// Resources of the machine.
    pub machine: MachineSizes,
    /// Name of this node.
    pub node: String,
    /// URL of the S3 endpoint.
    pub endpoint: String,
    /// Start time of the server.
    pub started: Timestamp,
    /// Rules of signature verification: those of [`super::Admin::rules`].
    pub rules: AuthRules,
    /// True while the server accepts requests; reported by `/readyz`.
    pub ready: Arc<AtomicBool>,
    /// State of the newest backup, also of one that this node began while it was the duty node.
    pub backups: Backups,
    /// True for a storage node that waits at its start until a majority of the voters answers.
    pub is_waiting: bool,
    /// The catalogue; on a gateway that of the system group.
    pub catalogue: Catalogue,
    /// Parts of a storage node; `None` on a gateway.
    pub storage: Option<MemberStorage>,
    /// Held while a long body is read and forwarded: one at a time.
    pub forwarding_plan: tokio::sync::Mutex<()>,
}

/// Parts of a storage node other than the duty node.
pub struct MemberStorage {
    /// The tiers.
    pub tiers: Tiers,
    /// Upstreams by name.
    pub upstreams: Upstreams,
    /// Log of moves, retentions and evictions, with their reasons.
    pub decisions: Decisions,
    /// Scrub, which verifies stored data.
    pub scrub: Arc<Scrub>,
    /// Compressor of stored objects, where rules demand it.
    pub compressor: Arc<Compressor>,
}

impl FromRef<Arc<MemberAdmin>> for AdminContext {
    fn from_ref(admin: &Arc<MemberAdmin>) -> Self {
        Self {
            keyring: admin.keyring.clone(),
            rules: admin.rules.clone(),
            clock: Arc::clone(&admin.clock),
            audit: Arc::clone(&admin.audit),
            cluster: Some(admin.cluster.clone()),
            segments: admin.storage.as_ref().map(|storage| storage.tiers.hot.clone()),
            catalogue: admin.catalogue.clone(),
            loaded: Arc::clone(&admin.loaded),
            backups: Arc::clone(&admin.backups),
        }
    }
}

impl FromRef<Arc<MemberAdmin>> for TierContext {
    fn from_ref(admin: &Arc<MemberAdmin>) -> Self {
        let own = |storage: &MemberStorage| NodeTiers {
            context: AdminContext::from_ref(admin),
            machine: admin.machine,
            tiers: storage.tiers.clone(),
            upstreams: Arc::clone(&storage.upstreams),
            scrub: Arc::clone(&storage.scrub),
        };
        let absent = if admin.is_waiting { TiersAbsent::Starting } else { TiersAbsent::Gateway };
        Self(admin.storage.as_ref().map(own).ok_or(absent))
    }
}

/// Returns the router of a listener of a node other than the duty node.
pub fn member_router(admin: &Arc<MemberAdmin>, served: ServedRoutes) -> Router {
    let context = AdminContext::from_ref(admin);
    let signed = axum::middleware::from_fn_with_state(context, require_member_signature);
    let api: Router<Arc<MemberAdmin>> = Router::new()
        .route("/v1/openapi.json", get(openapi::document))
        .route("/v1/status", get(show_status))
        .route("/v1/config", get(settings))
        .route("/v1/decisions", get(list_decisions))
        .route("/v1/cluster", get(cluster::show))
        .route("/v1/cluster/tokens", post(cluster::create_token))
        .route("/v1/disks/replace", post(disks::replace))
        .route("/v1/tiers", get(tiers::list))
        .route("/v1/tiers/{tier}", get(tiers::show))
        .route("/v1/tiers/{tier}/scrub", post(tiers::scrub))
        .route("/v1/tiers/{tier}/compaction", get(tiers::compaction).post(tiers::compact))
        .route("/v1/store/backup", get(store::show).post(store::start))
        .route("/v1/cluster/authority/rotate", post(cluster_authority::rotate))
        .route("/v1/cluster/rebalance", post(cluster_rebalance::begin))
        .route("/v1/cluster/nodes/{node}/drain", post(cluster_leaving::drain))
        .route("/v1/cluster/nodes/{node}/undrain", post(cluster_leaving::undrain))
        .route("/v1/cluster/nodes/{node}/remove", post(cluster_leaving::remove))
        .route("/v1/cluster/nodes/{node}/replace", post(cluster_leaving::replace))
        .layer(DefaultBodyLimit::disable())
        .layer(signed)
        .route("/v1/{*path}", any(forward));
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

/// Returns the router of the requests that other nodes send to a node other than the duty node: questions for
/// its part. What the duty node has is refused, because that node may have changed meanwhile.
pub fn member_node_router(admin: &Arc<MemberAdmin>) -> Router {
    let routes: Router<Arc<MemberAdmin>> = Router::new()
        .route(STATUS_PART, get(show_own_status))
        .route(DECISIONS_PART, get(list_own_decisions))
        .route("/v1/{*path}", any(forwarded::refuse));
    routes.fallback(no_such_route).method_not_allowed_fallback(wrong_method).with_state(Arc::clone(admin))
}

/// Forwards a signed request for what the duty node has. The body is read only if the signature is valid.
async fn forward(State(admin): State<Arc<MemberAdmin>>, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let signed = SignedHead::verify(&AdminContext::from_ref(&admin), head).await?;
    if admin.is_waiting {
        return Err(forwarded::starting());
    }
    forwarded::forward(&admin.cluster, &admin.forwarding_plan, signed, body).await
}

async fn settings(State(admin): State<Arc<MemberAdmin>>) -> Json<SettingList> {
    Json(list_settings(&admin.loaded.load(), &admin.machine))
}

async fn show_status(
    State(admin): State<Arc<MemberAdmin>>,
    caller: Extension<AdminCaller>,
) -> Result<Json<Status>, ApiError> {
    let Json(own) = show_own_status(State(Arc::clone(&admin))).await?;
    Ok(Json(whole_status(own, Some(&admin.cluster), &caller).await))
}

async fn show_own_status(State(admin): State<Arc<MemberAdmin>>) -> Result<Json<Status>, ApiError> {
    status::answer(move || admin.status()).await
}

async fn list_decisions(
    State(admin): State<Arc<MemberAdmin>>,
    caller: Extension<AdminCaller>,
    raw: RawQuery,
    AdminQuery(query): AdminQuery<DecisionQuery>,
) -> Result<Json<DecisionList>, ApiError> {
    admin.decision_sources().whole(&caller, raw, &query).await.map(Json)
}

async fn list_own_decisions(
    State(admin): State<Arc<MemberAdmin>>,
    AdminQuery(query): AdminQuery<DecisionQuery>,
) -> Result<Json<DecisionList>, ApiError> {
    admin.decision_sources().own(&query).map(Json)
}

async fn metrics(State(admin): State<Arc<MemberAdmin>>) -> Result<Response, ApiError> {
    probes::answer(move || admin.figures().member_families()).await
}

async fn readyz(State(admin): State<Arc<MemberAdmin>>) -> Response {
    probes::readiness(admin.obstacle())
}

impl MemberAdmin {
    /// Returns the current counters.
    #[must_use]
    pub fn sample(&self) -> CounterSnapshot {
        self.figures().sample()
    }

    fn decision_sources(&self) -> DecisionSources<'_> {
        let decisions = self.storage.as_ref().map(|storage| &storage.decisions);
        DecisionSources { decisions, catalogue: &self.catalogue, cluster: Some(&self.cluster) }
    }

    fn status(&self) -> Result<Status, ReadError> {
        let node = self.figures();
        Ok(with_findings(node.status()?, node.cluster_findings()))
    }

    /// Returns the parts of this node from which its metrics and its status are made.
    fn figures(&self) -> NodeFigures<'_> {
        NodeFigures {
            node: &self.node,
            endpoint: &self.endpoint,
            is_ready: self.ready.load(Relaxed),
            started: self.started,
            now: self.clock.now(),
            connections_max: self.connections_max,
            keyring: &self.keyring,
            metrics: &self.metrics,
            recent: &self.recent,
            loaded: self.loaded.load_full(),
            machine: &self.machine,
            catalogue: &self.catalogue,
            cluster: Some(&self.cluster),
            storage: self.storage.as_ref().map(MemberStorage::figures),
        }
    }

    fn obstacle(&self) -> Option<&'static str> {
        if self.is_waiting {
            return Some(forwarded::WAITING);
        }
        let cluster = &self.cluster;
        let (accepts, is_storage) = (self.ready.load(Relaxed), self.storage.is_some());
        let refuses = |storage: &MemberStorage| !storage.tiers.hot.can_append();
        if accepts && self.storage.as_ref().is_some_and(refuses) {
            return Some(probes::NO_SEGMENTS);
        }
        let obstacle = || probes::cluster_obstacle(cluster);
        probes::member_obstacle(accepts, is_storage, obstacle, || cluster.is_any_other_serving())
    }
}

impl MemberStorage {
    /// Remote-backed buckets are served by the duty node, so there are no clean copies here.
    fn figures(&self) -> StorageFigures<'_> {
        StorageFigures {
            tiers: &self.tiers,
            upstreams: &self.upstreams,
            decisions: &self.decisions,
            scrub: &self.scrub,
            compressor: &self.compressor,
            copies: None,
        }
    }
}
