//! The tiers combined: a read tries memory first, then segments.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use mlgw_common::ids::BodyId;
use mlgw_formats::schema::Extent;

use crate::fair::ServiceClass;
use crate::hot::{HotTier, SegmentReadError};
use crate::memory::{MemoryTier, shorten_to};

/// All tiers of a node. Clones share them.
#[derive(Clone)]
pub struct Tiers {
    /// Cache in DRAM.
    pub memory: MemoryTier,
    /// Segments on the local disks and at the upstream.
    pub hot: HotTier,
}

impl Tiers {
    /// Combines both tiers. Chunks that are cached in memory count as hot when their segment is considered
    /// for a spill.
    #[must_use]
    pub fn new(memory: MemoryTier, hot: HotTier) -> Self {
        let held = memory.clone();
        hot.set_is_hot(Arc::new(move |body, first| held.contains(body, first)));
        Self { memory, hot }
    }

    /// Reads `range` (not empty, within the extent's logical bytes) of the data of `extent` of `body`; the
    /// extent begins at offset `first` of the body. Every byte was verified when it was read from a disk. A
    /// read that misses memory waits for the disk in the queue of `turn`.
    ///
    /// # Errors
    /// When the bytes cannot be read, or do not match their checksum.
    pub async fn read(
        &self,
        extent: &Extent,
        body: BodyId,
        first: u64,
        range: Range<u64>,
        turn: ServiceClass,
    ) -> Result<Bytes, SegmentReadError> {
        read_through(&self.memory, &self.hot, extent, body, first, range, turn).await
    }
}

/// Reads from memory, or else from segments, and caches small chunks in memory.
pub async fn read_through(
    memory: &MemoryTier,
    segments: &HotTier,
    extent: &Extent,
    body: BodyId,
    first: u64,
    range: Range<u64>,
    turn: ServiceClass,
) -> Result<Bytes, SegmentReadError> {
    if !memory.can_hold(extent.logical_bytes) || range.end > extent.logical_bytes {
        return segments.read(extent, body, range, turn).await;
    }
    if let Some(bytes) = memory.get(body, first, &range) {
        return Ok(bytes);
    }
    // The whole chunk is verified anyway, so reading all of it costs no more.
    let mut chunk = segments.read(extent, body, 0..extent.logical_bytes, turn).await?;
    memory.insert(body, first, chunk.clone());
    shorten_to(&mut chunk, &range).expect("the range is within the chunk");
    Ok(chunk)
}
