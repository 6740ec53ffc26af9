//! Options of the segment store.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlgw_common::ids::SegmentId;
use mlgw_common::limits::{DEDICATED_SEGMENTS_OPEN_MAX, MIB, OPEN_FILES_MAX};
use mlgw_common::{Clock, Lineage};
use mlgw_metadata::Durability;
use tokio::sync::mpsc;

use super::compaction::CompactionSettings;
use super::file::{Intercept, SegmentDisk};
use super::metrics::HotCounters;
use super::placing::PlacingSettings;
use super::replicas::ReplicationOptions;
use super::replicas::appends::{ReplicatedAppends, run_ticks};
use super::seals::SealRequest;
use crate::decisions::Decisions;
use crate::fair::{DiskQueues, Lane};
use crate::flash::{FlashBudget, FlashWriteCause};
use mlgw_remote::upstream::{ReplicaKey, Upstream};

/// Options of a segment store.
#[derive(Clone)]
pub struct HotOptions {
    /// The segment directory; created when absent.
    pub dir: PathBuf,
    /// Durability of an acknowledged append. With `Os` nothing is synced.
    pub durability: Durability,
    /// Length at which a segment is sealed.
    pub segment_bytes: u64,
    /// True if bodies with a segment of their own are written with direct I/O.
    pub direct_writes: bool,
    /// Free space below which appends are refused, so that the catalogue can still delete.
    pub reserve_bytes: u64,
    /// Bytes of segments above which appends are refused.
    pub capacity_bytes: u64,
    /// Size of the ballast within the reserve; at most the size of the reserve.
    pub ballast_bytes: u64,
    /// Settings of compaction.
    pub compaction: CompactionSettings,
    /// The wall clock, for timestamps in records and segments.
    pub clock: Arc<dyn Clock>,
    /// Settings of moves between tiers.
    pub placing: PlacingSettings,
    /// Directories of the cold tier; empty if there is none.
    pub cold_dirs: Vec<PathBuf>,
    /// The remote tier; `None` if there are no upstreams.
    pub remote_tier: Option<RemoteTierOptions>,
    /// True to open although segments of the cold tier or the remote tier are missing.
    pub start_without_missing: bool,
    /// Log of the decisions to move data.
    pub decisions: Decisions,
    /// Queues of the disks.
    pub queues: DiskQueues,
    /// Lane of appends; moved chunks use the background lane.
    pub append_lane: Lane,
    /// Accounting of writes to flash, which limits the server's own writes.
    pub flash: FlashBudget,
    /// Cause under which appends are counted; moved chunks count as compaction if there is compaction.
    pub append_cause: FlashWriteCause,
    /// True if chunks can be fetched again from elsewhere: then appends do not wait for a sync, and single
    /// chunks may be removed from the middle of a segment.
    pub disposable: bool,
    /// Identity that owns the directories. With cluster 0 nothing is marked or checked: for tests, and for
    /// copies that can be fetched again.
    pub lineage: Lineage,
    /// Maximum number of bodies with an open segment of their own.
    pub own_segments_max: usize,
    /// Maximum number of segment files kept open for reading.
    pub open_files_max: usize,
    /// Access to the replicas of other nodes; `None` for a node without peers.
    pub replication: Option<ReplicationOptions>,
    /// Fault injection, for tests.
    pub intercept: Option<Arc<dyn Intercept>>,
}

impl HotOptions {
    /// Opens the segment directories of the hot tier and of the cold tier.
    pub(super) fn open_disks(
        &self,
        lineage: &Arc<Lineage>,
        metrics: &Arc<HotCounters>,
    ) -> io::Result<(Arc<SegmentDisk>, Vec<SegmentDisk>)> {
        let open = |dir: &Path, durability| {
            let (intercept, metrics) = (self.intercept.clone(), metrics.clone());
            SegmentDisk::open(dir.to_owned(), durability, lineage.clone(), intercept, metrics)
        };
        let hot = open(&self.dir, self.durability)?;
        let hot = if self.direct_writes { hot.with_direct_writes() } else { hot };
        let cold = self.cold_dirs.iter().map(|dir| open(dir, Durability::Full));
        Ok((Arc::new(hot), cold.collect::<io::Result<_>>()?))
    }

    /// Starts the replication of open segments; `None` for a node without peers, and for copies of what can
    /// be fetched again. Must be called within a tokio runtime.
    pub(super) fn start_appends(
        &self,
        seals: mpsc::UnboundedSender<SealRequest>,
    ) -> Option<Arc<ReplicatedAppends>> {
        let replication = self.replication.clone().filter(|_| !self.disposable)?;
        let location = self.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        let (own, location) = (self.lineage.node, location.unwrap_or_default());
        let appends = Arc::new(ReplicatedAppends::new(own, location, replication, seals));
        tokio::spawn(run_ticks(Arc::downgrade(&appends)));
        Some(appends)
    }

    /// Treatment of missing segments.
    pub(super) fn missing_segments(&self) -> MissingSegments {
        if self.start_without_missing { MissingSegments::Accepted } else { MissingSegments::Refused }
    }

    /// Returns the default options, with a reserve for a file system of `disk_bytes`.
    #[must_use]
    pub fn new(dir: PathBuf, disk_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            dir,
            durability: Durability::Full,
            segment_bytes: 256 * MIB,
            direct_writes: true,
            // A sixteenth: 16 MiB of a 256 MiB disk, at most 1 GiB, which a compaction of the catalogue may
            // need at once.
            reserve_bytes: (disk_bytes / 16).clamp(16 * MIB, 1024 * MIB),
            capacity_bytes: u64::MAX / 2,
            ballast_bytes: (disk_bytes / 64).clamp(4 * MIB, 256 * MIB),
            compaction: CompactionSettings::default(),
            decisions: Decisions::new(clock.clone()),
            flash: FlashBudget::new(clock.clone()),
            append_cause: FlashWriteCause::Client,
            clock,
            placing: PlacingSettings::default(),
            cold_dirs: Vec::new(),
            remote_tier: None,
            start_without_missing: false,
            queues: DiskQueues::default(),
            append_lane: Lane::Checkpoint,
            disposable: false,
            lineage: Lineage::default(),
            own_segments_max: DEDICATED_SEGMENTS_OPEN_MAX,
            open_files_max: OPEN_FILES_MAX,
            replication: None,
            intercept: None,
        }
    }
}

/// Treatment of segments of the cold tier and the remote tier that are missing at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingSegments {
    /// The tier does not open.
    Refused,
    /// The tier opens without them.
    Accepted,
}

/// Upstreams by name.
pub type Upstreams = Arc<BTreeMap<String, Upstream>>;

/// Seals (encrypts) and opens the keys of objects.
pub trait SealKeys: Send + Sync + 'static {
    /// Seals the key of an object of `segment`.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    fn seal(&self, segment: SegmentId, key: &ReplicaKey) -> io::Result<Vec<u8>>;

    /// Opens a key that [`SealKeys::seal`] sealed for the same segment.
    ///
    /// # Errors
    /// When it was sealed for another segment or with another master key.
    fn open(&self, segment: SegmentId, sealed: &[u8]) -> io::Result<ReplicaKey>;
}

/// Configuration of the remote tier.
#[derive(Clone)]
pub struct RemoteTierOptions {
    /// All upstreams.
    pub upstreams: Upstreams,
    /// Upstream that segments are spilled to; `None` if they are not.
    pub spill_to: Option<String>,
    /// Seals the keys of encrypted segments.
    pub keys: Arc<dyn SealKeys>,
    /// Path of the file that lists objects which no record may name.
    pub leftovers: PathBuf,
}
