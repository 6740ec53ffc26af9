//! A running node of a cluster.
//!
//! Its tasks end with [`ClusterNode::stop`] or with the last handle: the transport, the driver of the
//! membership, probes, reports, the renewal of the certificate, and what follows the rows of nodes.

use crate::connections::{ChannelTotals, channel_totals};
use crate::copies::{ClusterStorageNodes, CopyStatus};
use crate::duty::{DutyDriver, DutyLease, DutyWork, OwnDuty};
use crate::facts::GroupWaits;
use crate::peers::RunningTransport;
use crate::probes::Probes;
use crate::replicas::{SegmentServer, TransportSegmentPeers};
use crate::reports::ServingState;
use crate::routes::{current_table, serving_nodes};
use crate::services::{NodeServices, RequestServer};
use crate::sets::{OwnGroups, set_rows};
use crate::status::{ClusterStatus, StatusSources};
use crate::streams::TransportStreams;
use crate::tokens::{NewToken, TokenError, create_token};
use crate::{book, renewal::CertificateEnd};
use mlgw_common::time::{sleep, timeout};
use mlgw_common::{CheckedClock, ClusterId, NodeId, SharedSetting};
use mlgw_credentials::Sealer;
use mlgw_formats::schema::{DutyPhase, SegmentRecord};
use mlgw_forwarding::{MemberStreams, RouteTable};
use mlgw_metadata::{Catalogue, ReadError, RowComparisonCounts};
use mlgw_segments::hot::{SegmentPeers, StorageNodes};
use mlgw_transport::ClusterTransport;
use mlgw_trust::PeerStarts;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Longest time until the rows of nodes are read again.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(10);

/// Pause before the map of forwarding is made again after a change of a bucket: it has all buckets.
const ROUTES_PAUSE: Duration = Duration::from_millis(100);

/// Longest time in which a start waits for the decision about the duty node.
const DUTY_WAIT: Duration = Duration::from_secs(5);

/// A running node. Clones share it.
#[derive(Clone)]
pub struct ClusterNode {
    pub(crate) shared: Arc<NodeState>,
}

/// State of a running node.
pub(crate) struct NodeState {
    pub(crate) cluster: ClusterId,
    pub(crate) own: NodeId,
    pub(crate) clock: CheckedClock,
    pub(crate) sealer: Sealer,
    pub(crate) catalogue: Catalogue,
    pub(crate) transport: Arc<RunningTransport>,
    pub(crate) services: NodeServices,
    pub(crate) probes: Arc<Probes>,
    pub(crate) waits: GroupWaits,
    pub(crate) duty_lease: Arc<DutyLease>,
    pub(crate) serving: Arc<ServingState>,
    pub(crate) routes: watch::Receiver<Arc<RouteTable>>,
    pub(crate) lost_groups: watch::Receiver<BTreeSet<u32>>,
    pub(crate) certificate: Arc<CertificateEnd>,
    pub(crate) tasks: parking_lot::Mutex<JoinSet<()>>,
}

impl fmt::Debug for ClusterNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterNode(node {} of {})", self.shared.own, self.shared.cluster)
    }
}

impl ClusterNode {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.shared.own
    }

    /// The range map of forwarding, kept up to date.
    #[must_use]
    pub fn routes(&self) -> watch::Receiver<Arc<RouteTable>> {
        self.shared.routes.clone()
    }

    /// Streams to other members, for forwarded requests.
    #[must_use]
    pub fn streams(&self) -> Arc<dyn MemberStreams> {
        let (transport, probes) = (Arc::clone(&self.shared.transport), Arc::clone(&self.shared.probes));
        Arc::new(TransportStreams::new(transport, probes))
    }

    /// Serves requests that other nodes forward. Before this call they get a refusal and try another node.
    pub fn serve_requests(&self, server: Arc<dyn RequestServer>) {
        self.shared.services.serve_requests(server);
    }

    /// Serves bytes of the replicas of this node to other nodes. Before this call they get a refusal.
    pub fn serve_segments(&self, server: Arc<dyn SegmentServer>) {
        self.shared.services.serve_segments(server);
    }

    /// Serves no bytes of replicas from now on, and cuts the streams that have begun.
    pub fn stop_segments(&self) {
        self.shared.services.stop_segments();
    }

    /// The replicas of the other nodes.
    #[must_use]
    pub fn segment_peers(&self) -> Arc<dyn SegmentPeers> {
        Arc::new(TransportSegmentPeers::new(Arc::clone(&self.shared.transport)))
    }

    /// The storage nodes of the cluster, kept up to date.
    #[must_use]
    pub fn storage_nodes(&self) -> Arc<dyn StorageNodes> {
        Arc::new(self.storage())
    }

    pub(crate) fn storage(&self) -> ClusterStorageNodes {
        ClusterStorageNodes {
            own: self.shared.own,
            catalogue: self.shared.catalogue.clone(),
            probes: Arc::clone(&self.shared.probes),
            replicas: self.shared.services.replicas(),
        }
    }

    /// Takes part in the choice of the duty node, and does `work` while this node is it. It ends with `stop`.
    /// If the row names this node, waits for a moment until the duty runs here, or another node leads.
    pub async fn share_duty(&self, work: Arc<dyn DutyWork>, stop: CancellationToken) -> JoinHandle<()> {
        let shared = &self.shared;
        let driver = DutyDriver {
            own: shared.own,
            catalogue: shared.catalogue.clone(),
            probes: Arc::clone(&shared.probes),
            services: shared.services.clone(),
            lease: Arc::clone(&shared.duty_lease),
        };
        let (state, mut decided) = watch::channel(OwnDuty::Unknown);
        let running = tokio::spawn(driver.run(work, state, stop));
        let is_decided = decided.wait_for(|state| *state != OwnDuty::Unknown);
        // Another node serves meanwhile, or takes over without this one.
        let is_own = shared.catalogue.duty().node_id() == shared.own;
        if is_own && timeout(DUTY_WAIT, is_decided).await.is_err() {
            tracing::info!("the duty node is not known yet");
        }
        running
    }

    /// True while this node has the duty under a lease, and may write at origins.
    #[must_use]
    pub fn acts_on_duty(&self) -> bool {
        self.leased_duty() == Some(DutyPhase::Active)
    }

    /// Sets the settings of this node that are compared with those of the other nodes. Values stay here.
    pub fn set_settings(&self, settings: &[SharedSetting]) {
        self.shared.services.settings().set_own(self.shared.cluster, settings);
    }

    /// True while this node has the duty under a lease, also if it may not write at origins yet.
    #[must_use]
    pub fn has_duty(&self) -> bool {
        self.leased_duty().is_some_and(|phase| phase != DutyPhase::Ended)
    }

    /// The phase of the duty of this node, while it has a lease.
    fn leased_duty(&self) -> Option<DutyPhase> {
        let duty = self.shared.catalogue.duty();
        let is_leased = duty.node_id() == self.shared.own && self.shared.duty_lease.holds();
        is_leased.then(|| duty.phase())
    }

    /// Marks this node as one that stops: the others transfer no leadership to it, and forward requests to it
    /// only if no other node serves them. Another node takes the duty over.
    pub fn stop_serving(&self) {
        self.shared.services.stop_serving();
    }

    /// Reports to the cluster that this node serves.
    pub fn set_serving(&self) {
        self.shared.serving.set();
    }

    /// Waits until this node has received the rows of the system group, its own record among them.
    pub async fn until_member(&self) {
        loop {
            let changed = self.shared.catalogue.node_changed();
            if self.shared.catalogue.node_record(self.shared.own).is_some() {
                return;
            }
            // A change between the check and the wait is not missed: the future was made before.
            let _ = timeout(FOLLOW_INTERVAL, changed).await;
        }
    }

    /// Waits until a peer refuses this node for ever, because it was removed, or because the peer knows a
    /// later start of it: then the node runs on an old copy of its disk. It must stop.
    pub async fn until_superseded(&self) {
        self.shared.probes.superseded().cancelled().await;
    }

    /// Groups on this node without a reachable majority of their voters: nothing in them can be changed. Kept
    /// up to date: at once after an answer of a node, and within seconds after a change of the voters.
    #[must_use]
    pub fn lost_groups(&self) -> watch::Receiver<BTreeSet<u32>> {
        self.shared.lost_groups.clone()
    }

    /// True if this node can serve: the system group and a group of its sets have a reachable majority;
    /// without sets, each group on it has one.
    #[must_use]
    pub fn has_majorities(&self) -> bool {
        // Most often no group is lost, and nothing else is looked up.
        let lost = self.shared.lost_groups.borrow().clone();
        lost.is_empty() || self.own_groups().can_serve(&lost)
    }

    /// True if this node has the rows of the system group of the last 10 s; see
    /// [`Catalogue::has_recent_system_rows`].
    #[must_use]
    pub fn has_recent_rows(&self) -> bool {
        self.shared.catalogue.has_recent_system_rows()
    }

    /// The groups of the sets of this node. A start awaits their rows after those of the system group.
    #[must_use]
    pub fn awaited_groups(&self) -> BTreeSet<u32> {
        self.own_groups().of_own_sets
    }

    /// True if a start goes on without current rows of a group: there are sets, the group has no reachable
    /// majority, and the system group has one.
    #[must_use]
    pub fn is_given_up(&self, group: u32) -> bool {
        let lost = self.shared.lost_groups.borrow().clone();
        self.own_groups().is_given_up(group, &lost)
    }

    fn own_groups(&self) -> OwnGroups {
        let catalogue = &self.shared.catalogue;
        OwnGroups::new(&set_rows(catalogue), self.shared.own, catalogue.groups())
    }

    /// The clock of this node, which is compared with those of the other nodes once a second.
    #[must_use]
    pub fn clock(&self) -> CheckedClock {
        self.shared.clock.clone()
    }

    /// True if another node serves requests that this one forwards, as far as this node knows.
    #[must_use]
    pub fn is_any_other_serving(&self) -> bool {
        let serving = serving_nodes(&self.shared.catalogue.nodes());
        serving.into_iter().any(|node| node != self.shared.own && self.shared.probes.serves(node))
    }

    /// True if syncs of this node's disk take longer than a second, and another storage node serves whose
    /// disk is neither slow nor full: requests should go there.
    #[must_use]
    pub fn is_outpaced(&self) -> bool {
        let (own, probes) = (self.shared.own, &self.shared.probes);
        let is_better = |node: NodeId| {
            node != own && probes.serves(node) && probes.load(node).is_some_and(|load| load.can_lead())
        };
        self.shared.services.load().is_slow == Some(true)
            && serving_nodes(&self.shared.catalogue.nodes()).into_iter().any(is_better)
    }

    /// Counts the copies of all segments. Reads the rows of all segments, and blocks the calling thread.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub fn copies(&self) -> Result<CopyStatus, ReadError> {
        self.storage().copies()
    }

    /// Counts the copies of all segments, from their rows.
    #[must_use]
    pub fn copies_of(&self, records: &[SegmentRecord]) -> CopyStatus {
        self.storage().copies_of(records)
    }

    /// Counts of the comparisons of rows that this node made.
    #[must_use]
    pub fn row_comparison_counts(&self) -> RowComparisonCounts {
        self.shared.catalogue.row_comparison_counts()
    }

    /// Status of the cluster as this node sees it.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        let shared = &self.shared;
        let sources = StatusSources {
            cluster: shared.cluster,
            own: shared.own,
            catalogue: &shared.catalogue,
            probes: &shared.probes,
            services: &shared.services,
            waits: &shared.waits,
            clock: shared.clock.comparison(),
            certificate_expires: shared.certificate.get(),
        };
        sources.collect()
    }

    /// Connections with the other nodes, for each channel. Empty after the stop.
    #[must_use]
    pub fn connections(&self) -> Vec<ChannelTotals> {
        let transport = self.shared.transport.get();
        transport.map(|transport| channel_totals(&transport.counters())).unwrap_or_default()
    }

    /// Creates a token with which one node may join within an hour.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn create_token(&self, created_by: &str) -> Result<NewToken, TokenError> {
        create_token(&self.shared.catalogue, &self.shared.clock, created_by).await
    }

    /// Ends all tasks and closes all connections. The catalogue is still open.
    pub async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.shared.tasks.lock());
        tasks.shutdown().await;
        // Calls in flight may need the transport until they end.
        if let Some(transport) = self.shared.transport.get() {
            transport.stop().await;
        }
        self.shared.transport.take();
    }
}

impl Drop for NodeState {
    /// Ends the transport, which holds the catalogue that holds its peers.
    fn drop(&mut self) {
        self.transport.take();
    }
}

/// Keeps addresses, removed ids and routes equal to the rows of nodes and buckets, until the future is
/// dropped.
pub(crate) async fn follow_nodes(
    catalogue: Catalogue,
    transport: ClusterTransport,
    starts: Arc<PeerStarts>,
    routes: watch::Sender<Arc<RouteTable>>,
) {
    loop {
        let (changed, bucket_changed) = (catalogue.node_changed(), catalogue.bucket_changed());
        let nodes = catalogue.nodes();
        transport.book().set_rows(book::addresses(&nodes));
        let removed = book::removed(&nodes);
        let forgotten: Vec<NodeId> = removed.iter().copied().collect();
        transport.set_removed(removed);
        forget(&starts, forgotten).await;
        let table = current_table(&catalogue);
        routes.send_if_modified(|known| {
            let is_new = **known != table;
            if is_new {
                *known = Arc::new(table);
            }
            is_new
        });
        let has_sets = catalogue.has_sets();
        tokio::select! {
            _ = timeout(FOLLOW_INTERVAL, changed) => {}
            // Without sets the map does not depend on ranges.
            () = bucket_changed, if has_sets => sleep(ROUTES_PAUSE).await,
        }
    }
}

/// Removes the starts of removed nodes, which the transport refuses by their ids.
async fn forget(starts: &Arc<PeerStarts>, removed: Vec<NodeId>) {
    if removed.iter().all(|node| starts.known(*node).is_none()) {
        return;
    }
    let starts = Arc::clone(starts);
    let forgotten = AbortOnDropHandle::new(spawn_blocking(move || starts.forget(&removed))).await;
    match forgotten {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the starts of removed nodes stay recorded"),
        Err(error) => tracing::warn!(%error, "the starts of removed nodes stay recorded"),
    }
}
