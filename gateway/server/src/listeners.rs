//! The listeners of a server: open, accept and drain; and the file by which commands on this host find them.
//!
//! Ports are bound before anything is served, so a port in use ends the start. `admin.json` is written before
//! the first connection is accepted and removed at a stop. After a power loss it may name a server that is
//! gone; the next start replaces it.

use super::ServeError;
use super::error::io_error;
use super::files::FileBudget;
use super::signals::Signals;
use arc_swap::ArcSwapOption;
use mlgw_admin::serve::{self, Router, ServedRoutes};
use mlgw_admin::{Admin, MemberAdmin, member_router};
use mlgw_api::{ADMIN_FILE, AdminFile};
use mlgw_common::limits::ACTIVE_CONNECTION_BYTES;
use mlgw_common::private_file;
use mlgw_config::{Address, Config, MachineSizes};
use mlgw_credentials::Keyring;
use mlgw_listener::connection::HttpServer;
use mlgw_listener::proxies::TrustedProxies;
use mlgw_listener::tls::Certificate;
use mlgw_listener::watch::{ClientTimeouts, MinimumTransferRate};
use mlgw_listener::{ConnectionListener, ProbeSlots, bind};
use mlgw_objects::memory::RequestMemory;
use mlgw_protocol::edge::S3Edge;
use mlgw_telemetry::GatewayMetrics;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Time limit of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Memory of each listener except that of S3: a slot for every connection.
const ADMIN_MEMORY_BYTES: u64 = 4 * 256 * ACTIVE_CONNECTION_BYTES;
/// Time limit of admin requests in flight after S3 is drained.
const ADMIN_DRAIN: Duration = Duration::from_secs(5);

/// Stops the connections of a group of listeners.
#[derive(Default)]
pub(super) struct ListenerGroup {
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl ListenerGroup {
    /// Stops accepting, then waits for the connections. Returns false if some remain after `patience`.
    async fn close(&self, patience: Duration) -> bool {
        self.stop.cancel();
        self.tasks.close();
        mlgw_common::time::timeout(patience, self.tasks.wait()).await.is_ok()
    }
}

/// The listeners that accept connections.
#[derive(Default)]
pub(super) struct OpenListeners {
    /// The listener of S3.
    pub(super) s3: ListenerGroup,
    /// The listeners of the admin API and of probes.
    side: ListenerGroup,
}

impl OpenListeners {
    /// Stops accepting S3 requests, and waits until those in flight are answered, at most `patience`. A
    /// further stop signal ends the wait.
    pub(super) async fn drain_s3(&self, metrics: &GatewayMetrics, patience: Duration, signals: &mut Signals) {
        let inflight = metrics.inflight_requests();
        tracing::info!(inflight, timeout = ?patience, "draining");
        let whole = tokio::select! {
            whole = self.s3.close(patience) => whole,
            () = signals.stop() => false,
        };
        if !whole {
            let inflight = metrics.inflight_requests();
            tracing::warn!(inflight, "drain timeout exceeded; requests aborted");
        }
    }

    /// Stops all listeners, and waits until the requests in flight are answered, at most `patience`.
    pub(super) async fn close(&self, patience: Duration) {
        self.s3.close(patience).await;
        self.close_side().await;
    }

    /// Stops accepting and ends all connections, without waiting.
    pub(super) fn cancel(&self) {
        self.s3.stop.cancel();
        self.side.stop.cancel();
    }

    /// Stops the listeners of the admin API and of probes.
    pub(super) async fn close_side(&self) {
        self.side.close(ADMIN_DRAIN).await;
    }
}

/// The admin API of a server.
pub(super) enum AdminApi {
    /// A server without peers.
    Server(Arc<Admin>),
    /// A node of a cluster. While it is the duty node, it has the whole API.
    Member(Arc<MemberAdmin>, Arc<DutyAdmin>),
}

impl AdminApi {
    /// Returns the choice of the routes of each request.
    fn routes(
        &self,
        served: ServedRoutes,
    ) -> impl Fn() -> Router + Clone + Send + Sync + Unpin + 'static + use<> {
        let (own, duty) = match self {
            Self::Server(admin) => (serve::router(admin, served), Arc::default()),
            Self::Member(admin, duty) => (member_router(admin, served), Arc::clone(duty)),
        };
        move || duty.routes(served).unwrap_or_else(|| own.clone())
    }
}

/// The whole admin API of a storage node, while it is the duty node.
#[derive(Default)]
pub(super) struct DutyAdmin(ArcSwapOption<DutyRoutes>);

struct DutyRoutes {
    admin: Arc<Admin>,
    nodes: Router,
    all: Router,
    api: Router,
    probes: Router,
}

impl DutyAdmin {
    /// Serves the whole API from now on.
    pub(super) fn set(&self, admin: &Arc<Admin>) {
        let router = |served| serve::router(admin, served);
        self.0.store(Some(Arc::new(DutyRoutes {
            admin: Arc::clone(admin),
            nodes: serve::node_router(admin),
            all: router(ServedRoutes::All),
            api: router(ServedRoutes::Api),
            probes: router(ServedRoutes::Probes),
        })));
    }

    /// Serves the API of any node from now on.
    pub(super) fn clear(&self) {
        self.0.store(None);
    }

    /// Returns the state of the whole API, if it is served.
    pub(super) fn current(&self) -> Option<Arc<Admin>> {
        self.0.load().as_ref().map(|routes| Arc::clone(&routes.admin))
    }

    /// Returns the routes for requests of other nodes, if the whole API is served.
    pub(super) fn node_routes(&self) -> Option<Router> {
        self.0.load().as_ref().map(|routes| routes.nodes.clone())
    }

    fn routes(&self, served: ServedRoutes) -> Option<Router> {
        self.0.load().as_ref().map(|routes| match served {
            ServedRoutes::All => routes.all.clone(),
            ServedRoutes::Api => routes.api.clone(),
            ServedRoutes::Probes => routes.probes.clone(),
        })
    }
}

/// Parts of a server that its listeners serve.
pub(super) struct ListenerServices<'a> {
    pub(super) config: &'a Config,
    pub(super) files: FileBudget,
    pub(super) edge: S3Edge,
    /// Memory of S3 requests.
    pub(super) memory: RequestMemory,
    pub(super) metrics: Arc<GatewayMetrics>,
    pub(super) admin: AdminApi,
}

/// The listeners, open but not accepting yet.
pub(super) struct BoundListeners {
    s3: TcpListener,
    admin: TcpListener,
    metrics: Option<TcpListener>,
    pub(super) certificate: Option<Certificate>,
    pub(super) endpoint: String,
    pub(super) admin_url: String,
}

impl BoundListeners {
    pub(super) async fn open(config: &Config) -> Result<Self, ServeError> {
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

    /// Writes the addresses of the server and the local key for commands on this host. The key ends with the
    /// server.
    pub(super) fn write_admin_file(&self, dir: &Path, keyring: &Keyring) -> Result<PathBuf, ServeError> {
        let local = keyring.local();
        let file = AdminFile {
            endpoint: self.admin_url.clone(),
            s3_endpoint: Some(self.endpoint.clone()),
            access_key_id: local.principal.access_key.clone(),
            secret_access_key: local.secret.expose().to_owned(),
        };
        let path = dir.join(ADMIN_FILE);
        let text = format!("{}\n", serde_json::json!(file));
        private_file::write(dir, &path, text.as_bytes()).map_err(io_error(path.display().to_string()))?;
        Ok(path)
    }

    /// Accepts connections until the returned listeners are stopped.
    pub(super) fn accept(self, services: ListenerServices<'_>) -> OpenListeners {
        let ListenerServices { config, files, edge, memory, metrics, admin } = services;
        let open = OpenListeners::default();
        let server = HttpServer::new(timeouts_of(config));
        let s3_listener = ConnectionListener {
            listener: self.s3,
            certificate: self.certificate,
            connections_max: usize::try_from(files.connections).unwrap_or(usize::MAX),
            makes_room: false,
            probe_slots: None,
            refusals_max: files.refusals,
            server: server.clone(),
            memory,
            proxies: proxies_of(config),
            metrics: Some(metrics),
            stop: open.s3.stop.clone(),
            tasks: open.s3.tasks.clone(),
        };
        open.s3.tasks.spawn(s3_listener.accept(move |request, peer| edge.handle(request, peer)));
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
                memory: RequestMemory::new(ADMIN_MEMORY_BYTES, config.limits.client_memory_percent, None),
                // Their clients are operators and probes, which connect directly.
                proxies: TrustedProxies::default(),
                metrics: None,
                stop: open.side.stop.clone(),
                tasks: open.side.tasks.clone(),
            };
            let routes = admin.routes(served);
            let accepting = side_listener.accept(move |request, peer| serve::handle(routes(), request, peer));
            open.side.tasks.spawn(accepting);
        }
        open
    }
}

/// Returns the trusted proxies of the S3 listener.
fn proxies_of(config: &Config) -> TrustedProxies {
    let proxies = TrustedProxies::new(&config.s3.trusted_proxies);
    if config.s3.proxy_protocol { proxies.with_header() } else { proxies }
}

/// Removes the file that names this server to commands on this host.
pub(super) fn remove_admin_file(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(%error, file = %path.display(), "cannot remove the admin file");
    }
}

/// Returns the memory of S3 requests.
pub(super) fn request_memory(
    config: &Config,
    machine: &MachineSizes,
    metrics: &GatewayMetrics,
) -> RequestMemory {
    let percent = config.limits.client_memory_percent;
    RequestMemory::new(config.memory_bytes(machine), percent, Some(Arc::clone(&metrics.objects)))
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
