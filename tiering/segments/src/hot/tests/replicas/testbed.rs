//! A cluster in one process: each node has a tier with directories of its own, and all share one catalogue.
//!
//! Node 1 is the tier of a [`Bench`], which owns all segments unless a test appends to another tier. Nodes
//! read each other's replicas and follow each other's segments without a network; reads are recorded and can
//! be made to fail. While no storage nodes are set the drivers decide nothing, and segments have no
//! followers.

use super::super::bench::{Bench, BenchOptions, remote_tier_options};
use super::super::*;
use crate::hot::compaction::MoveStepError;
use crate::hot::replicas::fetch::{CopyPlan, ReplicaCopy, copy_replica};
use crate::hot::{
    CompactionSettings, FileCall, Intercept, InterceptAction, ReplicaBytes, ReplicationOptions, SegmentPeers,
    StorageNodes, WriteQuorum, segment_file_name,
};
use futures_util::{StreamExt as _, stream};
use mlgw_common::ids::NodeId;
use mlgw_common::time::Instant;
use mlgw_common::{Identity, Lineage};
use mlgw_formats::cluster_version::REPLICATION_CLUSTER_VERSION;
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
use mlgw_formats::segment_calls::ReadReplica;
use mlgw_metadata::Catalogue;
use mlgw_replication::{StorageNode, StorageViews};
use parking_lot::Condvar;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;

/// Objects of the bench: enough for several segments.
const OBJECTS: usize = 6;
pub(super) const OBJECT_BYTES: usize = 150_000;

/// Fault of the reads from a node.
#[derive(Clone, Debug)]
pub(super) enum SourceFault {
    /// No read is opened, and no replica is opened or closed.
    Unreachable,
    /// No read is answered.
    Hangs,
    /// Every stream breaks off after this many bytes.
    BreaksAfter(u64),
    /// Every stream breaks off before this range.
    FailsAt(Range<u64>),
}

/// A read of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedRead {
    pub(super) source: u64,
    pub(super) segment: SegmentId,
    pub(super) range: Range<u64>,
}

/// The nodes of a cluster.
#[derive(Default)]
pub(super) struct TestCluster {
    tiers: Mutex<BTreeMap<NodeId, HotTier>>,
    /// That of nodes which are opened from now on.
    write_quorum: Mutex<WriteQuorum>,
    nodes: Mutex<Vec<StorageNode>>,
    /// Nodes of each set; empty without sets.
    sets: Mutex<BTreeMap<u32, Vec<NodeId>>>,
    faults: Mutex<BTreeMap<NodeId, SourceFault>>,
    pub(super) reads: Mutex<Vec<RecordedRead>>,
    /// Number of reads that were never answered.
    pub(super) hung_reads: AtomicUsize,
    /// True while nodes copy only the segment of the first recorded read; other copies wait.
    copies_only_first: watch::Sender<bool>,
    /// Catalogue in which the record of a segment is changed before the next read.
    interference: Mutex<Option<Catalogue>>,
}

/// A node as its tier sees the cluster.
struct TestNode {
    own: NodeId,
    cluster: Arc<TestCluster>,
}

impl StorageNodes for TestNode {
    fn storage_nodes(&self) -> Vec<StorageNode> {
        self.cluster.nodes.lock().clone()
    }

    fn views(&self) -> StorageViews {
        StorageViews::new(self.storage_nodes(), self.cluster.sets.lock().clone())
    }
}

impl SegmentPeers for TestNode {
    fn read(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<ReplicaBytes>> {
        Box::pin(async move {
            let decoded = ReadReplica::decode_request(&request).unwrap();
            self.cluster.may_copy(decoded.segment_id()).await;
            let interference = self.cluster.interference.lock().take();
            if let Some(catalogue) = interference {
                let record = catalogue.segment_record(decoded.segment_id()).unwrap().unwrap();
                let (changes, replicas) = (record.changes, record.replicas);
                catalogue.set_replicas(decoded.segment_id(), changes, replicas).await.unwrap();
            }
            self.cluster.open_read(node, &decoded)
        })
    }

    fn read_for_client(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<Bytes>> {
        Box::pin(async move {
            let decoded = ReadReplica::decode_request(&request).unwrap();
            assert!(decoded.is_foreground, "a client waits");
            let is_hung = matches!(self.cluster.faults.lock().get(&node), Some(SourceFault::Hangs));
            if is_hung {
                self.cluster.hung_reads.fetch_add(1, Relaxed);
                return std::future::pending().await;
            }
            let (mut pieces, mut bytes) = (self.cluster.open_read(node, &decoded)?, Vec::new());
            while let Some(piece) = pieces.next().await {
                bytes.extend(piece?);
            }
            Ok(bytes.into())
        })
    }

    fn append(
        &self,
        node: NodeId,
        head: Bytes,
        frames: ReplicaBytes,
    ) -> BoxFuture<'_, io::Result<ReplicaBytes>> {
        Box::pin(async move {
            let tier = self.cluster.reached(node)?;
            tier.open_replica(self.own, &head, frames).await.map_err(io::Error::other)
        })
    }

    fn close(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<Bytes>> {
        Box::pin(async move {
            let tier = self.cluster.reached(node)?;
            tier.close_replica(&request).await.map_err(io::Error::other)
        })
    }
}

/// A disk that can be made to fail: then it writes and does not read, as its examination finds.
#[derive(Default)]
pub(super) struct UnreadableDisk(AtomicBool);

impl UnreadableDisk {
    pub(super) fn fail(&self) {
        self.0.store(true, Relaxed);
    }

    pub(super) fn repair(&self) {
        self.0.store(false, Relaxed);
    }
}

impl Intercept for UnreadableDisk {
    fn before(&self, call: FileCall, _segment: Option<SegmentId>) -> InterceptAction {
        match call == FileCall::ExaminationRead && self.0.load(Relaxed) {
            true => InterceptAction::Fail(5),
            false => InterceptAction::Go,
        }
    }
}

/// A disk whose syncs of records wait while it is blocked, and can be made to fail.
#[derive(Default)]
pub(super) struct BlockedDisk {
    /// Call that waits instead of syncs, if any.
    call: Option<FileCall>,
    state: Mutex<BlockedSyncs>,
    changed: Condvar,
}

#[derive(Default)]
struct BlockedSyncs {
    is_blocked: bool,
    waiting: usize,
    fails: bool,
}

impl BlockedDisk {
    /// Returns a disk on which these calls wait instead of syncs.
    pub(super) fn of(call: FileCall) -> Self {
        Self { call: Some(call), ..Self::default() }
    }

    /// Blocks syncs until the result is dropped.
    pub(super) fn block(self: &Arc<Self>) -> BlockedDiskGuard {
        self.state.lock().is_blocked = true;
        BlockedDiskGuard(self.clone())
    }

    /// Lets the next sync fail.
    pub(super) fn fail_next(&self) {
        self.state.lock().fails = true;
    }

    /// True while a sync waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting() > 0
    }

    /// Number of calls that wait.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

/// Also ends the block when a test fails, so that its nodes can stop.
pub(super) struct BlockedDiskGuard(Arc<BlockedDisk>);

impl Drop for BlockedDiskGuard {
    fn drop(&mut self) {
        self.0.state.lock().is_blocked = false;
        self.0.changed.notify_all();
    }
}

impl Intercept for BlockedDisk {
    fn before(&self, call: FileCall, _segment: Option<SegmentId>) -> InterceptAction {
        if call != self.call.unwrap_or(FileCall::Sync) {
            return InterceptAction::Go;
        }
        let mut state = self.state.lock();
        if std::mem::take(&mut state.fails) {
            return InterceptAction::Fail(5);
        }
        state.waiting += 1;
        while state.is_blocked {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
        InterceptAction::Go
    }
}

impl TestCluster {
    /// Returns the tier of a node for a request of another one.
    fn reached(&self, node: NodeId) -> io::Result<HotTier> {
        let is_reached = !matches!(self.faults.lock().get(&node), Some(SourceFault::Unreachable));
        let tier = self.tiers.lock().get(&node).cloned();
        tier.filter(|_| is_reached).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Waits until a segment may be copied.
    async fn may_copy(&self, segment: SegmentId) {
        let is_first = self.reads.lock().first().is_none_or(|read| read.segment == segment);
        let mut copies_only_first = self.copies_only_first.subscribe();
        copies_only_first.wait_for(|only_first| is_first || !only_first).await.unwrap();
    }

    /// Sets if only the segment that is read next is copied, and all other copies wait.
    pub(super) fn copy_only_first(&self, only_first: bool) {
        self.reads.lock().clear();
        self.copies_only_first.send_replace(only_first);
    }

    fn open_read(&self, node: NodeId, request: &ReadReplica) -> io::Result<ReplicaBytes> {
        let range = request.range();
        let read = RecordedRead { source: node.0, segment: request.segment_id(), range: range.clone() };
        self.reads.lock().push(read);
        let fault = self.faults.lock().get(&node).cloned();
        let tier = self.tiers.lock().get(&node).cloned().ok_or(io::ErrorKind::NotConnected)?;
        let bytes = || tier.read_replica(&request.encode_request()).map_err(io::Error::other);
        match fault {
            None => bytes(),
            Some(SourceFault::Unreachable | SourceFault::Hangs) => Err(io::ErrorKind::NotConnected.into()),
            Some(SourceFault::BreaksAfter(length)) => Ok(broken(bytes()?, length)),
            Some(SourceFault::FailsAt(place)) if range.start < place.end && place.start < range.end => {
                Ok(broken(bytes()?, place.start.saturating_sub(range.start)))
            }
            Some(SourceFault::FailsAt(_)) => bytes(),
        }
    }

    pub(super) fn options(self: &Arc<Self>, own: u64) -> ReplicationOptions {
        let node = Arc::new(TestNode { own: NodeId(own), cluster: self.clone() });
        ReplicationOptions {
            peers: node.clone(),
            nodes: node,
            bytes_per_second: 0,
            write_quorum: *self.write_quorum.lock(),
        }
    }

    /// Sets the storage nodes, all reachable.
    pub(super) fn set_nodes(&self, nodes: impl IntoIterator<Item = u64>) {
        let node =
            |node| StorageNode { node: NodeId(node), is_reachable: true, is_leaving: false, is_full: false };
        *self.nodes.lock() = nodes.into_iter().map(node).collect();
    }

    /// Sets the nodes of a set, as the drivers see them.
    pub(super) fn set_set(&self, set: u32, nodes: &[u64]) {
        self.sets.lock().insert(set, nodes.iter().copied().map(NodeId).collect());
    }

    /// Sets if a storage node counts as reachable.
    pub(super) fn set_reachable(&self, node: u64, is_reachable: bool) {
        for one in self.nodes.lock().iter_mut().filter(|one| one.node == NodeId(node)) {
            one.is_reachable = is_reachable;
        }
    }

    /// Drains a storage node.
    pub(super) fn set_leaving(&self, node: u64) {
        for one in self.nodes.lock().iter_mut().filter(|one| one.node == NodeId(node)) {
            one.is_leaving = true;
        }
    }

    pub(super) fn set_fault(&self, node: u64, fault: Option<SourceFault>) {
        let mut faults = self.faults.lock();
        match fault {
            Some(fault) => faults.insert(NodeId(node), fault),
            None => faults.remove(&NodeId(node)),
        };
    }

    pub(super) fn change_record_at_next_read(&self, catalogue: &Catalogue) {
        *self.interference.lock() = Some(catalogue.clone());
    }

    pub(super) fn tier(&self, node: u64) -> HotTier {
        self.tiers.lock()[&NodeId(node)].clone()
    }

    pub(super) fn requested_bytes(&self) -> u64 {
        self.reads.lock().iter().map(|read| read.range.end - read.range.start).sum()
    }

    fn wake(&self) {
        self.tiers.lock().values().for_each(|tier| tier.inner.replicas.wake());
    }

    /// Waits until `reached` is true, while the drivers run pass after pass.
    pub(super) async fn until(&self, reached: impl Fn() -> bool) {
        let begun = Instant::now();
        while !reached() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the state is not reached");
            self.wake();
            mlgw_common::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the driver of a node has ended a pass that begins after this call.
    pub(super) async fn pass(&self, node: u64) {
        let replication = self.tier(node).inner.replicas.replication().unwrap();
        let begun = || replication.passes();
        let before = begun();
        // The begin of the next pass ends the awaited one.
        self.until(|| begun() >= before + 2).await;
    }
}

/// The bytes of a stream up to a length, and then an error.
fn broken(bytes: ReplicaBytes, length: u64) -> ReplicaBytes {
    let pieces = stream::unfold(Some((bytes, length)), |state| async move {
        let (mut bytes, left) = state?;
        if left == 0 {
            return Some((Err(io::Error::other("the stream broke off")), None));
        }
        match bytes.next().await? {
            Ok(mut piece) => {
                piece.truncate(usize::try_from(left).unwrap());
                let left = left - piece.len() as u64;
                Some((Ok(piece), Some((bytes, left))))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    pieces.boxed()
}

/// A cluster with its first node, which has objects in sealed segments.
pub(super) struct TestNodes {
    pub(super) cluster: Arc<TestCluster>,
    pub(super) bench: Bench,
    /// The objects of the bench.
    pub(super) objects: Vec<(String, BodyId)>,
}

impl TestNodes {
    pub(super) async fn new() -> Self {
        Self::started(Identity::default()).await
    }

    /// Returns nodes whose directories have marks of this identity, if it is not the default one.
    pub(super) async fn started(identity: Identity) -> Self {
        let nodes = Self::with_identity(identity).await;
        nodes.start().await;
        nodes
    }

    /// Starts the drivers of all nodes: the cluster has several replicas of each segment from now on.
    pub(super) async fn start(&self) {
        self.bench.catalogue.raise_cluster_version(REPLICATION_CLUSTER_VERSION).await.unwrap();
    }

    /// Returns nodes of a cluster that is not upgraded yet, so that their drivers do nothing.
    pub(super) async fn idle() -> Self {
        Self::with_identity(Identity::default()).await
    }

    async fn with_identity(identity: Identity) -> Self {
        Self::tuned(BenchOptions { identity, ..BenchOptions::default() }).await
    }

    /// Returns nodes whose appends are acknowledged when all replicas of the segment have synced them.
    pub(super) async fn acknowledging_by_all() -> Self {
        let cluster = TestCluster { write_quorum: Mutex::new(WriteQuorum::All), ..TestCluster::default() };
        let nodes = Self::of(Arc::new(cluster), BenchOptions::default()).await;
        nodes.start().await;
        nodes
    }

    /// Returns nodes of a cluster that is not upgraded yet, whose first one has these options.
    pub(super) async fn tuned(tuned: BenchOptions) -> Self {
        Self::of(Arc::default(), tuned).await
    }

    async fn of(cluster: Arc<TestCluster>, tuned: BenchOptions) -> Self {
        let tuned = BenchOptions { replication: Some(cluster.options(1)), ..tuned };
        let bench = Bench::tuned(tuned).await;
        let mut objects = Vec::new();
        for n in 0..OBJECTS {
            let name = format!("object-{n}");
            let body = bench.put(&name, OBJECT_BYTES).await;
            objects.push((name, body));
        }
        let bench = bench.reopen().await;
        cluster.tiers.lock().insert(NodeId(1), bench.tier.clone());
        Self { cluster, bench, objects }
    }

    /// Opens the tier of another node.
    pub(super) async fn open(&self, node: u64) -> HotTier {
        self.open_with(node, None).await
    }

    pub(super) async fn open_with(&self, node: u64, intercept: Option<Arc<dyn Intercept>>) -> HotTier {
        self.open_changed(node, |options| HotOptions { intercept, ..options }).await
    }

    /// Opens the tier of another node that has a cold directory.
    pub(super) async fn open_cold(&self, node: u64) -> HotTier {
        let cold_dirs = vec![self.cold_dir(node)];
        self.open_changed(node, |options| HotOptions { cold_dirs, ..options }).await
    }

    /// Opens the tier of another node that has the upstream of the first one.
    pub(super) async fn open_with_upstream(&self, node: u64) -> HotTier {
        let dir = self.bench.dir.path().join(format!("node-{node}"));
        let remote_tier = remote_tier_options(&dir, self.bench.tuned.remote_tier.clone());
        self.open_changed(node, |options| HotOptions { remote_tier, ..options }).await
    }

    async fn open_changed(&self, node: u64, change: impl FnOnce(HotOptions) -> HotOptions) -> HotTier {
        let own = self.bench.tuned.identity;
        let lineage = Lineage { node: NodeId(node), own, ..Lineage::default() };
        let compaction =
            CompactionSettings { interval: Duration::from_secs(3600), ..CompactionSettings::default() };
        let replication = Some(self.cluster.options(node));
        let dir = self.bench.dir.path().join(format!("node-{node}"));
        let options = HotOptions { compaction, lineage, replication, ..options(&dir) };
        let tier = HotTier::open(change(options), self.bench.catalogue.clone()).await.unwrap();
        self.cluster.tiers.lock().insert(NodeId(node), tier.clone());
        tier
    }

    /// Stops the tier of a node.
    pub(super) async fn stop(&self, node: u64) {
        let tier = self.cluster.tiers.lock().remove(&NodeId(node)).unwrap();
        tier.shutdown().await;
    }

    /// Ends the tier of a node without a seal, as a kill of its process does.
    pub(super) fn kill(&self, node: u64) {
        drop(self.cluster.tiers.lock().remove(&NodeId(node)).unwrap());
    }

    pub(super) async fn close(self) {
        let tiers = std::mem::take(&mut *self.cluster.tiers.lock());
        for (_, tier) in tiers.into_iter().filter(|(node, _)| *node != NodeId(1)) {
            tier.shutdown().await;
        }
        self.bench.close().await;
    }

    /// The sealed segments with bytes.
    pub(super) fn segments(&self) -> Vec<SegmentRecord> {
        let mut records = self.bench.catalogue.segments().unwrap();
        records.retain(|record| record.state() == SegmentState::Sealed && record.length > 0);
        assert!(records.len() > 2, "{records:?}");
        records
    }

    pub(super) fn record(&self, segment: SegmentId) -> SegmentRecord {
        self.bench.catalogue.segment_record(segment).unwrap().unwrap()
    }

    pub(super) fn is_sealed(&self, segment: SegmentId) -> bool {
        self.record(segment).state() == SegmentState::Sealed
    }

    /// The segment with the first chunk of an object.
    pub(super) fn segment_of(&self, object: usize) -> SegmentRecord {
        self.record(self.bench.extents(&self.objects[object].0)[0].segment_id())
    }

    /// Nodes that the record of a segment lists, with their marks.
    pub(super) fn listed(&self, segment: SegmentId) -> Vec<(u64, bool)> {
        self.record(segment).replicas.iter().map(|replica| (replica.node, replica.is_suspect)).collect()
    }

    /// True if every sealed segment has good replicas on exactly these nodes.
    pub(super) fn are_all_on(&self, nodes: &[u64]) -> bool {
        self.segments().iter().all(|record| {
            let mut listed = self.listed(record.segment_id());
            listed.sort_unstable();
            listed == nodes.iter().map(|node| (*node, false)).collect::<Vec<_>>()
        })
    }

    /// Directory of the segments of a node.
    pub(super) fn dir(&self, node: u64) -> PathBuf {
        let root = self.bench.dir.path();
        let root = if node == 1 { root.to_owned() } else { root.join(format!("node-{node}")) };
        root.join("segments")
    }

    /// Cold directory of a node other than the first.
    pub(super) fn cold_dir(&self, node: u64) -> PathBuf {
        self.dir(node).with_file_name("cold")
    }

    pub(super) fn path(&self, node: u64, segment: SegmentId) -> PathBuf {
        self.dir(node).join(segment_file_name(segment))
    }

    pub(super) fn bytes(&self, node: u64, segment: SegmentId) -> Vec<u8> {
        std::fs::read(self.path(node, segment)).unwrap()
    }

    /// Writes the file of a segment on a node, which may not be open yet.
    pub(super) fn write(&self, node: u64, segment: SegmentId, bytes: &[u8]) {
        std::fs::create_dir_all(self.dir(node)).unwrap();
        std::fs::write(self.path(node, segment), bytes).unwrap();
    }

    /// Flips a byte of a file.
    pub(super) fn flip(&self, node: u64, segment: SegmentId, at: u64) {
        let mut bytes = self.bytes(node, segment);
        bytes[usize::try_from(at).unwrap()] ^= 1;
        self.write(node, segment, &bytes);
    }

    /// Copies the file of a segment from node 1 to another one and lists the replica.
    pub(super) async fn add_replica(&self, node: u64, segment: SegmentId) {
        self.write(node, segment, &self.bytes(1, segment));
        self.list_replica(node, segment).await;
    }

    /// Lists a replica of a segment on another node, whether it has the file or not.
    pub(super) async fn list_replica(&self, node: u64, segment: SegmentId) {
        let SegmentRecord { mut replicas, changes, .. } = self.record(segment);
        replicas.push(Replica { node, location: "segments".into(), ..Replica::default() });
        self.bench.catalogue.raise_cluster_version(REPLICATION_CLUSTER_VERSION).await.unwrap();
        self.bench.catalogue.set_replicas(segment, changes, replicas).await.unwrap();
    }

    /// Makes a copy on a node, without its driver.
    pub(super) async fn fetch(
        &self,
        node: u64,
        segment: SegmentId,
        sources: &[u64],
    ) -> Result<ReplicaCopy, MoveStepError> {
        self.fetch_by(node, segment, sources, false).await
    }

    pub(super) async fn fetch_by(
        &self,
        node: u64,
        segment: SegmentId,
        sources: &[u64],
        accepts_unreadable: bool,
    ) -> Result<ReplicaCopy, MoveStepError> {
        let (tier, record) = (self.cluster.tier(node), self.record(segment));
        let replication = tier.inner.replicas.replication().unwrap();
        let others = record.replicas.iter().map(|replica| NodeId(replica.node));
        let sources: Vec<NodeId> = sources.iter().copied().map(NodeId).collect();
        let plan = CopyPlan {
            record: &record,
            sources: &sources,
            holders: others.filter(|other| *other != NodeId(node)).collect(),
            accepts_unreadable,
        };
        copy_replica(&tier.inner, &replication, &plan).await
    }
}

/// Returns a cluster whose nodes 1 and 2 have a replica of a sealed segment, and whose node 3 is open without
/// any and changes none by itself, with the segment and two of its records.
pub(super) async fn two_holders() -> (TestNodes, SegmentId, [Extent; 2]) {
    let nodes = TestNodes::new().await;
    let segment = nodes.segment_of(0).segment_id();
    nodes.open(2).await;
    nodes.add_replica(2, segment).await;
    // A third copy is wanted on node 4, which does not run. So node 3 neither copies nor removes anything.
    nodes.cluster.set_nodes([1, 2, 4]);
    nodes.open(3).await;
    let mut extents = nodes.bench.extents(&nodes.objects[0].0);
    extents.retain(|extent| extent.segment_id() == segment);
    let records = [extents[0].clone(), extents[1].clone()];
    (nodes, segment, records)
}

/// Offset of a byte in the payload of a record.
pub(super) fn payload_at(extent: &Extent, byte: u64) -> u64 {
    extent.offset + u64::from(extent.head_bytes) + byte
}
