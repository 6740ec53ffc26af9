//! Replication of the open segments of this node: their followers, and which of them are open.
//!
//! A segment is in the list of open ones from the creation of its files until its seal is proposed; its
//! writer may have it a little longer, and a request to close it waits for the write in progress. A request
//! to close a segment of this node that is not open, because its files are just created, prevents that it
//! opens. Segments that this process has created are known, so that the recovery distinguishes them from
//! those that an earlier process left open. All of this is in memory: after a power loss every open segment
//! of this node was left by an earlier process.

use bytes::Bytes;
use futures_util::future::join_all;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::{Instant, sleep};
use mlgw_formats::schema::{Replica, SegmentClass};
use mlgw_formats::segment_calls::OpenReplica;
use mlgw_formats::segment_header::SegmentHeader;
use mlgw_replication::SealProposal;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, mpsc};

use super::ReplicationOptions;
use super::followers::{FollowerChoice, FollowerFacts, choose_followers};
use super::link::{OpenedLink, open_link};
use super::peers_health::FollowerHealth;
use super::primary::{NewReplicas, ReplicatedSegment, SegmentEvents};
use crate::hot::AppendError;
use crate::hot::queue::AppendQueue;
use crate::hot::seals::SealRequest;

/// Interval at which late and trailing followers are found.
const TICK: Duration = Duration::from_millis(100);
/// Pause before the storage nodes are looked at again when too few of them can follow.
const CHOICE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of acknowledged bytes that are kept for a follower, over all segments.
const TRAILING_BYTES_MAX: u64 = 64 << 20;
/// Time for which a stop waits for the last acknowledgements of followers.
const FINISH_MAX: Duration = Duration::from_secs(2);
const FINISH_CHECK: Duration = Duration::from_millis(10);

/// Replication of the open segments of this node.
pub(in crate::hot) struct ReplicatedAppends {
    own: NodeId,
    /// Name of the segment directory of every node.
    location: String,
    options: ReplicationOptions,
    health: FollowerHealth,
    seals: mpsc::UnboundedSender<SealRequest>,
    /// Begin of the clock of the decisions.
    begun: Instant,
    /// Segments that followers were chosen for.
    turn: AtomicUsize,
    /// Locked for reading while a segment is created in the catalogue.
    creations: Arc<RwLock<()>>,
    known: Mutex<KnownSegments>,
    /// Notified when a segment opens, and when this ends.
    opened: Arc<Notify>,
}

/// The segments of this process.
#[derive(Default)]
struct KnownSegments {
    open: HashMap<SegmentId, Arc<ReplicatedSegment>>,
    /// Segments whose seal is proposed, while their writer has them: it may still write.
    proposed: HashMap<SegmentId, Weak<ReplicatedSegment>>,
    /// Segments that were to be closed while they were not open: they never open.
    closed: BTreeSet<SegmentId>,
    /// Segments that this process has created, except old sealed ones.
    created: BTreeSet<SegmentId>,
    is_abandoned: bool,
}

impl ReplicatedAppends {
    pub(in crate::hot) fn new(
        own: NodeId,
        location: String,
        options: ReplicationOptions,
        seals: mpsc::UnboundedSender<SealRequest>,
    ) -> Self {
        Self {
            own,
            location,
            options,
            health: FollowerHealth::default(),
            seals,
            begun: Instant::now(),
            turn: AtomicUsize::new(0),
            creations: Arc::default(),
            known: Mutex::default(),
            opened: Arc::default(),
        }
    }

    /// Returns the followers of a new segment of this class and set, none if the cluster has no other storage
    /// node. Waits until one can follow, but not beyond `until`.
    pub(in crate::hot) async fn followers(
        &self,
        class: SegmentClass,
        set: u32,
        until: Instant,
    ) -> Result<Vec<NodeId>, AppendError> {
        let is_background = class == SegmentClass::Moved;
        let turn = self.turn.fetch_add(1, Relaxed);
        loop {
            if self.known.lock().is_abandoned {
                return Err(AppendError::Stopping);
            }
            let views = self.options.nodes.views();
            self.health.refresh(self.own, views.all(), self.begun.elapsed());
            let (nodes, usable) = (views.for_writer(set, self.own), &self.health.usable());
            let facts = FollowerFacts { own: self.own, nodes, usable, turn, is_background };
            match choose_followers(facts) {
                FollowerChoice::Alone => return Ok(Vec::new()),
                FollowerChoice::Nodes(nodes) => return Ok(nodes),
                FollowerChoice::TooFew if Instant::now() >= until => return Err(AppendError::NoQuorum),
                FollowerChoice::TooFew => sleep(CHOICE_PAUSE).await,
            }
        }
    }

    /// Held while a segment is created in the catalogue, until [`Self::add_created`].
    pub(in crate::hot) async fn begin_creation(&self) -> OwnedRwLockReadGuard<()> {
        self.creations.clone().read_owned().await
    }

    pub(in crate::hot) fn add_created(&self, segment: SegmentId) {
        self.known.lock().created.insert(segment);
    }

    /// Returns a guard under which every segment of this process in the catalogue is known; `None` while one
    /// is being created.
    pub(super) fn pause_creations(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        self.creations.clone().try_write_owned().ok()
    }

    /// Forgets segments that were sealed: those before `next` that are not among the open ones. The
    /// rows of this node may not have later ones yet. Returns the remaining segments.
    pub(super) fn retain_created(&self, open: &BTreeSet<SegmentId>, next: SegmentId) -> BTreeSet<SegmentId> {
        let mut known = self.known.lock();
        let is_open = |segment: &SegmentId| *segment >= next || open.contains(segment);
        known.created.retain(is_open);
        known.closed.retain(is_open);
        known.created.clone()
    }

    /// Number of replicas of a new segment with these followers that have synced an append before it is
    /// acknowledged; 0 if it has one replica.
    pub(in crate::hot) fn write_quorum(&self, followers: usize) -> usize {
        self.options.write_quorum.of(followers)
    }

    /// Opens the streams to followers, which create their files. Returns those that did within
    /// a second.
    pub(in crate::hot) async fn open_links(
        &self,
        nodes: &[NodeId],
        header: &SegmentHeader,
    ) -> Vec<OpenedLink> {
        let is_background = header.class == SegmentClass::Moved;
        let request = OpenReplica { header: Bytes::copy_from_slice(&header.encode()), is_background };
        let request = request.encode_request();
        let open = |node: &NodeId| open_link(self.options.peers.clone(), *node, request.clone());
        let opened = join_all(nodes.iter().map(open)).await;
        let mut links = Vec::new();
        for (node, link) in nodes.iter().zip(opened) {
            match link {
                Ok(link) => links.push(link),
                Err(error) => {
                    tracing::warn!(segment = %header.id, %node, %error, "a node does not follow a segment");
                    self.failed(*node);
                }
            }
        }
        links
    }

    /// Begins to append to a segment whose files were created. `None` if it was closed meanwhile, or the tier
    /// ends.
    pub(in crate::hot) fn begin(
        self: &Arc<Self>,
        segment: SegmentId,
        links: Vec<OpenedLink>,
        write_quorum: usize,
        writer: Weak<AppendQueue>,
    ) -> Option<Arc<ReplicatedSegment>> {
        let mut known = self.known.lock();
        if known.is_abandoned || known.closed.contains(&segment) {
            return None;
        }
        let events: Weak<dyn SegmentEvents> = Arc::<Self>::downgrade(self);
        let replicas = NewReplicas { own: self.own, write_quorum, links };
        let open = ReplicatedSegment::begin(segment, replicas, self.begun, events, writer);
        let other = known.open.insert(segment, open.clone());
        assert!(other.is_none(), "a segment is opened once");
        self.opened.notify_one();
        Some(open)
    }

    /// Returns the segment if it is open here, or its writer still has it. Otherwise it never opens from now
    /// on.
    pub(in crate::hot) fn find_or_close(&self, segment: SegmentId) -> Option<Arc<ReplicatedSegment>> {
        let mut known = self.known.lock();
        let proposed = || known.proposed.get(&segment).and_then(Weak::upgrade);
        let open = known.open.get(&segment).cloned().or_else(proposed);
        if open.is_none() {
            known.closed.insert(segment);
        }
        open
    }

    /// Requests the seal of a segment, and forgets it.
    fn request_seal(&self, proposal: &SealProposal) {
        let (id, length) = (proposal.segment, proposal.length);
        let replica =
            |node: &NodeId| Replica { node: node.0, location: self.location.clone(), ..Replica::default() };
        let replicas = proposal.replicas.iter().map(replica).collect();
        if self.seals.send(SealRequest::Seal { id, length, replicas }).is_err() {
            tracing::warn!(segment = %id, "segment not sealed because the tier has stopped; it is recovered");
        }
        let mut known = self.known.lock();
        known.proposed.retain(|_, segment| segment.strong_count() > 0);
        // Dropped without the lock.
        let sealed = known.open.remove(&id);
        if let Some(segment) = &sealed {
            known.proposed.insert(id, Arc::downgrade(segment));
        }
        drop(known);
    }

    /// Waits a limited time until the seals of all segments are proposed, whose writers have ended.
    pub(in crate::hot) async fn finish(&self) {
        let until = Instant::now() + FINISH_MAX;
        while !self.known.lock().open.is_empty() && Instant::now() < until {
            sleep(FINISH_CHECK).await;
        }
        self.open().iter().for_each(|segment| segment.drop_incomplete());
    }

    /// Ends all segments without a seal, as a kill of the process does.
    pub(in crate::hot) fn abandon(&self) {
        let mut known = self.known.lock();
        known.is_abandoned = true;
        let open = std::mem::take(&mut known.open);
        drop(known);
        open.values().for_each(|segment| segment.abandon());
    }

    fn open(&self) -> Vec<Arc<ReplicatedSegment>> {
        self.known.lock().open.values().cloned().collect()
    }

    /// Finds late and trailing followers. Returns false if no segment is open.
    fn tick(&self) -> bool {
        let open = self.open();
        if open.is_empty() {
            return false;
        }
        self.health.refresh(self.own, &self.options.nodes.storage_nodes(), self.begun.elapsed());
        let mut trailing: HashMap<NodeId, u64> = HashMap::new();
        for lag in open.iter().flat_map(|segment| segment.lags()) {
            self.health.unanswered(lag.node, lag.age, self.begun.elapsed());
            *trailing.entry(lag.node).or_default() += lag.acknowledged_bytes;
        }
        for (node, _) in trailing.into_iter().filter(|(_, bytes)| *bytes > TRAILING_BYTES_MAX) {
            self.failed(node);
        }
        let usable = self.health.usable();
        open.iter().for_each(|segment| segment.tick(&usable));
        true
    }
}

impl SegmentEvents for ReplicatedAppends {
    fn propose(&self, proposal: &SealProposal) {
        self.request_seal(proposal);
    }

    fn answered(&self, node: NodeId, took: Duration) {
        self.health.answered(node, took, self.begun.elapsed());
    }

    fn failed(&self, node: NodeId) {
        self.health.failed(node, self.begun.elapsed());
    }
}

impl Drop for ReplicatedAppends {
    fn drop(&mut self) {
        self.opened.notify_one();
    }
}

/// Finds late and trailing followers until the tier is dropped. Nothing is done while no segment is open.
pub(in crate::hot) async fn run_ticks(appends: Weak<ReplicatedAppends>) {
    let Some(opened) = appends.upgrade().map(|appends| Arc::clone(&appends.opened)) else { return };
    loop {
        sleep(TICK).await;
        let Some(has_open) = appends.upgrade().map(|appends| appends.tick()) else { return };
        if !has_open {
            opened.notified().await;
        }
    }
}
