//! Lets go of blocks by their ids, and gives back the disk of what nothing names any more.
//!
//! First the index forgets a block, then its disk is given back: a segment in which nothing lives is removed,
//! of others what lay under the block gets holes. Always: who is in the middle of reading such a block gets
//! an error and has it fetched again, never zeros, for no block that changed under its checksum verifies.
//!
//! When power fails in between, or later but before the index was flushed, the index names a block that is a
//! hole: it does not verify, and is fetched again.

use super::ledger::Gone;
use super::{Copies, Inner};
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::{Kind, Outcome, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks that are let go of in one change.
const IDS_AT_ONCE: usize = 256;

/// Says which blocks stay, by their ids.
pub(crate) type Stays = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// What was let go of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LetGo {
    /// Blocks that were here.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of disk that were given back meanwhile: of these, and of whatever else went.
    pub freed_bytes: u64,
}

impl Copies {
    /// Lets go of the blocks that have these ids, as far as they are here, and gives back their disk. Nobody
    /// is told that they are lost.
    pub async fn let_go(&self, ids: &[u64], why: Why) -> LetGo {
        self.let_go_unless(ids, Arc::new(|_| false), why).await
    }

    /// As [`Copies::let_go`], but for those that stay when it comes to them: it is asked with the books
    /// locked, and must not wait nor ask copies anything.
    pub(crate) async fn let_go_unless(&self, ids: &[u64], stays: Stays, why: Why) -> LetGo {
        let inner = &self.inner;
        let mut sum = LetGo::default();
        let mut by_bucket = BTreeMap::<BucketId, (u64, u64)>::new();
        for ids in ids.chunks(IDS_AT_ONCE) {
            for Gone { bucket, bytes, .. } in inner.ledger.let_go(ids, &*stays) {
                let (count, of_bucket) = by_bucket.entry(bucket).or_default();
                (*count, *of_bucket) = (*count + 1, *of_bucket + bytes);
                (sum.blocks, sum.bytes) = (sum.blocks + 1, sum.bytes + bytes);
            }
            sum.freed_bytes += inner.give_back().await;
        }
        inner.evicted_bytes.fetch_add(sum.bytes, Relaxed);
        for (bucket, (count, bytes)) in by_bucket {
            let (from, to, outcome) = (Place::Copies, Place::Nowhere, Outcome::Done);
            let what = What::Objects { bucket, count, prefix: "" };
            inner.decisions.record(&Decided { kind: Kind::Evict, what, from, to, bytes, why, outcome });
        }
        sum
    }

    /// Gives back the disk of what was let go of. Returns the bytes of copies' segments that are fewer.
    pub async fn release_dead(&self) -> u64 {
        let before = self.inner.segments.fill().0;
        self.inner.give_back().await;
        self.inner.release_empty().await;
        before.saturating_sub(self.inner.segments.fill().0)
    }
}

impl Inner {
    /// Gives back the disk of records that nothing names any more. Returns its bytes. Once begun it is done,
    /// whoever waits for it.
    pub(super) async fn give_back(self: &Arc<Self>) -> u64 {
        let inner = self.clone();
        let given = tokio::spawn(async move {
            // Also for those that another took before: their disk is given back when this returns.
            let _alone = inner.giving_back.lock().await;
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

    /// Removes the sealed segments that nothing lives in.
    pub(super) async fn release_empty(self: &Arc<Self>) {
        let inner = self.clone();
        let released = tokio::spawn(async move {
            for (segment, known) in inner.map.all_sealed() {
                if known.live_bytes == 0 {
                    inner.release(segment).await;
                }
            }
        });
        // It does not panic; if it did, a later turn would go on.
        drop(released.await);
    }

    /// Removes a segment that nothing lives in. Returns the bytes that it took.
    async fn release(&self, segment: SegmentId) -> u64 {
        // What is being appended to it has no name yet.
        if self.segments.is_held(segment) || !self.ledger.retire(segment) {
            return 0;
        }
        self.remove_file(segment).await
    }

    /// Removes the file of a segment that is forgotten. Returns the bytes that it took.
    pub(super) async fn remove_file(&self, segment: SegmentId) -> u64 {
        let released = self.segments.release(segment).await;
        released.unwrap_or_else(|error| {
            tracing::warn!(%segment, %error, "the file of a segment of clean copies is not removed");
            0
        })
    }
}
