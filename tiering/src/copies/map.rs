//! The segments of clean copies: a map in memory, over the rows of the node's own index.

use crate::hot::{Later, MapError, OpenSegment, SegmentMap, Whereabouts};
use mlgw_common::ids::{Generation, SegmentId};
use mlgw_metadata::schema::{CopySegment, SegmentClass};
use mlgw_metadata::{CleanIndex, CleanIndexError};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Ids are never given twice, so a segment is only ever written once.
const GENERATION: Generation = Generation(1);

/// The segments of clean copies.
pub(super) struct CopyMap {
    index: Arc<CleanIndex>,
    /// Each with its length once it is sealed.
    segments: RwLock<BTreeMap<SegmentId, Option<u64>>>,
}

impl CopyMap {
    pub(super) fn open(index: Arc<CleanIndex>) -> Result<Self, CleanIndexError> {
        let rows = index.segments()?;
        let length = |row: &CopySegment| (row.length > 0).then_some(row.length);
        let segments = rows.iter().map(|row| (SegmentId(row.id), length(row))).collect();
        Ok(Self { index, segments: RwLock::new(segments) })
    }

    /// The oldest segment behind `after` that is sealed.
    pub(super) fn oldest_sealed(&self, after: Option<SegmentId>) -> Option<SegmentId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let segments = self.segments.read();
        let sealed = segments.range((after, Bound::Unbounded)).find(|(_, length)| length.is_some());
        sealed.map(|(id, _)| *id)
    }

    /// All that are sealed.
    pub(super) fn sealed(&self) -> Vec<SegmentId> {
        self.segments.read().iter().filter(|(_, length)| length.is_some()).map(|(id, _)| *id).collect()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.segments.read().len()
    }

    /// Forgets a segment.
    pub(super) fn remove(&self, segment: SegmentId) -> Result<(), CleanIndexError> {
        self.index.remove_segment(segment)?;
        self.segments.write().remove(&segment);
        Ok(())
    }

    fn put(&self, id: SegmentId, length: Option<u64>) -> Result<(), CleanIndexError> {
        let row = CopySegment { id: id.0, generation: GENERATION.0, length: length.unwrap_or(0) };
        self.index.put_segment(&row)?;
        self.segments.write().insert(id, length);
        Ok(())
    }
}

impl SegmentMap for CopyMap {
    fn create(&self, _class: SegmentClass) -> Later<'_, Result<(SegmentId, Generation), MapError>> {
        let made = self.index.next_segment().and_then(|id| self.put(id, None).map(|()| (id, GENERATION)));
        Box::pin(async move { Ok(made?) })
    }

    fn seal(&self, id: SegmentId, length: u64) -> Later<'_, Result<(), MapError>> {
        let sealed = self.put(id, Some(length.max(1)));
        Box::pin(async move { Ok(sealed?) })
    }

    fn mark(&self, _id: SegmentId, _length: u64) -> Later<'_, Result<(), MapError>> {
        Box::pin(async { Ok(()) })
    }

    fn open_segments(&self) -> Result<Vec<OpenSegment>, MapError> {
        let segments = self.segments.read();
        let open = segments.iter().filter(|(_, length)| length.is_none());
        Ok(open.map(|(id, _)| OpenSegment { id: *id, generation: GENERATION, marked: 0 }).collect())
    }

    fn place(&self, id: SegmentId) -> Option<Whereabouts> {
        self.segments.read().contains_key(&id).then_some(Whereabouts { generation: GENERATION, tier: 0 })
    }

    /// A file without a row is a copy that the index has forgotten: it goes.
    fn was_minted(&self, _id: SegmentId) -> Result<bool, MapError> {
        Ok(true)
    }

    fn settle(&self) -> Result<(), MapError> {
        Ok(self.index.flush()?)
    }
}

impl From<CleanIndexError> for MapError {
    fn from(error: CleanIndexError) -> Self {
        Self::Refused(error.to_string())
    }
}
