//! The hot tier: chunks appended to segment files on the local disk, and read back verified.
//!
//! An append is answered when its bytes are synced (unless durability `os` was chosen), so the
//! catalogue may then refer to them; that order is fixed. A segment is written by one thread
//! (`writer`), which batches: one write and one sync for all that waits. Whatever fails, a
//! segment is never written again after a failed sync, nor after a restart: it is sealed at a
//! length that covers every answered chunk, and a new one begins.
//!
//! When power fails: answered chunks are on the disk; unanswered ones may be there whole, torn or
//! not at all, and nothing refers to them. `recovery` then seals what was left open.
//!
//! Bytes on disk are described in docs/formats-segment.md.

mod admission;
mod away;
mod catalogue;
mod check;
mod compaction;
mod direct;
mod dirs;
mod disposable;
mod file;
mod files;
mod floor;
mod holds;
mod holes;
mod in_hand;
mod lanes;
mod location;
mod map;
mod marks;
mod mend;
mod metrics;
mod options;
mod pace;
mod pins;
mod placing;
mod queue;
mod read;
mod recovery;
mod relief;
mod replace;
mod salvage;
mod scan;
mod scrub;
mod segments;
mod space;
pub(crate) mod state_file;
mod verify;
mod volumes;
mod writer;

use mlgw_formats::segment_record as record;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mlgw_common::ObjectKey;
use mlgw_common::ids::{BodyId, BucketId, NodeId, PartNumber, SegmentId};
use mlgw_common::limits::{HOUSEKEEPING_MS, OWN_IDLE_SECS};
use mlgw_formats::schema::Extent;
use mlgw_metadata::{Catalogue, Durability};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;

pub use away::{AwayOptions, SealKeys, Upstreams};
pub use catalogue::UPSTREAM as UPSTREAM_TIER;
pub use check::check_segments;
pub use compaction::{CompactionSettings, CompactionStatus, StepError};
pub use dirs::SegmentDirs;
pub use file::{FileCall, Intercept, Step, segment_file_name, segment_of_file_name};
pub use floor::{floor_in, unnamed_after};
pub use holds::Hold;
pub use map::{Later, MapError, NewSegment, OpenSegment, SegmentMap, Whereabouts};
pub use marks::{Adopted, MARK_FILE_NAME, MarkError, adopt, check_marks, pass_mark, read_mark, write_mark};
pub use mend::{mend_headers, put_names_right};
pub use metrics::HotMetrics;
use mlgw_formats::segment_payload::Payload;
pub use options::{HotOptions, OpenError};
pub use pace::Pace;
pub use pins::{Keeping, SegmentPin};
pub use placing::{Leaving, Order, PlacingSettings, PlacingStatus};
pub use read::{Fault, ReadError};
pub use recovery::{RecoverError, scan};
pub use replace::StoredChunk;
pub use salvage::{Salvage, Salvaged, salvage};
pub use scan::Scanned;
pub(crate) use scrub::SCRUB_FORMAT;
pub use scrub::{BadBlock, Compared, Proofs, SHARES, Scrub, ScrubOptions, ScrubStatus};
pub use space::BALLAST_FILE_NAME;

use admission::Admitted;
pub(crate) use away::LEFTOVERS_FORMAT;
use away::{Away, Leftovers};
use catalogue::CatalogueMap;
use compaction::Compaction;
use file::Disk;
use files::Files;
use holds::Holds;
use holes::Holes;
use in_hand::InHand;
use lanes::Lanes;
use metrics::Metrics;
use pins::Pins;
use placing::Placing;
use queue::{Close, Placed, Queue};
use read::Reader;
use record::Owner;
use recovery::Listing;
use relief::Relief;
use segments::{SealRequest, Segments, run_seals};
use space::{Bounds, Space};
use volumes::{Found, Volumes};
use writer::Shared;

use crate::decisions::{self, Decisions};
use crate::fair::{DiskQueues, Lane, Turn};
use crate::flash::Flash;

/// Why a chunk was not stored. Nothing of it will ever be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The disk's reserve is reached, or the disk is full: delete something.
    #[error("the disk is full")]
    Full,
    /// Spilling and compaction are making room: try again in a moment.
    #[error("room is being made on the disk")]
    NoRoomYet,
    /// The tier is shutting down: ask again after the restart.
    #[error("the tier is stopping")]
    Stopping,
    /// The disk or the catalogue failed, twice: ask again.
    #[error("the disk failed")]
    Io,
}

impl AppendError {
    fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io,
        }
    }
}

/// Which segment a chunk goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One shared with other bodies.
    Shared,
    /// The body's own, while one is to be had: for bodies of
    /// [`OWN_SEGMENT_BYTES_MIN`](mlgw_common::limits::OWN_SEGMENT_BYTES_MIN) or more.
    Own,
}

/// A piece of a body to be stored.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The body.
    pub body: BodyId,
    /// The part, when the body is an upload.
    pub part: Option<PartNumber>,
    /// Offset of its first byte in the body, or in the part.
    pub offset: u64,
    /// Its bytes, as they are to be stored: at least one, at most
    /// [`CHUNK_BYTES_MAX`](mlgw_common::limits::CHUNK_BYTES_MAX) as clients see them.
    pub data: Payload,
    /// Where it goes.
    pub placement: Placement,
}

/// A stored chunk.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Where it lies.
    pub extent: Extent,
    /// Keeps its segment as it is; to be dropped when the catalogue names the chunk, or never will.
    pub hold: Hold,
}

/// Whether a chunk, by its body and its first byte in it (in its part, of an upload in parts), is of those
/// that are meant.
pub(crate) type Wanted = Arc<dyn Fn(&Owner) -> bool + Send + Sync>;

/// Whether a chunk, by its body and its first byte in it, is read so much that it should stay where reads are
/// fast.
pub type IsHot = Arc<dyn Fn(BodyId, u64) -> bool + Send + Sync>;

/// The hot tier. Clones are the same tier.
#[derive(Clone)]
pub struct HotTier {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    lanes: Lanes,
    reader: Reader,
    pins: Arc<Pins>,
    volumes: Volumes,
    holes: Arc<Holes>,
    away: Arc<Away>,
    /// Worked on by who moves and releases segments, one at a time.
    leftovers: Arc<Mutex<Leftovers>>,
    node: NodeId,
    compaction: Arc<Compaction>,
    placing: Arc<Placing>,
    /// Which segments those two work on.
    in_hand: Arc<InHand>,
    relief: Arc<Relief>,
    /// Chunks that wait for room.
    chunks_waiting: AtomicUsize,
    decisions: Decisions,
    is_hot: OnceLock<IsHot>,
    /// Whose references compaction follows; none where there is no compaction.
    catalogue: Option<Catalogue>,
    /// Compaction and placing.
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// Ends when the last writer has.
    writers_ended: Mutex<mpsc::Receiver<()>>,
    recovered: Vec<(SegmentId, Scanned)>,
    stray: Vec<String>,
}

impl HotTier {
    /// Opens the tier: makes the directory, seals what the last process left open, starts the
    /// writers. Called within a tokio runtime.
    ///
    /// # Errors
    /// When the disk or the catalogue fails; nothing is lost by trying again.
    pub async fn open(options: HotOptions, catalogue: Catalogue) -> Result<Self, OpenError> {
        let location = options.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        let map = CatalogueMap {
            catalogue: catalogue.clone(),
            node: options.node,
            location: location.unwrap_or_default(),
            clock: options.clock.clone(),
        };
        let tier = Self::open_parts(options, Arc::new(map), Some(catalogue)).await?;
        let Inner { compaction, placing, relief, .. } = &*tier.inner;
        let weak = || Arc::downgrade(&tier.inner);
        let workers = vec![
            tokio::spawn(compaction::driver::run(weak(), compaction.clone())),
            tokio::spawn(placing::driver::run(weak(), placing.clone(), compaction.clone())),
        ];
        *tier.inner.workers.lock().await = workers;
        tokio::spawn(relief::run(weak(), relief.clone()));
        tier.inner.claim_prefixes().await?;
        Ok(tier)
    }

    /// As [`HotTier::open`], with another segment map than the catalogue's, and without compaction.
    ///
    /// # Errors
    /// As there.
    pub async fn open_with(options: HotOptions, map: Arc<dyn SegmentMap>) -> Result<Self, OpenError> {
        Self::open_parts(options, map, None).await
    }

    async fn open_parts(
        options: HotOptions,
        map: Arc<dyn SegmentMap>,
        catalogue: Option<Catalogue>,
    ) -> Result<Self, OpenError> {
        let HotOptions { dir, direct_writes, durability, intercept, clock, .. } = options.clone();
        let metrics = Arc::new(Metrics::default());
        let io = |source| OpenError::Io { dir: dir.clone(), source };
        let lineage = Arc::new(options.lineage.clone());
        let open = |dir: &Path, direct_writes, durability| {
            let (intercept, metrics) = (intercept.clone(), metrics.clone());
            Disk::open(dir.to_owned(), direct_writes, durability, lineage.clone(), intercept, metrics)
        };
        let disk = Arc::new(open(&dir, direct_writes, durability).map_err(io)?);
        let cold = options.cold_dirs.iter().map(|dir| open(dir, false, Durability::Full));
        let cold = cold.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
        let dirs = SegmentDirs::new(dir.clone(), options.cold_dirs.clone());
        // Before anything in them is sealed, renamed or removed.
        let sweeps = marks::admit_all(&dirs, &*map, &options)?;
        let recovered = recovery::recover(&*map, &disk).await?;
        let leftovers =
            Leftovers::open(options.away.as_ref().map(|away| away.leftovers.clone()), &options.lineage)
                .map_err(io)?;
        let away = Arc::new(Away::new(options.away.clone(), map.clone()));
        // Before anything is removed because an upstream has it.
        let upstreams_are_there = away.all_configured(options.start_without_missing)?;
        let listing = Listing { map: &*map, dirs: &dirs, upstreams_are_there, lineage: &lineage };
        let (volumes, found) = Volumes::open(listing, disk.clone(), cold, &sweeps).map_err(io)?;
        found.all_there(options.start_without_missing)?;
        let Found { stray, hot_bytes, .. } = found;
        let holes = if options.disposable { Holes::open(&disk).map_err(io)? } else { Holes::none() };
        let (hot_bytes, holes) = (hot_bytes.saturating_sub(holes.bytes()), Arc::new(holes));
        let (seals, requests) = mpsc::unbounded_channel();
        let holds = Holds::default();
        let owner = options.lineage.own;
        let segments = Segments { map: map.clone(), disk: disk.clone(), clock, owner, holds, seals };
        let shared = shared_by_writers(&options, segments, hot_bytes, metrics.clone());
        let placing = Arc::new(Placing::new(options.placing));
        let (space, spills) = (shared.space.clone(), placing.clone());
        tokio::spawn(run_seals(map.clone(), metrics.clone(), requests, move || spills.sealed(&space)));
        let (lanes, ended) = Lanes::start(shared.clone(), options.own_segments_max).map_err(io)?;
        let files = Files::new(volumes.dirs().clone(), map, options.open_files_max);
        let reader = Reader::new(files, (away.clone(), holes.clone()), options.queues, metrics);
        let writers_ended = Mutex::new(ended);
        let inner = Arc::new(Inner {
            shared,
            lanes,
            reader,
            pins: Arc::default(),
            volumes,
            holes,
            away,
            leftovers: Arc::new(Mutex::new(leftovers)),
            node: options.node,
            compaction: Arc::new(Compaction::new(options.compaction)),
            placing,
            in_hand: Arc::default(),
            relief: Arc::default(),
            chunks_waiting: AtomicUsize::new(0),
            decisions: options.decisions,
            is_hot: OnceLock::new(),
            catalogue,
            workers: Mutex::default(),
            writers_ended,
            recovered,
            stray,
        });
        tokio::spawn(keep_house(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Stores a chunk; durable when it answers (with durability `os`: written).
    ///
    /// The future waits while too many bytes wait to be written, and for a moment when there is no room.
    /// Dropping it leaves at most dead bytes in a segment.
    ///
    /// # Errors
    /// When nothing was stored.
    pub async fn append(&self, chunk: Chunk) -> Result<Appended, AppendError> {
        let Inner { shared, lanes, .. } = &*self.inner;
        let Chunk { bucket, key, body, part, offset, data, placement } = chunk;
        let bytes = record::head_bytes(key.as_bytes().len(), &data) + data.stored_bytes();
        let admitted = match Admitted::take(&shared.space, bytes as u64) {
            Some(admitted) => admitted,
            None => self.inner.admit_later(bytes as u64).await?,
        };
        let written = shared.segments.clock.now();
        let owner = Owner { bucket, key, body, part, offset, written };
        loop {
            let own = if placement == Placement::Own { lanes.own(body) } else { None };
            let lane = own.as_ref().unwrap_or_else(|| lanes.shared(data.stored_bytes()));
            match lane.push(&owner, &data, bytes).await {
                Ok(answer) => {
                    admitted.pass_on();
                    return answered(answer).await;
                }
                // The body's segment was sealed meanwhile, as idle or finished: it gets another.
                Err(queue::Closed) if own.is_some() => {}
                Err(queue::Closed) => return Err(AppendError::Stopping),
            }
        }
    }

    /// Stores a chunk again whose segment was fenced before the chunk was named; the caller still
    /// holds that segment, so the chunk is there to be read.
    ///
    /// # Errors
    /// When nothing was stored.
    pub async fn append_again(&self, extent: &Extent, body: BodyId) -> Result<Appended, AppendError> {
        self.inner.shared.segments.holds.give_up(extent.segment_id());
        let read = self.inner.reader.chunk(extent, body, Lane::Checkpoint).await;
        let (owner, data) = read.map_err(|error| {
            tracing::error!(%error, "a chunk of a fenced segment cannot be read back");
            AppendError::Io
        })?;
        self.inner.append_moved(&owner, &data).await
    }

    /// Keeps segments from being released until the pin is dropped; nothing when one of them is gone
    /// or going: look the object up again, it is elsewhere. Not needed for a single read.
    #[must_use]
    pub fn pin(&self, segments: Vec<SegmentId>) -> Option<SegmentPin> {
        let map = &self.inner.shared.segments.map;
        self.inner.pins.pin(segments, |segment| map.place(segment).is_some())
    }

    /// Keeps every segment that something refers to from being released until the answer is dropped.
    #[must_use]
    pub fn keep_all(&self) -> Keeping {
        self.inner.pins.keep_all()
    }

    /// How far compaction is.
    #[must_use]
    pub fn compaction(&self) -> CompactionStatus {
        self.inner.compaction.status()
    }

    /// Has compaction go about it in another way from now on.
    pub fn set_compaction(&self, settings: CompactionSettings) {
        self.inner.compaction.set(settings);
    }

    /// Asks for a round of compaction now, in which segments of at least `dead_percent` dead bytes are
    /// emptied, open ones too. Returns the number of rounds that have ended when it has, see
    /// [`CompactionStatus::rounds`].
    pub fn compact(&self, dead_percent: u64) -> u64 {
        self.inner.compaction.ask(dead_percent)
    }

    /// How far segments are moved between tiers.
    #[must_use]
    pub fn placing(&self) -> PlacingStatus {
        self.inner.placing.status()
    }

    /// Has segments be moved in another way from now on.
    pub fn set_placing(&self, settings: PlacingSettings) {
        self.inner.placing.set(settings);
    }

    /// Returns the fill levels at which segments are spilled, and how fast.
    #[must_use]
    pub fn placing_settings(&self) -> PlacingSettings {
        self.inner.placing.settings()
    }

    /// Says which chunks are read so much that they stay in the hot tier when their segment is spilled. Can
    /// be said once.
    pub fn set_is_hot(&self, is_hot: IsHot) {
        // Said before, it stays.
        drop(self.inner.is_hot.set(is_hot));
    }

    /// Whether segments can go down: into a cold tier, and to an upstream.
    #[must_use]
    pub fn has_below(&self) -> (bool, bool) {
        (!self.inner.volumes.cold.is_empty(), self.inner.away.target().is_some())
    }

    /// From now on these segments stay where they are, but when somebody drains their tier.
    pub fn set_kept(&self, segments: HashSet<SegmentId>) {
        self.inner.placing.set_kept(segments);
    }

    /// Asks for segments to be moved. Returns the number of orders that are done when this one is, see
    /// [`PlacingStatus::orders_done`].
    pub fn order(&self, order: Order) -> u64 {
        let done = self.inner.placing.ask(order);
        self.inner.placing.go_on();
        done
    }

    /// Reads `range` (not empty, within the extent's logical bytes) of what `extent` of `body`
    /// stores. Every byte is verified. What has to go to a disk waits for its `turn`.
    ///
    /// # Errors
    /// When they cannot be read, or are not what was written.
    pub async fn read(
        &self,
        extent: &Extent,
        body: BodyId,
        range: Range<u64>,
        turn: impl Into<Turn>,
    ) -> Result<Bytes, ReadError> {
        self.inner.reader.read(extent, body, range, turn.into()).await
    }

    /// What is written to its flash.
    #[must_use]
    pub fn flash(&self) -> &Flash {
        &self.inner.shared.flash
    }

    /// Who goes to the disks next.
    #[must_use]
    pub fn queues(&self) -> &DiskQueues {
        &self.inner.shared.queues
    }

    /// Whether a segment is where reads take so long that it is better to say beforehand what will be read.
    #[must_use]
    pub fn is_far(&self, segment: SegmentId) -> bool {
        self.inner.shared.segments.map.place(segment).is_some_and(|place| place.tier == catalogue::UPSTREAM)
    }

    /// Begins to fetch what will be read next of segments that are far.
    pub fn will_read<'e>(&self, extents: impl Iterator<Item = &'e Extent>) {
        self.inner.reader.will_read(extents);
    }

    /// Seals the body's own segment, if it has one open: nothing more of it will come.
    pub fn finish_own(&self, body: BodyId) {
        self.inner.lanes.finish_own(body);
    }

    /// The places, by segment and offset, at which reads met damage since it was last asked.
    pub(crate) fn take_suspects(&self) -> BTreeSet<(SegmentId, u64)> {
        self.inner.reader.take_suspects()
    }

    /// Counts blocks that were found not to match their checksums.
    pub(crate) fn count_corrupt(&self, blocks: u64) {
        metrics::add(&self.inner.shared.metrics.corrupt_blocks, blocks);
    }

    /// What the tier has done since it was opened.
    #[must_use]
    pub fn metrics(&self) -> HotMetrics {
        let mut metrics = self.inner.shared.metrics.snapshot();
        metrics.open_files = self.inner.reader.open_files() as u64;
        metrics.used_bytes = self.inner.shared.space.used_bytes();
        metrics.room_bytes = self.inner.shared.space.room_bytes();
        (metrics.reads_away, metrics.read_away_bytes) = self.inner.away.figures();
        (metrics.cold_used_bytes, metrics.cold_room_bytes) = self.inner.volumes.cold_bytes();
        metrics
    }

    /// The segments that the last process left open, as they were sealed at opening.
    #[must_use]
    pub fn recovered(&self) -> &[(SegmentId, Scanned)] {
        &self.inner.recovered
    }

    /// Files in the directory at opening that belong to no segment the catalogue knows.
    #[must_use]
    pub fn stray_files(&self) -> &[String] {
        &self.inner.stray
    }

    /// Writes what waits, seals the open segments and ends the writers; later appends are
    /// answered with [`AppendError::Stopping`]. The catalogue must still be running.
    pub async fn shutdown(self) {
        self.inner.stop_workers();
        let workers = std::mem::take(&mut *self.inner.workers.lock().await);
        let until = tokio::time::Instant::now() + WORKERS_PATIENCE;
        for worker in workers {
            match tokio::time::timeout_at(until, worker).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "compaction or placing ended badly"),
                // Its steps may be cut short anywhere.
                Err(_) => tracing::error!(
                    "compaction or placing waits for a disk that does not answer; left behind"
                ),
            }
        }
        self.inner.lanes.close(Close::Seal);
        // Nobody ever sends: this ends when every writer has ended.
        let _ = self.inner.writers_ended.lock().await.recv().await;
        let (done, sealed) = oneshot::channel();
        if self.inner.shared.segments.seals.send(SealRequest::Flush(done)).is_ok() {
            let _ = sealed.await;
        }
    }
}

/// A chunk in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkAt {
    /// The bucket of its owner.
    pub bucket: BucketId,
    /// Its owner's key.
    pub key: ObjectKey,
    /// Its owner's body.
    pub body: BodyId,
    /// Its first byte in the body.
    pub first: u64,
    /// Where its record begins in the segment.
    pub offset: u64,
}

impl Inner {
    /// Where a segment is, for the log of decisions.
    pub(crate) fn place_of(&self, segment: SegmentId) -> decisions::Place {
        match self.shared.segments.map.place(segment).map(|place| place.tier) {
            Some(catalogue::COLD) => decisions::Place::Cold,
            Some(catalogue::UPSTREAM) => decisions::Place::Upstream,
            _ => decisions::Place::Hot,
        }
    }

    fn stop_workers(&self) {
        self.compaction.stop();
        self.placing.go_on();
    }

    /// Stores a chunk that is elsewhere already, in the segment of what was moved.
    async fn append_moved(&self, owner: &Owner, data: &Payload) -> Result<Appended, AppendError> {
        self.append_by(self.lanes.moved(), owner, data).await
    }

    async fn append_by(&self, lane: &Queue, owner: &Owner, data: &Payload) -> Result<Appended, AppendError> {
        let bytes = record::head_bytes(owner.key.as_bytes().len(), data) + data.stored_bytes();
        let space = &self.shared.space;
        let admitted = Admitted::take_moved(space, bytes as u64).ok_or(AppendError::Full)?;
        let answer = lane.push(owner, data, bytes).await.map_err(|queue::Closed| AppendError::Stopping)?;
        admitted.pass_on();
        answered(answer).await
    }
}

fn shared_by_writers(
    options: &HotOptions,
    segments: Segments,
    used_bytes: u64,
    metrics: Arc<Metrics>,
) -> Arc<Shared> {
    let bounds = Bounds {
        reserve_bytes: options.reserve_bytes,
        ballast_bytes: options.ballast_bytes,
        capacity_bytes: options.capacity_bytes,
    };
    Arc::new(Shared {
        segments: Arc::new(segments),
        space: Arc::new(Space::open(&options.dir, bounds, used_bytes)),
        metrics,
        segment_bytes: options.segment_bytes,
        queues: options.queues.clone(),
        append_lane: options.append_lane,
        flash: options.flash.clone(),
        append_cause: options.append_cause,
        is_disposable: options.disposable,
        runtime: Handle::current(),
    })
}

/// What became of a chunk that is in its writer's line.
async fn answered(answer: oneshot::Receiver<Result<Placed, AppendError>>) -> Result<Appended, AppendError> {
    let Placed { location, hold } = answer.await.unwrap_or(Err(AppendError::Stopping))?;
    Ok(Appended { extent: location.into(), hold })
}

/// How long a shutdown waits for the step that compaction and placing are at.
const WORKERS_PATIENCE: Duration = Duration::from_secs(10);
/// How long a tier that goes without having been shut down waits for its writers.
const WRITERS_PATIENCE: Duration = Duration::from_secs(5);

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_workers();
        self.relief.wake();
        self.lanes.close(Close::Abandon);
        self.await_writers();
    }
}

impl Inner {
    /// Each writer holds the catalogue: one that is left behind would close its store while the process
    /// exits, when that is not there any more. For a while only, as a writer may wait for a task, and this
    /// may be the thread that tasks run on.
    fn await_writers(&mut self) {
        let ended = self.writers_ended.get_mut();
        let patient_until = Instant::now() + WRITERS_PATIENCE;
        while ended.try_recv() == Err(mpsc::error::TryRecvError::Empty) && Instant::now() < patient_until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

async fn keep_house(tier: Weak<Inner>) {
    loop {
        tokio::time::sleep(Duration::from_millis(HOUSEKEEPING_MS)).await;
        let Some(inner) = tier.upgrade() else { return };
        inner.lanes.seal_idle(Duration::from_secs(OWN_IDLE_SECS));
        let space = inner.shared.space.clone();
        drop(inner);
        if tokio::task::spawn_blocking(move || space.look()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
