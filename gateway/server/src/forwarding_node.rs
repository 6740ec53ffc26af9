//! A node of a cluster that is not the store: it forwards every S3 request to the store of the cluster.
//!
//! It is a member of the system group, so it has the access keys of its admin API. Its start waits until it
//! has received the rows of the system group. A gateway opens no store besides the catalogue, and proposes
//! nothing besides the report of the node. A storage node is also a member of all other groups, has copies of
//! segments ([`ReplicaStore`]), and proposes changes of the lists of replicas. A power loss at any time loses
//! nothing that the other nodes do not have, or that this node has not synced before it acknowledged it to
//! them.

use super::ServeError;
use super::banner::{self, BannerFacts};
use super::edge::forwarding_edge;
use super::files::FileBudget;
use super::listeners::{
    AdminApi, BoundListeners, ListenerServices, OpenListeners, remove_admin_file, request_memory,
};
use super::logging::LogControl;
use super::member;
use super::reload::ReloadedParts;
use super::replica_store::ReplicaStore;
use super::segment_store;
use super::signals::Signals;
use super::start::{ClusterPart, StartResources, remove_leftovers};
use super::telemetry::{audit_of, metrics_of, stop_traces};
use arc_swap::ArcSwap;
use mlgw_admin::{Admin, MemberAdmin};
use mlgw_common::Clock;
use mlgw_config::{Config, ConfigSources, LoadedConfig, MachineSizes};
use mlgw_credentials::Keyring;
use mlgw_listener::tls::Certificate;
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_store::data_dir::DataDir;
use mlgw_store::start_reserve;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// The open parts of a node that forwards.
pub(super) struct ForwardingNode {
    dir: DataDir,
    _start_reserve: AbortOnDropHandle<()>,
    /// Locks of segment directories outside the data directory, which has its own lock.
    _segments: Vec<File>,
    machine: MachineSizes,
    files: FileBudget,
    clock: Arc<dyn Clock>,
    catalogue: Catalogue,
    cluster: ClusterNode,
    /// Copies of segments; `None` on a gateway.
    replicas: Option<ReplicaStore>,
    keyring: Keyring,
}

impl ForwardingNode {
    pub(super) async fn open(config: &Config, start: StartResources) -> Result<Self, ServeError> {
        let (catalogue, cluster) = member::open_catalogue(config, &start).await?;
        member::unless_superseded(&cluster, member::until_member(&cluster)).await?;
        let replicas = match start.part {
            ClusterPart::Replica => Some(ReplicaStore::open(config, &start, &catalogue, &cluster).await?),
            ClusterPart::Gateway | ClusterPart::Alone | ClusterPart::Store => None,
        };
        let StartResources { mut dir, sealer, segments, machine, files, clock, .. } = start;
        // The log has carried the identity since it was opened, and the rows that have arrived carry the
        // timeline of the cluster. The segment directories of a storage node are marked by now.
        dir.finish_marking()?;
        remove_leftovers(&dir, &dir.location(config));
        let reserve = start_reserve::maintain(dir.path().to_owned(), config.hot_reserve_bytes(&machine));
        let keyring = member::open_keyring(&catalogue, sealer, Arc::clone(&clock)).await?;
        Ok(Self {
            dir,
            _start_reserve: AbortOnDropHandle::new(tokio::spawn(reserve)),
            _segments: segments,
            machine,
            files,
            clock,
            catalogue,
            cluster,
            replicas,
            keyring,
        })
    }

    pub(super) const fn cluster(&self) -> &ClusterNode {
        &self.cluster
    }

    /// Closes the copies, leaves the cluster, makes all state durable and closes the catalogue.
    pub(super) async fn close(self) {
        if let Some(replicas) = self.replicas {
            replicas.close(&self.cluster).await;
        }
        member::leave(self.cluster, &self.catalogue).await;
        self.catalogue.shutdown().await;
        tracing::info!(data_dir = %self.dir.path().display(), "stopped");
    }
}

/// A running node that forwards.
pub(super) struct RunningForwarder {
    admin: Arc<MemberAdmin>,
    admin_file: PathBuf,
    certificate: Option<Certificate>,
    _certificate_watch: Option<AbortOnDropHandle<()>>,
    listeners: OpenListeners,
    drain_timeout: Duration,
}

impl RunningForwarder {
    /// Opens the listeners, in the order of a server with objects.
    pub(super) async fn start(node: &ForwardingNode, loaded: LoadedConfig) -> Result<Self, ServeError> {
        let config = loaded.config.clone();
        let listeners = BoundListeners::open(&config).await?;
        let admin_file = listeners.write_admin_file(node.dir.path(), &node.keyring)?;
        let metrics = Arc::new(metrics_of(&config, node.dir.node())?);
        let admin = Arc::new(MemberAdmin {
            cluster: node.cluster.clone(),
            keyring: node.keyring.clone(),
            connections_max: node.files.connections,
            metrics: Arc::clone(&metrics),
            audit: audit_of(&config, node.dir.path())?,
            clock: Arc::clone(&node.clock),
            loaded: ArcSwap::from_pointee(loaded),
            machine: node.machine,
            started: node.clock.now(),
            rules: Admin::rules(),
            ready: AtomicBool::new(true),
            segments: node.replicas.as_ref().map(|replicas| replicas.hot().clone()),
        });
        banner::print(&BannerFacts {
            config: &config,
            data: match node.replicas {
                Some(_) => banner::replica_data(&config, &node.machine, node.dir.node()),
                None => banner::forwarded_data(&config, node.dir.node()),
            },
            machine: &node.machine,
            files: &node.files,
            root: node.keyring.root(),
            endpoint: &listeners.endpoint,
            admin: &listeners.admin_url,
        });
        tracing::info!(
            endpoint = %listeners.endpoint, admin = %listeners.admin_url, node = %node.dir.node().node,
            "forwarding"
        );
        let certificate = listeners.certificate.clone();
        let watch = certificate.clone().map(|c| AbortOnDropHandle::new(tokio::spawn(c.watch())));
        let listeners = listeners.accept(ListenerServices {
            config: &config,
            files: node.files,
            edge: forwarding_edge(&node.cluster, &config, &metrics, &node.clock),
            memory: request_memory(&config, &node.machine, &metrics),
            metrics,
            admin: AdminApi::Member(Arc::clone(&admin)),
        });
        node.cluster.set_serving();
        let drain_timeout = config.drain_timeout;
        Ok(Self { admin, admin_file, certificate, _certificate_watch: watch, listeners, drain_timeout })
    }

    /// Applies the settings that SIGHUP can change. An invalid configuration is refused as a whole.
    pub(super) fn reload(&self, sources: &ConfigSources, log: &LogControl) {
        let parts =
            ReloadedParts { log, metrics: &self.admin.metrics, certificate: self.certificate.as_ref() };
        parts.reload(&self.admin.loaded, sources, |config| {
            if let Some(segments) = &self.admin.segments {
                segment_store::apply_settings(config, segments);
            }
        });
    }

    /// Stops serving. Requests in flight are answered within the drain timeout.
    pub(super) async fn drain(self, signals: &mut Signals) {
        self.admin.ready.store(false, Relaxed);
        self.listeners.drain_s3(&self.admin.metrics, self.drain_timeout, signals).await;
        self.listeners.close_side().await;
        stop_traces(&self.admin.metrics).await;
        remove_admin_file(&self.admin_file);
    }
}
