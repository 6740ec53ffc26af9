//! The segments of clean copies: a map in memory, over the rows of the node's own index.
//!
//! With each segment goes how many bytes of it live: those of the records that copies name. Always: they are
//! written with the rows that change them, all or nothing, so that they agree also when power fails.

use mlgw_common::Timestamp;
use mlgw_common::ids::{Generation, SegmentId, SegmentSeed};
use mlgw_formats::schema::{CopySegment, Extent, SegmentClass};
use mlgw_metadata::{CleanBatch, CleanIndex, CleanIndexError};
use mlgw_segments::hot::{Later, MapError, NewSegment, OpenSegment, SegmentMap, Whereabouts};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Ids are never given twice, so a segment is only ever written once.
const SEED: SegmentSeed = SegmentSeed::unstamped(Generation(1));

/// What is known of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    /// Its length once it is sealed.
    pub(super) length: Option<u64>,
    /// Bytes of the records in it that copies name.
    pub(super) live_bytes: u64,
}

/// By how much what lives in segments changes.
#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<SegmentId, i64>);

impl Counts {
    /// These records are named from now on.
    pub(super) fn add(&mut self, extents: &[Extent]) {
        extents.iter().for_each(|extent| *self.of(extent) += record_bytes(extent));
    }

    /// These are not named any more.
    pub(super) fn take(&mut self, extents: &[Extent]) {
        extents.iter().for_each(|extent| *self.of(extent) -= record_bytes(extent));
    }

    fn of(&mut self, extent: &Extent) -> &mut i64 {
        self.0.entry(extent.segment_id()).or_default()
    }

    /// What is said of a segment.
    pub(super) fn in_segment(&self, segment: SegmentId) -> i64 {
        self.0.get(&segment).copied().unwrap_or(0)
    }
}

/// Bytes of the record that an extent names, its head included.
fn record_bytes(extent: &Extent) -> i64 {
    i64::from(extent.head_bytes) + extent.stored_bytes.cast_signed()
}

/// The segments of clean copies.
pub(super) struct CopyMap {
    index: Arc<CleanIndex>,
    /// Held while rows of segments are written, so that the last one says what is so.
    writing: Mutex<()>,
    segments: RwLock<BTreeMap<SegmentId, Segment>>,
}

impl CopyMap {
    pub(super) fn open(index: Arc<CleanIndex>) -> Result<Self, CleanIndexError> {
        let rows = index.segments()?;
        let segment = |row: &CopySegment| Segment {
            length: (row.length > 0).then_some(row.length),
            live_bytes: row.live_bytes.unwrap_or(0),
        };
        let segments = rows.iter().map(|row| (SegmentId(row.id), segment(row))).collect();
        Ok(Self { index, writing: Mutex::default(), segments: RwLock::new(segments) })
    }

    /// Changes the index and with it what lives in segments: all of it or nothing.
    pub(super) fn write(&self, mut batch: CleanBatch, counts: &Counts) -> Result<(), CleanIndexError> {
        let _alone = self.writing.lock();
        let changed = self.changed(counts);
        changed.iter().for_each(|(id, segment)| batch.segment(&row(*id, *segment)));
        self.index.write(&batch)?;
        self.segments.write().extend(changed);
        Ok(())
    }

    fn changed(&self, counts: &Counts) -> Vec<(SegmentId, Segment)> {
        let segments = self.segments.read();
        let counted = counts.0.iter().filter(|(_, bytes)| **bytes != 0);
        let changed = counted.filter_map(|(id, bytes)| {
            let segment = segments.get(id)?;
            Some((*id, Segment { live_bytes: segment.live_bytes.saturating_add_signed(*bytes), ..*segment }))
        });
        changed.collect()
    }

    /// The oldest segment behind `after` that is sealed.
    pub(super) fn oldest_sealed(&self, after: Option<SegmentId>) -> Option<SegmentId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let segments = self.segments.read();
        let sealed = segments.range((after, Bound::Unbounded)).find(|(_, segment)| segment.length.is_some());
        sealed.map(|(id, _)| *id)
    }

    /// All that are sealed.
    pub(super) fn sealed(&self) -> Vec<SegmentId> {
        self.all_sealed().map(|(id, _)| id).collect()
    }

    /// All that are sealed, with what is known of them.
    pub(super) fn all_sealed(&self) -> impl Iterator<Item = (SegmentId, Segment)> {
        let segments: Vec<_> = self.segments.read().iter().map(|(id, segment)| (*id, *segment)).collect();
        segments.into_iter().filter(|(_, segment)| segment.length.is_some())
    }

    /// What is known of a segment, if there is one.
    pub(super) fn segment(&self, id: SegmentId) -> Option<Segment> {
        self.segments.read().get(&id).copied()
    }

    /// How many there are, and the bytes that live in them.
    pub(super) fn totals(&self) -> (u64, u64) {
        let segments = self.segments.read();
        (segments.len() as u64, segments.values().map(|segment| segment.live_bytes).sum())
    }

    /// Forgets a segment.
    pub(super) fn remove(&self, segment: SegmentId) -> Result<(), CleanIndexError> {
        let _alone = self.writing.lock();
        self.index.remove_segment(segment)?;
        self.segments.write().remove(&segment);
        Ok(())
    }

    fn put(&self, id: SegmentId, length: Option<u64>) -> Result<(), CleanIndexError> {
        let _alone = self.writing.lock();
        let segment = Segment { length, ..self.segment(id).unwrap_or_default() };
        self.index.put_segment(&row(id, segment))?;
        self.segments.write().insert(id, segment);
        Ok(())
    }
}

fn row(id: SegmentId, segment: Segment) -> CopySegment {
    let Segment { length, live_bytes } = segment;
    let length = length.unwrap_or(0);
    CopySegment { id: id.0, generation: SEED.generation.0, length, live_bytes: Some(live_bytes) }
}

fn new_segment(id: SegmentId) -> NewSegment {
    NewSegment { id, seed: SEED, created: Timestamp(0) }
}

impl SegmentMap for CopyMap {
    fn create(&self, _class: SegmentClass) -> Later<'_, Result<NewSegment, MapError>> {
        let made = self.index.next_segment().and_then(|id| self.put(id, None).map(|()| new_segment(id)));
        Box::pin(async move { made.map_err(refused) })
    }

    fn seal(&self, id: SegmentId, length: u64) -> Later<'_, Result<(), MapError>> {
        let sealed = self.put(id, Some(length.max(1)));
        Box::pin(async move { sealed.map_err(refused) })
    }

    fn mark(&self, _id: SegmentId, _length: u64) -> Later<'_, Result<(), MapError>> {
        Box::pin(async { Ok(()) })
    }

    fn open_segments(&self) -> Result<Vec<OpenSegment>, MapError> {
        let segments = self.segments.read();
        let open = segments.iter().filter(|(_, segment)| segment.length.is_none());
        Ok(open
            .map(|(id, _)| OpenSegment { id: *id, seed: SEED, created: Timestamp(0), marked: 0 })
            .collect())
    }

    fn place(&self, id: SegmentId) -> Option<Whereabouts> {
        self.segments.read().contains_key(&id).then_some(Whereabouts { seed: SEED, created: None, tier: 0 })
    }

    /// A file without a row is a copy that the index has forgotten: it goes.
    fn was_minted(&self, _id: SegmentId) -> Result<bool, MapError> {
        Ok(true)
    }

    fn settle(&self) -> Result<(), MapError> {
        self.index.flush().map_err(refused)
    }
}

fn refused(error: CleanIndexError) -> MapError {
    MapError::Refused(error.to_string())
}
