//! Clean copies of origins' objects on this node's disk: what was fetched once and may be fetched again.
//!
//! Bytes are in segments like those of the hot tier, with a lane, a capacity and ids of their own; an index beside them, outside Raft,
//! says what is where. Always: what the index names was appended whole, and every byte that is read is verified. A copy
//! that does not verify, or whose segment is gone, is no copy: it is fetched again.
//!
//! Nothing waits for a sync. When power fails, what was not on the disk is no copy any more.

mod evict;
mod map;
mod pins;

pub use pins::PinnedCopies;

use crate::decisions::{Decided, Decisions, Kind, Outcome, Place, What, Why};
use crate::fair::{DiskQueues, Lane};
use crate::flash::{Cause, Flash};
use crate::hot::{Chunk, ChunkAt, HotOptions, HotTier, OpenError, Placement, ReadError};
use crate::memory::MemoryTier;
use crate::tiers::read_through;
use bytes::{Bytes, BytesMut};
use map::CopyMap;
use mlgw_common::ids::{BodyId, BucketId, NodeId};
use mlgw_common::limits::{CHUNK_BYTES_MAX, COPY_BLOCK_BYTES, MIB, PINNED_PERCENT_MAX};
use mlgw_common::{Clock, ObjectKey, Timestamp};
use mlgw_metadata::clean::CLEAN_BODY;
use mlgw_metadata::schema::{Copy, Extent, ObjectVersion};
use mlgw_metadata::{CleanIndex, CleanIndexError, Durability};
use parking_lot::Mutex;
use pins::Pins;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::Notify;

/// Length of a segment of copies: so much goes at a time.
const SEGMENT_BYTES: u64 = 64 * MIB;

/// How clean copies are kept.
#[derive(Clone)]
pub struct CopiesOptions {
    /// Their directory; made when absent.
    pub dir: PathBuf,
    /// This node.
    pub node: NodeId,
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
}

/// Why clean copies were not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenCopiesError {
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
    /// Bytes of their segments.
    pub used_bytes: u64,
    /// Bytes that they may take.
    pub limit_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes that were kept.
    pub kept_bytes: u64,
    /// Bytes that were let go of to make room.
    pub evicted_bytes: u64,
    /// Bytes that were not kept because there was no room.
    pub refused_bytes: u64,
}

/// Clean copies. Clones are the same.
#[derive(Clone)]
pub struct Copies {
    inner: Arc<Inner>,
}

struct Inner {
    index: Arc<CleanIndex>,
    map: Arc<CopyMap>,
    segments: HotTier,
    memory: MemoryTier,
    capacity_bytes: u64,
    decisions: Decisions,
    /// Held while rows are compared and set, never across anything slow.
    changes: Mutex<()>,
    /// Held while segments go.
    evicting: tokio::sync::Mutex<()>,
    pins: Mutex<Pins>,
    /// Has room be made.
    wake: Arc<Notify>,
    kept_bytes: AtomicU64,
    evicted_bytes: AtomicU64,
    refused_bytes: AtomicU64,
    /// Bodies that were given ids downwards, because the index gave none.
    unkept: AtomicU64,
}

impl Copies {
    /// Opens what is there, or begins it. Called within a tokio runtime.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub async fn open(options: CopiesOptions, memory: MemoryTier) -> Result<Self, OpenCopiesError> {
        let index = Arc::new(CleanIndex::open(&options.dir, options.memory_bytes)?);
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
        let segments = HotTier::open_with(segments, map.clone()).await?;
        let inner = Arc::new(Inner {
            index,
            map,
            segments,
            memory,
            capacity_bytes: options.capacity_bytes,
            decisions: options.decisions,
            changes: Mutex::default(),
            evicting: tokio::sync::Mutex::default(),
            pins: Mutex::default(),
            wake: Arc::default(),
            kept_bytes: AtomicU64::new(0),
            evicted_bytes: AtomicU64::new(0),
            refused_bytes: AtomicU64::new(0),
            unkept: AtomicU64::new(0),
        });
        tokio::spawn(evict::run(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// What is known of a key. An index that fails knows nothing.
    #[must_use]
    pub fn find(&self, bucket: BucketId, key: &ObjectKey) -> Option<Copy> {
        known(self.inner.index.copy(bucket, key)).flatten()
    }

    /// Notes what the origin says of a key. Bytes that are kept stay when its ETag and size are as before; otherwise it is another
    /// body. Returns what is known now. When the index fails nothing will be kept of it.
    pub fn note(&self, bucket: BucketId, key: &ObjectKey, said: Copy) -> Copy {
        let noted = self.try_note(bucket, key, said.clone());
        noted.unwrap_or_else(|| {
            let mut copy = said;
            copy.object.body_id = CLEAN_BODY | !self.inner.unkept.fetch_add(1, Relaxed) >> 1;
            copy.object.extents.clear();
            copy
        })
    }

    fn try_note(&self, bucket: BucketId, key: &ObjectKey, mut copy: Copy) -> Option<Copy> {
        let Inner { index, changes, .. } = &*self.inner;
        let _alone = changes.lock();
        let before = known(index.copy(bucket, key))?;
        match before {
            Some(before) if is_same(&before.object, &copy.object) => {
                copy.object.body_id = before.object.body_id;
                copy.object.extents = before.object.extents;
                copy.read_ms = copy.read_ms.max(before.read_ms);
                if !copy.with_checksums {
                    copy.object.checksums = before.object.checksums;
                    copy.with_checksums = before.with_checksums;
                }
            }
            other => {
                copy.object.body_id = known(index.next_body())?.0;
                copy.object.extents.clear();
                if let Some(before) = other {
                    known(index.remove_blocks(before.object.body()));
                }
            }
        }
        known(index.put_copy(bucket, key, &copy))?;
        Some(copy)
    }

    /// Notes that a key was read.
    pub fn note_read(&self, bucket: BucketId, key: &ObjectKey, now: Timestamp) {
        let Inner { index, changes, .. } = &*self.inner;
        let _alone = changes.lock();
        if let Some(Some(mut copy)) = known(index.copy(bucket, key)) {
            copy.read_ms = now.as_millis();
            known(index.put_copy(bucket, key, &copy));
            // Its row was read: it is to be in memory.
            known(index.copy(bucket, key));
        }
    }

    /// From now on these copies are not evicted, as far as they may be kept.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>) {
        self.inner.pins.lock().set(pins);
    }

    /// Bytes that may be pinned in all.
    #[must_use]
    pub fn pinned_bytes_max(&self) -> u64 {
        self.inner.capacity_bytes / 100 * PINNED_PERCENT_MAX
    }

    /// Removes the segments that nothing is in any more. Returns the bytes of copies' segments that are fewer.
    pub async fn release_dead(&self) -> u64 {
        let before = self.inner.segments.fill().0;
        self.inner.release_dead().await;
        before.saturating_sub(self.inner.segments.fill().0)
    }

    /// Forgets a key.
    pub fn forget(&self, bucket: BucketId, key: &ObjectKey) {
        let Inner { index, changes, .. } = &*self.inner;
        let _alone = changes.lock();
        if let Some(Some(before)) = known(index.copy(bucket, key)) {
            known(index.remove_copy(bucket, key));
            known(index.remove_blocks(before.object.body()));
        }
    }

    /// Where block `number` of an object is, if it is here.
    #[must_use]
    pub fn block(&self, object: &ObjectVersion, number: u64) -> Option<Vec<Extent>> {
        if object.size <= COPY_BLOCK_BYTES {
            return (number == 0 && !object.extents.is_empty()).then(|| object.extents.clone());
        }
        known(self.inner.index.block(object.body(), number)).flatten()
    }

    /// Keeps block `number` of a body, whose bytes are `pieces` and that was fetched for that reason, unless there is no room, the flash budget is
    /// used up, or the key has another body by now.
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
        let Some(extents) = self.append(bucket, key, object.body(), number * COPY_BLOCK_BYTES, pieces).await
        else {
            self.inner.refused_bytes.fetch_add(bytes, Relaxed);
            self.inner.decisions.record(&fetched(bucket, key, bytes, why, Outcome::NoRoom));
            return None;
        };
        let Inner { index, changes, kept_bytes, decisions, .. } = &*self.inner;
        let _alone = changes.lock();
        let mut copy = known(index.copy(bucket, key))??;
        if copy.object.body_id != object.body_id {
            return None;
        }
        if object.size <= COPY_BLOCK_BYTES {
            copy.object.extents.clone_from(&extents);
            known(index.put_copy(bucket, key, &copy))?;
        } else {
            known(index.put_block(object.body(), number, extents.clone()))?;
        }
        kept_bytes.fetch_add(bytes, Relaxed);
        decisions.record(&fetched(bucket, key, bytes, why, Outcome::Done));
        Some(extents)
    }

    async fn append(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
        mut first: u64,
        pieces: Vec<Bytes>,
    ) -> Option<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut pieces = VecDeque::from(pieces);
        while let Some(data) = take_chunk(&mut pieces) {
            let bytes = data.len() as u64;
            let placement = Placement::Shared;
            let chunk = Chunk { bucket, key: key.clone(), body, part: None, offset: first, data, placement };
            extents.push(self.inner.segments.append(chunk).await.ok()?.extent);
            first += bytes;
        }
        Some(extents)
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
        lane: Lane,
    ) -> Result<Bytes, ReadError> {
        read_through(&self.inner.memory, &self.inner.segments, extent, body, first, range, lane).await
    }

    /// Forgets block `number` of an object, because it could not be read.
    pub fn lose_block(&self, bucket: BucketId, key: &ObjectKey, object: &ObjectVersion, number: u64) {
        let Inner { index, changes, .. } = &*self.inner;
        let _alone = changes.lock();
        if object.size > COPY_BLOCK_BYTES {
            known(index.remove_block(object.body(), number));
        } else if let Some(Some(mut copy)) = known(index.copy(bucket, key))
            && copy.object.body_id == object.body_id
        {
            copy.object.extents.clear();
            known(index.put_copy(bucket, key, &copy));
        }
    }

    /// Records that `count` copies of a bucket whose keys begin with `prefix` were let go of: of a job, all of them or those that nobody read.
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
        if object.size <= COPY_BLOCK_BYTES {
            return if object.extents.is_empty() { 0 } else { object.size };
        }
        let blocks = known(self.inner.index.blocks(object.body())).unwrap_or_default();
        blocks.iter().map(|number| COPY_BLOCK_BYTES.min(object.size - number * COPY_BLOCK_BYTES)).sum()
    }

    /// What they hold and have done.
    #[must_use]
    pub fn metrics(&self) -> CopiesMetrics {
        let Inner { segments, map, capacity_bytes, kept_bytes, evicted_bytes, refused_bytes, .. } =
            &*self.inner;
        CopiesMetrics {
            used_bytes: segments.fill().0,
            limit_bytes: *capacity_bytes,
            segments: map.len() as u64,
            kept_bytes: kept_bytes.load(Relaxed),
            evicted_bytes: evicted_bytes.load(Relaxed),
            refused_bytes: refused_bytes.load(Relaxed),
        }
    }

    /// Brings everything to the disk, so that the next start finds it.
    pub async fn shutdown(&self) {
        self.inner.segments.clone().shutdown().await;
        if let Err(error) = self.inner.flush().await {
            tracing::warn!(%error, "the index of clean copies was not flushed");
        }
    }
}

impl Inner {
    /// The extents among which that of a chunk would be.
    fn extents_near(&self, chunk: &ChunkAt) -> Option<Vec<Extent>> {
        let copy = known(self.index.peek(chunk.bucket, &chunk.key))??;
        if copy.object.body() != chunk.body {
            return None;
        }
        if copy.object.size <= COPY_BLOCK_BYTES {
            return Some(copy.object.extents);
        }
        known(self.index.block(chunk.body, chunk.first / COPY_BLOCK_BYTES))?
    }

    /// Sets another extent for a chunk, by compare and set; or forgets the block that it is in. Says whether it is set.
    fn replace_extent(&self, chunk: &ChunkAt, from: &Extent, to: Option<&Extent>) -> bool {
        let _alone = self.changes.lock();
        let Some(mut extents) = self.extents_near(chunk) else { return false };
        let Some(at) = extents.iter().position(|extent| extent == from) else { return false };
        match to {
            Some(to) => extents[at] = to.clone(),
            None => extents.clear(),
        }
        let Some(Some(mut copy)) = known(self.index.peek(chunk.bucket, &chunk.key)) else { return false };
        if copy.object.size <= COPY_BLOCK_BYTES {
            copy.object.extents = extents;
            return known(self.index.put_copy(chunk.bucket, &chunk.key, &copy)).is_some();
        }
        let number = chunk.first / COPY_BLOCK_BYTES;
        known(match to {
            Some(_) => self.index.put_block(chunk.body, number, extents),
            None => self.index.remove_block(chunk.body, number),
        })
        .is_some()
    }
}

/// What was let go of.
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
