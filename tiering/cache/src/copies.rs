//! Clean copies: blocks of origins' objects on the local disk, which can be fetched again.
//!
//! The bytes are in segments like those of the hot tier, with a lane, a capacity and ids of their own. An
//! index beside them, outside Raft, locates each block. Invariants: every record that the index names was
//! appended whole, and all bytes are verified when they are read. A copy that does not verify, or whose
//! segment is missing, does not count as a copy and is fetched again.
//!
//! Blocks are added and evicted one by one. Each has an id ([`block_id`]), by which the policy driver evicts
//! it ([`Copies::evict_blocks`]). Evicted blocks leave holes in their segment ([`block_eviction`]),
//! segments with few live bytes are cleaned ([`cleaning`]), and if the disk is still short of space, the
//! oldest segments are evicted ([`make_room`]).
//!
//! No operation waits for a sync. After a power failure, blocks that had not reached the disk are no longer
//! copies.

mod block_eviction;
mod block_names;
mod cleaning;
mod directory_owner;
mod ledger;
mod make_room;
mod pins;
mod scan;
mod segment_map;
#[cfg(test)]
mod tests;

pub use block_eviction::EvictedBlocks;
pub use block_names::block_id;
pub use ledger::LostBlockListener;
pub use pins::PinnedCopies;
pub use scan::{KeptBlock, KeptCursor, KeptPage};

use bytes::{Bytes, BytesMut};
use ledger::{CopyLedger, block_bytes, is_single_block};
use mlgw_common::ids::{BodyId, BucketId};
use mlgw_common::limits::{CHUNK_BYTES_MAX, COPY_BLOCK_BYTES, MIB, PINNED_PERCENT_MAX};
use mlgw_common::{Clock, Lineage, ObjectKey, Timestamp};
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace};
use mlgw_formats::schema::{CopyRecord, Extent, ObjectVersion};
use mlgw_metadata::{CleanIndex, CleanIndexError, Durability};
use mlgw_segments::decisions::Decisions;
use mlgw_segments::fair::{DiskQueues, Lane, ServiceClass};
use mlgw_segments::flash::{FlashBudget, FlashWriteCause};
use mlgw_segments::hot::{
    Chunk, HotOpenError, HotOptions, HotTier, Placement, SegmentHold, SegmentReadError,
};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::read_through;
use parking_lot::Mutex;
use pins::PinLap;
use segment_map::CopyMap;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Length of a segment of copies.
const SEGMENT_BYTES: u64 = 64 * MIB;
/// Percent of the space that blocks may take. With objects of 100 KB the edges take another four percent, and
/// open or half-empty segments take the rest.
const BLOCKS_PERCENT: u64 = 92;
/// Percent of the space that blocks may take on a file system without holes. Cleaning then moves 1.4 bytes
/// for each byte kept, and no block is lost; at 80 it moves 2.1 and cannot keep up.
const BLOCKS_PERCENT_NO_HOLES: u64 = 70;

/// Options of the store of clean copies.
#[derive(Clone)]
pub struct CopiesOptions {
    /// Directory; created if it is missing.
    pub dir: PathBuf,
    /// Identity of this server, and the timelines from which it descends.
    pub lineage: Lineage,
    /// Maximum bytes of copies.
    pub capacity_bytes: u64,
    /// Bytes of the file system to leave free for other uses.
    pub reserve_bytes: u64,
    /// Memory for the metadata of objects.
    pub memory_bytes: usize,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Decision log of what is kept and evicted, and why.
    pub decisions: Decisions,
    /// Scheduler of disk accesses.
    pub queues: DiskQueues,
    /// Counter and budget of flash writes.
    pub flash: FlashBudget,
    /// Maximum number of segment files kept open for reading.
    pub open_files_max: usize,
    /// Listener that accounts for blocks and evicts them in time. Without one, the oldest segments are
    /// evicted.
    pub listener: Option<Arc<dyn LostBlockListener>>,
}

/// Reason why the store was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenCopiesError {
    /// Error of the directory.
    #[error("the directory of clean copies: {0}")]
    Directory(#[from] io::Error),
    /// Error of the index.
    #[error(transparent)]
    Index(#[from] CleanIndexError),
    /// Error of the segments.
    #[error(transparent)]
    Segments(#[from] HotOpenError),
}

/// Contents, and counters since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiesMetrics {
    /// Bytes of the segments, without holes.
    pub used_bytes: u64,
    /// Maximum bytes.
    pub limit_bytes: u64,
    /// Bytes of live records; the rest is edges, and space that is not reclaimed yet.
    pub live_bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// Bytes of blocks that were kept.
    pub kept_bytes: u64,
    /// Bytes of blocks that were evicted.
    pub evicted_bytes: u64,
    /// Bytes that cleaning appended again so that their segment could be removed.
    pub moved_by_cleaning_bytes: u64,
    /// Bytes that were not kept for lack of space or flash budget.
    pub refused_bytes: u64,
}

/// Store of clean copies. Clones share their state.
#[derive(Clone)]
pub struct Copies {
    inner: Arc<CopiesShared>,
}

/// Weak reference to the store, which does not keep it open.
#[derive(Clone)]
pub(crate) struct WeakCopies {
    inner: Weak<CopiesShared>,
}

impl WeakCopies {
    /// Returns the store unless it is closed.
    pub(crate) fn upgrade(&self) -> Option<Copies> {
        self.inner.upgrade().map(|inner| Copies { inner })
    }
}

struct CopiesShared {
    index: Arc<CleanIndex>,
    map: Arc<CopyMap>,
    ledger: CopyLedger,
    segments: HotTier,
    memory: MemoryTier,
    capacity_bytes: u64,
    decisions: Decisions,
    /// Held while the live records of a segment are moved or evicted.
    segment_lock: tokio::sync::Mutex<()>,
    /// Held while the disk space of dead records is reclaimed.
    reclaim_lock: tokio::sync::Mutex<()>,
    pins: Mutex<PinLap>,
    /// Wakes the worker that makes room.
    wake: Arc<Notify>,
    kept_bytes: AtomicU64,
    evicted_bytes: AtomicU64,
    cleaned_bytes: AtomicU64,
    refused_bytes: AtomicU64,
}

impl Copies {
    /// Opens or creates the store. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub async fn open(options: CopiesOptions, memory: MemoryTier) -> Result<Self, OpenCopiesError> {
        Self::open_tuned(options, memory, |_| ()).await
    }

    /// Opens the store like [`Copies::open`], with segment options changed by `tuned`.
    async fn open_tuned(
        options: CopiesOptions,
        memory: MemoryTier,
        tuned: impl FnOnce(&mut HotOptions),
    ) -> Result<Self, OpenCopiesError> {
        directory_owner::claim_directory(&options.dir, &options.lineage)?;
        let index = Arc::new(CleanIndex::open(&options.dir, options.memory_bytes)?);
        scan::migrate_unnamed(&index)?;
        let map = Arc::new(CopyMap::open(index.clone())?);
        let dir = options.dir.join("segments");
        let mut segments = HotOptions::new(dir, options.capacity_bytes, options.clock);
        segments.reserve_bytes = options.reserve_bytes;
        segments.capacity_bytes = options.capacity_bytes;
        segments.segment_bytes = SEGMENT_BYTES.min((options.capacity_bytes / 16).max(MIB));
        segments.durability = Durability::Os;
        segments.direct_writes = false;
        segments.ballast_bytes = 0;
        segments.queues = options.queues;
        segments.append_lane = Lane::Background;
        segments.flash = options.flash;
        segments.append_cause = FlashWriteCause::Copies;
        segments.disposable = true;
        segments.open_files_max = options.open_files_max;
        tuned(&mut segments);
        let segments = HotTier::open_with(segments, map.clone()).await?;
        let inner = Arc::new(CopiesShared {
            ledger: CopyLedger::new(index.clone(), map.clone(), options.listener),
            index,
            map,
            segments,
            memory,
            capacity_bytes: options.capacity_bytes,
            decisions: options.decisions,
            segment_lock: tokio::sync::Mutex::default(),
            reclaim_lock: tokio::sync::Mutex::default(),
            pins: Mutex::default(),
            wake: Arc::default(),
            kept_bytes: AtomicU64::new(0),
            evicted_bytes: AtomicU64::new(0),
            cleaned_bytes: AtomicU64::new(0),
            refused_bytes: AtomicU64::new(0),
        });
        tokio::spawn(make_room::run(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Returns a weak reference, which does not keep the store open.
    pub(crate) fn downgrade(&self) -> WeakCopies {
        WeakCopies { inner: Arc::downgrade(&self.inner) }
    }

    /// Returns the copy of a key. An index error counts as no copy.
    #[must_use]
    pub fn find(&self, bucket: BucketId, key: &ObjectKey) -> Option<CopyRecord> {
        ok_or_log(self.inner.index.copy(bucket, key)).flatten()
    }

    /// Records metadata of a key from its origin. Kept blocks stay if ETag and size are unchanged; otherwise
    /// the object gets a new body. Returns the resulting copy. If the index fails, no block of the object
    /// will be kept.
    pub fn record_metadata(&self, bucket: BucketId, key: &ObjectKey, record: CopyRecord) -> CopyRecord {
        self.inner.ledger.record_metadata(bucket, key, record)
    }

    /// Records the time of a read.
    pub fn record_read(&self, bucket: BucketId, key: &ObjectKey, now: Timestamp) {
        self.inner.ledger.record_read(bucket, key, now);
    }

    /// Replaces the set of copies that are exempt from eviction, within their limits.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>) {
        self.inner.pins.lock().set(pins);
    }

    /// Returns the bytes of blocks that the policy engine may keep at most under present conditions. The rest
    /// of the space is taken by edges and, on a file system without holes, by dead records among live ones;
    /// if blocks exceed it, the oldest segments are evicted. The value changes, because other programs may
    /// fill the disk.
    #[must_use]
    pub fn blocks_bytes_max(&self) -> u64 {
        let (used_bytes, room_bytes) = self.inner.segments.fill();
        let percent = if self.inner.segments.has_holes() { BLOCKS_PERCENT } else { BLOCKS_PERCENT_NO_HOLES };
        (used_bytes + room_bytes) / 100 * percent
    }

    /// Returns the maximum bytes of pinned copies.
    #[must_use]
    pub fn pinned_bytes_max(&self) -> u64 {
        self.inner.capacity_bytes / 100 * PINNED_PERCENT_MAX
    }

    /// Forgets a key.
    pub fn forget(&self, bucket: BucketId, key: &ObjectKey) {
        self.inner.ledger.forget(bucket, key);
    }

    /// Returns the extents of block `number` of an object, if it is kept.
    #[must_use]
    pub fn block_extents(&self, object: &ObjectVersion, number: u64) -> Option<Vec<Extent>> {
        self.inner.ledger.extents_of(object, number)
    }

    /// Keeps block `number` of an object, with the bytes `pieces`, fetched for the reason `why`. Returns its
    /// extents, or `None` if there is no space, the flash budget is exhausted, or the key has another body by
    /// now.
    pub async fn keep(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        pieces: Vec<Bytes>,
        why: DecisionCause,
    ) -> Option<Vec<Extent>> {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        assert!(bytes > 0, "a block that is kept has bytes");
        if !self.inner.segments.flash().can_start_own_write() {
            self.inner.refused_bytes.fetch_add(bytes, Relaxed);
            self.inner.decisions.record(&fetch_decision(
                bucket,
                key,
                bytes,
                why,
                DecisionOutcome::OverBudget,
            ));
            return None;
        }
        if self.inner.is_too_full() {
            self.inner.wake.notify_one();
        }
        let first = number * COPY_BLOCK_BYTES;
        let Some((extents, _holds)) = self.append(bucket, key, object.body(), first, pieces).await else {
            self.inner.refused_bytes.fetch_add(bytes, Relaxed);
            self.inner.decisions.record(&fetch_decision(bucket, key, bytes, why, DecisionOutcome::NoRoom));
            return None;
        };
        if !self.inner.ledger.keep(bucket, key, object, number, &extents) {
            return None;
        }
        self.inner.kept_bytes.fetch_add(bytes, Relaxed);
        self.inner.decisions.record(&fetch_decision(bucket, key, bytes, why, DecisionOutcome::Done));
        Some(extents)
    }

    /// Appends a block. Its segments are retained as long as the returned holds.
    async fn append(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
        mut first: u64,
        pieces: Vec<Bytes>,
    ) -> Option<(Vec<Extent>, Vec<SegmentHold>)> {
        let (mut extents, mut holds) = (Vec::new(), Vec::new());
        let mut pieces = VecDeque::from(pieces);
        while let Some(data) = take_chunk(&mut pieces) {
            let bytes = data.len() as u64;
            let placement = Placement::Shared;
            let chunk = Chunk {
                bucket,
                key: key.clone(),
                body,
                part: None,
                offset: first,
                data: data.into(),
                placement,
            };
            let Ok(appended) = self.inner.segments.append(chunk).await else {
                self.inner.ledger.mark_dead(extents);
                return None;
            };
            extents.push(appended.extent);
            holds.push(appended.hold);
            first += bytes;
        }
        Some((extents, holds))
    }

    /// Reads `range` of the bytes of `extent` of `body`; the extent begins at byte `first` of the body.
    ///
    /// # Errors
    /// The record is missing or does not verify: it does not count as a copy.
    pub async fn read(
        &self,
        extent: &Extent,
        body: BodyId,
        first: u64,
        range: Range<u64>,
        turn: impl Into<ServiceClass>,
    ) -> Result<Bytes, SegmentReadError> {
        let turn = turn.into();
        read_through(&self.inner.memory, &self.inner.segments, extent, body, first, range, turn).await
    }

    /// Forgets block `number` of an object because it could not be read at `extents`. A block that was kept
    /// again since then stays.
    pub fn invalidate_block(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        extents: &[Extent],
    ) {
        self.inner.ledger.invalidate(bucket, key, object.body(), number, extents);
    }

    /// Returns one page of the kept blocks after `from`, in the order of buckets and keys. Blocks the thread
    /// for a few milliseconds.
    #[must_use]
    pub fn kept_blocks(&self, from: Option<KeptCursor>) -> KeptPage {
        let (found, next) = ok_or_log(scan::page(&self.inner.index, from)).unwrap_or_default();
        KeptPage { blocks: found.iter().map(scan::LocatedCopyBlock::summary).collect(), next }
    }

    /// Records the decision of a job to drop copies of a bucket whose keys begin with `prefix`.
    pub fn record_dropped(&self, bucket: BucketId, prefix: &str, gone: DroppedCopies, why: DecisionCause) {
        let DroppedCopies { kind, count, bytes } = gone;
        let (from, to, outcome) = (DecisionPlace::Copies, DecisionPlace::Nowhere, DecisionOutcome::Done);
        let what = DecisionSubject::Objects { bucket, count, prefix };
        self.inner.decisions.record(&PlacementDecision {
            kind,
            subject: what,
            from,
            to,
            bytes,
            cause: why,
            outcome,
        });
    }

    /// Returns the first `max` copies of a bucket whose keys begin with `prefix` and come after `after`.
    #[must_use]
    pub fn list(
        &self,
        bucket: BucketId,
        prefix: &str,
        after: Option<&ObjectKey>,
        max: usize,
    ) -> Vec<(ObjectKey, CopyRecord)> {
        ok_or_log(self.inner.index.copies(bucket, prefix, after, max)).unwrap_or_default()
    }

    /// Returns the counter and budget of flash writes.
    #[must_use]
    pub fn flash(&self) -> &FlashBudget {
        self.inner.segments.flash()
    }

    /// Returns the number of bytes of an object that are kept.
    #[must_use]
    pub fn kept_bytes(&self, object: &ObjectVersion) -> u64 {
        if is_single_block(object) {
            return if object.extents.is_empty() { 0 } else { object.size };
        }
        let blocks = ok_or_log(self.inner.index.blocks(object.body())).unwrap_or_default();
        blocks.iter().map(|number| block_bytes(object, *number)).sum()
    }

    /// Returns contents and counters.
    #[must_use]
    pub fn metrics(&self) -> CopiesMetrics {
        let inner = &*self.inner;
        let (segments, live_bytes) = inner.map.totals();
        CopiesMetrics {
            used_bytes: inner.segments.fill().0,
            limit_bytes: inner.capacity_bytes,
            live_bytes,
            segments,
            kept_bytes: inner.kept_bytes.load(Relaxed),
            evicted_bytes: inner.evicted_bytes.load(Relaxed),
            moved_by_cleaning_bytes: inner.cleaned_bytes.load(Relaxed),
            refused_bytes: inner.refused_bytes.load(Relaxed),
        }
    }

    /// Writes everything to disk, so that the next start finds it.
    pub async fn shutdown(&self) {
        self.inner.reclaim().await;
        self.inner.segments.clone().shutdown().await;
        if let Err(error) = self.inner.flush().await {
            tracing::warn!(%error, "failed to flush the index of clean copies");
        }
    }
}

/// Copies dropped by a job.
#[derive(Clone, Copy, Debug)]
pub struct DroppedCopies {
    /// Kind of the decision.
    pub kind: DecisionKind,
    /// Number of objects.
    pub count: u64,
    /// Bytes of these objects that were kept.
    pub bytes: u64,
}

fn fetch_decision(
    bucket: BucketId,
    key: &ObjectKey,
    bytes: u64,
    why: DecisionCause,
    outcome: DecisionOutcome,
) -> PlacementDecision<'_> {
    let (kind, from, to) = (DecisionKind::Keep, DecisionPlace::Origin, DecisionPlace::Copies);
    PlacementDecision {
        kind,
        subject: DecisionSubject::Object(bucket, key.as_str()),
        from,
        to,
        bytes,
        cause: why,
        outcome,
    }
}

/// True if both are the same version of an object.
pub(crate) fn is_same_version(one: &ObjectVersion, other: &ObjectVersion) -> bool {
    one.etag == other.etag && one.size == other.size
}

/// Returns the result of an index operation. An error is logged and counts as no result.
fn ok_or_log<T>(answer: Result<T, CleanIndexError>) -> Option<T> {
    answer
        .inspect_err(|error| {
            tracing::warn!(%error,
        "the index of clean copies failed; reading from the origin")
        })
        .ok()
}

/// Takes the bytes of the next chunk from pieces of any length, in a buffer of their own.
fn take_chunk(pieces: &mut VecDeque<Bytes>) -> Option<Bytes> {
    let mut chunk = BytesMut::new();
    while let Some(mut piece) = pieces.pop_front() {
        let room = CHUNK_BYTES_MAX as usize - chunk.len();
        if chunk.is_empty() && piece.len() <= room && pieces.is_empty() {
            return Some(piece);
        }
        chunk.extend_from_slice(&piece.split_to(room.min(piece.len())));
        if !piece.is_empty() {
            pieces.push_front(piece);
            break;
        }
    }
    (!chunk.is_empty()).then(|| chunk.freeze())
}
