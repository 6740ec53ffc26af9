//! A running node of a cluster whose admin API has its own state only: a storage node other than the first
//! one, or a gateway.
//!
//! It opens its listeners in the order of a server with objects. A stop is announced, and drains S3 first and
//! the admin API last. Nothing is stored here besides `admin.json` and lines of the audit log.

use super::ServeError;
use super::banner::{self, BannerFacts};
use super::bring_up::ServerEngine;
use super::edge::{edge_of, forwarding_edge, gateway_of};
use super::files::FileBudget;
use super::gateway_node::GatewayNode;
use super::listeners::{
    AdminApi, BoundListeners, ListenerServices, OpenListeners, remove_admin_file, request_memory,
};
use super::logging::LogControl;
use super::reload::ReloadedParts;
use super::running::{keep_samples, serve_peers};
use super::segment_store;
use super::signals::Signals;
use super::start::ClusterPart;
use super::stopping::{StopReason, announce_stop, first_reason, shutdown_delay, until_superseded};
use super::telemetry::{audit_of, metrics_of, stop_traces};
use arc_swap::ArcSwap;
use mlgw_admin::{Admin, MemberAdmin, MemberStorage};
use mlgw_common::Clock;
use mlgw_common::histogram::Durations;
use mlgw_config::{Config, ConfigSources, LoadedConfig, MachineSizes};
use mlgw_credentials::Keyring;
use mlgw_listener::tls::Certificate;
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_store::data_dir::DataDir;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::recent::{CounterSnapshot, RecentCounters};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Parts of a node that its listeners and its admin API need.
#[derive(Clone, Copy)]
pub(super) struct MemberParts<'a> {
    pub(super) dir: &'a DataDir,
    pub(super) catalogue: &'a Catalogue,
    pub(super) cluster: &'a ClusterNode,
    pub(super) machine: &'a MachineSizes,
    pub(super) files: FileBudget,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) keyring: &'a Keyring,
    /// The engine of a storage node.
    pub(super) engine: Option<&'a ServerEngine>,
}

/// A running node.
pub(super) struct RunningMember {
    admin: Arc<MemberAdmin>,
    admin_file: PathBuf,
    certificate: Option<Certificate>,
    _certificate_watch: Option<AbortOnDropHandle<()>>,
    _samples: AbortOnDropHandle<()>,
    listeners: OpenListeners,
    shutdown_delay: Duration,
    drain_timeout: Duration,
}

impl RunningMember {
    /// Starts a node that stores nothing.
    pub(super) async fn forward(node: &GatewayNode, loaded: LoadedConfig) -> Result<Self, ServeError> {
        let GatewayNode { dir, catalogue, cluster, machine, files, clock, keyring, .. } = node;
        let (files, engine) = (*files, None);
        let parts = MemberParts { dir, catalogue, cluster, machine, files, clock, keyring, engine };
        Self::start(parts, loaded).await
    }

    /// Starts a storage node, which also serves requests that other nodes forward to it.
    pub(super) async fn serve(
        engine: &ServerEngine,
        cluster: &ClusterNode,
        loaded: LoadedConfig,
    ) -> Result<Self, ServeError> {
        let ServerEngine { dir, catalogue, machine, files, clock, keyring, .. } = engine;
        let (files, engine) = (*files, Some(engine));
        let parts = MemberParts { dir, catalogue, cluster, machine, files, clock, keyring, engine };
        Self::start(parts, loaded).await
    }

    async fn start(parts: MemberParts<'_>, loaded: LoadedConfig) -> Result<Self, ServeError> {
        let config = loaded.config.clone();
        let MemberParts { dir, cluster, files, clock, keyring, machine, engine, .. } = parts;
        let listeners = BoundListeners::open(&config).await?;
        let admin_file = listeners.write_admin_file(dir.path(), keyring)?;
        let mut metrics = metrics_of(&config, dir.node())?;
        if let Some(engine) = engine {
            metrics.objects = Arc::clone(&engine.objects.metrics);
        }
        let metrics = Arc::new(metrics);
        let admin = Arc::new(member_admin(&parts, loaded, &metrics, listeners.endpoint.clone())?);
        let samples = start_samples(&admin);
        banner::print(&BannerFacts {
            config: &config,
            data: match engine {
                Some(_) => banner::stored_data(&config, machine, dir.node()),
                None => banner::forwarded_data(&config, dir.node()),
            },
            machine,
            files: &files,
            root: keyring.root(),
            endpoint: &listeners.endpoint,
            admin: &listeners.admin_url,
        });
        tracing::info!(
            endpoint = %listeners.endpoint, admin = %listeners.admin_url, node = %dir.node().node,
            is_gateway = engine.is_none(), "serving"
        );
        let certificate = listeners.certificate.clone();
        let watch = certificate.clone().map(|c| AbortOnDropHandle::new(tokio::spawn(c.watch())));
        let memory = request_memory(&config, machine, &metrics);
        let gateway = engine.map(|engine| Arc::new(gateway_of(engine, &config, &metrics)));
        let edge = match &gateway {
            Some(gateway) => edge_of(gateway, Some(cluster)),
            None => forwarding_edge(cluster, &config, &metrics, clock),
        };
        let listeners = listeners.accept(ListenerServices {
            config: &config,
            files,
            edge,
            memory: memory.clone(),
            metrics,
            admin: AdminApi::Member(Arc::clone(&admin)),
        });
        match gateway {
            Some(gateway) => serve_peers(cluster, gateway, memory, &listeners),
            None => cluster.set_serving(),
        }
        Ok(Self {
            admin,
            admin_file,
            certificate,
            _certificate_watch: watch,
            _samples: samples,
            listeners,
            shutdown_delay: shutdown_delay(&config, ClusterPart::Member),
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
        });
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

/// Returns the state of the admin API.
pub(super) fn member_admin(
    parts: &MemberParts<'_>,
    loaded: LoadedConfig,
    metrics: &Arc<GatewayMetrics>,
    endpoint: String,
) -> Result<MemberAdmin, ServeError> {
    Ok(MemberAdmin {
        cluster: parts.cluster.clone(),
        keyring: parts.keyring.clone(),
        connections_max: parts.files.connections,
        metrics: Arc::clone(metrics),
        recent: RecentCounters::new(CounterSnapshot::take(metrics, Durations::default())),
        audit: audit_of(&loaded.config, parts.dir.path())?,
        clock: Arc::clone(parts.clock),
        loaded: ArcSwap::from_pointee(loaded),
        machine: *parts.machine,
        node: parts.dir.node().node.to_string(),
        endpoint,
        started: parts.clock.now(),
        rules: Admin::rules(),
        ready: AtomicBool::new(true),
        is_waiting: false,
        catalogue: parts.catalogue.clone(),
        storage: parts.engine.map(storage_of),
    })
}

/// Returns the parts of a storage node that its metrics and its status are made from.
fn storage_of(engine: &ServerEngine) -> MemberStorage {
    MemberStorage {
        tiers: engine.tiers.clone(),
        upstreams: Arc::clone(&engine.upstreams),
        decisions: engine.decisions.clone(),
        scrub: Arc::clone(&engine.scrub),
        compressor: Arc::clone(&engine.objects.compressor),
    }
}
