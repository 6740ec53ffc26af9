//! Compresses the chunks of a body that a rule selects.

use crate::compressor::{ChunkCompression, Compression, Compressor};
use crate::memory::{Account, MemoryGrant};
use mlgw_segments::hot::Chunk;
use std::sync::Arc;

/// Compresses a chunk.
pub(super) struct Packing {
    pub(super) compressor: Arc<Compressor>,
    pub(super) memory: Account,
    pub(super) compression: Compression,
}

impl Packing {
    /// Returns the chunk to store, and the memory that it takes beside the original until it is stored. The
    /// chunk is returned uncompressed if compression misses the ratio. The first chunk must reach the ratio
    /// of the rule. For other chunks any gain is enough.
    pub(super) async fn pack(self, mut chunk: Chunk) -> (Chunk, Option<MemoryGrant>) {
        let Compression { level, min_ratio } = self.compression;
        let how = match chunk.offset {
            0 => ChunkCompression::of_sample(level, min_ratio),
            _ => ChunkCompression::of_rest(level),
        };
        let packed = self.compressor.compress(chunk.data.stored(), how, &self.memory).await;
        let Some(packed) = packed else { return (chunk, None) };
        self.compressor.count_stored(&packed.payload);
        chunk.data = packed.payload;
        (chunk, Some(packed.memory))
    }
}
