//! Clean copies of origins' objects on this node's disk: what was fetched once and may be fetched again.
//!
//! Bytes are in segments like those of the hot tier, with a lane, a capacity and ids of their own; an index
//! beside them, outside Raft, says what is where. Always: what the index names was appended whole, and every
//! byte that is read is verified. A copy that does not verify, or whose segment is gone, is no copy: it is
//! fetched again.
//!
//! Blocks come and go one by one: each has an id ([`block_id`]), by which whoever decides what stays lets go
//! of it ([`Copies::let_go`]). What went leaves holes in its segment ([`let_go`]), segments of which little
//! is left are cleaned ([`clean`]), and where the disk runs out all the same the oldest go ([`evict`]).
//!
//! Nothing waits for a sync. When power fails, what was not on the disk is no copy any more.

mod clean;
mod evict;
mod ledger;
mod let_go;
mod map;
mod names;
mod owner;
mod pins;
#[cfg(test)]
mod tests;
mod walk;

pub use ledger::Lost;
pub use let_go::LetGo;
pub use names::block_id;
pub use pins::PinnedCopies;
pub use walk::{KeptBlock, KeptCursor, KeptPage};

use bytes::{Bytes, BytesMut};
use ledger::{Ledger, block_bytes, is_small};
use map::CopyMap;
use mlgw_common::ids::{BodyId, BucketId, NodeId};
use mlgw_common::limits::{CHUNK_BYTES_MAX, COPY_BLOCK_BYTES, MIB, PINNED_PERCENT_MAX};
use mlgw_common::{Clock, Lineage, ObjectKey, Timestamp};
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::{Kind, Outcome, Place};
use mlgw_formats::schema::{Copy, Extent, ObjectVersion};
use mlgw_metadata::{CleanIndex, CleanIndexError, Durability};
use mlgw_segments::decisions::Decisions;
use mlgw_segments::fair::{DiskQueues, Lane, Turn};
use mlgw_segments::flash::{Cause, Flash};
use mlgw_segments::hot::{Chunk, Hold, HotOptions, HotTier, OpenError, Placement, ReadError};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::read_through;
use parking_lot::Mutex;
use pins::Pins;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Length of a segment of copies.
const SEGMENT_BYTES: u64 = 64 * MIB;
/// Percent of the room that blocks may take: with objects of 100 KB edges take four more, and what is open or
/// half empty has the rest.
const BLOCKS_PERCENT: u64 = 92;
/// The same where what went leaves no holes. Cleaning then moves 1.4 bytes for each that is kept, and nothing
/// is lost; at 80 it moves 2.1 and cannot keep up.
const BLOCKS_PERCENT_NO_HOLES: u64 = 70;

/// How clean copies are kept.
#[derive(Clone)]
pub struct CopiesOptions {
    /// Their directory; made when absent.
    pub dir: PathBuf,
    /// This node.
    pub node: NodeId,
    /// The identity of this server, and the timelines that it descends from.
    pub lineage: Lineage,
    /// Bytes that they may take.
    pub capacity_bytes: u64,
    /// Bytes of the file system that they leave to others.
    pub reserve_bytes: u64,
    /// Memory for what is known of objects.
    pub memory_bytes: usize,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// Where it is recorded what is kept and what goes, and why.
    pub decisions: Decisions,
    /// Who goes to the disk next.
    pub queues: DiskQueues,
    /// What is written to flash is counted there, and bound.
    pub flash: Flash,
    /// Segment files that are kept open for reading.
    pub open_files_max: usize,
    /// Who keeps books of blocks, and lets go of them in time. Without, the oldest segments make room.
    pub lost: Option<Arc<dyn Lost>>,
}

/// Why clean copies were not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenCopiesError {
    /// Their directory.
    #[error("the directory of copies: {0}")]
    Directory(#[from] io::Error),
    /// The index.
    #[error(transparent)]
    Index(#[from] CleanIndexError),
    /// The segments.
    #[error(transparent)]
    Segments(#[from] OpenError),
}

/// What they hold, and have done since they were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiesMetrics {
    /// Bytes of their segments, without holes.
    pub used_bytes: u64,
    /// Bytes that they may take.
    pub limit_bytes: u64,
    /// Bytes of their records that live: the rest is edges, and what is not given back yet.
    pub live_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes that were kept.
    pub kept_bytes: u64,
    /// Bytes of blocks that were let go of to make room.
    pub evicted_bytes: u64,
    /// Bytes that were appended again so that the rest of their segment could go.
    pub cleaned_bytes: u64,
    /// Bytes that were not kept because there was no room.
    pub refused_bytes: u64,
}

/// Clean copies. Clones are the same.
#[derive(Clone)]
pub struct Copies {
    inner: Arc<Inner>,
}

/// Clean copies, for who does not keep them from being closed.
#[derive(Clone)]
pub(crate) struct WeakCopies {
    inner: Weak<Inner>,
}

impl WeakCopies {
    /// They, unless they are closed.
    pub(crate) fn upgrade(&self) -> Option<Copies> {
        self.inner.upgrade().map(|inner| Copies { inner })
    }
}

struct Inner {
    index: Arc<CleanIndex>,
    map: Arc<CopyMap>,
    ledger: Ledger,
    segments: HotTier,
    memory: MemoryTier,
    capacity_bytes: u64,
    decisions: Decisions,
    /// Held while what lives in a segment is moved or let go of.
    evicting: tokio::sync::Mutex<()>,
    /// Held while the disk of what went is given back.
    giving_back: tokio::sync::Mutex<()>,
    pins: Mutex<Pins>,
    /// Has room be made.
    wake: Arc<Notify>,
    kept_bytes: AtomicU64,
    evicted_bytes: AtomicU64,
    cleaned_bytes: AtomicU64,
    refused_bytes: AtomicU64,
}

impl Copies {
    /// Opens what is there, or begins it. Called within a tokio runtime.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub async fn open(options: CopiesOptions, memory: MemoryTier) -> Result<Self, OpenCopiesError> {
        Self::open_on(options, memory, |_| ()).await
    }

    /// As [`Copies::open`], over segments that are `tuned`.
    async fn open_on(
        options: CopiesOptions,
        memory: MemoryTier,
        tuned: impl FnOnce(&mut HotOptions),
    ) -> Result<Self, OpenCopiesError> {
        owner::settle(&options.dir, &options.lineage)?;
        let index = Arc::new(CleanIndex::open(&options.dir, options.memory_bytes)?);
        walk::adopt(&index)?;
        let map = Arc::new(CopyMap::open(index.clone())?);
        let dir = options.dir.join("segments");
        let mut segments = HotOptions::new(dir, options.capacity_bytes, options.clock);
        segments.node = options.node;
        segments.reserve_bytes = options.reserve_bytes;
        segments.capacity_bytes = options.capacity_bytes;
        segments.segment_bytes = SEGMENT_BYTES.min((options.capacity_bytes / 16).max(MIB));
        segments.durability = Durability::Os;
        segments.direct_writes = false;
        segments.ballast_bytes = 0;
        segments.queues = options.queues;
        segments.append_lane = Lane::Background;
        segments.flash = options.flash;
        segments.append_cause = Cause::Copies;
        segments.disposable = true;
        segments.open_files_max = options.open_files_max;
        tuned(&mut segments);
        let segments = HotTier::open_with(segments, map.clone()).await?;
        let inner = Arc::new(Inner {
            ledger: Ledger::new(index.clone(), map.clone(), options.lost),
            index,
            map,
            segments,
            memory,
            capacity_bytes: options.capacity_bytes,
            decisions: options.decisions,
            evicting: tokio::sync::Mutex::default(),
            giving_back: tokio::sync::Mutex::default(),
            pins: Mutex::default(),
            wake: Arc::default(),
            kept_bytes: AtomicU64::new(0),
            evicted_bytes: AtomicU64::new(0),
            cleaned_bytes: AtomicU64::new(0),
            refused_bytes: AtomicU64::new(0),
        });
        tokio::spawn(evict::run(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// The same, for who does not keep them from being closed.
    pub(crate) fn downgrade(&self) -> WeakCopies {
        WeakCopies { inner: Arc::downgrade(&self.inner) }
    }

    /// What is known of a key. An index that fails knows nothing.
    #[must_use]
    pub fn find(&self, bucket: BucketId, key: &ObjectKey) -> Option<Copy> {
        known(self.inner.index.copy(bucket, key)).flatten()
    }

    /// Notes what the origin says of a key. Bytes that are kept stay when its ETag and size are as before;
    /// otherwise it is another body. Returns what is known now. When the index fails nothing will be kept of
    /// it.
    pub fn note(&self, bucket: BucketId, key: &ObjectKey, said: Copy) -> Copy {
        self.inner.ledger.note(bucket, key, said)
    }

    /// Notes that a key was read.
    pub fn note_read(&self, bucket: BucketId, key: &ObjectKey, now: Timestamp) {
        self.inner.ledger.note_read(bucket, key, now);
    }

    /// From now on these copies are not evicted, as far as they may be kept.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>) {
        self.inner.pins.lock().set(pins);
    }

    /// Bytes of blocks that who keeps books of them should have here at most, as things are: what is beyond
    /// goes by age, for edges take the rest, and where a file system has no holes what is dead among what
    /// lives does. Others may fill the disk, so it changes.
    #[must_use]
    pub fn blocks_bytes_max(&self) -> u64 {
        let (used_bytes, room_bytes) = self.inner.segments.fill();
        let percent = if self.inner.segments.has_holes() { BLOCKS_PERCENT } else { BLOCKS_PERCENT_NO_HOLES };
        (used_bytes + room_bytes) / 100 * percent
    }

    /// Bytes that may be pinned in all.
    #[must_use]
    pub fn pinned_bytes_max(&self) -> u64 {
        self.inner.capacity_bytes / 100 * PINNED_PERCENT_MAX
    }

    /// Forgets a key.
    pub fn forget(&self, bucket: BucketId, key: &ObjectKey) {
        self.inner.ledger.forget(bucket, key);
    }

    /// Where block `number` of an object is, if it is here.
    #[must_use]
    pub fn block(&self, object: &ObjectVersion, number: u64) -> Option<Vec<Extent>> {
        self.inner.ledger.extents_of(object, number)
    }

    /// Keeps block `number` of a body, whose bytes are `pieces` and that was fetched for that reason, unless
    /// there is no room, the flash budget is used up, or the key has another body by now.
    pub async fn keep(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        pieces: Vec<Bytes>,
        why: Why,
    ) -> Option<Vec<Extent>> {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if !self.inner.segments.flash().allows() {
            self.inner.refused_bytes.fetch_add(bytes, Relaxed);
            self.inner.decisions.record(&fetched(bucket, key, bytes, why, Outcome::OverBudget));
            return None;
        }
        if self.inner.is_too_full() {
            self.inner.wake.notify_one();
        }
        let first = number * COPY_BLOCK_BYTES;
        let Some((extents, _holds)) = self.append(bucket, key, object.body(), first, pieces).await else {
            self.inner.refused_bytes.fetch_add(bytes, Relaxed);
            self.inner.decisions.record(&fetched(bucket, key, bytes, why, Outcome::NoRoom));
            return None;
        };
        if !self.inner.ledger.keep((bucket, key), object, number, &extents) {
            return None;
        }
        self.inner.kept_bytes.fetch_add(bytes, Relaxed);
        self.inner.decisions.record(&fetched(bucket, key, bytes, why, Outcome::Done));
        Some(extents)
    }

    /// Appends a block. Its segments stay as long as the holds that come with its extents.
    async fn append(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
        mut first: u64,
        pieces: Vec<Bytes>,
    ) -> Option<(Vec<Extent>, Vec<Hold>)> {
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
                self.inner.ledger.bury(extents);
                return None;
            };
            extents.push(appended.extent);
            holds.push(appended.hold);
            first += bytes;
        }
        Some((extents, holds))
    }

    /// Reads `range` of what `extent` of `body` stores, whose first byte is byte `first` of the body.
    ///
    /// # Errors
    /// When it is not there any more, or not what was written: it is no copy.
    pub async fn read(
        &self,
        extent: &Extent,
        body: BodyId,
        first: u64,
        range: Range<u64>,
        turn: impl Into<Turn>,
    ) -> Result<Bytes, ReadError> {
        let turn = turn.into();
        read_through(&self.inner.memory, &self.inner.segments, extent, body, first, range, turn).await
    }

    /// Forgets block `number` of an object, because it could not be read where `extents` say. One that was
    /// kept anew since stays.
    pub fn lose_block(
        &self,
        place: (BucketId, &ObjectKey),
        object: &ObjectVersion,
        number: u64,
        extents: &[Extent],
    ) {
        self.inner.ledger.lose(place, object.body(), number, extents);
    }

    /// The blocks that are here, in the order of buckets and keys, a page behind `from`. Blocks the thread
    /// for a few milliseconds.
    #[must_use]
    pub fn kept_blocks(&self, from: Option<KeptCursor>) -> KeptPage {
        let (found, next) = known(walk::page(&self.inner.index, from)).unwrap_or_default();
        KeptPage { blocks: found.iter().map(walk::Found::kept).collect(), next }
    }

    /// Records that `count` copies of a bucket whose keys begin with `prefix` were let go of: of a job, all
    /// of them or those that nobody read.
    pub fn note_let_go(&self, bucket: BucketId, prefix: &str, gone: Gone, why: Why) {
        let Gone { kind, count, bytes } = gone;
        let (from, to, outcome) = (Place::Copies, Place::Nowhere, Outcome::Done);
        let what = What::Objects { bucket, count, prefix };
        self.inner.decisions.record(&Decided { kind, what, from, to, bytes, why, outcome });
    }

    /// The first `max` copies of a bucket whose keys begin with `prefix` and come behind `after`.
    #[must_use]
    pub fn list(
        &self,
        bucket: BucketId,
        prefix: &str,
        after: Option<&ObjectKey>,
        max: usize,
    ) -> Vec<(ObjectKey, Copy)> {
        known(self.inner.index.copies(bucket, prefix, after, max)).unwrap_or_default()
    }

    /// What is written to the flash that they are on.
    #[must_use]
    pub fn flash(&self) -> &Flash {
        self.inner.segments.flash()
    }

    /// The bytes of an object that are here.
    #[must_use]
    pub fn kept_bytes(&self, object: &ObjectVersion) -> u64 {
        if is_small(object) {
            return if object.extents.is_empty() { 0 } else { object.size };
        }
        let blocks = known(self.inner.index.blocks(object.body())).unwrap_or_default();
        blocks.iter().map(|number| block_bytes(object, *number)).sum()
    }

    /// What they hold and have done.
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
            cleaned_bytes: inner.cleaned_bytes.load(Relaxed),
            refused_bytes: inner.refused_bytes.load(Relaxed),
        }
    }

    /// Brings everything to the disk, so that the next start finds it.
    pub async fn shutdown(&self) {
        self.inner.give_back().await;
        self.inner.segments.clone().shutdown().await;
        if let Err(error) = self.inner.flush().await {
            tracing::warn!(%error, "the index of clean copies was not flushed");
        }
    }
}

/// What was let go of by a job.
#[derive(Clone, Copy, Debug)]
pub struct Gone {
    /// How it is called.
    pub kind: Kind,
    /// Objects.
    pub count: u64,
    /// Their bytes that were here.
    pub bytes: u64,
}

fn fetched(bucket: BucketId, key: &ObjectKey, bytes: u64, why: Why, outcome: Outcome) -> Decided<'_> {
    let (kind, from, to) = (Kind::Keep, Place::Origin, Place::Copies);
    Decided { kind, what: What::Object(bucket, key.as_str()), from, to, bytes, why, outcome }
}

/// Whether both are the same version of an object.
pub(crate) fn is_same(one: &ObjectVersion, other: &ObjectVersion) -> bool {
    one.etag == other.etag && one.size == other.size
}

/// An answer of the index; one that fails is logged, and nothing is known then.
fn known<T>(answer: Result<T, CleanIndexError>) -> Option<T> {
    answer.inspect_err(|error| tracing::warn!(%error, "clean copies are not used")).ok()
}

/// Takes the next chunk's bytes from pieces of any length, in a buffer of their own.
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
