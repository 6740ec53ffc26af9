//! The server: start, reload and shutdown.
//!
//! Parts start in the order of their dependencies and stop in the reverse order. Listeners open last, so the
//! first answer already includes everything that was acknowledged before the restart. After SIGTERM or SIGINT
//! the server stops accepting, `/readyz` reports it, requests in flight are answered, all data is synced, and
//! the process exits with 0. A second signal ends the waiting. SIGHUP reloads the settings that can change
//! while the server runs. A process that is killed loses no acknowledged write, because the next start
//! replays the log.

mod banner;
mod bring_up;
pub mod files;
pub mod logging;
pub mod notify;
mod object_keys;

use arc_swap::ArcSwap;
use bring_up::ServerEngine;
use connection::HttpServer;
use files::{FileBudget, TooFewFiles};
use logging::LogControl;
use mlgw_admin::Admin;
use mlgw_admin::serve::ServedRoutes;
use mlgw_api::{ADMIN_FILE, AdminFile};
use mlgw_auth::AuthRules;
use mlgw_background::access_plans::AccessPlans;
use mlgw_background::access_traces::AccessTraces;
use mlgw_background::jobs::{JobContext, Jobs};
use mlgw_background::reconciler::{PolicyReconciler, ReconcilerContext};
use mlgw_background::stored_objects::StoredObjects;
use mlgw_common::histogram::Durations;
use mlgw_common::limits::ACTIVE_CONNECTION_BYTES;
use mlgw_common::private_file;
use mlgw_config::{Address, Config, ConfigSources, LoadedConfig, TooLittleMemory};
use mlgw_credentials::OpenKeyringError;
use mlgw_listener::connection;
use mlgw_listener::tls;
use mlgw_listener::watch;
use mlgw_listener::{BindError, ConnectionListener, ProbeSlots, bind};
use mlgw_objects::memory::RequestMemory;
use mlgw_policy_runtime::{PolicyError, watched_files};
use mlgw_protocol::edge::S3Edge;
use mlgw_protocol::request_ids::RequestIds;
use mlgw_protocol::{Gateway, S3Config};
use mlgw_store::node_file::DataDirError;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::access_log::AccessLog;
use mlgw_telemetry::audit::AuditLog;
use mlgw_telemetry::recent::{self, CounterSnapshot, RecentCounters};
use mlgw_telemetry::traces::Traces;
use mlgw_wire::lanes::WorkloadLanes;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tls::{Certificate, TlsError};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use watch::{ClientTimeouts, MinimumTransferRate};

/// Time limit of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Memory of each listener except that of S3: a slot for every connection.
const ADMIN_MEMORY_BYTES: u64 = 4 * 256 * ACTIVE_CONNECTION_BYTES;
/// Time that the exit waits for threads that wait for a disk, after all parts are closed.
const THREADS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of admin requests in flight after S3 is drained.
const ADMIN_DRAIN: Duration = Duration::from_secs(5);

/// Error of starting or running the server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A file of the data directory is of another type, or a newer version wrote it.
    #[error("{0}; run `mlgw store check` on the data directory")]
    Unfit(mlgw_store::UnfitFile),
    /// The catalogue did not open.
    #[error("cannot open the catalogue: {0}; run `mlgw store check` on the data directory")]
    Catalogue(#[from] mlgw_metadata::OpenError),
    /// The directory of checkpoints belongs to another server.
    #[error(transparent)]
    Checkpoints(#[from] mlgw_store::checkpoint_dir::CheckpointDirError),
    /// The hot tier did not open.
    #[error("cannot open the hot tier: {0}")]
    Hot(#[from] mlgw_segments::hot::HotOpenError),
    /// The copies of remote-backed buckets did not open.
    #[error(
        "cannot open the copies of remote-backed buckets: {0}; it is safe to remove them: they are fetched \
         again"
    )]
    Copies(#[from] mlgw_cache::copies::OpenCopiesError),
    /// The log of decisions cannot be read.
    #[error("cannot open the decision log: {0}; it is safe to remove it")]
    Decisions(#[from] mlgw_segments::decisions::DecisionFileError),
    /// An upstream is configured wrongly.
    #[error("{0}")]
    Upstream(String),
    /// The keyring did not open.
    #[error(transparent)]
    Keyring(#[from] OpenKeyringError),
    /// Only one of the two root variables is set.
    #[error("set both MLGW_ROOT_ACCESS_KEY_ID and MLGW_ROOT_SECRET_ACCESS_KEY, or neither")]
    IncompleteRootCredentials,
    /// A listener did not open.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The certificate cannot be used.
    #[error("HTTPS: {0}")]
    Tls(#[from] TlsError),
    /// There is too little memory.
    #[error(transparent)]
    Memory(#[from] TooLittleMemory),
    /// The limit of open files is too small.
    #[error(transparent)]
    Files(#[from] TooFewFiles),
    /// The running policy cannot be read.
    #[error("the policy: {0}")]
    Policy(#[from] PolicyError),
    /// A file or a part of the process could not be created.
    #[error("{what}: {source}")]
    Io {
        /// Name of the file or part.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServeError {
    let what = what.into();
    move |source| ServeError::Io { what, source }
}

/// Serves until a signal ends the server. `sources` are read again on SIGHUP.
///
/// # Errors
/// When the server does not start.
pub fn run(loaded: LoadedConfig, sources: ConfigSources) -> Result<(), ServeError> {
    let config = &loaded.config;
    let log = logging::start(config.log.format, config.log.level)
        .map_err(|error| io_error("starting the log")(io::Error::other(error)))?;
    let files = FileBudget::of_process(config.limits.connections)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("mlgw").enable_all().build();
    let runtime = runtime.map_err(io_error("starting the runtime"))?;
    let served = runtime.block_on(serve(loaded, sources, log, files));
    // A thread that waits for a disk that never answers is abandoned.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    served
}

async fn serve(
    loaded: LoadedConfig,
    sources: ConfigSources,
    log: LogControl,
    files: FileBudget,
) -> Result<(), ServeError> {
    let mut signals = Signals::install().map_err(io_error("signals"))?;
    let engine = tokio::select! {
        engine = ServerEngine::open(&loaded.config, files) => engine?,
        // No request is served yet, so a start can be interrupted at any point without loss.
        () = signals.stop() => return Ok(()),
    };
    let running = match RunningServer::start(&engine, loaded).await {
        Ok(running) => running,
        Err(error) => {
            engine.close().await;
            return Err(error);
        }
    };
    notify::notify(notify::ServiceState::Ready);
    let _report = AbortOnDropHandle::new(tokio::spawn(log.clone().report_left_out()));
    while signals.next().await == SignalAction::Reload {
        running.reload(&sources, &log);
    }
    notify::notify(notify::ServiceState::Stopping);
    running.drain(&mut signals).await;
    engine.close().await;
    Ok(())
}

/// Action requested by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    Stop,
    Reload,
}

/// The signals that the server handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal to stop.
    async fn stop(&mut self) {
        while self.next().await != SignalAction::Stop {}
    }

    /// Waits for any handled signal.
    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hangup.recv() => SignalAction::Reload,
        }
    }
}

/// A running server.
struct RunningServer {
    admin: Arc<Admin>,
    admin_file: PathBuf,
    certificate: Option<Certificate>,
    _certificate_watch: Option<AbortOnDropHandle<()>>,
    _policy_watch: AbortOnDropHandle<()>,
    _samples: AbortOnDropHandle<()>,
    jobs: Arc<Jobs>,
    reconciler: Arc<PolicyReconciler>,
    s3: ListenerGroup,
    side: ListenerGroup,
    drain_timeout: Duration,
}

/// Stops the connections of a group of listeners.
#[derive(Default)]
struct ListenerGroup {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl ListenerGroup {
    /// Stops accepting, then waits for the connections. Returns false if some remain after `patience`.
    async fn close(&self, patience: Duration) -> bool {
        self.stop.cancel();
        self.tasks.close();
        mlgw_common::time::timeout(patience, self.tasks.wait()).await.is_ok()
    }
}

impl RunningServer {
    /// Opens the listeners. `admin.json` and the banner are written before the first connection is accepted,
    /// so they are available to a client that sees `/readyz`.
    async fn start(engine: &ServerEngine, loaded: LoadedConfig) -> Result<Self, ServeError> {
        let config = loaded.config.clone();
        let listeners = BoundListeners::open(&config).await?;
        let admin_file = write_admin_file(engine, &listeners)?;
        let metrics = Arc::new(metrics_of(engine, &config)?);
        let jobs = jobs_of(engine);
        let admin = Arc::new(admin_of(engine, loaded, &metrics, &jobs, listeners.endpoint.clone())?);
        let samples = AbortOnDropHandle::new(tokio::spawn(keep_samples(Arc::clone(&admin))));
        banner::print(&config, engine, &listeners.endpoint, &listeners.admin_url);
        tracing::info!(
            endpoint = %listeners.endpoint, admin = %listeners.admin_url, node = %engine.dir.node().node,
            "serving"
        );
        let certificate = listeners.certificate.clone();
        let watch = certificate.clone().map(|c| AbortOnDropHandle::new(tokio::spawn(c.watch())));
        let watching = watched_files::watch(Arc::clone(&engine.policies));
        let policy_watch = AbortOnDropHandle::new(tokio::spawn(watching));
        let (s3, side) = (ListenerGroup::default(), ListenerGroup::default());
        let edge = S3Edge::Local(Arc::new(gateway_of(engine, &config, &metrics)));
        jobs.start(JobContext {
            objects: Arc::clone(&engine.objects),
            policies: Arc::clone(&engine.policies),
            writeback: engine.writeback.clone(),
        });
        let objects = Arc::clone(&engine.objects);
        let reconciler =
            PolicyReconciler::start(reconciler_context(&admin), objects, config.policy.look_every);
        listeners.accept(&admin, edge, &config, engine.files, &s3, &side);
        let drain_timeout = config.drain_timeout;
        Ok(Self {
            admin,
            admin_file,
            certificate,
            _certificate_watch: watch,
            _policy_watch: policy_watch,
            _samples: samples,
            jobs,
            reconciler,
            s3,
            side,
            drain_timeout,
        })
    }

    /// Applies the settings that SIGHUP can change. An invalid configuration is refused as a whole.
    fn reload(&self, sources: &ConfigSources, log: &LogControl) {
        let newer = match LoadedConfig::load(sources) {
            Ok(newer) => newer,
            Err(error) => {
                tracing::error!(%error, "new configuration refused; the old one remains in effect");
                return;
            }
        };
        let current = self.admin.loaded.load();
        let needs_restart = current.needs_restart(&newer);
        let adopted = current.with_live_settings_of(&newer);
        log.set_level(adopted.config.log.level);
        self.admin.metrics.slow_log.set_threshold(adopted.config.log.slow_request_ms);
        self.admin.metrics.access_log.set_one_in(adopted.config.access_log.one_in);
        self.admin.stored.tiers.hot.set_compaction(bring_up::compaction_of(&adopted.config));
        self.admin.stored.tiers.hot.set_placing(bring_up::placing_of(&adopted.config));
        self.admin.stored.tiers.hot.flash().set_budget(adopted.config.hot.flash_bytes_per_day.0);
        self.admin.stored.remote_backed.set_freshness(bring_up::freshness_of(&adopted.config));
        self.admin.loaded.store(Arc::new(adopted));
        if let Some(Err(error)) = self.certificate.as_ref().map(Certificate::reload) {
            tracing::error!(%error, "new certificate refused; the old one remains in effect");
        }
        tracing::info!(?needs_restart, "configuration reloaded");
    }

    /// Stops serving. Requests in flight are answered within the drain timeout.
    async fn drain(self, signals: &mut Signals) {
        let inflight = self.admin.metrics.inflight_requests();
        tracing::info!(inflight, timeout = ?self.drain_timeout, "draining");
        self.admin.ready.store(false, Relaxed);
        let whole = tokio::select! {
            whole = self.s3.close(self.drain_timeout) => whole,
            () = signals.stop() => false,
        };
        if !whole {
            let inflight = self.admin.metrics.inflight_requests();
            tracing::warn!(inflight, "drain timeout exceeded; requests aborted");
        }
        self.reconciler.stop().await;
        self.jobs.stop().await;
        self.side.close(ADMIN_DRAIN).await;
        if let Some(traces) = &self.admin.metrics.traces {
            traces.stop().await;
        }
        if let Err(error) = std::fs::remove_file(&self.admin_file) {
            tracing::warn!(%error, file = %self.admin_file.display(), "cannot remove the admin file");
        }
    }
}

/// The listeners, open but not accepting yet.
struct BoundListeners {
    s3: TcpListener,
    admin: TcpListener,
    metrics: Option<TcpListener>,
    certificate: Option<Certificate>,
    endpoint: String,
    admin_url: String,
}

impl BoundListeners {
    async fn open(config: &Config) -> Result<Self, ServeError> {
        let certificate = match (&config.tls.cert, &config.tls.key) {
            (Some(cert), Some(key)) => Some(Certificate::load(cert, key)?),
            _ => None,
        };
        let s3 = bind("s3.listen", &config.s3.listen).await?;
        let admin = bind("admin.listen", &config.admin.listen).await?;
        let metrics = match &config.metrics.listen {
            Some(address) => Some(bind("metrics.listen", address).await?),
            None => None,
        };
        // With port 0 the system chooses the port. The URLs contain the chosen one.
        let port = |listener: &TcpListener| {
            listener.local_addr().map(|address| address.port()).map_err(io_error("a listener"))
        };
        let url = if certificate.is_some() { Address::local_https_url } else { Address::local_http_url };
        let endpoint = url(&config.s3.listen, port(&s3)?);
        let admin_url = config.admin.listen.local_http_url(port(&admin)?);
        Ok(Self { s3, admin, metrics, certificate, endpoint, admin_url })
    }

    /// Accepts S3 connections under `s3`, the others under `side`.
    fn accept(
        self,
        admin: &Arc<Admin>,
        edge: S3Edge,
        config: &Config,
        files: FileBudget,
        s3: &ListenerGroup,
        side: &ListenerGroup,
    ) {
        let server = HttpServer::new(timeouts_of(config));
        let memory_bytes = config.memory_bytes(&admin.machine);
        let percent = config.limits.client_memory_percent;
        let s3_listener = ConnectionListener {
            listener: self.s3,
            certificate: self.certificate,
            connections_max: usize::try_from(files.connections).unwrap_or(usize::MAX),
            makes_room: false,
            probe_slots: None,
            refusals_max: files.refusals,
            server: server.clone(),
            memory: RequestMemory::new(memory_bytes, percent, Some(Arc::clone(&admin.metrics.objects))),
            metrics: Some(Arc::clone(&admin.metrics)),
            stop: s3.stop.clone(),
            tasks: s3.tasks.clone(),
        };
        s3.tasks.spawn(s3_listener.accept(move |request, peer| edge.handle(request, peer)));
        let served = if self.metrics.is_some() { ServedRoutes::Api } else { ServedRoutes::All };
        let side_listeners = [Some((self.admin, served)), self.metrics.map(|l| (l, ServedRoutes::Probes))];
        for (listener, served) in side_listeners.into_iter().flatten() {
            let side_listener = ConnectionListener {
                listener,
                certificate: None,
                connections_max: files.side_connections,
                makes_room: true,
                probe_slots: (served != ServedRoutes::Api)
                    .then(|| probe_slots(files.probe_connections, &server)),
                refusals_max: files.side_refusals,
                server: server.clone(),
                memory: RequestMemory::new(ADMIN_MEMORY_BYTES, percent, None),
                metrics: None,
                stop: side.stop.clone(),
                tasks: side.tasks.clone(),
            };
            let router = mlgw_admin::serve::router(admin, served);
            side.tasks.spawn(
                side_listener
                    .accept(move |request, peer| mlgw_admin::serve::handle(router.clone(), request, peer)),
            );
        }
    }
}

/// Returns the reserved slots for probes. A probe is short, and its memory is separate from other requests.
fn probe_slots(connections_max: usize, server: &HttpServer) -> ProbeSlots {
    let pace = MinimumTransferRate { window: PROBE_TIMEOUT, ..server.timeouts.min_rate };
    let patience = ClientTimeouts {
        head: server.timeouts.head.min(PROBE_TIMEOUT),
        idle: server.timeouts.idle.min(PROBE_TIMEOUT),
        min_rate: pace,
    };
    ProbeSlots { connections_max, timeouts: patience, memory: RequestMemory::new(0, 100, None) }
}

fn metrics_of(engine: &ServerEngine, config: &Config) -> Result<GatewayMetrics, ServeError> {
    let mut metrics = GatewayMetrics::new(config.log.slow_request_ms);
    metrics.objects = Arc::clone(&engine.objects.metrics);
    metrics.access_log = AccessLog::start(&config.access_log_dir(), &config.access_log)
        .map_err(io_error("the access log's thread"))?;
    if let Some(endpoint) = &config.traces.endpoint {
        let traces = Traces::start(endpoint, config.traces.one_in, &engine.dir.node().node.to_string());
        let traces = traces.map_err(|error| io_error("traces.endpoint")(io::Error::other(error)))?;
        metrics.traces = Some(traces);
    }
    Ok(metrics)
}

fn jobs_of(engine: &ServerEngine) -> Arc<Jobs> {
    Jobs::new(
        engine.catalogue.clone(),
        engine.tiers.clone(),
        engine.remote_backed.clone(),
        engine.decisions.clone(),
        Arc::clone(&engine.clock),
        engine.dir.node().node.to_string(),
    )
}

/// Periodically stores snapshots of the counters. Never returns.
async fn keep_samples(admin: Arc<Admin>) {
    loop {
        mlgw_common::time::sleep(recent::SNAPSHOT_INTERVAL).await;
        admin.recent.push(admin.sample());
    }
}

fn admin_of(
    engine: &ServerEngine,
    loaded: LoadedConfig,
    metrics: &Arc<GatewayMetrics>,
    jobs: &Arc<Jobs>,
    endpoint: String,
) -> Result<Admin, ServeError> {
    let dir = engine.dir.path().join("audit");
    let audit = AuditLog::open(&dir, &loaded.config.audit)
        .map_err(io_error(format!("the audit log in {}", dir.display())))?;
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
        audit: Arc::new(audit),
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
    })
}

/// Returns the parts that the reconciler works with.
fn reconciler_context(admin: &Admin) -> ReconcilerContext {
    ReconcilerContext {
        stored: admin.stored.clone(),
        policies: Arc::clone(&admin.policies),
        jobs: Arc::clone(&admin.jobs),
        policy_driver: admin.policy_driver.clone(),
        retention: Arc::clone(&admin.retention),
        decisions: admin.decisions.clone(),
        compressor: Arc::clone(&admin.compressor),
        audit: Arc::clone(&admin.audit),
        clock: Arc::clone(&admin.clock),
        hot_capacity_bytes: admin.loaded.load().config.hot_capacity_bytes(&admin.machine),
    }
}

fn plans_of(engine: &ServerEngine) -> Result<AccessPlans, ServeError> {
    let (policy_driver, clock) = (engine.policy_driver.clone(), Arc::clone(&engine.clock));
    let plans = AccessPlans::open(engine.dir.path(), engine.dir.lineage(), policy_driver, clock);
    plans.map_err(|error| io_error("the access plans")(io::Error::other(error)))
}

fn gateway_of(engine: &ServerEngine, config: &Config, metrics: &Arc<GatewayMetrics>) -> Gateway {
    let mut domains = config.s3.domains.clone();
    let host = &config.s3.listen.host;
    if host.parse::<std::net::IpAddr>().is_err() && !domains.contains(host) {
        domains.push(host.clone());
    }
    let mut rules = AuthRules::new("s3");
    rules.region = config.s3.region_strict.then(|| config.s3.region.clone());
    rules.sigv2 = config.s3.sigv2;
    rules.domains.clone_from(&domains);
    Gateway {
        objects: Arc::clone(&engine.objects),
        remote_backed: engine.remote_backed.clone(),
        policy_driver: engine.policy_driver.clone(),
        policies: Arc::clone(&engine.policies),
        writeback: engine.writeback.clone(),
        keyring: engine.keyring.clone(),
        upload_ids: engine.upload_ids.clone(),
        config: S3Config { domains, region: config.s3.region.clone(), rules },
        lanes: lanes_of(config),
        metrics: Arc::clone(metrics),
        clock: Arc::clone(&engine.clock),
        ids: Arc::new(RequestIds::new(engine.dir.lineage().node)),
    }
}

/// Returns the lanes of the configuration. Invalid globs were refused when the configuration was loaded.
fn lanes_of(config: &Config) -> WorkloadLanes {
    WorkloadLanes::new(&config.lanes.inference).unwrap_or_default()
}

fn timeouts_of(config: &Config) -> ClientTimeouts {
    ClientTimeouts {
        head: config.limits.request_head_timeout,
        idle: config.limits.idle_timeout,
        min_rate: MinimumTransferRate {
            window: config.limits.body_timeout,
            rate_min: config.limits.body_rate_min.0,
        },
    }
}

/// Writes the addresses of the server and the local key for commands on this host. The key ends with the
/// server.
fn write_admin_file(engine: &ServerEngine, listeners: &BoundListeners) -> Result<PathBuf, ServeError> {
    let local = engine.keyring.local();
    let file = AdminFile {
        endpoint: listeners.admin_url.clone(),
        s3_endpoint: Some(listeners.endpoint.clone()),
        access_key_id: local.principal.access_key.clone(),
        secret_access_key: local.secret.expose().to_owned(),
    };
    let path = engine.dir.path().join(ADMIN_FILE);
    let text = format!("{}\n", serde_json::json!(file));
    private_file::write(engine.dir.path(), &path, text.as_bytes())
        .map_err(io_error(path.display().to_string()))?;
    Ok(path)
}
