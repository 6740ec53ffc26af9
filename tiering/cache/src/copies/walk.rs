//! Walks over all blocks that are kept: for who keeps books of them, and once over an index that was written
//! before blocks had names.
//!
//! Always: a walk meets every block that is there from its beginning to its end; one that comes or goes
//! meanwhile may be met or not.

use super::block_id;
use super::ledger::{block_bytes, is_small};
use super::map::Counts;
use mlgw_common::ObjectKey;
use mlgw_common::ids::{BodyId, BucketId, SegmentId};
use mlgw_formats::schema::{BlockName, Copy, Extent};
use mlgw_metadata::{CleanBatch, CleanIndex, CleanIndexError};

/// Copies and blocks that are looked at in one step.
const PAGE: usize = 1000;

/// A block that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBlock {
    /// Its id; see [`crate::copies::block_id`].
    pub id: u64,
    /// The object's bucket.
    pub bucket: BucketId,
    /// The object's key.
    pub key: ObjectKey,
    /// The number of the block in the object.
    pub number: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of the whole object.
    pub object_bytes: u64,
}

/// A step of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptPage {
    /// Blocks, in the order of buckets, keys and numbers. There may be none though there are more behind.
    pub blocks: Vec<KeptBlock>,
    /// Where the next step begins; nothing at the end.
    pub next: Option<KeptCursor>,
}

/// How far a walk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCursor {
    bucket: BucketId,
    key: ObjectKey,
    /// The next block of that key; none when the next key is next.
    number: Option<u64>,
}

/// A block, and where it is.
pub(super) struct Found {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) copy: Copy,
    pub(super) number: u64,
    pub(super) extents: Vec<Extent>,
}

impl Found {
    pub(super) fn kept(&self) -> KeptBlock {
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

/// The blocks behind `from`, a page of them.
pub(super) fn page(
    index: &CleanIndex,
    from: Option<KeptCursor>,
) -> Result<(Vec<Found>, Option<KeptCursor>), CleanIndexError> {
    let mut found = Vec::new();
    if let Some(KeptCursor { bucket, key, number: Some(number) }) = &from
        && let Some(copy) = index.peek(*bucket, key)?
    {
        let more = blocks_of(index, (*bucket, key.clone(), copy), *number, &mut found)?;
        if more.is_some() {
            return Ok((found, more));
        }
    }
    let after = from.as_ref().map(|from| (from.bucket, &from.key));
    let copies = index.all_copies(after, PAGE)?;
    let is_last = copies.len() < PAGE;
    let mut next = None;
    for copy in copies {
        next = Some(KeptCursor { bucket: copy.0, key: copy.1.clone(), number: None });
        let more = blocks_of(index, copy, 0, &mut found)?;
        if more.is_some() {
            return Ok((found, more));
        }
    }
    Ok((found, next.filter(|_| !is_last)))
}

/// Adds the blocks of one copy from `number` on. Returns where to go on, when there are more than fit.
fn blocks_of(
    index: &CleanIndex,
    (bucket, key, copy): (BucketId, ObjectKey, Copy),
    number: u64,
    found: &mut Vec<Found>,
) -> Result<Option<KeptCursor>, CleanIndexError> {
    let blocks = if !is_small(&copy.object) {
        let body: BodyId = copy.object.body();
        index.blocks_from(body, number, PAGE.saturating_sub(found.len()).max(1))?
    } else if number == 0 && !copy.object.extents.is_empty() {
        vec![(0, copy.object.extents.clone())]
    } else {
        Vec::new()
    };
    for (number, extents) in blocks {
        found.push(Found { bucket, key: key.clone(), copy: copy.clone(), number, extents });
    }
    let last = found.last().map_or(0, |last| last.number);
    let is_full = found.len() >= PAGE;
    Ok(is_full.then(|| KeptCursor { bucket, key, number: (!is_small(&copy.object)).then_some(last + 1) }))
}

/// Gives names to blocks that were kept before they had any, and counts what lives in their segments. Once
/// done it is never done again.
pub(super) fn adopt(index: &CleanIndex) -> Result<(), CleanIndexError> {
    let mut segments = index.segments()?;
    if segments.iter().all(|segment| segment.live_bytes.is_some()) {
        return Ok(());
    }
    tracing::info!(segments = segments.len(), "clean copies of an older version get names");
    let (mut counts, mut from) = (Counts::default(), None);
    loop {
        let (found, next) = page(index, from)?;
        let mut batch = CleanBatch::default();
        for found in &found {
            name(index, found, &mut batch, &mut counts)?;
        }
        index.write(&batch)?;
        match next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    // Last, and at once: an index in which a segment is not counted is gone through anew.
    let mut batch = CleanBatch::default();
    for segment in &mut segments {
        let live = counts.in_segment(SegmentId(segment.id));
        segment.live_bytes = Some(u64::try_from(live).unwrap_or(0));
        batch.segment(segment);
    }
    index.write(&batch)?;
    index.flush()
}

fn name(
    index: &CleanIndex,
    found: &Found,
    batch: &mut CleanBatch,
    counts: &mut Counts,
) -> Result<(), CleanIndexError> {
    let Found { bucket, key, copy, number, extents } = found;
    let name = BlockName { bucket: bucket.0, key: key.as_str().to_owned(), number: *number };
    let id = block_id(*bucket, key, *number);
    if index.name(id)?.is_none_or(|other| other == name) {
        counts.add(extents);
        batch.name(id, Some(&name));
        return Ok(());
    }
    // Another block has its id: one of the two can be let go of, so the other must not be here.
    if is_small(&copy.object) {
        let mut copy = copy.clone();
        copy.object.extents.clear();
        batch.copy(*bucket, key, Some(&copy));
    } else {
        batch.block(copy.object.body(), *number, None);
    }
    Ok(())
}
