//! How a chunk of a body becomes what is stored of it, where rules want it compressed.

use crate::compressor::{Compression, Compressor, How};
use crate::memory::{Account, Held};
use mlgw_tiering::Chunk;
use std::sync::Arc;

/// Compresses a chunk.
pub(super) struct Packing {
    pub(super) compressor: Arc<Compressor>,
    pub(super) memory: Account,
    pub(super) compression: Compression,
}

impl Packing {
    /// The chunk as it is to be stored, and the memory that this takes beside the chunk until it is; none where it stays as it came: the first
    /// of a body where that gains less than it has to, any other where it gains nothing.
    pub(super) async fn pack(self, mut chunk: Chunk) -> (Chunk, Option<Held>) {
        let Compression { level, min_ratio } = self.compression;
        let how = How::of(level, min_ratio, chunk.offset == 0);
        let packed = self.compressor.compress(chunk.data.stored(), how, &self.memory).await;
        let Some(packed) = packed else { return (chunk, None) };
        self.compressor.stored(&packed.payload);
        chunk.data = packed.payload;
        (chunk, Some(packed.memory))
    }
}
