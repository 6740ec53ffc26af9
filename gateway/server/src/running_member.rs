//! A running node of a cluster: a storage node, or a gateway.
//!
//! It opens its listeners in the order of a server without peers. A storage node takes part in the choice of
//! the duty node before. A stop is announced, and drains S3 first, then the duty, and the admin API last.
//! Nothing is stored here besides `admin.json` and lines of the audit log.

use super::ServeError;
use super::admin_calls::ServedAdmin;
use super::banner::{self, BannerFacts};
use super::bring_up::StorageParts;
use super::duty::StorageDuty;
use super::edge::{edge_of, forwarding_edge, gateway_of};
use super::files::FileBudget;
use super::forwarded::ServedRequests;
use super::gateway_node::GatewayNode;
use super::listeners::{
    AdminApi, BoundListeners, DutyAdmin, ListenerServices, OpenListeners, remove_admin_file, request_memory,
};
use super::logging::LogControl;
use super::reload::ReloadedParts;
use super::running::{AdminShared, keep_samples};
use super::segment_store;
use super::shared_settings;
use super::signals::Signals;
use super::start::ClusterPart;
use super::stopping::{StopReason, announce_stop, first_reason, shutdown_delay, until_superseded};
use super::telemetry::{metrics_of, stop_traces};
use mlgw_admin::{Admin, MemberAdmin, MemberStorage};
use mlgw_common::Clock;
use mlgw_config::{Config, ConfigSources, LoadedConfig, MachineSizes};
use mlgw_credentials::Keyring;
use mlgw_listener::tls::Certificate;
use mlgw_metadata::Catalogue;
use mlgw_node::{ClusterNode, DutyWork};
use mlgw_objects::memory::RequestMemory;
use mlgw_protocol::forwarded::ForwardedRequests;
use mlgw_protocol::member::MemberGateway;
use mlgw_store::node_file::NodeDescription;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

/// Parts of a node that its listeners and its admin API need.
#[derive(Clone, Copy)]
pub(super) struct MemberParts<'a> {
    pub(super) path: &'a Path,
    pub(super) description: &'a NodeDescription,
    pub(super) catalogue: &'a Catalogue,
    pub(super) cluster: &'a ClusterNode,
    pub(super) machine: &'a MachineSizes,
    pub(super) files: FileBudget,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) keyring: &'a Keyring,
    /// Further parts of a storage node that serves.
    pub(super) storage: Option<&'a StorageParts>,
}

/// A running node.
pub(super) struct RunningMember {
    admin: Arc<MemberAdmin>,
    admin_file: PathBuf,
    certificate: Option<Certificate>,
    _certificate_watch: Option<AbortOnDropHandle<()>>,
    _samples: AbortOnDropHandle<()>,
    _settings: AbortOnDropHandle<()>,
    listeners: OpenListeners,
    duty: Option<RunningDuty>,
    shutdown_delay: Duration,
    drain_timeout: Duration,
}

/// The part of a storage node in the choice of the duty node.
struct RunningDuty {
    work: Arc<StorageDuty>,
    stop: CancellationToken,
    /// Cancelled when the task has ended.
    ended: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningDuty {
    /// Ends the duty of this node, if it has it. A signal ends the wait: then the row stays as it is, and the
    /// next duty node waits for longer.
    async fn stop(self, signals: &mut Signals) {
        self.stop.cancel();
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = signals.stop() => {
                tracing::warn!("a further signal: the duty of this node is not handed over");
                self.task.abort();
            }
        }
        self.work.close().await;
    }
}

/// Waits for the task of the duty, which ends only when it is stopped.
async fn watch_duty(running: JoinHandle<()>, ended: DropGuard) {
    let _ended = ended;
    if let Err(error) = AbortOnDropHandle::new(running).await {
        tracing::error!(%error, "the task of the duty node ended early");
    }
}

impl RunningMember {
    /// Starts a node without objects.
    pub(super) async fn forward(node: &GatewayNode, loaded: LoadedConfig) -> Result<Self, ServeError> {
        let GatewayNode { dir, catalogue, cluster, machine, files, clock, keyring, .. } = node;
        let parts = MemberParts {
            path: dir.path(),
            description: dir.node(),
            catalogue,
            cluster,
            machine,
            files: *files,
            clock,
            keyring,
            storage: None,
        };
        Self::start(parts, loaded).await
    }

    /// Starts a storage node, which also serves requests that other nodes forward to it.
    pub(super) async fn serve(
        storage: &StorageParts,
        cluster: &ClusterNode,
        loaded: LoadedConfig,
    ) -> Result<Self, ServeError> {
        let StorageParts { path, description, catalogue, machine, files, clock, keyring, .. } = storage;
        let (files, storage) = (*files, Some(storage));
        let parts =
            MemberParts { path, description, catalogue, cluster, machine, files, clock, keyring, storage };
        Self::start(parts, loaded).await
    }

    async fn start(parts: MemberParts<'_>, loaded: LoadedConfig) -> Result<Self, ServeError> {
        let config = loaded.config.clone();
        let MemberParts { cluster, files, clock, machine, storage, .. } = parts;
        let listeners = BoundListeners::open(&config).await?;
        let admin_file = listeners.write_admin_file(parts.path, parts.keyring)?;
        let mut metrics = metrics_of(&config, parts.description)?;
        if let Some(storage) = storage {
            metrics.objects = Arc::clone(&storage.objects.metrics);
        }
        let shared =
            AdminShared::new(parts.path, loaded, Arc::new(metrics), listeners.endpoint.clone(), clock)?;
        let admin = Arc::new(member_admin(&parts, &shared));
        let samples = start_samples(&admin);
        let settings = shared_settings::share(cluster, &admin.loaded, storage.is_some());
        announce(&parts, &config, &listeners);
        let certificate = listeners.certificate.clone();
        let watch = certificate.clone().map(|c| AbortOnDropHandle::new(tokio::spawn(c.watch())));
        let memory = request_memory(&config, machine, &shared.metrics);
        let gateways = storage.map(|storage| {
            let gateway = gateway_of(storage, &config, &shared.metrics, None);
            Arc::new(MemberGateway::from_pointee(gateway))
        });
        let whole_api = Arc::new(DutyAdmin::default());
        // Before the listeners, so that the first request of a duty node that restarts is served.
        let duty = match (storage, &gateways) {
            (Some(storage), Some(gateways)) => {
                let gateways = Arc::clone(gateways);
                let work =
                    StorageDuty::new(storage.clone(), shared.clone(), gateways, Arc::clone(&whole_api));
                work.adopt_copies().await?;
                Some(share_duty(cluster, Arc::new(work)).await)
            }
            _ => None,
        };
        let edge = match &gateways {
            Some(gateways) => edge_of(gateways, cluster),
            None => forwarding_edge(cluster, &config, &shared.metrics, clock),
        };
        let listeners = listeners.accept(ListenerServices {
            config: &config,
            files,
            edge,
            memory: memory.clone(),
            metrics: shared.metrics,
            admin: AdminApi::Member(Arc::clone(&admin), Arc::clone(&whole_api)),
        });
        cluster.serve_admin(Arc::new(ServedAdmin::new(&admin, whole_api)));
        match gateways {
            Some(gateways) => serve_peers(cluster, gateways, memory, &listeners),
            None => cluster.set_serving(),
        }
        Ok(Self {
            admin,
            admin_file,
            certificate,
            _certificate_watch: watch,
            _samples: samples,
            _settings: settings,
            listeners,
            duty,
            shutdown_delay: shutdown_delay(&config, ClusterPart::Storage),
            drain_timeout: config.drain_timeout,
        })
    }

    /// Applies the settings that SIGHUP can change. An invalid configuration is refused as a whole.
    pub(super) fn reload(&self, sources: &ConfigSources, log: &LogControl) {
        let parts =
            ReloadedParts { log, metrics: &self.admin.metrics, certificate: self.certificate.as_ref() };
        parts.reload(&self.admin.loaded, sources, |config: &Config| {
            if let Some(storage) = &self.admin.storage {
                segment_store::apply_settings(config, &storage.tiers.hot);
            }
            if let Some(duty) = &self.duty {
                duty.work.apply_settings(config);
            }
        });
    }

    /// Waits until the task of the duty has ended, which it never should before a stop.
    pub(super) async fn until_broken(&self) {
        match &self.duty {
            Some(duty) => duty.ended.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Stops serving after the shutdown delay. Requests in flight are answered within the drain timeout.
    pub(super) async fn drain(self, reason: StopReason, signals: &mut Signals) {
        let announce = || {
            self.admin.ready.store(false, Relaxed);
            self.admin.cluster.stop_serving();
        };
        let further = first_reason(signals.stop(), until_superseded(Some(&self.admin.cluster)));
        announce_stop(reason, self.shutdown_delay, announce, further).await;
        self.listeners.drain_s3(&self.admin.metrics, self.drain_timeout, signals).await;
        if let Some(duty) = self.duty {
            duty.stop(signals).await;
        }
        self.admin.cluster.stop_admin();
        self.listeners.close_side().await;
        stop_traces(&self.admin.metrics).await;
        remove_admin_file(&self.admin_file);
    }
}

/// Starts to store snapshots of the counters.
fn start_samples(admin: &Arc<MemberAdmin>) -> AbortOnDropHandle<()> {
    let admin = Arc::clone(admin);
    let sampling = keep_samples(move || admin.recent.push(admin.sample()));
    AbortOnDropHandle::new(tokio::spawn(sampling))
}

/// Takes part in the choice of the duty node from now on.
async fn share_duty(cluster: &ClusterNode, work: Arc<StorageDuty>) -> RunningDuty {
    let stop = CancellationToken::new();
    let shared: Arc<dyn DutyWork> = work.clone();
    let running = cluster.share_duty(shared, stop.clone()).await;
    let ended = CancellationToken::new();
    let task = tokio::spawn(watch_duty(running, ended.clone().drop_guard()));
    RunningDuty { work, stop, ended, task }
}

/// Serves requests that other nodes of the cluster forward, and reports to them that this node serves.
fn serve_peers(
    cluster: &ClusterNode,
    gateway: Arc<MemberGateway>,
    memory: RequestMemory,
    listeners: &OpenListeners,
) {
    let requests = ForwardedRequests { gateway, memory, routes: cluster.routes() };
    let (stop, tasks) = (listeners.s3.stop.clone(), listeners.s3.tasks.clone());
    cluster.serve_requests(Arc::new(ServedRequests::new(requests, stop, tasks)));
    cluster.set_serving();
}

/// Prints the banner, and logs where the node serves.
fn announce(parts: &MemberParts<'_>, config: &Config, listeners: &BoundListeners) {
    let MemberParts { description, machine, files, keyring, storage, .. } = parts;
    banner::print(&BannerFacts {
        config,
        data: match storage {
            Some(_) => banner::stored_data(config, machine, description),
            None => banner::forwarded_data(config, description),
        },
        machine,
        files,
        root: keyring.root(),
        endpoint: &listeners.endpoint,
        admin: &listeners.admin_url,
    });
    tracing::info!(
        endpoint = %listeners.endpoint, admin = %listeners.admin_url, node = %description.node,
        is_gateway = storage.is_none(), "serving"
    );
}

/// Returns the state of the admin API.
pub(super) fn member_admin(parts: &MemberParts<'_>, shared: &AdminShared) -> MemberAdmin {
    MemberAdmin {
        cluster: parts.cluster.clone(),
        keyring: parts.keyring.clone(),
        connections_max: parts.files.connections,
        metrics: Arc::clone(&shared.metrics),
        recent: Arc::clone(&shared.recent),
        audit: Arc::clone(&shared.audit),
        clock: Arc::clone(parts.clock),
        loaded: Arc::clone(&shared.loaded),
        machine: *parts.machine,
        node: parts.description.node.to_string(),
        endpoint: shared.endpoint.clone(),
        started: shared.started,
        rules: Admin::rules(),
        ready: Arc::clone(&shared.ready),
        backups: Arc::clone(&shared.backups),
        is_waiting: false,
        catalogue: parts.catalogue.clone(),
        storage: parts.storage.map(storage_of),
        forwarding_plan: tokio::sync::Mutex::default(),
    }
}

/// Returns the parts of a storage node that its metrics and its status are made from.
fn storage_of(parts: &StorageParts) -> MemberStorage {
    MemberStorage {
        tiers: parts.tiers.clone(),
        upstreams: Arc::clone(&parts.upstreams),
        decisions: parts.decisions.clone(),
        scrub: Arc::clone(&parts.scrub),
        compressor: Arc::clone(&parts.objects.compressor),
    }
}

#[cfg(test)]
mod tests {
    use super::watch_duty;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn the_end_of_the_task_of_the_duty_is_found_also_after_a_panic() {
        for panics in [false, true] {
            let ended = CancellationToken::new();
            let task = tokio::spawn(async move { assert!(!panics, "planted") });
            watch_duty(task, ended.clone().drop_guard()).await;
            assert!(ended.is_cancelled());
        }
    }
}
