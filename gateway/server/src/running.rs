//! A running server with objects: its admin API, jobs, rules at rest and listeners.
//!
//! Listeners open last, so the first answer already includes everything that was acknowledged before the
//! restart. A stop is announced, and drains in the reverse order: S3 first, then rules and jobs, then the
//! admin API, which reports until then.

use super::ServeError;
use super::banner::{self, BannerFacts};
use super::bring_up::ServerEngine;
use super::edge::{edge_of, gateway_of};
use super::error::io_error;
use super::forwarded::ServedRequests;
use super::listeners::{
    AdminApi, BoundListeners, ListenerServices, OpenListeners, remove_admin_file, request_memory,
};
use super::logging::LogControl;
use super::reload::ReloadedParts;
use super::remote_backed::freshness_of;
use super::segment_store;
use super::signals::Signals;
use super::start::ClusterPart;
use super::stopping::{StopReason, announce_stop, first_reason, shutdown_delay, until_superseded};
use super::telemetry::{audit_of, metrics_of, stop_traces};
use arc_swap::ArcSwap;
use mlgw_admin::Admin;
use mlgw_background::access_plans::AccessPlans;
use mlgw_background::access_traces::AccessTraces;
use mlgw_background::jobs::{JobContext, Jobs};
use mlgw_background::reconciler::{PolicyReconciler, ReconcilerContext};
use mlgw_background::stored_objects::StoredObjects;
use mlgw_common::histogram::Durations;
use mlgw_config::{ConfigSources, LoadedConfig};
use mlgw_listener::tls::Certificate;
use mlgw_node::ClusterNode;
use mlgw_objects::memory::RequestMemory;
use mlgw_policy_runtime::watched_files;
use mlgw_protocol::Gateway;
use mlgw_protocol::forwarded::ForwardedRequests;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::recent::{self, CounterSnapshot, RecentCounters};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// A running server.
pub(super) struct RunningServer {
    admin: Arc<Admin>,
    admin_file: PathBuf,
    certificate: Option<Certificate>,
    _certificate_watch: Option<AbortOnDropHandle<()>>,
    _policy_watch: AbortOnDropHandle<()>,
    _samples: AbortOnDropHandle<()>,
    jobs: Arc<Jobs>,
    /// `None` on a recovered server.
    reconciler: Option<Arc<PolicyReconciler>>,
    listeners: OpenListeners,
    shutdown_delay: Duration,
    drain_timeout: Duration,
}

impl RunningServer {
    /// Opens the listeners. `admin.json` and the banner are written before the first connection is accepted,
    /// so they are available to a client that sees `/readyz`.
    pub(super) async fn start(engine: &ServerEngine, loaded: LoadedConfig) -> Result<Self, ServeError> {
        let config = loaded.config.clone();
        let listeners = BoundListeners::open(&config).await?;
        let admin_file = listeners.write_admin_file(engine.dir.path(), &engine.keyring)?;
        let mut metrics = metrics_of(&config, engine.dir.node())?;
        metrics.objects = Arc::clone(&engine.objects.metrics);
        let metrics = Arc::new(metrics);
        let jobs = jobs_of(engine);
        let admin = Arc::new(admin_of(engine, loaded, &metrics, &jobs, listeners.endpoint.clone())?);
        let sampled = Arc::clone(&admin);
        let sampling = keep_samples(move || sampled.recent.push(sampled.sample()));
        let samples = AbortOnDropHandle::new(tokio::spawn(sampling));
        banner::print(&BannerFacts {
            config: &config,
            data: banner::stored_data(&config, &engine.machine, engine.dir.node()),
            machine: &engine.machine,
            files: &engine.files,
            root: engine.keyring.root(),
            endpoint: &listeners.endpoint,
            admin: &listeners.admin_url,
        });
        tracing::info!(
            endpoint = %listeners.endpoint, admin = %listeners.admin_url, node = %engine.dir.node().node,
            "serving"
        );
        let certificate = listeners.certificate.clone();
        let watch = certificate.clone().map(|c| AbortOnDropHandle::new(tokio::spawn(c.watch())));
        let watching = watched_files::watch(Arc::clone(&engine.policies));
        let policy_watch = AbortOnDropHandle::new(tokio::spawn(watching));
        let gateway = Arc::new(gateway_of(engine, &config, &metrics));
        let reconciler = start_duties(engine, &admin, config.policy.look_every);
        let memory = request_memory(&config, &engine.machine, &metrics);
        let listeners = listeners.accept(ListenerServices {
            config: &config,
            files: engine.files,
            edge: edge_of(&gateway, engine.cluster.as_ref()),
            memory: memory.clone(),
            metrics,
            admin: AdminApi::Server(Arc::clone(&admin)),
        });
        if let Some(cluster) = &engine.cluster {
            serve_peers(cluster, gateway, memory, &listeners);
        }
        Ok(Self {
            admin,
            admin_file,
            certificate,
            _certificate_watch: watch,
            _policy_watch: policy_watch,
            _samples: samples,
            jobs,
            reconciler,
            listeners,
            shutdown_delay: shutdown_delay(&config, engine.part),
            drain_timeout: config.drain_timeout,
        })
    }

    /// Applies the settings that SIGHUP can change. An invalid configuration is refused as a whole.
    pub(super) fn reload(&self, sources: &ConfigSources, log: &LogControl) {
        let parts =
            ReloadedParts { log, metrics: &self.admin.metrics, certificate: self.certificate.as_ref() };
        parts.reload(&self.admin.loaded, sources, |config| {
            let StoredObjects { tiers, remote_backed, .. } = &self.admin.stored;
            segment_store::apply_settings(config, &tiers.hot);
            remote_backed.set_freshness(freshness_of(config));
        });
    }

    /// Stops serving after the shutdown delay. Requests in flight are answered within the drain timeout.
    pub(super) async fn drain(self, reason: StopReason, signals: &mut Signals) {
        let announce = || {
            self.admin.ready.store(false, Relaxed);
            self.admin.cluster.iter().for_each(ClusterNode::stop_serving);
        };
        let further = first_reason(signals.stop(), until_superseded(self.admin.cluster.as_ref()));
        announce_stop(reason, self.shutdown_delay, announce, further).await;
        self.listeners.drain_s3(&self.admin.metrics, self.drain_timeout, signals).await;
        if let Some(reconciler) = self.reconciler {
            reconciler.stop().await;
        }
        self.jobs.stop().await;
        self.listeners.close_side().await;
        stop_traces(&self.admin.metrics).await;
        remove_admin_file(&self.admin_file);
    }
}

/// Serves requests that other nodes of the cluster forward, and reports to them that this node serves.
pub(super) fn serve_peers(
    cluster: &ClusterNode,
    gateway: Arc<Gateway>,
    memory: RequestMemory,
    listeners: &OpenListeners,
) {
    let requests = ForwardedRequests { gateway, memory, routes: cluster.routes() };
    let (stop, tasks) = (listeners.s3.stop.clone(), listeners.s3.tasks.clone());
    cluster.serve_requests(Arc::new(ServedRequests::new(requests, stop, tasks)));
    cluster.set_serving();
}

/// Starts jobs and rules at rest, except on a recovered server.
fn start_duties(engine: &ServerEngine, admin: &Admin, look_every: Duration) -> Option<Arc<PolicyReconciler>> {
    if engine.part == ClusterPart::Recovered {
        tracing::warn!(
            "this server was recovered from a node of a cluster: write-back, rules and jobs are stopped \
             until `mlgw cluster recover --take-over`"
        );
        return None;
    }
    admin.jobs.start(JobContext {
        objects: Arc::clone(&engine.objects),
        policies: Arc::clone(&engine.policies),
        writeback: engine.writeback.clone(),
    });
    let objects = Arc::clone(&engine.objects);
    Some(PolicyReconciler::start(reconciler_context(admin, engine), objects, look_every))
}

fn jobs_of(engine: &ServerEngine) -> Arc<Jobs> {
    Jobs::new(
        engine.catalogue.clone(),
        engine.tiers.clone(),
        engine.remote_backed.clone(),
        engine.decisions.clone(),
        engine.checked_clock.clone(),
    )
}

/// Periodically stores a snapshot of the counters, by `push`. Never returns.
pub(super) async fn keep_samples(push: impl Fn()) {
    loop {
        mlgw_common::time::sleep(recent::SNAPSHOT_INTERVAL).await;
        push();
    }
}

fn admin_of(
    engine: &ServerEngine,
    loaded: LoadedConfig,
    metrics: &Arc<GatewayMetrics>,
    jobs: &Arc<Jobs>,
    endpoint: String,
) -> Result<Admin, ServeError> {
    Ok(Admin {
        stored: StoredObjects {
            catalogue: engine.catalogue.clone(),
            tiers: engine.tiers.clone(),
            remote_backed: engine.remote_backed.clone(),
        },
        writeback: engine.writeback.clone(),
        upstreams: Arc::clone(&engine.upstreams),
        decisions: engine.decisions.clone(),
        policies: Arc::clone(&engine.policies),
        compressor: Arc::clone(&engine.objects.compressor),
        jobs: Arc::clone(jobs),
        keyring: engine.keyring.clone(),
        metrics: Arc::clone(metrics),
        recent: RecentCounters::new(CounterSnapshot::take(metrics, Durations::default())),
        audit: audit_of(&loaded.config, engine.dir.path())?,
        clock: Arc::clone(&engine.clock),
        loaded: ArcSwap::from_pointee(loaded),
        machine: engine.machine,
        connections_max: engine.files.connections,
        node: engine.dir.node().node.to_string(),
        endpoint,
        started: engine.clock.now(),
        rules: Admin::rules(),
        ready: AtomicBool::new(true),
        backups: mlgw_admin::Backups::default(),
        scrub: Arc::clone(&engine.scrub),
        plans: plans_of(engine)?,
        policy_plans: mlgw_admin::PolicyPlans::default(),
        retention: Arc::clone(&engine.retention),
        policy_driver: engine.policy_driver.clone(),
        traces: AccessTraces::new(engine.dir.path(), engine.policy_driver.clone(), Arc::clone(&engine.clock)),
        simulating: tokio::sync::Mutex::default(),
        cluster: engine.cluster.clone(),
    })
}

/// Returns the parts that the reconciler works with.
fn reconciler_context(admin: &Admin, engine: &ServerEngine) -> ReconcilerContext {
    ReconcilerContext {
        stored: admin.stored.clone(),
        policies: Arc::clone(&admin.policies),
        jobs: Arc::clone(&admin.jobs),
        policy_driver: admin.policy_driver.clone(),
        retention: Arc::clone(&admin.retention),
        decisions: admin.decisions.clone(),
        compressor: Arc::clone(&admin.compressor),
        audit: Arc::clone(&admin.audit),
        clock: engine.checked_clock.clone(),
        hot_capacity_bytes: admin.loaded.load().config.hot_capacity_bytes(&admin.machine),
    }
}

fn plans_of(engine: &ServerEngine) -> Result<AccessPlans, ServeError> {
    let (policy_driver, clock) = (engine.policy_driver.clone(), Arc::clone(&engine.clock));
    let plans = AccessPlans::open(engine.dir.path(), engine.dir.lineage(), policy_driver, clock);
    plans.map_err(|error| io_error("the access plans")(io::Error::other(error)))
}
