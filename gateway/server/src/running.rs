//! A running server without peers: its admin API, jobs, rules at rest and listeners.
//!
//! Listeners open last, so the first answer already includes everything that was acknowledged before the
//! restart. A stop is announced, and drains in the reverse order: S3 first, then rules and jobs, then the
//! admin API, which reports until then.

use super::ServeError;
use super::banner::{self, BannerFacts};
use super::bring_up::{ServerEngine, StorageParts};
use super::edge::gateway_of;
use super::error::io_error;
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
use mlgw_admin::{Admin, Backups};
use mlgw_background::access_plans::AccessPlans;
use mlgw_background::access_traces::AccessTraces;
use mlgw_background::jobs::{JobContext, Jobs};
use mlgw_background::reconciler::{PolicyReconciler, ReconcilerContext};
use mlgw_background::stored_objects::StoredObjects;
use mlgw_common::histogram::Durations;
use mlgw_common::{Clock, Timestamp};
use mlgw_config::{ConfigSources, LoadedConfig};
use mlgw_listener::tls::Certificate;
use mlgw_policy_runtime::watched_files;
use mlgw_protocol::edge::S3Edge;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::audit::AuditLog;
use mlgw_telemetry::recent::{self, CounterSnapshot, RecentCounters};
use std::io;
use std::path::{Path, PathBuf};
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
        let (config, parts) = (loaded.config.clone(), &engine.parts);
        let listeners = BoundListeners::open(&config).await?;
        let admin_file = listeners.write_admin_file(&parts.path, &parts.keyring)?;
        let mut metrics = metrics_of(&config, &parts.description)?;
        metrics.objects = Arc::clone(&parts.objects.metrics);
        let endpoint = listeners.endpoint.clone();
        let shared = AdminShared::new(&parts.path, loaded, Arc::new(metrics), endpoint, &parts.clock)?;
        let jobs = jobs_of(parts, None);
        let admin = Arc::new(admin_of(parts, &shared, &jobs)?);
        let sampled = Arc::clone(&admin);
        let sampling = keep_samples(move || sampled.recent.push(sampled.sample()));
        let samples = AbortOnDropHandle::new(tokio::spawn(sampling));
        banner::print(&BannerFacts {
            config: &config,
            data: banner::stored_data(&config, &parts.machine, &parts.description),
            machine: &parts.machine,
            files: &parts.files,
            root: parts.keyring.root(),
            endpoint: &listeners.endpoint,
            admin: &listeners.admin_url,
        });
        tracing::info!(
            endpoint = %listeners.endpoint, admin = %listeners.admin_url, node = %parts.description.node,
            "serving"
        );
        let certificate = listeners.certificate.clone();
        let watch = certificate.clone().map(|c| AbortOnDropHandle::new(tokio::spawn(c.watch())));
        let watching = watched_files::watch(Arc::clone(&parts.policies));
        let policy_watch = AbortOnDropHandle::new(tokio::spawn(watching));
        let gateway = gateway_of(parts, &config, &shared.metrics, None);
        let reconciler = start_work(engine.part, parts, &admin, config.policy.look_every);
        let listeners = listeners.accept(ListenerServices {
            config: &config,
            files: parts.files,
            edge: S3Edge::Local(Arc::new(gateway)),
            memory: request_memory(&config, &parts.machine, &shared.metrics),
            metrics: Arc::clone(&shared.metrics),
            admin: AdminApi::Server(Arc::clone(&admin)),
        });
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
        let announce = || self.admin.ready.store(false, Relaxed);
        let further = first_reason(signals.stop(), until_superseded(None));
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

/// State of the admin API that lasts as long as the server runs. Clones share it.
#[derive(Clone)]
pub(super) struct AdminShared {
    pub(super) metrics: Arc<GatewayMetrics>,
    pub(super) recent: Arc<RecentCounters>,
    pub(super) audit: Arc<AuditLog>,
    pub(super) loaded: Arc<ArcSwap<LoadedConfig>>,
    pub(super) ready: Arc<AtomicBool>,
    pub(super) backups: Backups,
    pub(super) endpoint: String,
    pub(super) started: Timestamp,
}

impl AdminShared {
    pub(super) fn new(
        data_dir: &Path,
        loaded: LoadedConfig,
        metrics: Arc<GatewayMetrics>,
        endpoint: String,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, ServeError> {
        Ok(Self {
            recent: Arc::new(RecentCounters::new(CounterSnapshot::take(&metrics, Durations::default()))),
            metrics,
            audit: audit_of(&loaded.config, data_dir)?,
            loaded: Arc::new(ArcSwap::from_pointee(loaded)),
            ready: Arc::new(AtomicBool::new(true)),
            backups: Backups::default(),
            endpoint,
            started: clock.now(),
        })
    }
}

/// Starts jobs and rules at rest, except on a recovered server.
fn start_work(
    part: ClusterPart,
    parts: &StorageParts,
    admin: &Admin,
    look_every: Duration,
) -> Option<Arc<PolicyReconciler>> {
    if part == ClusterPart::Recovered {
        tracing::warn!(
            "this server was recovered from a node of a cluster: write-back, rules and jobs are stopped \
             until `mlgw cluster recover --take-over`"
        );
        return None;
    }
    admin.jobs.start(JobContext {
        objects: Arc::clone(&parts.objects),
        policies: Arc::clone(&parts.policies),
        writeback: parts.writeback.clone(),
        lease: None,
    });
    let objects = Arc::clone(&parts.objects);
    Some(PolicyReconciler::start(reconciler_context(admin, parts), objects, look_every))
}

/// Returns the jobs of a server; `duty_term` is that of the duty node of a cluster.
pub(super) fn jobs_of(parts: &StorageParts, duty_term: Option<u64>) -> Arc<Jobs> {
    Jobs::new(
        parts.catalogue.clone(),
        parts.tiers.clone(),
        parts.remote_backed.clone(),
        parts.decisions.clone(),
        parts.checked_clock.clone(),
        duty_term,
    )
}

/// Periodically stores a snapshot of the counters, by `push`. Never returns.
pub(super) async fn keep_samples(push: impl Fn()) {
    loop {
        mlgw_common::time::sleep(recent::SNAPSHOT_INTERVAL).await;
        push();
    }
}

/// Returns the state of the whole admin API.
pub(super) fn admin_of(
    parts: &StorageParts,
    shared: &AdminShared,
    jobs: &Arc<Jobs>,
) -> Result<Admin, ServeError> {
    Ok(Admin {
        stored: StoredObjects {
            catalogue: parts.catalogue.clone(),
            tiers: parts.tiers.clone(),
            remote_backed: parts.remote_backed.clone(),
        },
        writeback: parts.writeback.clone(),
        upstreams: Arc::clone(&parts.upstreams),
        decisions: parts.decisions.clone(),
        policies: Arc::clone(&parts.policies),
        compressor: Arc::clone(&parts.objects.compressor),
        jobs: Arc::clone(jobs),
        keyring: parts.keyring.clone(),
        metrics: Arc::clone(&shared.metrics),
        recent: Arc::clone(&shared.recent),
        audit: Arc::clone(&shared.audit),
        clock: Arc::clone(&parts.clock),
        loaded: Arc::clone(&shared.loaded),
        machine: parts.machine,
        connections_max: parts.files.connections,
        node: parts.description.node.to_string(),
        endpoint: shared.endpoint.clone(),
        started: shared.started,
        rules: Admin::rules(),
        ready: Arc::clone(&shared.ready),
        backups: Arc::clone(&shared.backups),
        scrub: Arc::clone(&parts.scrub),
        plans: plans_of(parts)?,
        policy_plans: mlgw_admin::PolicyPlans::default(),
        retention: Arc::clone(&parts.retention),
        policy_driver: parts.policy_driver.clone(),
        traces: AccessTraces::new(&parts.path, parts.policy_driver.clone(), Arc::clone(&parts.clock)),
        simulating: tokio::sync::Mutex::default(),
        cluster: parts.cluster.clone(),
        is_recovered: parts.description.recovered,
    })
}

/// Returns the parts that the reconciler works with.
pub(super) fn reconciler_context(admin: &Admin, parts: &StorageParts) -> ReconcilerContext {
    ReconcilerContext {
        stored: admin.stored.clone(),
        policies: Arc::clone(&admin.policies),
        jobs: Arc::clone(&admin.jobs),
        policy_driver: admin.policy_driver.clone(),
        retention: Arc::clone(&admin.retention),
        decisions: admin.decisions.clone(),
        compressor: Arc::clone(&admin.compressor),
        audit: Arc::clone(&admin.audit),
        clock: parts.checked_clock.clone(),
        hot_capacity_bytes: admin.loaded.load().config.hot_capacity_bytes(&admin.machine),
    }
}

fn plans_of(parts: &StorageParts) -> Result<AccessPlans, ServeError> {
    let (policy_driver, clock) = (parts.policy_driver.clone(), Arc::clone(&parts.clock));
    let plans = AccessPlans::open(&parts.path, parts.lineage.clone(), policy_driver, clock);
    plans.map_err(|error| io_error("the access plans")(io::Error::other(error)))
}
