//! Eviction of blocks by id, and reclamation of the disk space of records that nothing names.
//!
//! The index forgets a block first, then its disk space is reclaimed: a segment without live records is
//! removed, and in other segments the range of the block is punched out. Invariant: a reader in the middle of
//! such a block gets an error and fetches the block again, and never reads zeros, because a changed block
//! fails its checksum.
//!
//! If power fails in between, or later but before the index was flushed, the index names a block that is a
//! hole: it does not verify, and is fetched again.

use super::ledger::RemovedCopyBlock;
use super::{Copies, CopiesShared};
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Number of blocks evicted in one change.
const IDS_PER_CHANGE: usize = 256;

/// Predicate that exempts blocks by id from eviction.
pub(crate) type ExemptPredicate = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// Result of an eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictedBlocks {
    /// Blocks that were kept.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Disk space reclaimed meanwhile, that of other dead records included.
    pub freed_bytes: u64,
}

impl Copies {
    /// Evicts the blocks with these ids, as far as they are kept, and reclaims their disk space. The listener
    /// is not notified.
    pub async fn evict_blocks(&self, ids: &[u64], why: DecisionCause) -> EvictedBlocks {
        self.evict_blocks_unless(ids, Arc::new(|_| false), why).await
    }

    /// Evicts blocks like [`Copies::evict_blocks`], except for those that `stays` exempts at the time of the
    /// change. `stays` is called with the ledger locked: it must not block, and must not call the store.
    pub(crate) async fn evict_blocks_unless(
        &self,
        ids: &[u64],
        stays: ExemptPredicate,
        why: DecisionCause,
    ) -> EvictedBlocks {
        let inner = &self.inner;
        let mut sum = EvictedBlocks::default();
        let mut by_bucket = BTreeMap::<BucketId, (u64, u64)>::new();
        for ids in ids.chunks(IDS_PER_CHANGE) {
            for RemovedCopyBlock { bucket, bytes, .. } in inner.ledger.evict(ids, &*stays) {
                let (count, of_bucket) = by_bucket.entry(bucket).or_default();
                (*count, *of_bucket) = (*count + 1, *of_bucket + bytes);
                (sum.blocks, sum.bytes) = (sum.blocks + 1, sum.bytes + bytes);
            }
            sum.freed_bytes += inner.reclaim().await;
        }
        inner.evicted_bytes.fetch_add(sum.bytes, Relaxed);
        for (bucket, (count, bytes)) in by_bucket {
            let (from, to, outcome) = (DecisionPlace::Copies, DecisionPlace::Nowhere, DecisionOutcome::Done);
            let what = DecisionSubject::Objects { bucket, count, prefix: "" };
            inner.decisions.record(&PlacementDecision {
                kind: DecisionKind::Evict,
                subject: what,
                from,
                to,
                bytes,
                cause: why,
                outcome,
            });
        }
        sum
    }

    /// Reclaims the disk space of dead records. Returns the decrease of the segments' bytes.
    pub async fn reclaim_dead(&self) -> u64 {
        let before = self.inner.segments.fill().0;
        self.inner.reclaim().await;
        self.inner.release_empty().await;
        before.saturating_sub(self.inner.segments.fill().0)
    }
}

impl CopiesShared {
    /// Reclaims the disk space of records that nothing names. Returns the number of bytes. Once begun it is
    /// completed, even if the caller goes away.
    pub(super) async fn reclaim(self: &Arc<Self>) -> u64 {
        let inner = self.clone();
        let given = tokio::spawn(async move {
            // The lock also covers records that another call took before: their space is reclaimed when this
            // call returns.
            let _alone = inner.reclaim_lock.lock().await;
            let mut dead = inner.ledger.take_dead();
            let segments: BTreeSet<u64> = dead.iter().map(|extent| extent.segment).collect();
            let mut bytes = 0;
            for segment in segments.into_iter().map(SegmentId) {
                if inner.ledger.is_empty(segment) {
                    bytes += inner.release(segment).await;
                }
            }
            dead.retain(|extent| inner.map.segment(extent.segment_id()).is_some());
            bytes + inner.segments.punch(dead).await
        });
        given.await.unwrap_or(0)
    }

    /// Removes the sealed segments without live records.
    pub(super) async fn release_empty(self: &Arc<Self>) {
        let inner = self.clone();
        let released = tokio::spawn(async move {
            for (segment, known) in inner.map.all_sealed() {
                if known.live_bytes == 0 {
                    inner.release(segment).await;
                }
            }
        });
        // The task does not panic; if it did, a later pass would continue.
        drop(released.await);
    }

    /// Removes a segment without live records. Returns the disk space that it took.
    async fn release(&self, segment: SegmentId) -> u64 {
        // Records that are being appended to the segment are not named yet.
        if self.segments.is_held(segment) || !self.ledger.remove_if_empty(segment) {
            return 0;
        }
        self.remove_file(segment).await
    }

    /// Removes the file of a forgotten segment. Returns the disk space that it took.
    pub(super) async fn remove_file(&self, segment: SegmentId) -> u64 {
        let released = self.segments.release(segment).await;
        released.unwrap_or_else(|error| {
            tracing::warn!(%segment, %error, "failed to remove the file of a segment of clean copies");
            0
        })
    }
}
