//! A storage node that waits at its start for a majority of the voters.
//!
//! Its segments stay closed, because they are sealed and removed by rows that may be old. Meanwhile it
//! listens at its usual addresses. It forwards S3 requests to nodes that serve, and refuses them if it
//! reaches none. Its admin API reports the cluster by its own rows and probes. The listeners close before the
//! start goes on, and open again when the node serves. Nothing is stored here besides `admin.json` and lines
//! of the audit log.

use super::ServeError;
use super::edge::forwarding_edge;
use super::listeners::{
    AdminApi, BoundListeners, ListenerServices, OpenListeners, remove_admin_file, request_memory,
};
use super::notify::{ServiceState, notify};
use super::running::AdminShared;
use super::running_member::{MemberParts, member_admin};
use super::start::StartResources;
use mlgw_admin::MemberAdmin;
use mlgw_common::time::timeout;
use mlgw_config::LoadedConfig;
use mlgw_credentials::Keyring;
use mlgw_metadata::Catalogue;
use mlgw_node::ClusterNode;
use mlgw_telemetry::GatewayMetrics;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a node that waits listens: longer than an election, so that a restart of all nodes needs
/// no listeners in between.
const LISTEN_AFTER: Duration = Duration::from_secs(5);

/// Longest time for which requests in flight are awaited when the start goes on.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Parts of a node that waits.
#[derive(Clone, Copy)]
pub(super) struct WaitingParts<'a> {
    pub(super) loaded: &'a LoadedConfig,
    pub(super) start: &'a StartResources,
    pub(super) catalogue: &'a Catalogue,
    pub(super) cluster: &'a ClusterNode,
}

/// Waits until `current` ends, and listens if that takes long. If the listeners do not open, the reason is
/// logged, and the wait goes on.
pub(super) async fn listen_until(parts: WaitingParts<'_>, current: impl Future<Output = ()>) {
    let mut current = pin!(current);
    if timeout(LISTEN_AFTER, current.as_mut()).await.is_ok() {
        return;
    }
    let listening = async {
        // The rows of a new node have no access keys yet, so no request can be authenticated.
        if parts.catalogue.credentials().is_empty() {
            return None;
        }
        let opened = WaitingNode::open(parts).await;
        opened.inspect_err(|error| tracing::error!(%error, "cannot listen while this node waits")).ok()
    };
    let Some(node) = listening.await else { return current.await };
    // The service manager would otherwise end a process that starts for too long.
    notify(ServiceState::Ready);
    current.await;
    node.listeners.close(CLOSE_MAX).await;
}

/// The listeners of a node that waits. They close when it is dropped.
struct WaitingNode {
    listeners: OpenListeners,
    admin_file: PathBuf,
}

impl WaitingNode {
    async fn open(parts: WaitingParts<'_>) -> Result<Self, ServeError> {
        let WaitingParts { loaded, start, catalogue, cluster } = parts;
        let StartResources { dir, machine, files, clock, sealer, .. } = start;
        let config = &loaded.config;
        // The root's record exists, so nothing is proposed.
        let keyring = Keyring::open(catalogue.clone(), sealer.clone(), Arc::clone(clock), None).await?;
        let listeners = BoundListeners::open(config).await?;
        let admin_file = listeners.write_admin_file(dir.path(), &keyring)?;
        // The access log and the traces begin when the node serves.
        let mut metrics = GatewayMetrics::new(config.log.slow_request_ms);
        metrics.forwarding = Some(Arc::default());
        let metrics = Arc::new(metrics);
        let endpoint = listeners.endpoint.clone();
        let shared = AdminShared::new(dir.path(), loaded.clone(), Arc::clone(&metrics), endpoint, clock)?;
        let (path, description) = (dir.path(), dir.node());
        let (keyring, files, storage) = (&keyring, *files, None);
        let parts =
            MemberParts { path, description, catalogue, cluster, machine, files, clock, keyring, storage };
        let admin = MemberAdmin { is_waiting: true, ..member_admin(&parts, &shared) };
        tracing::warn!(
            "most voters do not answer: this node waits for them with S3 at {} and its admin API at {}",
            listeners.endpoint,
            listeners.admin_url
        );
        let listeners = listeners.accept(ListenerServices {
            config,
            files,
            edge: forwarding_edge(cluster, config, &metrics, clock),
            memory: request_memory(config, machine, &metrics),
            metrics,
            admin: AdminApi::Member(Arc::new(admin), Arc::default()),
        });
        Ok(Self { listeners, admin_file })
    }
}

impl Drop for WaitingNode {
    fn drop(&mut self) {
        self.listeners.cancel();
        remove_admin_file(&self.admin_file);
    }
}
