//! Scan over all kept blocks: for the policy driver, and once over an index that was written before blocks
//! had names.
//!
//! Invariant: a scan returns every block that exists from its beginning to its end; a block that is added or
//! removed meanwhile may be returned or not.

use super::block_id;
use super::ledger::{block_bytes, is_single_block};
use super::segment_map::LiveByteChanges;
use mlgw_common::ObjectKey;
use mlgw_common::ids::{BodyId, BucketId, SegmentId};
use mlgw_formats::schema::{BlockName, CopyRecord, Extent};
use mlgw_metadata::{CleanBatch, CleanIndex, CleanIndexError};

/// Copies and blocks per page.
const PAGE: usize = 1000;

/// Kept block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBlock {
    /// Id; see [`crate::copies::block_id`].
    pub id: u64,
    /// Bucket of the object.
    pub bucket: BucketId,
    /// Key of the object.
    pub key: ObjectKey,
    /// Number of the block in the object.
    pub number: u64,
    /// Bytes of the block.
    pub bytes: u64,
    /// Bytes of the whole object.
    pub object_bytes: u64,
}

/// Page of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptPage {
    /// Blocks in the order of buckets, keys and numbers. A page may be empty although more follow.
    pub blocks: Vec<KeptBlock>,
    /// Cursor of the next page; `None` at the end.
    pub next: Option<KeptCursor>,
}

/// Position of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCursor {
    bucket: BucketId,
    key: ObjectKey,
    /// Next block of that key; `None` if the next key follows.
    number: Option<u64>,
}

/// Block with its extents.
pub(super) struct LocatedCopyBlock {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) copy: CopyRecord,
    pub(super) number: u64,
    pub(super) extents: Vec<Extent>,
}

impl LocatedCopyBlock {
    pub(super) fn summary(&self) -> KeptBlock {
        KeptBlock {
            id: block_id(self.bucket, &self.key, self.number),
            bucket: self.bucket,
            key: self.key.clone(),
            number: self.number,
            bytes: block_bytes(&self.copy.object, self.number),
            object_bytes: self.copy.object.size,
        }
    }
}

/// Returns a page of the blocks after `from`.
pub(super) fn page(
    index: &CleanIndex,
    from: Option<KeptCursor>,
) -> Result<(Vec<LocatedCopyBlock>, Option<KeptCursor>), CleanIndexError> {
    let mut found = Vec::new();
    if let Some(KeptCursor { bucket, key, number: Some(number) }) = &from
        && let Some(copy) = index.peek(*bucket, key)?
    {
        let more = blocks_of(index, *bucket, key, &copy, *number, &mut found)?;
        if more.is_some() {
            return Ok((found, more));
        }
    }
    let after = from.as_ref().map(|from| (from.bucket, &from.key));
    let copies = index.all_copies(after, PAGE)?;
    let is_last = copies.len() < PAGE;
    let mut next = None;
    for (bucket, key, copy) in copies {
        let more = blocks_of(index, bucket, &key, &copy, 0, &mut found)?;
        next = Some(KeptCursor { bucket, key, number: None });
        if more.is_some() {
            return Ok((found, more));
        }
    }
    Ok((found, next.filter(|_| !is_last)))
}

/// Adds the blocks of one copy from `number` on. Returns the cursor if the page is full.
fn blocks_of(
    index: &CleanIndex,
    bucket: BucketId,
    key: &ObjectKey,
    copy: &CopyRecord,
    number: u64,
    found: &mut Vec<LocatedCopyBlock>,
) -> Result<Option<KeptCursor>, CleanIndexError> {
    let blocks = if !is_single_block(&copy.object) {
        let body: BodyId = copy.object.body();
        index.blocks_from(body, number, PAGE.saturating_sub(found.len()).max(1))?
    } else if number == 0 && !copy.object.extents.is_empty() {
        vec![(0, copy.object.extents.clone())]
    } else {
        Vec::new()
    };
    for (number, extents) in blocks {
        found.push(LocatedCopyBlock { bucket, key: key.clone(), copy: copy.clone(), number, extents });
    }
    let last = found.last().map_or(0, |last| last.number);
    let is_full = found.len() >= PAGE;
    Ok(is_full.then(|| KeptCursor {
        bucket,
        key: key.clone(),
        number: (!is_single_block(&copy.object)).then_some(last + 1),
    }))
}

/// Migrates an index without block names: names all blocks, and counts the live bytes of their segments. Once
/// complete, the migration is not repeated.
pub(super) fn migrate_unnamed(index: &CleanIndex) -> Result<(), CleanIndexError> {
    let mut segments = index.segments()?;
    if segments.iter().all(|segment| segment.live_bytes.is_some()) {
        return Ok(());
    }
    tracing::info!(segments = segments.len(), "migrating the index of clean copies of an older version");
    let (mut counts, mut from) = (LiveByteChanges::default(), None);
    loop {
        let (found, next) = page(index, from)?;
        let mut batch = CleanBatch::default();
        for found in &found {
            name_block(index, found, &mut batch, &mut counts)?;
        }
        index.write(&batch)?;
        match next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    // The counts are written last and in one batch: an index with an uncounted segment is migrated again.
    let mut batch = CleanBatch::default();
    for segment in &mut segments {
        let live = counts.in_segment(SegmentId(segment.id));
        segment.live_bytes = Some(u64::try_from(live).unwrap_or(0));
        batch.segment(segment);
    }
    index.write(&batch)?;
    index.flush()
}

fn name_block(
    index: &CleanIndex,
    found: &LocatedCopyBlock,
    batch: &mut CleanBatch,
    counts: &mut LiveByteChanges,
) -> Result<(), CleanIndexError> {
    let LocatedCopyBlock { bucket, key, copy, number, extents } = found;
    let name = BlockName { bucket: bucket.0, key: key.as_str().to_owned(), number: *number };
    let id = block_id(*bucket, key, *number);
    if index.name(id)?.is_none_or(|other| other == name) {
        counts.add(extents);
        batch.name(id, Some(&name));
        return Ok(());
    }
    // Another block has this id: only one of the two could be evicted by id, so this one is removed.
    if is_single_block(&copy.object) {
        let mut copy = copy.clone();
        copy.object.extents.clear();
        batch.copy(*bucket, key, Some(&copy));
    } else {
        batch.block(copy.object.body(), *number, None);
    }
    Ok(())
}
