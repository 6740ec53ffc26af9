//! Replicas of segments: a node follows the open segments of others, serves its replicas to other nodes, and
//! copies their sealed segments.
//!
//! A record lists the replicas of its segment; the first is the owner's. Each node pulls its own copies: the
//! decisions are pure and in `mlgw-replication`, `driver` carries them out one after the other. `fetch` makes
//! a copy from several sources and verifies it, `source` serves the bytes of a replica, and `sweep` removes
//! files that no record lists on this node any more. `follower` stores what the writer of an open segment
//! appends, and `closing` ends that; `followed` has the rules of both. `lost_files` ends replicas of open
//! segments without a file. `whole` reads a segment for a backup.
//!
//! Replicas belong on the nodes of the segment's set ([`StorageViews`]). A node outside of it is like one
//! that leaves, for this segment.
//!
//! A node that leaves the cluster seals its open segments. The other nodes copy its segments and become their
//! owners; then it drops its replicas.
//!
//! Invariants: a record lists a copy only after its file was read back from the disk and is durable. The
//! replicas of an open segment are listed before they have files, and its seal keeps those that have what was
//! acknowledged. Bytes of a source are never trusted: a copy is scanned, and what belongs to no intact record
//! is read from another source. Bytes that are damaged in every replica stay, and are no reason for having no
//! copy. A file is replaced only by one with fewer damaged bytes. Suspicion marks a replica and never removes
//! it.
//!
//! At a power loss: the file of a replica of an open segment stays as it is. An unfinished copy is ignored
//! and removed by the next start. A finished one that no record lists is verified again and then listed, or
//! removed by the sweep.

pub(super) mod appends;
mod closing;
mod copy_file;
pub(super) mod driver;
pub(super) mod fetch;
mod followed;
mod follower;
pub(super) mod followers;
mod home;
pub(super) mod link;
mod lost_files;
mod peers_health;
pub(super) mod primary;
mod progress;
mod recorded;
pub(super) mod recover;
mod source;
mod sweep;
mod whole;

pub use follower::ReplicaRefused;
pub use followers::WriteQuorum;
pub use progress::ReplicationStatus;
pub(super) use recorded::is_local;
pub use source::ReplicaReadRefused;
pub use whole::{WholeSegmentError, is_whole};

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::Instant;
use mlgw_replication::{StorageNode, StorageViews};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify, Semaphore};

use super::compaction::Compaction;
use super::map::BoxFuture;
use super::pace::ByteRateLimiter;
use super::{HotTier, HotTierInner};
use followed::FollowedReplicas;
use progress::ReplicationCounters;

/// Rate at which local files are read to verify them, as a multiple of that of copies. A copy is verified
/// while the next one arrives.
const VERIFY_RATE_FACTOR: u64 = 2;

/// Maximum number of reads of replicas by other nodes at a time. Each has up to five pieces in memory.
const REPLICA_READS_MAX: usize = 4;

/// Maximum number of reads of replicas for clients of other nodes at a time, until their bytes are sent. Each
/// has at most 2 MiB in memory. Further ones wait.
const CLIENT_READS_MAX: usize = 64;

/// Bytes of a replica, in order. An error ends them.
pub type ReplicaBytes = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// The replicas of other nodes.
pub trait SegmentPeers: Send + Sync + 'static {
    /// Opens the bytes of a replica on another node. `request` is an encoded
    /// [`ReadReplica`](mlgw_formats::segment_calls::ReadReplica).
    ///
    /// # Errors
    /// When the node cannot be reached or refuses.
    fn read(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<ReplicaBytes>>;

    /// Reads bytes of a replica on another node, for which a client waits. `request` is an encoded
    /// [`ReadReplica`](mlgw_formats::segment_calls::ReadReplica) for a client, the answer has at most
    /// [`RECORD_READ_BYTES_MAX`](mlgw_formats::segment_calls::RECORD_READ_BYTES_MAX) bytes.
    ///
    /// # Errors
    /// When the node cannot be reached, refuses, or does not answer within seconds.
    fn read_for_client(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<Bytes>>;

    /// Opens a replica of an open segment on another node. `head` is an encoded
    /// [`OpenReplica`](mlgw_formats::segment_calls::OpenReplica), `frames` has
    /// [frames](mlgw_formats::append_frames) and is read only after the node has accepted. The answer has the
    /// lengths that the node has synced. Dropping it ends both streams.
    ///
    /// # Errors
    /// When the node cannot be reached or refuses.
    fn append(
        &self,
        node: NodeId,
        head: Bytes,
        frames: ReplicaBytes,
    ) -> BoxFuture<'_, io::Result<ReplicaBytes>>;

    /// Closes a replica of a segment on another node. `request` is an encoded
    /// [`CloseReplica`](mlgw_formats::segment_calls::CloseReplica), the answer an encoded
    /// [`ClosedReplica`](mlgw_formats::segment_calls::ClosedReplica).
    ///
    /// # Errors
    /// When the node cannot be reached or refuses. The replica may be closed nevertheless.
    fn close(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<Bytes>>;
}

/// The nodes of the cluster that store segments.
pub trait StorageNodes: Send + Sync + 'static {
    /// Returns the storage nodes that are not removed, this one included, which is reachable.
    fn storage_nodes(&self) -> Vec<StorageNode>;

    /// Returns the same nodes as the segments of each set see them.
    fn views(&self) -> StorageViews;
}

/// Access to the replicas of other nodes.
#[derive(Clone)]
pub struct ReplicationOptions {
    /// The replicas of the other nodes.
    pub peers: Arc<dyn SegmentPeers>,
    /// The storage nodes.
    pub nodes: Arc<dyn StorageNodes>,
    /// Maximum bytes per second of the copies that this node makes; 0: no limit.
    pub bytes_per_second: u64,
    /// Replicas that have synced an append before it is acknowledged.
    pub write_quorum: WriteQuorum,
}

/// State of the replicas on this node.
pub(super) struct Replicas {
    /// Permits for reads by other nodes.
    reads: Arc<Semaphore>,
    /// Permits for reads for clients of other nodes.
    client_reads: Arc<Semaphore>,
    /// Replicas of open segments of other nodes.
    followed: FollowedReplicas,
    /// `None` for a node without peers.
    replication: Option<Arc<Replication>>,
}

/// State shared by the driver, the scrub and the callers of the tier.
pub(super) struct Replication {
    options: ReplicationOptions,
    wake: Notify,
    /// Segments in whose local replica damage was found, or whose file is missing.
    suspects: Mutex<BTreeSet<SegmentId>>,
    /// Segments whose local replica was healed since the scrub read them last.
    healed: Mutex<BTreeSet<SegmentId>>,
    counters: ReplicationCounters,
    pace: ByteRateLimiter,
    verify_pace: ByteRateLimiter,
    /// Locked by the copy that receives bytes.
    receiving: AsyncMutex<()>,
}

impl Replicas {
    pub(super) fn new(options: Option<ReplicationOptions>) -> Self {
        let replication = options.map(|options| {
            Arc::new(Replication {
                options,
                wake: Notify::new(),
                suspects: Mutex::default(),
                healed: Mutex::default(),
                counters: ReplicationCounters::default(),
                pace: ByteRateLimiter::default(),
                verify_pace: ByteRateLimiter::default(),
                receiving: AsyncMutex::default(),
            })
        });
        let reads = Arc::new(Semaphore::new(REPLICA_READS_MAX));
        let client_reads = Arc::new(Semaphore::new(CLIENT_READS_MAX));
        Self { reads, client_reads, followed: FollowedReplicas::default(), replication }
    }

    pub(super) fn replication(&self) -> Option<Arc<Replication>> {
        self.replication.clone()
    }

    /// Permits for reads of replicas by other nodes.
    pub(super) fn read_permits(&self) -> Arc<Semaphore> {
        self.reads.clone()
    }

    /// Permits for reads of replicas for clients of other nodes.
    pub(super) fn client_read_permits(&self) -> Arc<Semaphore> {
        self.client_reads.clone()
    }

    /// Starts the next pass of the driver immediately; after a stop, the driver ends, and so do the replicas
    /// of open segments.
    pub(super) fn wake(&self) {
        self.followed.wake();
        if let Some(replication) = &self.replication {
            replication.wake.notify_one();
        }
    }
}

impl Replication {
    /// The storage nodes of the cluster.
    pub(super) fn storage_nodes(&self) -> Vec<StorageNode> {
        self.options.nodes.storage_nodes()
    }

    /// The storage nodes of the cluster, as the segments of each set see them.
    pub(super) fn views(&self) -> StorageViews {
        self.options.nodes.views()
    }

    /// Starts the next pass of the driver.
    pub(super) fn start_pass(&self) {
        self.wake.notify_one();
    }

    /// Waits for `longest`, or after a wake-up for `least`, or until the tier stops.
    async fn next_pass(&self, compaction: &Compaction, least: Duration, longest: Duration) {
        let begun = Instant::now();
        let mut until = begun + longest;
        while !compaction.is_stopped() && Instant::now() < until {
            if mlgw_common::time::timeout_at(until, self.wake.notified()).await.is_ok() {
                until = until.min(begun + least);
            }
        }
    }

    /// Returns the time at which `bytes` that were received now are due.
    fn due_at(&self, bytes: u64) -> Instant {
        due_at(&self.pace, bytes, self.options.bytes_per_second)
    }

    /// Returns the time at which `bytes` of a local file that are read to verify it are due.
    fn verify_due_at(&self, bytes: u64) -> Instant {
        due_at(&self.verify_pace, bytes, self.options.bytes_per_second.saturating_mul(VERIFY_RATE_FACTOR))
    }

    pub(super) fn add_suspects(&self, segments: impl IntoIterator<Item = SegmentId>) {
        self.suspects.lock().extend(segments);
    }
}

/// The time at which `bytes` are due at a rate; now if the rate is 0, which means no limit.
fn due_at(pace: &ByteRateLimiter, bytes: u64, rate: u64) -> Instant {
    let now = Instant::now();
    if rate == 0 { now } else { pace.due_at(now, bytes, rate) }
}

impl HotTierInner {
    /// True if this node gives up all its replicas, because it is drained or being removed.
    pub(super) fn is_leaving(&self) -> bool {
        let replication = self.replicas.replication.as_ref();
        let nodes = replication.map(|replication| replication.storage_nodes());
        nodes.is_some_and(|nodes| nodes.iter().any(|node| node.node == self.node && node.is_leaving))
    }

    /// Returns whether this node gives up its replicas of the segments of a set, because it is drained or
    /// being removed, or is not in the set.
    pub(super) fn gives_up(&self) -> impl Fn(u32) -> bool + use<> {
        let (own, replication) = (self.node, self.replicas.replication.as_ref());
        let views = replication.map(|replication| replication.views());
        move |set| views.as_ref().is_some_and(|views| views.is_leaving(set, own))
    }
}

impl HotTier {
    /// Returns the progress of the copies that this node makes; all zero for a node without peers.
    #[must_use]
    pub fn replication(&self) -> ReplicationStatus {
        let replication = self.inner.replicas.replication.as_ref();
        replication.map_or_else(ReplicationStatus::default, |replication| replication.counters.status())
    }

    /// Returns the number of this node in its cluster.
    pub(crate) fn node(&self) -> NodeId {
        self.inner.node
    }

    /// Marks the local replicas of these segments as suspect if there are others, so that they are healed:
    /// damage was found in them. Does nothing for a node without peers.
    pub(crate) fn report_damage(&self, segments: impl IntoIterator<Item = SegmentId>) {
        let Some(replication) = &self.inner.replicas.replication else { return };
        let mut suspects = replication.suspects.lock();
        let known = suspects.len();
        suspects.extend(segments);
        if suspects.len() > known {
            replication.wake.notify_one();
        }
    }

    /// Returns and clears the segments whose local replica was healed since the last call.
    pub(crate) fn take_healed(&self) -> BTreeSet<SegmentId> {
        let replication = self.inner.replicas.replication.as_ref();
        replication.map_or_else(BTreeSet::new, |replication| std::mem::take(&mut *replication.healed.lock()))
    }
}
