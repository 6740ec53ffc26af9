//! The memory tier: a DRAM cache of small, verified chunks.
//!
//! The key of a chunk is its body and its offset in the body. A body never changes and its id is never
//! reused, so an entry is never stale: chunks of replaced or deleted objects are no longer requested and are
//! evicted as others are added. Compaction does not change the key. Only verified bytes are added. Nothing is
//! on disk: after a restart the cache is empty.
//!
//! The size is bounded in bytes, bookkeeping included. The eviction policy is Clock-PRO (Jiang, Chen and
//! Zhang, 2005), which resists scans larger than the cache. Larger chunks are left to the page cache, where a
//! read costs less than the verification of its bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use mlgw_common::ids::BodyId;
use mlgw_common::limits::{BLOCK_BYTES, MIB};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// Bytes of memory per chunk in addition to its own: the record header, in front of the chunk in the same
/// buffer; the buffer's reference count; the chunk's entry in a list and its slot in a hash table, each of
/// which may be half empty; and half as many entries of evicted chunks. The allocator's rounding of up to an
/// eighth is added by [`ChunkWeigher`].
const OVERHEAD_BYTES: u64 = 384;
/// Bytes of a typical chunk, overhead included; used only to size the cache's tables.
const TYPICAL_BYTES: u64 = 4096;
/// Maximum number of shards. A shard has a lock of its own and blocks its callers while it doubles its table.
const SHARDS_MAX: u64 = 64;
/// Minimum size of a shard: more than a dozen of the largest chunks.
const SHARD_BYTES_MIN: u64 = MIB;

/// Key of a chunk: its body, and the offset of its first byte in the body.
type ChunkKey = (BodyId, u64);

/// The memory tier. Clones share one cache.
#[derive(Clone)]
pub struct MemoryTier {
    /// `None` if the tier has a size of 0.
    inner: Option<Arc<MemoryTierInner>>,
}

struct MemoryTierInner {
    chunks: Cache<ChunkKey, Bytes, ChunkWeigher>,
    hits: AtomicU64,
    misses: AtomicU64,
    read_bytes: AtomicU64,
}

/// Metrics of the memory tier; counters since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryMetrics {
    /// Capacity in bytes.
    pub limit_bytes: u64,
    /// Bytes in use, bookkeeping included.
    pub used_bytes: u64,
    /// Chunks in the cache.
    pub chunks: u64,
    /// Reads answered from the cache.
    pub hits: u64,
    /// Reads of cacheable chunks that were not in the cache.
    pub misses: u64,
    /// Bytes of the reads answered from the cache.
    pub read_bytes: u64,
}

impl MemoryTier {
    /// Creates a tier of at most `bytes`; with 0 bytes it is disabled and costs nothing.
    ///
    /// # Panics
    /// Never: all required options are set.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        if bytes == 0 {
            return Self { inner: None };
        }
        let options = OptionsBuilder::new()
            .shards((bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX) as usize)
            .estimated_items_capacity(usize::try_from(bytes / TYPICAL_BYTES).unwrap_or(usize::MAX))
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are set");
        let chunks = Cache::with_options(
            options,
            ChunkWeigher,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        );
        let (hits, misses, read_bytes) = Default::default();
        Self { inner: Some(Arc::new(MemoryTierInner { chunks, hits, misses, read_bytes })) }
    }

    /// True if a chunk of this size is cacheable.
    #[must_use]
    pub fn can_hold(&self, chunk_bytes: u64) -> bool {
        self.inner.is_some() && chunk_bytes <= BLOCK_BYTES
    }

    /// Returns the bytes `range` of the chunk that begins at offset `first` of `body`, if it is cached.
    #[must_use]
    pub fn get(&self, body: BodyId, first: u64, range: &Range<u64>) -> Option<Bytes> {
        let inner = self.inner.as_ref()?;
        let Some(mut bytes) = inner.chunks.get(&(body, first)) else {
            inner.misses.fetch_add(1, Relaxed);
            return None;
        };
        shorten_to(&mut bytes, range)?;
        inner.hits.fetch_add(1, Relaxed);
        inner.read_bytes.fetch_add(bytes.len() as u64, Relaxed);
        Some(bytes)
    }

    /// True if the chunk that begins at offset `first` of `body` is cached. Not counted as a read.
    #[must_use]
    pub fn contains(&self, body: BodyId, first: u64) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.chunks.contains_key(&(body, first)))
    }

    /// Caches the whole chunk that begins at offset `first` of `body`. `chunk` must own its buffer, not share
    /// a larger one.
    pub fn insert(&self, body: BodyId, first: u64, chunk: Bytes) {
        if let Some(inner) = &self.inner {
            inner.chunks.insert((body, first), chunk);
        }
    }

    /// Returns the current metrics.
    #[must_use]
    pub fn metrics(&self) -> MemoryMetrics {
        self.inner.as_ref().map_or_else(MemoryMetrics::default, |inner| MemoryMetrics {
            limit_bytes: inner.chunks.capacity(),
            used_bytes: inner.chunks.weight(),
            chunks: inner.chunks.len() as u64,
            hits: inner.hits.load(Relaxed),
            misses: inner.misses.load(Relaxed),
            read_bytes: inner.read_bytes.load(Relaxed),
        })
    }
}

/// Shortens `bytes` to `range`; returns `None` if the range is not within them.
pub(crate) fn shorten_to(bytes: &mut Bytes, range: &Range<u64>) -> Option<()> {
    let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
    if start > end || end > bytes.len() {
        return None;
    }
    bytes.truncate(end);
    bytes::Buf::advance(bytes, start);
    Some(())
}

#[derive(Clone)]
struct ChunkWeigher;

impl Weighter<ChunkKey, Bytes> for ChunkWeigher {
    fn weight(&self, _: &ChunkKey, chunk: &Bytes) -> u64 {
        let bytes = chunk.len() as u64;
        bytes + bytes / 8 + OVERHEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, BodyId, Bytes, MIB, MemoryTier, shorten_to};

    fn whole(tier: &MemoryTier, body: u64, first: u64, length: u64) -> Option<Bytes> {
        tier.get(BodyId(body), first, &(0..length))
    }

    #[test]
    fn a_chunk_is_found_by_body_and_offset() {
        let tier = MemoryTier::new(MIB);
        tier.insert(BodyId(1), 0, Bytes::from_static(b"first"));
        tier.insert(BodyId(1), 5, Bytes::from_static(b"second"));
        tier.insert(BodyId(2), 0, Bytes::from_static(b"other"));
        assert_eq!(whole(&tier, 1, 0, 5).as_deref(), Some(&b"first"[..]));
        assert_eq!(whole(&tier, 1, 5, 6).as_deref(), Some(&b"second"[..]));
        assert_eq!(tier.get(BodyId(2), 0, &(1..4)).as_deref(), Some(&b"the"[..]));
        assert_eq!(whole(&tier, 2, 5, 5), None);
        assert_eq!(whole(&tier, 2, 0, 6), None, "more than exists");
        let metrics = tier.metrics();
        assert_eq!((metrics.hits, metrics.misses, metrics.read_bytes, metrics.chunks), (3, 1, 14, 3));
    }

    #[test]
    fn usage_stays_below_the_limit() {
        let tier = MemoryTier::new(MIB);
        for body in 0..2_000 {
            tier.insert(BodyId(body), 0, Bytes::from(vec![7; 4096]));
        }
        let metrics = tier.metrics();
        assert!(metrics.used_bytes <= metrics.limit_bytes && metrics.limit_bytes == MIB, "{metrics:?}");
        assert!((180..=MIB / 4500).contains(&metrics.chunks), "chunks of about 5,000 bytes: {metrics:?}");
        tier.insert(BodyId(9_999), 0, Bytes::from(vec![0; 2 * MIB as usize]));
        assert_eq!(whole(&tier, 9_999, 0, 1), None, "more than its limit");
    }

    #[test]
    fn a_scan_larger_than_the_cache_does_not_evict_hot_chunks() {
        let tier = MemoryTier::new(MIB);
        let chunk = || Bytes::from(vec![7; 4096]);
        for _ in 0..4 {
            for body in 0..50 {
                if whole(&tier, body, 0, 4096).is_none() {
                    tier.insert(BodyId(body), 0, chunk());
                }
            }
        }
        for body in 1_000..6_000 {
            tier.insert(BodyId(body), 0, chunk());
        }
        let left = (0..50).filter(|&body| whole(&tier, body, 0, 4096).is_some()).count();
        assert!(left >= 40, "{left} of 50 are left");
    }

    #[test]
    fn a_tier_of_zero_bytes_is_disabled() {
        let tier = MemoryTier::new(0);
        tier.insert(BodyId(1), 0, Bytes::from_static(b"x"));
        assert!(whole(&tier, 1, 0, 1).is_none() && !tier.can_hold(1));
        assert_eq!(tier.metrics(), super::MemoryMetrics::default());
        assert!(
            MemoryTier::new(MIB).can_hold(BLOCK_BYTES) && !MemoryTier::new(MIB).can_hold(BLOCK_BYTES + 1)
        );
    }

    #[test]
    fn a_range_is_cut_exactly() {
        for (range, left) in
            [(0..5, Some("bytes")), (2..4, Some("te")), (5..5, Some("")), (0..6, None), (6..7, None)]
        {
            let mut bytes = Bytes::from_static(b"bytes");
            let cut = shorten_to(&mut bytes, &range);
            assert_eq!(cut.map(|()| &bytes[..]), left.map(str::as_bytes), "{range:?}");
        }
    }
}
