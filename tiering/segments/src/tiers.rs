//! The tiers as one: a read asks the fastest first.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use mlgw_common::ids::BodyId;
use mlgw_formats::schema::Extent;

use crate::fair::Turn;
use crate::hot::{HotTier, ReadError};
use crate::memory::{MemoryTier, cut};

/// All tiers of a node. Clones are the same tiers.
#[derive(Clone)]
pub struct Tiers {
    /// DRAM.
    pub memory: MemoryTier,
    /// Segments on the local disk.
    pub hot: HotTier,
}

impl Tiers {
    /// Both tiers as one. What is in memory stays hot when its segment is spilled: it is what is read.
    #[must_use]
    pub fn new(memory: MemoryTier, hot: HotTier) -> Self {
        let held = memory.clone();
        hot.set_is_hot(Arc::new(move |body, first| held.holds(body, first)));
        Self { memory, hot }
    }

    /// Reads `range` (not empty, within the extent's logical bytes) of what `extent` of `body` stores, whose
    /// first byte is byte `first` of the body. Every byte was verified when it came from a disk. What is not
    /// in memory waits for its `turn` at the disk.
    ///
    /// # Errors
    /// When they cannot be read, or are not what was written.
    pub async fn read(
        &self,
        extent: &Extent,
        body: BodyId,
        first: u64,
        range: Range<u64>,
        turn: Turn,
    ) -> Result<Bytes, ReadError> {
        read_through(&self.memory, &self.hot, extent, body, first, range, turn).await
    }
}

/// Reads from memory, or else from segments, and keeps what is small in memory.
pub async fn read_through(
    memory: &MemoryTier,
    segments: &HotTier,
    extent: &Extent,
    body: BodyId,
    first: u64,
    range: Range<u64>,
    turn: Turn,
) -> Result<Bytes, ReadError> {
    if !memory.takes(extent.logical_bytes) || range.end > extent.logical_bytes {
        return segments.read(extent, body, range, turn).await;
    }
    if let Some(bytes) = memory.get(body, first, &range) {
        return Ok(bytes);
    }
    // All of it is verified at once, so it costs no more to have all of it.
    let mut chunk = segments.read(extent, body, 0..extent.logical_bytes, turn).await?;
    memory.keep(body, first, chunk.clone());
    cut(&mut chunk, &range).expect("the range is within the chunk");
    Ok(chunk)
}
