//! The segment store of the hot, cold and upstream tier: chunks are appended to files and read back verified.
//!
//! An append is acknowledged when its bytes are synced (unless durability `os` is configured); only then does
//! the catalogue refer to them. A segment is written by one thread (`writer`), which batches: one write and
//! one sync for all waiting chunks. After a failed sync or a restart a segment is never written again: it is
//! sealed at a length that covers every acknowledged chunk, and a new segment begins.
//!
//! At a power loss: acknowledged chunks are on the disk; unacknowledged ones may be there whole, torn or not
//! at all, and nothing refers to them. `recovery` then seals the segments that were left open.
//!
//! The format of the bytes on disk is described in docs/formats-segment.md.

mod admission;
mod catalogue;
mod check;
mod chunk;
mod claims;
mod compaction;
mod direct;
mod directory;
mod dirs;
mod disposable;
mod file;
mod file_names;
mod files;
mod floor;
mod header;
mod holds;
mod holes;
mod location;
mod map;
mod mark_file;
mod marks;
mod metrics;
mod open_error;
mod options;
mod pace;
mod pins;
mod placing;
mod queue;
mod read;
mod recovery;
mod relocating;
mod remote_tier;
mod repair;
mod replace;
mod replace_disk;
mod replicas;
mod salvage;
mod scan;
mod scrub;
mod seals;
mod segments;
mod space;
mod space_wait;
pub(crate) mod state_file;
mod stored_batch;
mod storing;
mod verify;
mod volumes;
mod writer;
mod writer_queues;

use mlgw_common::time::Instant;
use mlgw_formats::segment_record as record;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use mlgw_common::SegmentTier;
use mlgw_common::ids::{BodyId, NodeId, SegmentId};
use mlgw_common::limits::{CHUNK_BYTES_MAX, DEDICATED_SEGMENT_IDLE_SECS, HOUSEKEEPING_MS};
use mlgw_formats::schema::Extent;
use mlgw_metadata::Catalogue;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;

pub use check::check_segments;
pub use chunk::{AppendError, AppendedChunk, Chunk, Placement, SegmentChunk};
pub use compaction::{CompactionSettings, CompactionStatus, MoveStepError, UnreadableChunks};
pub use directory::DirectoryFault;
pub use dirs::SegmentDirs;
pub use file::{FileCall, Intercept, InterceptAction};
pub use file_names::{segment_file_name, segment_of_file_name};
pub use floor::{log_floor, unnamed_chunks_after};
pub use holds::SegmentHold;
pub use map::{BoxFuture, MapError, NewSegment, OpenSegment, SegmentLocation, SegmentMap};
pub use mark_file::{MARK_FILE_NAME, read_mark, replace_mark, write_mark};
pub use marks::{AdoptedDirectory, MarkError, adopt, check_marks};
pub use metrics::HotMetrics;
pub use open_error::HotOpenError;
pub use options::{HotOptions, RemoteTierOptions, SealKeys, Upstreams};
pub use pace::ByteRateLimiter;
pub use pins::{AllSegmentsPin, SegmentPin};
pub use placing::{PlacingOrder, PlacingSettings, PlacingStatus, RuleSpill};
pub use read::error::{ReadFault, SegmentReadError};
pub use recovery::{RecoveryError, scan};
pub use relocating::RelocatingStatus;
pub use repair::{repair_headers, repair_names};
pub use replace::StoredChunk;
pub use replace_disk::{OnlyCopies, RefusedDirectory, ReplaceDirectoryError, ReplacedDirectory};
pub use replicas::{
    ReplicaBytes, ReplicaReadRefused, ReplicaRefused, ReplicationOptions, ReplicationStatus, SegmentPeers,
    StorageNodes, WholeSegmentError, WriteQuorum, is_whole,
};
pub use salvage::{SalvageReport, SalvagedBody, salvage};
pub use scan::ScanSummary;
pub(crate) use scrub::SCRUB_FORMAT;
pub use scrub::{
    BadBlock, OBJECT_PASSES, ObjectComparison, ObjectVerifier, Scrub, ScrubOptions, ScrubStatus, is_scrubbed,
};
pub use space::BALLAST_FILE_NAME;

use admission::AppendReservation;
use catalogue::CatalogueMap;
use claims::SegmentClaims;
use compaction::Compaction;
use files::SegmentFileCache;
use holds::SegmentHolds;
use holes::Holes;
use metrics::HotCounters;
use pins::SegmentPins;
use placing::Placing;
use queue::QueueClose;
use read::SegmentReader;
use read::other_replica::OtherReplicas;
use record::RecordOwner;
use recovery::ListingContext;
pub(crate) use remote_tier::LEFTOVERS_FORMAT;
use remote_tier::{Leftovers, RemoteTier};
use replicas::Replicas;
use seals::{SealRequest, run_seals};
use segments::SegmentLifecycle;
use space::{DiskSpace, SpaceLimits};
use space_wait::SpaceWaiters;
use stored_batch::AppendAccounts;
use volumes::{SegmentVolumes, VolumeFindings, check_directories};
use writer::WriterShared;
use writer_queues::{QueueKind, WriterQueues};

use crate::decisions::{self, Decisions};
use crate::fair::{DiskQueues, Lane, ServiceClass};
use crate::flash::FlashBudget;

/// Predicate on the owner of a chunk (its body, its part, its first byte): true if the chunk is selected.
pub(crate) type OwnerPredicate = Arc<dyn Fn(&RecordOwner) -> bool + Send + Sync>;

/// Predicate on a chunk, by its body and the offset of its first byte: true if it is read so often that it
/// should stay in a fast tier.
pub type IsHot = Arc<dyn Fn(BodyId, u64) -> bool + Send + Sync>;

/// The segment store of a node, including its cold and remote tiers. Clones share it.
#[derive(Clone)]
pub struct HotTier {
    inner: Arc<HotTierInner>,
}

struct HotTierInner {
    shared: Arc<WriterShared>,
    writer_queues: WriterQueues,
    reader: SegmentReader,
    pins: Arc<SegmentPins>,
    volumes: SegmentVolumes,
    holes: Arc<Holes>,
    remote_tier: Arc<RemoteTier>,
    /// Locked during moves and deletions of segments at upstreams, one at a time.
    leftovers: Arc<Mutex<Leftovers>>,
    node: NodeId,
    compaction: Arc<Compaction>,
    placing: Arc<Placing>,
    replicas: Replicas,
    /// Segments that compaction, placing or the driver of replicas currently works on.
    claims: Arc<SegmentClaims>,
    space_waiters: Arc<SpaceWaiters>,
    /// Number of appends that wait for space.
    chunks_waiting: AtomicUsize,
    decisions: Decisions,
    is_hot: OnceLock<IsHot>,
    /// Catalogue whose references compaction follows; `None` without compaction.
    catalogue: Option<Catalogue>,
    /// Tasks of compaction, placing, the driver of replicas and the recovery of open segments.
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// Closed when the last writer ends.
    writers_ended: Mutex<mpsc::Receiver<()>>,
    recovered_segments: Vec<(SegmentId, ScanSummary)>,
    stray_files: Vec<String>,
}

impl HotTier {
    /// Opens the tier: creates the directory, seals the segments that the last process left open and starts
    /// the writers. Those with several replicas are recovered in the background. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// When the disk or the catalogue fails; a retry loses nothing.
    pub async fn open(options: HotOptions, catalogue: Catalogue) -> Result<Self, HotOpenError> {
        let location = options.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        let map = CatalogueMap {
            catalogue: catalogue.clone(),
            node: options.lineage.node,
            location: location.unwrap_or_default(),
            clock: options.clock.clone(),
        };
        let tier = Self::open_parts(options, Arc::new(map), Some(catalogue.clone())).await?;
        let HotTierInner { compaction, placing, replicas, pins, space_waiters: relief, .. } = &*tier.inner;
        let readers = pins.clone();
        // The owner of a segment asks when no row of any group refers to it any more, so no new reader needs
        // it. A reader whose rows are older cannot pin it after the answer, and looks its object up again.
        catalogue.set_segment_pins(Arc::new(move |segment| {
            !readers.close_if_unpinned_for(segment, Instant::now())
        }));
        let all = pins.clone();
        catalogue.set_pin_of_all_segments(Arc::new(move || all.has_global_pin()));
        let weak = || Arc::downgrade(&tier.inner);
        let mut workers = vec![
            tokio::spawn(compaction::driver::run(weak(), compaction.clone())),
            tokio::spawn(relocating::driver::run(weak(), compaction.clone())),
            tokio::spawn(placing::driver::run(weak(), placing.clone(), compaction.clone())),
        ];
        if let Some(replication) = replicas.replication() {
            let (driver, recovery) = (replicas::driver::run, replicas::recover::run);
            workers.push(tokio::spawn(recovery(weak(), replication.clone(), compaction.clone())));
            workers.push(tokio::spawn(driver(weak(), replication, compaction.clone())));
            if tier.inner.volumes.hot.has_identity() {
                tokio::spawn(replace_disk::run(weak()));
            }
        }
        *tier.inner.workers.lock().await = workers;
        tokio::spawn(space_wait::run(weak(), relief.clone()));
        tier.inner.claim_prefixes().await?;
        Ok(tier)
    }

    /// Like [`HotTier::open`], with another segment map than the catalogue's, and without compaction.
    ///
    /// # Errors
    /// As for [`HotTier::open`].
    pub async fn open_with(options: HotOptions, map: Arc<dyn SegmentMap>) -> Result<Self, HotOpenError> {
        Self::open_parts(options, map, None).await
    }

    async fn open_parts(
        options: HotOptions,
        map: Arc<dyn SegmentMap>,
        catalogue: Option<Catalogue>,
    ) -> Result<Self, HotOpenError> {
        let HotOptions { dir, clock, .. } = options.clone();
        let metrics = Arc::new(HotCounters::default());
        let io = |source| HotOpenError::Io { dir: dir.clone(), source };
        let (lineage, has_peers) = (Arc::new(options.lineage.clone()), options.replication.is_some());
        let (disk, cold) = options.open_disks(&lineage, &metrics).map_err(io)?;
        let dirs = &SegmentDirs::new(dir.clone(), options.cold_dirs.clone());
        // Checked before any file in the directories is sealed, renamed or removed.
        let sweeps = check_directories(dirs, &*map, &options, std::iter::once(&*disk).chain(&cold))?;
        let recovered = recovery::recover(&*map, &disk).await?;
        let leftovers = Leftovers::open(
            options.remote_tier.as_ref().map(|remote| remote.leftovers.clone()),
            &options.lineage,
        )
        .map_err(io)?;
        let remote_tier = Arc::new(RemoteTier::new(&options, map.clone()));
        // Checked before any local file is removed because an upstream has its copy.
        let has_all_upstreams = remote_tier.all_configured(options.missing_segments())?;
        let listing = ListingContext { map: &*map, dirs, has_all_upstreams, lineage: &lineage, has_peers };
        let (volumes, found) = SegmentVolumes::open(listing, disk.clone(), cold, &sweeps).map_err(io)?;
        found.check_missing(options.missing_segments())?;
        let VolumeFindings { stray, hot_bytes, .. } = found;
        let holes = if options.disposable { Holes::open(&disk).map_err(io)? } else { Holes::disabled() };
        let (hot_bytes, holes) = (hot_bytes.saturating_sub(holes.bytes()), Arc::new(holes));
        let (seals, requests) = mpsc::unbounded_channel();
        let holds = SegmentHolds::default();
        let (owner, appends) = (options.lineage.own, options.start_appends(seals.clone()));
        let segments = SegmentLifecycle { map: map.clone(), disk, clock, owner, holds, seals, appends };
        let shared = shared_by_writers(&options, segments, hot_bytes, metrics.clone());
        let placing = Arc::new(Placing::new(options.placing));
        let (space, spills) = (shared.space.clone(), placing.clone());
        tokio::spawn(run_seals(map.clone(), metrics.clone(), requests, move || {
            spills.segment_sealed(&space)
        }));
        let (lanes, ended) = WriterQueues::start(shared.clone(), options.own_segments_max).map_err(io)?;
        let others = OtherReplicas::of(&options, &map, catalogue.as_ref());
        let files = SegmentFileCache::new(volumes.dirs().clone(), map, options.open_files_max);
        let reader =
            SegmentReader::new(files, remote_tier.clone(), holes.clone(), options.queues, metrics, others);
        let inner = Arc::new(HotTierInner {
            shared,
            writer_queues: lanes,
            reader,
            pins: Arc::default(),
            volumes,
            holes,
            remote_tier,
            leftovers: Arc::new(Mutex::new(leftovers)),
            node: options.lineage.node,
            compaction: Arc::new(Compaction::new(options.compaction)),
            placing,
            replicas: Replicas::new(options.replication),
            claims: Arc::default(),
            space_waiters: Arc::default(),
            chunks_waiting: AtomicUsize::new(0),
            decisions: options.decisions,
            is_hot: OnceLock::new(),
            catalogue,
            workers: Mutex::default(),
            writers_ended: Mutex::new(ended),
            recovered_segments: recovered,
            stray_files: stray,
        });
        tokio::spawn(run_housekeeping(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Stores a chunk; it is durable when the call returns (with durability `os`: written to the page cache).
    ///
    /// Waits while too many bytes are queued, and for a limited time when there is no space. Dropping the
    /// future leaves at most dead bytes in a segment.
    ///
    /// # Errors
    /// When the chunk was not stored.
    pub async fn append(&self, chunk: Chunk) -> Result<AppendedChunk, AppendError> {
        let HotTierInner { shared, writer_queues: lanes, .. } = &*self.inner;
        let Chunk { bucket, key, body, part, offset, data, placement } = chunk;
        let is_storable = (1..=CHUNK_BYTES_MAX).contains(&(data.logical_bytes() as u64));
        assert!(is_storable, "a chunk has at least one byte and at most 1 MiB");
        let bytes = record::head_bytes(key.as_bytes().len(), &data) + data.stored_bytes();
        let admitted = match AppendReservation::reserve(&shared.space, bytes as u64) {
            Some(admitted) => admitted,
            None => self.inner.wait_and_reserve(bytes as u64).await?,
        };
        let written = shared.segments.clock.now();
        let owner = RecordOwner { bucket, key, body, part, offset, written };
        loop {
            let set = self.inner.set_for(&owner)?;
            let own = if placement == Placement::Own { lanes.own(body, set) } else { None };
            let lane = match &own {
                Some(own) => Cow::Borrowed(own),
                None => lanes.shared(set, QueueKind::for_bytes(data.stored_bytes()))?,
            };
            match lane.push(&owner, &data, bytes).await {
                Ok(answer) => {
                    admitted.transfer_to_writer();
                    return self.inner.stored(&owner, set, answer).await;
                }
                // The body's segment was sealed in the meantime because it was idle or finished, or this node
                // has left the set: the body gets another.
                Err(queue::QueueClosed) if lanes.is_replaced(&lane) => {}
                Err(queue::QueueClosed) => return Err(AppendError::Stopping),
            }
        }
    }

    /// Stores a chunk again whose segment was fenced before the catalogue named the chunk. The caller still
    /// holds that segment, so the chunk is readable.
    ///
    /// # Errors
    /// When the chunk was not stored.
    pub async fn append_fenced(&self, extent: &Extent, body: BodyId) -> Result<AppendedChunk, AppendError> {
        self.inner.shared.segments.holds.give_up(extent.segment_id());
        let read = self.inner.reader.chunk(extent, body, Lane::Checkpoint).await;
        let (owner, data) = read.map_err(|error| {
            tracing::error!(%error, "cannot read back a chunk of a fenced segment");
            AppendError::Io
        })?;
        self.inner.append_moved(&owner, &data).await
    }

    /// Prevents the release of segments until the pin is dropped. Returns `None` if one of them is released
    /// or about to be: the caller must look the object up again, since it has moved. Not needed for a single
    /// read.
    #[must_use]
    pub fn pin(&self, segments: Vec<SegmentId>) -> Option<SegmentPin> {
        let map = &self.inner.shared.segments.map;
        self.inner.pins.pin(segments, |segment| map.location(segment).is_some())
    }

    /// Waits until this node knows each of `segments`, or knows that it was released: its rows may be older
    /// than they are. Returns at once on a node without peers.
    ///
    /// # Errors
    /// [`SegmentReadError::NoReplica`] if no leader confirms which rows are the newest.
    pub async fn await_segments(&self, segments: &[SegmentId]) -> Result<(), SegmentReadError> {
        self.inner.reader.await_known(segments).await
    }

    /// Prevents the release of every referenced segment until the returned guard is dropped.
    #[must_use]
    pub fn pin_all(&self) -> AllSegmentsPin {
        self.inner.pins.pin_all()
    }

    /// Returns the progress of compaction.
    #[must_use]
    pub fn compaction(&self) -> CompactionStatus {
        self.inner.compaction.status()
    }

    /// Changes the settings of compaction from now on.
    pub fn set_compaction(&self, settings: CompactionSettings) {
        self.inner.compaction.set_settings(settings);
    }

    /// Requests a compaction pass now, which empties segments of at least `dead_percent` dead bytes,
    /// including open ones. Returns the value that [`CompactionStatus::passes`] has reached when this pass
    /// has ended.
    pub fn compact(&self, dead_percent: u64) -> u64 {
        self.inner.compaction.request_pass(dead_percent)
    }

    /// Returns the progress of the moves of bytes to the nodes of their sets.
    #[must_use]
    pub fn relocating(&self) -> RelocatingStatus {
        self.inner.compaction.relocating.status()
    }

    /// Returns the progress of moves between tiers.
    #[must_use]
    pub fn placing(&self) -> PlacingStatus {
        self.inner.placing.status()
    }

    /// Changes the settings of moves between tiers from now on.
    pub fn set_placing(&self, settings: PlacingSettings) {
        self.inner.placing.set_settings(settings);
    }

    /// Returns the fill levels at which segments are spilled, and how fast.
    #[must_use]
    pub fn placing_settings(&self) -> PlacingSettings {
        self.inner.placing.settings()
    }

    /// Sets the predicate that selects chunks which stay in the hot tier when their segment is spilled. Only
    /// the first call has an effect.
    pub fn set_is_hot(&self, is_hot: IsHot) {
        // A predicate set earlier remains.
        drop(self.inner.is_hot.set(is_hot));
    }

    /// Returns whether segments can be moved to a cold tier, and whether to an upstream.
    #[must_use]
    pub fn lower_tiers(&self) -> (bool, bool) {
        (!self.inner.volumes.cold.is_empty(), self.inner.remote_tier.spill_target().is_some())
    }

    /// Sets the segments that are exempt from spilling, except by a drain.
    pub fn set_pinned(&self, segments: HashSet<SegmentId>) {
        self.inner.placing.set_pinned(segments);
    }

    /// Requests a move of segments. Returns the value that [`PlacingStatus::orders_done`] has reached when
    /// this order is done.
    pub fn order(&self, order: PlacingOrder) -> u64 {
        let done = self.inner.placing.queue_order(order);
        self.inner.placing.start_pass();
        done
    }

    /// Reads `range` (not empty, within the extent's logical bytes) of the data of `extent` of `body`. Every
    /// byte is verified. A read from a disk waits in the queue of `turn`.
    ///
    /// # Errors
    /// When the bytes cannot be read, or do not match their checksum.
    pub async fn read(
        &self,
        extent: &Extent,
        body: BodyId,
        range: Range<u64>,
        turn: impl Into<ServiceClass>,
    ) -> Result<Bytes, SegmentReadError> {
        self.inner.reader.read(extent, body, range, turn.into()).await
    }

    /// Returns the flash account of the hot tier's disk.
    #[must_use]
    pub fn flash(&self) -> &FlashBudget {
        &self.inner.shared.flash
    }

    /// Returns the queues of the disks.
    #[must_use]
    pub fn queues(&self) -> &DiskQueues {
        &self.inner.shared.queues
    }

    /// True if a segment is at an upstream, where read latency makes announcing reads
    /// ([`HotTier::read_ahead`]) worthwhile.
    #[must_use]
    pub fn is_remote(&self, segment: SegmentId) -> bool {
        self.inner
            .shared
            .segments
            .map
            .location(segment)
            .is_some_and(|place| place.tier == SegmentTier::Upstream)
    }

    /// Starts to fetch extents that will be read next, as far as they are at an upstream.
    pub fn read_ahead<'e>(&self, extents: impl Iterator<Item = &'e Extent>) {
        self.inner.reader.read_ahead(extents);
    }

    /// Seals the body's own segment, if one is open: no more chunks of the body follow.
    pub fn seal_own(&self, body: BodyId) {
        self.inner.writer_queues.finish_own(body);
    }

    /// Returns and clears the locations (segment and offset) at which reads found damage since the last call.
    pub(crate) fn take_suspects(&self) -> BTreeSet<(SegmentId, u64)> {
        self.inner.reader.take_suspects()
    }

    /// Counts blocks that did not match their checksums.
    pub(crate) fn count_corrupt(&self, blocks: u64) {
        metrics::add(&self.inner.shared.metrics.corrupt_blocks, blocks);
    }

    /// Returns the metrics since the tier was opened.
    #[must_use]
    pub fn metrics(&self) -> HotMetrics {
        let mut metrics = self.inner.shared.metrics.snapshot();
        metrics.open_files = self.inner.reader.open_files() as u64;
        metrics.used_bytes = self.inner.shared.space.used_bytes();
        metrics.room_bytes = self.inner.shared.space.room_bytes();
        (metrics.remote_reads, metrics.remote_read_bytes) = self.inner.remote_tier.read_totals();
        (metrics.cold_used_bytes, metrics.cold_room_bytes) = self.inner.volumes.cold_bytes();
        metrics
    }

    /// True if a sync of an append takes longer than a second, or has done so in the last seconds.
    #[must_use]
    pub fn is_disk_slow(&self) -> bool {
        self.inner.shared.metrics.sync_watch.is_slow()
    }

    /// Segments with one replica that the last process left open, with the result of sealing them at the
    /// start.
    #[must_use]
    pub fn recovered(&self) -> &[(SegmentId, ScanSummary)] {
        &self.inner.recovered_segments
    }

    /// Files that were in the directory at the start and belong to no segment of the catalogue.
    #[must_use]
    pub fn stray_files(&self) -> &[String] {
        &self.inner.stray_files
    }

    /// Writes the queued chunks, seals the open segments and ends the writers; later appends return
    /// [`AppendError::Stopping`]. The catalogue must still be running.
    pub async fn shutdown(self) {
        self.inner.stop_workers();
        let workers = std::mem::take(&mut *self.inner.workers.lock().await);
        let until = mlgw_common::time::Instant::now() + WORKERS_STOP_TIMEOUT;
        for worker in workers {
            match mlgw_common::time::timeout_at(until, worker).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "a background worker panicked"),
                // Safe: the steps of all workers may be interrupted at any point.
                Err(_) => {
                    tracing::error!("a worker waits for a disk that does not respond; it is left behind")
                }
            }
        }
        self.inner.writer_queues.close(QueueClose::Seal);
        // No value is ever sent: the channel closes when every writer has ended.
        let _ = self.inner.writers_ended.lock().await.recv().await;
        self.inner.shared.segments.finish().await;
        let (done, sealed) = oneshot::channel();
        if self.inner.shared.segments.seals.send(SealRequest::Flush(done)).is_ok()
            && mlgw_common::time::timeout(WORKERS_STOP_TIMEOUT, sealed).await.is_err()
        {
            tracing::warn!("segments were not sealed, as without a majority; the next start seals them");
        }
    }
}

impl HotTierInner {
    /// Returns the tier of a segment in terms of the decision log.
    pub(crate) fn decision_place(&self, segment: SegmentId) -> decisions::DecisionPlace {
        let tier = self.shared.segments.map.location(segment).map_or(SegmentTier::Hot, |place| place.tier);
        tier.into()
    }

    fn stop_workers(&self) {
        self.compaction.stop();
        self.placing.start_pass();
        self.replicas.wake();
    }
}

fn shared_by_writers(
    options: &HotOptions,
    segments: SegmentLifecycle,
    used_bytes: u64,
    metrics: Arc<HotCounters>,
) -> Arc<WriterShared> {
    let bounds = SpaceLimits {
        reserve_bytes: options.reserve_bytes,
        ballast_bytes: options.ballast_bytes,
        capacity_bytes: options.capacity_bytes,
    };
    let directory = segments.disk.state().clone();
    let space = Arc::new(DiskSpace::open(&options.dir, directory, bounds, used_bytes));
    let accounts = AppendAccounts {
        space: space.clone(),
        metrics: metrics.clone(),
        flash: options.flash.clone(),
        runtime: Handle::current(),
    };
    Arc::new(WriterShared {
        segments: Arc::new(segments),
        space,
        metrics,
        segment_bytes: options.segment_bytes,
        queues: options.queues.clone(),
        append_lane: options.append_lane,
        flash: options.flash.clone(),
        append_cause: options.append_cause,
        is_disposable: options.disposable,
        runtime: Handle::current(),
        accounts: Arc::new(accounts),
    })
}

/// Maximum wait of a shutdown for the current step of each background worker, and for the last seals.
const WORKERS_STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for the writers when the tier is dropped without a shutdown.
const WRITERS_STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Drop for HotTierInner {
    fn drop(&mut self) {
        self.stop_workers();
        self.space_waiters.wake();
        self.writer_queues.close(QueueClose::Abandon);
        // After the queues: a writer that waits for followers finds its queue closed then.
        if let Some(appends) = &self.shared.segments.appends {
            appends.abandon();
        }
        self.await_writers();
    }
}

impl HotTierInner {
    /// Waits until the writers have ended. Each writer holds the catalogue: one that outlives the tier would
    /// close the catalogue's store while the process exits, when the store's globals are already destroyed.
    /// The wait is bounded, since a writer may wait for a task and this may be the thread that runs tasks.
    fn await_writers(&mut self) {
        let ended = self.writers_ended.get_mut();
        let patient_until = Instant::now() + WRITERS_STOP_TIMEOUT;
        while ended.try_recv() == Err(mpsc::error::TryRecvError::Empty) && Instant::now() < patient_until {
            mlgw_common::time::block_for(Duration::from_millis(1));
        }
    }
}

async fn run_housekeeping(tier: Weak<HotTierInner>) {
    loop {
        mlgw_common::time::sleep(Duration::from_millis(HOUSEKEEPING_MS)).await;
        let Some(inner) = tier.upgrade() else { return };
        inner.writer_queues.seal_idle(Duration::from_secs(DEDICATED_SEGMENT_IDLE_SECS));
        if let Some(sets) = inner.shared.segments.map.own_sets() {
            inner.writer_queues.close_left(&sets);
        }
        let space = inner.shared.space.clone();
        drop(inner);
        if tokio::task::spawn_blocking(move || space.refresh()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
