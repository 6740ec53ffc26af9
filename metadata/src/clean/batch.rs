//! Atomic batches of changes to the index of clean copies: all of them or none, also after a power loss.
//!
//! A block, the name of its id and the contents of its segment therefore change together.

use crate::view::RowChanges;
use mlgw_common::{BodyId, BucketId, ObjectKey, SegmentId};
use mlgw_formats::key::Family;
use mlgw_formats::schema::copy::{self, BlockName, CopyBlockRecord, CopyRecord, CopySegment};
use mlgw_formats::schema::{Extent, encode};

/// Changes that are made together.
#[derive(Clone, Debug, Default)]
pub struct CleanBatch {
    changes: RowChanges,
}

impl CleanBatch {
    /// Sets or removes the copy of a key.
    pub fn copy(&mut self, bucket: BucketId, key: &ObjectKey, copy: Option<&CopyRecord>) {
        self.changes.insert(copy::row(bucket, key.as_bytes()), copy.map(encode));
    }

    /// Sets or removes the extents of block `number` of a body.
    pub fn block(&mut self, body: BodyId, number: u64, extents: Option<Vec<Extent>>) {
        let block = extents.map(|extents| encode(&CopyBlockRecord { extents, parts: Vec::new() }));
        self.changes.insert(copy::block_row(body, number), block);
    }

    /// Sets or removes the block that an id names.
    pub fn name(&mut self, id: u64, name: Option<&BlockName>) {
        self.changes.insert(copy::name_row(id), name.map(encode));
    }

    /// Sets the record of a segment.
    pub fn segment(&mut self, segment: &CopySegment) {
        self.changes.insert(copy::segment_row(SegmentId(segment.id)), Some(encode(segment)));
    }

    pub(super) fn changes(&self) -> &RowChanges {
        &self.changes
    }

    /// The rows of copies that change.
    pub(super) fn copies(&self) -> impl Iterator<Item = &[u8]> {
        let rows = self.changes.range(Family::Copy.start()..Family::Copy.end());
        rows.map(|(row, _)| row.as_slice())
    }
}
