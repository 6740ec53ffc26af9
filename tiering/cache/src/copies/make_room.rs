//! Eviction of segments of clean copies, a little ahead of need.
//!
//! If a listener accounts for blocks and evicts them by id, only the disk itself can run out of space: other
//! programs fill it, or more records are dead than cleaning reclaims in time ([`super::cleaning`]). Then, and
//! if there is no listener, the oldest segment is evicted. Its recently read chunks are appended again first,
//! so that read objects stay whatever their age (a queue with reinsertion, after Corbató's CLOCK, "A Paging
//! Experiment with the Multics System", 1968); but at most half of a segment, so that eviction makes
//! progress. Pinned chunks stay as well (see `pins.rs`). Invariant: the listener is notified of every block
//! that is evicted.
//!
//! An interrupted eviction starts anew after a crash: a segment is removed only when nothing in it is named
//! any more.

use super::scan::{self, KeptCursor};
use super::{BLOCKS_PERCENT, CopiesShared, ok_or_log};
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_common::time::Instant;
use mlgw_formats::decision_entry::{DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
use mlgw_formats::schema::Extent;
use mlgw_segments::hot::{ByteRateLimiter, SegmentChunk};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Maximum rate of cleaning, equal to the default of compaction.
const CLEANED_BYTES_PER_SECOND: u64 = 64 << 20;
/// Fill level in percent from which segments are evicted, without a listener.
const FULL_PERCENT: u64 = 92;
/// Fill level in percent from which segments are evicted, with a listener that evicts blocks in time.
const FULL_PERCENT_WATCHED: u64 = 98;

const _: () = {
    assert!(FULL_PERCENT < FULL_PERCENT_WATCHED);
    assert!(BLOCKS_PERCENT < FULL_PERCENT_WATCHED, "a listener evicts blocks before segments are evicted");
};

/// Interval of passes while nothing is kept: other programs may fill the disk.
const PASS_INTERVAL: Duration = Duration::from_secs(1);
/// Passes between two flushes of the index: blocks fetched in half a minute may have to be fetched again
/// after a crash.
const FLUSH_PASSES: u64 = 30;
/// Maximum percentage of a segment's chunks that are appended again.
const REINSERT_PERCENT: usize = 50;

/// Worker that makes room until the copies are dropped.
pub(super) async fn run(copies: Weak<CopiesShared>) {
    let (mut looks, pace, mut clean_from) = (0_u64, ByteRateLimiter::default(), Instant::now());
    loop {
        let wake = match copies.upgrade() {
            Some(inner) => inner.wake.clone(),
            None => return,
        };
        let woken = mlgw_common::time::timeout(PASS_INTERVAL, wake.notified()).await.is_ok();
        let Some(inner) = copies.upgrade() else { return };
        let now = Instant::now();
        let moved = if now >= clean_from {
            inner.run_pass().await
        } else {
            inner.run_pass_without_cleaning().await;
            None
        };
        if let Some(moved_bytes) = moved {
            pace.due_at(now, moved_bytes, CLEANED_BYTES_PER_SECOND);
            clean_from = pace.due_at(now, 0, CLEANED_BYTES_PER_SECOND);
        }
        looks += u64::from(!woken);
        if !woken
            && looks.is_multiple_of(FLUSH_PASSES)
            && let Err(error) = inner.flush().await
        {
            tracing::warn!(%error, "failed to flush the index of clean copies");
        }
    }
}

/// Results for the chunks of a segment by bucket, reason and outcome; each becomes an entry of the decision
/// log.
#[derive(Default)]
pub(super) struct EvictionTally(BTreeMap<(BucketId, DecisionReason, DecisionOutcome), (u64, u64)>);

impl EvictionTally {
    pub(super) fn add(
        &mut self,
        bucket: BucketId,
        bytes: u64,
        reason: DecisionReason,
        outcome: DecisionOutcome,
    ) {
        let (count, sum) = self.0.entry((bucket, reason, outcome)).or_default();
        *count += 1;
        *sum += bytes;
    }

    pub(super) fn record(self, inner: &CopiesShared) {
        for ((bucket, reason, outcome), (count, bytes)) in self.0 {
            let (kind, to) = match reason {
                DecisionReason::Watermark => (DecisionKind::Evict, DecisionPlace::Nowhere),
                _ => (DecisionKind::Relocate, DecisionPlace::Copies),
            };
            let what = DecisionSubject::Objects { bucket, count, prefix: "" };
            let from = DecisionPlace::Copies;
            inner.decisions.record(&PlacementDecision {
                kind,
                subject: what,
                from,
                to,
                bytes,
                cause: reason.into(),
                outcome,
            });
        }
    }
}

/// Chunk with the extent that refers to it.
type ReferencedChunk = (SegmentChunk, Extent);

impl CopiesShared {
    /// Runs one pass: reclaims dead records, cleans a segment, and makes room. Returns the number of bytes
    /// moved if a segment was cleaned.
    pub(super) async fn run_pass(self: &Arc<Self>) -> Option<u64> {
        self.reclaim().await;
        self.release_empty().await;
        let moved = self.clean_one().await;
        self.make_room().await;
        moved
    }

    /// Runs one pass like [`Self::run_pass`], but cleans no segment.
    async fn run_pass_without_cleaning(self: &Arc<Self>) {
        self.reclaim().await;
        self.release_empty().await;
        self.make_room().await;
    }

    /// Evicts the oldest segments until the fill level is below the threshold.
    async fn make_room(self: &Arc<Self>) {
        let mut last = None;
        while self.is_too_full() {
            last = self.map.oldest_sealed(last);
            let Some(segment) = last else { break };
            if !self.segments.is_held(segment) {
                self.evict_segment(segment).await;
            }
        }
    }

    /// True if the fill level, by the capacity of the copies and by the free disk space, exceeds the
    /// threshold.
    pub(super) fn is_too_full(&self) -> bool {
        self.is_fuller_than(if self.ledger.has_listener() { FULL_PERCENT_WATCHED } else { FULL_PERCENT })
    }

    pub(super) fn is_fuller_than(&self, percent: u64) -> bool {
        let (used_bytes, room_bytes) = self.segments.fill();
        used_bytes > (used_bytes + room_bytes) / 100 * percent
    }

    /// Evicts a segment and its contents, except for recently read chunks. If pinned chunks find no space
    /// elsewhere, the segment remains, and is tried again when room has been made.
    pub(super) async fn evict_segment(self: &Arc<Self>, segment: SegmentId) {
        let _alone = self.segment_lock.lock().await;
        let (pinned, others) = self.pinned_first(segment, self.chunks(segment).await);
        // Pinned chunks are always moved; other chunks are moved only within the flash budget.
        let allowed = self.segments.flash().can_start_own_write();
        let mut reinsertions_left = if allowed { others.len() * REINSERT_PERCENT / 100 } else { 0 };
        let mut is_left = false;
        let mut tally = EvictionTally::default();
        for (chunk, extent) in pinned {
            let bytes = extent.logical_bytes;
            if self.move_chunk(&chunk, &extent).await {
                tally.add(chunk.bucket, bytes, DecisionReason::Pin, DecisionOutcome::Done);
            } else if self.ledger.extent_of(&chunk, segment).is_some() {
                is_left = true;
                tally.add(chunk.bucket, bytes, DecisionReason::Pin, DecisionOutcome::NoRoom);
            }
        }
        for (chunk, extent) in others {
            if reinsertions_left > 0 && self.index.is_recent(chunk.bucket, &chunk.key) {
                reinsertions_left -= 1;
                if self.move_chunk(&chunk, &extent).await {
                    tally.add(
                        chunk.bucket,
                        extent.logical_bytes,
                        DecisionReason::Heat,
                        DecisionOutcome::Done,
                    );
                    continue;
                }
            }
            if let Some(bytes) = self.drop_block(&chunk, &extent) {
                tally.add(chunk.bucket, bytes, DecisionReason::Watermark, DecisionOutcome::Done);
            }
        }
        tally.record(self);
        if !is_left {
            self.remove_segment(segment).await;
        }
        // Reclaims the records of evicted blocks in other segments.
        self.reclaim().await;
    }

    /// Returns the chunks of a segment; none if it cannot be read.
    pub(super) async fn chunks(&self, segment: SegmentId) -> Vec<SegmentChunk> {
        self.segments.chunks_in(segment).await.unwrap_or_else(|error| {
            tracing::warn!(%segment, %error, "cannot read a segment of clean copies; dropping it");
            Vec::new()
        })
    }

    /// Returns the referenced chunks of a segment: the pinned ones and the others.
    fn pinned_first(
        &self,
        segment: SegmentId,
        chunks: Vec<SegmentChunk>,
    ) -> (Vec<ReferencedChunk>, Vec<ReferencedChunk>) {
        let mut pins = self.pins.lock();
        let (used_bytes, room_bytes) = self.segments.fill();
        pins.visit(segment, &self.map.sealed(), used_bytes + room_bytes);
        let held = chunks.into_iter().filter_map(|chunk| {
            let extent = self.ledger.extent_of(&chunk, segment)?;
            Some((chunk, extent))
        });
        held.partition(|(chunk, extent)| {
            pins.try_retain(chunk.bucket, chunk.key.as_str(), extent.logical_bytes)
        })
    }

    /// Removes the block to which a chunk belongs. Returns its bytes, unless it was removed before.
    fn drop_block(&self, chunk: &SegmentChunk, extent: &Extent) -> Option<u64> {
        let number = chunk.first / COPY_BLOCK_BYTES;
        let extents = std::slice::from_ref(extent);
        let bytes = self.ledger.invalidate(chunk.bucket, &chunk.key, chunk.body, number, extents)?;
        self.evicted_bytes.fetch_add(bytes, Relaxed);
        Some(bytes)
    }

    /// Removes a segment after all chunks that it lists were moved or evicted. Blocks that are still named in
    /// it are lost.
    pub(super) async fn remove_segment(self: &Arc<Self>, segment: SegmentId) {
        if !self.ledger.remove_if_empty(segment) {
            if self.map.segment(segment).is_none() {
                return;
            }
            let inner = self.clone();
            let invalidated = tokio::task::spawn_blocking(move || inner.invalidate_segment(segment)).await;
            if invalidated.is_err() || !self.ledger.drop_segment(segment) {
                return;
            }
        }
        self.remove_file(segment).await;
    }

    /// Invalidates every block that is named in a segment whose contents cannot be listed. Scans the whole
    /// index.
    fn invalidate_segment(&self, segment: SegmentId) {
        tracing::warn!(%segment, "cannot list the contents of a segment of clean copies; scanning the index");
        let mut from: Option<KeptCursor> = None;
        while let Some((found, next)) = ok_or_log(scan::page(&self.index, from)) {
            for block in found {
                let here: Vec<Extent> =
                    block.extents.into_iter().filter(|extent| extent.segment == segment.0).collect();
                let (bucket, body) = (block.bucket, block.copy.object.body());
                if let Some(bytes) = self.ledger.invalidate(bucket, &block.key, body, block.number, &here) {
                    self.evicted_bytes.fetch_add(bytes, Relaxed);
                }
            }
            from = next;
            if from.is_none() {
                break;
            }
        }
    }

    /// True if there is space to append a chunk again.
    pub(super) fn has_room(&self, extent: &Extent) -> bool {
        self.segments.has_room_for_moved(u64::from(extent.head_bytes) + extent.stored_bytes)
    }

    pub(super) async fn move_chunk(&self, chunk: &SegmentChunk, extent: &Extent) -> bool {
        match self.segments.append_moved(extent, chunk.body).await {
            Ok(moved) => self.ledger.replace(chunk, extent, &moved.extent),
            Err(_) => false,
        }
    }

    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), String> {
        let inner = self.clone();
        let flushed = tokio::task::spawn_blocking(move || inner.index.flush()).await;
        flushed.map_err(|stopped| stopped.to_string())?.map_err(|error| error.to_string())
    }
}
