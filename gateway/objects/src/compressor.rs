//! Compresses chunks before they are stored, on blocking threads. The number of chunks at a time is limited
//! to the number of processors.
//!
//! Invariant: the compressed chunk is charged to the account of its request. If the account has no free
//! memory, the chunk is stored uncompressed, so the compressor never waits for memory. All state is in
//! memory, so a power failure changes nothing.

use crate::memory::{Account, MemoryGrant, blocks_of};
use bytes::Bytes;
use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_zstd::compress;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::Semaphore;

/// Compresses chunks within a limit of concurrency. See the module.
#[derive(Debug)]
pub struct Compressor {
    /// Permits, one for each chunk in progress. A chunk takes its memory and the state of zstd, 3 MiB at
    /// most.
    permits: Arc<Semaphore>,
    counts: CompressionCounters,
}

#[derive(Debug, Default)]
struct CompressionCounters {
    logical_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    compressed: AtomicU64,
    incompressible: AtomicU64,
    no_memory: AtomicU64,
}

/// The settings for one chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkCompression {
    /// The effort, 1 to 19.
    pub level: u32,
    /// The minimum ratio. Below it the chunk is stored uncompressed. At 1 any gain is enough.
    pub ratio_min: f64,
}

impl ChunkCompression {
    /// Returns the settings for the first chunk of a body. It decides for the whole body, so it must reach
    /// the ratio of the rule.
    #[must_use]
    pub const fn of_sample(level: u32, min_ratio: f64) -> Self {
        Self { level, ratio_min: min_ratio }
    }

    /// Returns the settings for a chunk after the first, for which any gain is enough.
    #[must_use]
    pub const fn of_rest(level: u32) -> Self {
        Self { level, ratio_min: 1.0 }
    }
}

/// The settings for a body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compression {
    /// The effort, 1 to 19.
    pub level: u32,
    /// The ratio that the first chunk must reach. Below it the whole body is stored uncompressed.
    pub min_ratio: f64,
}

/// A compressed chunk with the memory that it takes.
pub struct CompressedChunk {
    /// The bytes to store.
    pub payload: Payload,
    /// Memory of the bytes until they are stored.
    pub memory: MemoryGrant,
}

#[expect(clippy::cast_precision_loss, reason = "a chunk is small")]
fn ratio(payload: &Payload) -> f64 {
    payload.logical_bytes() as f64 / payload.stored_bytes() as f64
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressorTotals {
    /// Bytes of chunks that became smaller, before compression.
    pub logical_bytes: u64,
    /// Bytes of the same chunks after compression.
    pub stored_bytes: u64,
    /// Chunks that became smaller.
    pub compressed: u64,
    /// Chunks that did not become smaller, or not by enough.
    pub incompressible: u64,
    /// Chunks for which there was no memory.
    pub no_memory: u64,
}

impl Default for Compressor {
    /// Returns a compressor for as many chunks at a time as there are processors.
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Compressor {
    /// Returns a compressor for a number of chunks at a time, at least one.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(places.max(1))), counts: CompressionCounters::default() }
    }

    /// Returns `chunk` compressed, or `None` if it misses the ratio or no memory is free for it.
    pub async fn compress(
        &self,
        chunk: &Bytes,
        how: ChunkCompression,
        memory: &Account,
    ) -> Option<CompressedChunk> {
        let payload = self.compress_unaccounted(chunk, how).await?;
        let Some(held) = memory.try_reserve(blocks_of(payload.stored_bytes() as u64)) else {
            self.counts.no_memory.fetch_add(1, Relaxed);
            return None;
        };
        Some(CompressedChunk { payload, memory: held })
    }

    /// Compresses a chunk like [`Compressor::compress`], for a caller with one chunk at a time and no
    /// account.
    pub async fn compress_unaccounted(&self, chunk: &Bytes, how: ChunkCompression) -> Option<Payload> {
        let place = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        let bytes = chunk.clone();
        let compressed = tokio::task::spawn_blocking(move || {
            let compressed = compress(&bytes, how.level);
            // The permit ends with the work, even if the caller is gone.
            drop(place);
            compressed
        });
        let payload = compressed.await.ok().flatten().filter(|payload| ratio(payload) >= how.ratio_min);
        if payload.is_none() {
            self.counts.incompressible.fetch_add(1, Relaxed);
        }
        payload
    }

    /// Counts a chunk that is stored compressed.
    pub fn count_stored(&self, payload: &Payload) {
        self.counts.logical_bytes.fetch_add(payload.logical_bytes() as u64, Relaxed);
        self.counts.stored_bytes.fetch_add(payload.stored_bytes() as u64, Relaxed);
        self.counts.compressed.fetch_add(1, Relaxed);
    }

    /// Returns the totals.
    #[must_use]
    pub fn metrics(&self) -> CompressorTotals {
        let CompressionCounters { logical_bytes, stored_bytes, compressed, incompressible, no_memory } =
            &self.counts;
        CompressorTotals {
            logical_bytes: logical_bytes.load(Relaxed),
            stored_bytes: stored_bytes.load(Relaxed),
            compressed: compressed.load(Relaxed),
            incompressible: incompressible.load(Relaxed),
            no_memory: no_memory.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ChunkCompression, Compressor, CompressorTotals, ratio};
    use crate::memory::RequestMemory;
    use bytes::Bytes;
    use mlgw_common::limits::CHUNK_BYTES_MAX;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn a_chunk_is_compressed_within_granted_memory_or_stored_uncompressed() {
        let (compressor, memory) = (Compressor::new(2), RequestMemory::new(0, 100, None));
        let (account, other) =
            (memory.account(Ipv4Addr::LOCALHOST.into()), memory.account([10, 0, 0, 1].into()));
        let how = ChunkCompression::of_sample(3, 1.5);
        let text = Bytes::from(b"the same again and again, ".repeat(40_000));
        assert!(text.len() as u64 <= CHUNK_BYTES_MAX);
        let packed = compressor.compress(&text, how, &account).await.unwrap();
        assert!(ratio(&packed.payload) > 100.0 && packed.memory.blocks() == 1, "{:?}", packed.payload);
        compressor.count_stored(&packed.payload);
        drop(packed);
        let taken: Vec<_> = [&account, &other]
            .into_iter()
            .flat_map(|who| std::iter::from_fn(|| who.try_reserve(1)))
            .collect();
        assert!(
            !taken.is_empty() && compressor.compress(&text, how, &account).await.is_none(),
            "nothing is left"
        );
        drop(taken);
        assert!(compressor.compress(&Bytes::from_static(b"q"), how, &account).await.is_none());
        let metrics = compressor.metrics();
        let expected = CompressorTotals {
            logical_bytes: text.len() as u64,
            stored_bytes: metrics.stored_bytes,
            compressed: 1,
            incompressible: 1,
            no_memory: 1,
        };
        assert!(metrics == expected && metrics.stored_bytes > 0, "{metrics:?}");
    }
}
