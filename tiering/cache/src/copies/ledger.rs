//! Ledger of kept blocks: their rows, their names, and the live bytes of each segment.
//!
//! Invariants: a kept block has its row, the row of its id and its share of the live bytes of its segments,
//! all written atomically. The listener ([`LostBlockListener`]) is notified of each block that is removed for
//! another reason than an eviction by id, in the order in which blocks are added and removed. Records that
//! nothing names are remembered until their disk space is reclaimed, up to a limit; records beyond it are
//! reclaimed with their segment.
//!
//! After a power failure the index is in the state of its last flush, with each change complete. Blocks that
//! it names and that are not on disk do not verify.

use super::segment_map::{CopyMap, LiveByteChanges};
use super::{block_id, is_same_version, ok_or_log};
use mlgw_common::ObjectKey;
use mlgw_common::Timestamp;
use mlgw_common::ids::{BodyId, BucketId, SegmentId};
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_formats::schema::{BlockName, CopyRecord, Extent, ObjectVersion};
use mlgw_metadata::clean::CLEAN_BODY;
use mlgw_metadata::{CleanBatch, CleanIndex};
use mlgw_segments::hot::{SegmentChunk, SegmentMap as _};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of blocks of one body that are removed in one change.
const BLOCKS_PER_CHANGE: usize = 1000;
/// Maximum number of remembered records without a name: 6 MiB of memory, the blocks of 64 GiB.
const DEAD_MAX: usize = 1 << 16;

/// Listener that accounts for the kept blocks.
pub trait LostBlockListener: Send + Sync {
    /// Reports that a block was removed without an eviction by id: its key was forgotten, it could not be
    /// read, or the disk is full. Called before any block is kept under the same id again. Called with a lock
    /// held: it must not block, and must not call the store.
    fn on_lost(&self, id: u64);
}

/// Block that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemovedCopyBlock {
    pub(super) bucket: BucketId,
    pub(super) id: u64,
    /// Bytes of the block.
    pub(super) bytes: u64,
}

/// Ledger of kept blocks.
pub(super) struct CopyLedger {
    index: Arc<CleanIndex>,
    map: Arc<CopyMap>,
    listener: Option<Arc<dyn LostBlockListener>>,
    /// Held while rows are compared and set; never held across slow operations.
    change_lock: Mutex<()>,
    /// Records that nothing names any more.
    dead_records: Mutex<Vec<Extent>>,
    /// Number of bodies that were given descending ids because the index failed to provide one.
    unindexed_bodies: AtomicU64,
}

/// Change of the ledger that is being assembled.
#[derive(Default)]
struct LedgerChange {
    batch: CleanBatch,
    counts: LiveByteChanges,
    removed: Vec<RemovedCopyBlock>,
    dead: Vec<Extent>,
}

impl LedgerChange {
    /// Removes a block, except for its own row.
    fn remove_named(
        &mut self,
        bucket: BucketId,
        key: &ObjectKey,
        number: u64,
        bytes: u64,
        extents: Vec<Extent>,
    ) {
        let id = block_id(bucket, key, number);
        self.batch.name(id, None);
        self.mark_dead(extents);
        self.removed.push(RemovedCopyBlock { bucket, id, bytes });
    }

    fn mark_dead(&mut self, extents: Vec<Extent>) {
        self.counts.subtract(&extents);
        self.dead.extend(extents);
    }

    /// Removes a block whose copy is known.
    fn remove_block(
        &mut self,
        bucket: BucketId,
        key: &ObjectKey,
        copy: &CopyRecord,
        number: u64,
        extents: Vec<Extent>,
    ) {
        if is_single_block(&copy.object) {
            let mut copy = copy.clone();
            copy.object.extents.clear();
            self.batch.copy(bucket, key, Some(&copy));
        } else {
            self.batch.block(copy.object.body(), number, None);
        }
        self.remove_named(bucket, key, number, block_bytes(&copy.object, number), extents);
    }
}

impl CopyLedger {
    pub(super) fn new(
        index: Arc<CleanIndex>,
        map: Arc<CopyMap>,
        lost: Option<Arc<dyn LostBlockListener>>,
    ) -> Self {
        let (changes, dead, unkept) = Default::default();
        Self {
            index,
            map,
            listener: lost,
            change_lock: changes,
            dead_records: dead,
            unindexed_bodies: unkept,
        }
    }

    /// True if a listener accounts for blocks and evicts them in time.
    pub(super) fn has_listener(&self) -> bool {
        self.listener.is_some()
    }

    /// Records metadata from the origin; see [`super::Copies::record_metadata`].
    pub(super) fn record_metadata(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        record: CopyRecord,
    ) -> CopyRecord {
        let recorded = self.try_record_metadata(bucket, key, record.clone());
        recorded.unwrap_or_else(|| {
            let mut copy = record;
            copy.object.body_id = CLEAN_BODY | !self.unindexed_bodies.fetch_add(1, Relaxed) >> 1;
            copy.object.extents.clear();
            copy
        })
    }

    fn try_record_metadata(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        mut copy: CopyRecord,
    ) -> Option<CopyRecord> {
        let _alone = self.change_lock.lock();
        let mut draft = LedgerChange::default();
        match ok_or_log(self.index.copy(bucket, key))? {
            Some(before) if is_same_version(&before.object, &copy.object) => {
                copy.object.body_id = before.object.body_id;
                copy.object.extents = before.object.extents;
                copy.read_ms = copy.read_ms.max(before.read_ms);
                if !copy.with_checksums {
                    copy.object.checksums = before.object.checksums;
                    copy.with_checksums = before.with_checksums;
                }
            }
            other => {
                copy.object.body_id = ok_or_log(self.index.next_body())?.0;
                copy.object.extents.clear();
                if let Some(before) = other {
                    draft = self.without_blocks(bucket, key, &before)?;
                }
            }
        }
        draft.batch.copy(bucket, key, Some(&copy));
        self.commit(draft)?;
        Some(copy)
    }

    /// Records the time of a read.
    pub(super) fn record_read(&self, bucket: BucketId, key: &ObjectKey, now: Timestamp) {
        let _alone = self.change_lock.lock();
        if let Some(Some(mut copy)) = ok_or_log(self.index.copy(bucket, key)) {
            copy.read_ms = now.as_millis();
            let mut draft = LedgerChange::default();
            draft.batch.copy(bucket, key, Some(&copy));
            self.commit(draft);
            // The row was read, so it is loaded into memory.
            ok_or_log(self.index.copy(bucket, key));
        }
    }

    /// Records the extents of an appended block, unless the key has another body by now, or another block has
    /// its id. Returns true if the block is kept.
    pub(super) fn keep(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        extents: &[Extent],
    ) -> bool {
        let kept = self.try_keep(bucket, key, object, number, extents);
        if kept.is_none() {
            self.mark_dead(extents.to_vec());
        }
        kept.is_some()
    }

    fn try_keep(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        number: u64,
        extents: &[Extent],
    ) -> Option<()> {
        let _alone = self.change_lock.lock();
        let mut copy = ok_or_log(self.index.copy(bucket, key))??;
        let is_there = |extent: &Extent| self.map.location(extent.segment_id()).is_some();
        if copy.object.body_id != object.body_id || !extents.iter().all(is_there) {
            return None;
        }
        let name = BlockName { bucket: bucket.0, key: key.as_str().to_owned(), number };
        let id = block_id(bucket, key, number);
        if ok_or_log(self.index.name(id))?.is_some_and(|other| other != name) {
            return None;
        }
        let mut draft = LedgerChange::default();
        draft.mark_dead(self.extents_of(&copy.object, number).unwrap_or_default());
        draft.counts.add(extents);
        draft.batch.name(id, Some(&name));
        if is_single_block(object) {
            copy.object.extents = extents.to_vec();
            draft.batch.copy(bucket, key, Some(&copy));
        } else {
            draft.batch.block(object.body(), number, Some(extents.to_vec()));
        }
        self.commit(draft)
    }

    /// Forgets a key.
    pub(super) fn forget(&self, bucket: BucketId, key: &ObjectKey) {
        let _alone = self.change_lock.lock();
        if let Some(Some(before)) = ok_or_log(self.index.copy(bucket, key))
            && let Some(mut draft) = self.without_blocks(bucket, key, &before)
        {
            draft.batch.copy(bucket, key, None);
            self.commit(draft);
        }
    }

    /// Forgets a block if it is at `extents`. Returns the number of bytes.
    pub(super) fn invalidate(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
        number: u64,
        extents: &[Extent],
    ) -> Option<u64> {
        let _alone = self.change_lock.lock();
        let copy = ok_or_log(self.index.peek(bucket, key))??;
        let now = self.extents_of(&copy.object, number)?;
        // A block that was kept again since then stays.
        if copy.object.body() != body || !now.iter().any(|extent| extents.contains(extent)) {
            return None;
        }
        let mut draft = LedgerChange::default();
        draft.remove_block(bucket, key, &copy, number, now);
        let bytes = draft.removed.iter().map(|gone| gone.bytes).sum();
        self.commit(draft).map(|()| bytes)
    }

    /// Forgets blocks by their ids, except for those that `stays` exempts. The caller accounts for them, so
    /// the listener is not notified.
    pub(super) fn evict(&self, ids: &[u64], stays: &dyn Fn(u64) -> bool) -> Vec<RemovedCopyBlock> {
        let _alone = self.change_lock.lock();
        let mut draft = LedgerChange::default();
        // Each id is handled once: a duplicate would be counted twice.
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        for id in ids.into_iter().filter(|id| !stays(*id)) {
            let Some(Some(name)) = ok_or_log(self.index.name(id)) else { continue };
            draft.batch.name(id, None);
            let Ok(key) = ObjectKey::new(&name.key) else { continue };
            let bucket = BucketId(name.bucket);
            if let Some(Some(copy)) = ok_or_log(self.index.peek(bucket, &key))
                && let Some(extents) = self.extents_of(&copy.object, name.number)
            {
                draft.remove_block(bucket, &key, &copy, name.number, extents);
            }
        }
        self.write(draft).unwrap_or_default()
    }

    /// Returns the extent that refers to a chunk of `segment`, if there is one.
    pub(super) fn extent_of(&self, chunk: &SegmentChunk, segment: SegmentId) -> Option<Extent> {
        let (_, extents) = self.copy_and_extents(chunk)?;
        extents.into_iter().find(|extent| extent.segment == segment.0 && extent.offset == chunk.offset)
    }

    /// Replaces the extent of a chunk by compare and set. Returns true if it was replaced.
    pub(super) fn replace(&self, chunk: &SegmentChunk, from: &Extent, to: &Extent) -> bool {
        let replaced = self.try_replace(chunk, from, to);
        if replaced.is_none() {
            self.mark_dead(vec![to.clone()]);
        }
        replaced.is_some()
    }

    fn try_replace(&self, chunk: &SegmentChunk, from: &Extent, to: &Extent) -> Option<()> {
        let _alone = self.change_lock.lock();
        let (mut copy, mut extents) = self.copy_and_extents(chunk)?;
        self.map.location(to.segment_id())?;
        let at = extents.iter().position(|extent| extent == from)?;
        extents[at] = to.clone();
        let mut draft = LedgerChange::default();
        draft.mark_dead(vec![from.clone()]);
        draft.counts.add(std::slice::from_ref(to));
        if is_single_block(&copy.object) {
            copy.object.extents = extents;
            draft.batch.copy(chunk.bucket, &chunk.key, Some(&copy));
        } else {
            draft.batch.block(chunk.body, chunk.first / COPY_BLOCK_BYTES, Some(extents));
        }
        self.commit(draft)
    }

    /// Forgets a sealed segment without live records. Returns true if it was forgotten.
    pub(super) fn remove_if_empty(&self, segment: SegmentId) -> bool {
        let _alone = self.change_lock.lock();
        self.is_empty(segment) && ok_or_log(self.map.remove(segment)).is_some()
    }

    /// Forgets a segment, whatever its live bytes. Returns true if it was forgotten.
    pub(super) fn drop_segment(&self, segment: SegmentId) -> bool {
        let _alone = self.change_lock.lock();
        ok_or_log(self.map.remove(segment)).is_some()
    }

    /// True if a segment is sealed and has no live records.
    pub(super) fn is_empty(&self, segment: SegmentId) -> bool {
        let segment = self.map.segment(segment);
        segment.is_some_and(|segment| segment.length.is_some() && segment.live_bytes == 0)
    }

    /// Takes the records that nothing names.
    pub(super) fn take_dead(&self) -> Vec<Extent> {
        std::mem::take(&mut *self.dead_records.lock())
    }

    /// Remembers records that nothing will name.
    pub(super) fn mark_dead(&self, extents: Vec<Extent>) {
        let mut dead = self.dead_records.lock();
        let room = DEAD_MAX.saturating_sub(dead.len());
        dead.extend(extents.into_iter().take(room));
    }

    /// Returns the copy to which a chunk belongs, and the extents of the chunk's block.
    fn copy_and_extents(&self, chunk: &SegmentChunk) -> Option<(CopyRecord, Vec<Extent>)> {
        let copy = ok_or_log(self.index.peek(chunk.bucket, &chunk.key))??;
        if copy.object.body() != chunk.body {
            return None;
        }
        let extents = self.extents_of(&copy.object, chunk.first / COPY_BLOCK_BYTES)?;
        Some((copy, extents))
    }

    /// Returns the extents of a block, if it is kept.
    pub(super) fn extents_of(&self, object: &ObjectVersion, number: u64) -> Option<Vec<Extent>> {
        if is_single_block(object) {
            return (number == 0 && !object.extents.is_empty()).then(|| object.extents.clone());
        }
        ok_or_log(self.index.block(object.body(), number)).flatten()
    }

    /// Builds a change that removes all blocks of a copy; what exceeds one change is committed at once. The
    /// row of the copy is left to the caller.
    fn without_blocks(&self, bucket: BucketId, key: &ObjectKey, copy: &CopyRecord) -> Option<LedgerChange> {
        let object = &copy.object;
        loop {
            let blocks = if is_single_block(object) {
                self.extents_of(object, 0).map(|extents| (0, extents)).into_iter().collect()
            } else {
                ok_or_log(self.index.blocks_from(object.body(), 0, BLOCKS_PER_CHANGE))?
            };
            let is_all = blocks.len() < BLOCKS_PER_CHANGE;
            let mut draft = LedgerChange::default();
            for (number, extents) in blocks {
                if !is_single_block(object) {
                    draft.batch.block(object.body(), number, None);
                }
                draft.remove_named(bucket, key, number, block_bytes(object, number), extents);
            }
            if is_all {
                return Some(draft);
            }
            self.commit(draft)?;
        }
    }

    /// Commits a change, and notifies the listener of the removed blocks.
    fn commit(&self, draft: LedgerChange) -> Option<()> {
        let removed = self.write(draft)?;
        if let Some(listener) = &self.listener {
            removed.iter().for_each(|gone| listener.on_lost(gone.id));
        }
        Some(())
    }

    /// Commits a change without notifying the listener. Returns the removed blocks.
    fn write(&self, draft: LedgerChange) -> Option<Vec<RemovedCopyBlock>> {
        ok_or_log(self.map.write(draft.batch, &draft.counts))?;
        self.mark_dead(draft.dead);
        Some(draft.removed)
    }
}

/// True if an object is one block, whose extents are stored in its copy.
pub(super) fn is_single_block(object: &ObjectVersion) -> bool {
    object.size <= COPY_BLOCK_BYTES
}

/// Returns the bytes of block `number` of an object.
pub(super) fn block_bytes(object: &ObjectVersion, number: u64) -> u64 {
    COPY_BLOCK_BYTES.min(object.size.saturating_sub(number.saturating_mul(COPY_BLOCK_BYTES)))
}
