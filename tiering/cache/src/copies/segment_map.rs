//! Segment map of clean copies: a map in memory over rows of the node's own index.
//!
//! Each segment has a count of live bytes: those of the records that copies name. Invariant: the counts are
//! written atomically with the rows that change them, so that both agree after a power failure.

use mlgw_common::ids::{Generation, NodeId, SegmentId, SegmentSeed};
use mlgw_common::{SegmentTier, Timestamp};
use mlgw_formats::schema::{CopySegment, Extent, Replica, SegmentClass};
use mlgw_metadata::{CleanBatch, CleanIndex, CleanIndexError};
use mlgw_segments::hot::{BoxFuture, MapError, NewSegment, OpenSegment, SegmentLocation, SegmentMap};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Ids are never reused, so a segment file is written only once.
const SEED: SegmentSeed = SegmentSeed::unstamped(Generation(1));

/// State of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CopySegmentState {
    /// Length, once the segment is sealed.
    pub(super) length: Option<u64>,
    /// Bytes of the records that copies name.
    pub(super) live_bytes: u64,
}

/// Changes of the live bytes of segments.
#[derive(Debug, Default)]
pub(super) struct LiveByteChanges(BTreeMap<SegmentId, i64>);

impl LiveByteChanges {
    /// Adds records that become named.
    pub(super) fn add(&mut self, extents: &[Extent]) {
        extents.iter().for_each(|extent| *self.of(extent) += record_bytes(extent));
    }

    /// Subtracts records that are no longer named.
    pub(super) fn subtract(&mut self, extents: &[Extent]) {
        extents.iter().for_each(|extent| *self.of(extent) -= record_bytes(extent));
    }

    fn of(&mut self, extent: &Extent) -> &mut i64 {
        self.0.entry(extent.segment_id()).or_default()
    }

    /// Returns the change of a segment.
    pub(super) fn in_segment(&self, segment: SegmentId) -> i64 {
        self.0.get(&segment).copied().unwrap_or(0)
    }
}

/// Returns the bytes of the record that an extent names, its head included.
fn record_bytes(extent: &Extent) -> i64 {
    i64::from(extent.head_bytes) + extent.stored_bytes.cast_signed()
}

/// Segment map of clean copies.
pub(super) struct CopyMap {
    index: Arc<CleanIndex>,
    /// Held while rows of segments are written, so that the last row written is the current state.
    write_lock: Mutex<()>,
    segments: RwLock<BTreeMap<SegmentId, CopySegmentState>>,
}

impl CopyMap {
    pub(super) fn open(index: Arc<CleanIndex>) -> Result<Self, CleanIndexError> {
        let rows = index.segments()?;
        let segment = |row: &CopySegment| CopySegmentState {
            length: (row.length > 0).then_some(row.length),
            live_bytes: row.live_bytes.unwrap_or(0),
        };
        let segments = rows.iter().map(|row| (SegmentId(row.id), segment(row))).collect();
        Ok(Self { index, write_lock: Mutex::default(), segments: RwLock::new(segments) })
    }

    /// Writes a batch to the index together with the changed live bytes, atomically.
    pub(super) fn write(
        &self,
        mut batch: CleanBatch,
        counts: &LiveByteChanges,
    ) -> Result<(), CleanIndexError> {
        let _alone = self.write_lock.lock();
        let changed = self.changed(counts);
        changed.iter().for_each(|(id, segment)| batch.segment(&row(*id, *segment)));
        self.index.write(&batch)?;
        self.segments.write().extend(changed);
        Ok(())
    }

    fn changed(&self, counts: &LiveByteChanges) -> Vec<(SegmentId, CopySegmentState)> {
        let segments = self.segments.read();
        let counted = counts.0.iter().filter(|(_, bytes)| **bytes != 0);
        let changed = counted.filter_map(|(id, bytes)| {
            let segment = segments.get(id)?;
            Some((
                *id,
                CopySegmentState { live_bytes: segment.live_bytes.saturating_add_signed(*bytes), ..*segment },
            ))
        });
        changed.collect()
    }

    /// Returns the oldest sealed segment after `after`.
    pub(super) fn oldest_sealed(&self, after: Option<SegmentId>) -> Option<SegmentId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let segments = self.segments.read();
        let sealed = segments.range((after, Bound::Unbounded)).find(|(_, segment)| segment.length.is_some());
        sealed.map(|(id, _)| *id)
    }

    /// Returns the ids of all sealed segments.
    pub(super) fn sealed(&self) -> Vec<SegmentId> {
        self.all_sealed().map(|(id, _)| id).collect()
    }

    /// Returns all sealed segments with their state.
    pub(super) fn all_sealed(&self) -> impl Iterator<Item = (SegmentId, CopySegmentState)> {
        let segments: Vec<_> = self.segments.read().iter().map(|(id, segment)| (*id, *segment)).collect();
        segments.into_iter().filter(|(_, segment)| segment.length.is_some())
    }

    /// Returns the state of a segment, if it exists.
    pub(super) fn segment(&self, id: SegmentId) -> Option<CopySegmentState> {
        self.segments.read().get(&id).copied()
    }

    /// Returns the number of segments, and the sum of their live bytes.
    pub(super) fn totals(&self) -> (u64, u64) {
        let segments = self.segments.read();
        (segments.len() as u64, segments.values().map(|segment| segment.live_bytes).sum())
    }

    /// Forgets a segment.
    pub(super) fn remove(&self, segment: SegmentId) -> Result<(), CleanIndexError> {
        let _alone = self.write_lock.lock();
        let is_open = self.segment(segment).is_some_and(|state| state.length.is_none());
        assert!(!is_open, "a segment is sealed before it is forgotten");
        self.index.remove_segment(segment)?;
        self.segments.write().remove(&segment);
        Ok(())
    }

    fn put(&self, id: SegmentId, length: Option<u64>) -> Result<(), CleanIndexError> {
        let _alone = self.write_lock.lock();
        let segment = CopySegmentState { length, ..self.segment(id).unwrap_or_default() };
        self.index.put_segment(&row(id, segment))?;
        self.segments.write().insert(id, segment);
        Ok(())
    }
}

fn row(id: SegmentId, segment: CopySegmentState) -> CopySegment {
    let CopySegmentState { length, live_bytes } = segment;
    let length = length.unwrap_or(0);
    CopySegment { id: id.0, generation: SEED.generation.0, length, live_bytes: Some(live_bytes) }
}

fn new_segment(id: SegmentId) -> NewSegment {
    NewSegment { id, seed: SEED, created: Timestamp(0) }
}

impl SegmentMap for CopyMap {
    fn create(
        &self,
        _class: SegmentClass,
        _set: u32,
        _followers: Vec<NodeId>,
        _write_quorum: u32,
    ) -> BoxFuture<'_, Result<NewSegment, MapError>> {
        let made = self.index.next_segment().and_then(|id| self.put(id, None).map(|()| new_segment(id)));
        Box::pin(async move { made.map_err(refused) })
    }

    fn seal(
        &self,
        id: SegmentId,
        length: u64,
        _replicas: Vec<Replica>,
    ) -> BoxFuture<'_, Result<(), MapError>> {
        let sealed = self.put(id, Some(length.max(1)));
        Box::pin(async move { sealed.map_err(refused) })
    }

    fn mark(&self, _id: SegmentId, _length: u64) -> BoxFuture<'_, Result<(), MapError>> {
        Box::pin(async { Ok(()) })
    }

    fn open_segments(&self) -> Result<Vec<OpenSegment>, MapError> {
        let segments = self.segments.read();
        let open = segments.iter().filter(|(_, segment)| segment.length.is_none());
        Ok(open
            .map(|(id, _)| OpenSegment { id: *id, seed: SEED, created: Timestamp(0), marked: 0 })
            .collect())
    }

    fn location(&self, id: SegmentId) -> Option<SegmentLocation> {
        self.segments.read().contains_key(&id).then_some(SegmentLocation {
            seed: SEED,
            created: None,
            tier: SegmentTier::Hot,
        })
    }

    /// A file without a row is a copy that the index has forgotten, so it is removed.
    fn was_minted(&self, _id: SegmentId) -> Result<bool, MapError> {
        Ok(true)
    }

    fn sync(&self) -> Result<(), MapError> {
        self.index.flush().map_err(refused)
    }
}

fn refused(error: CleanIndexError) -> MapError {
    MapError::Refused(error.to_string())
}
