//! Makes room among clean copies, a segment at a time and a little ahead of need.
//!
//! The oldest segment goes. What of it was read lately is appended again first, so that what is read stays however old it is (a
//! queue with reinsertion, after Corbató's CLOCK, "A Paging Experiment with the Multics System", 1968); but never more than half of
//! a segment, or there would be no end to it. What is pinned stays, too (see `pins.rs`).

use super::Inner;
use crate::decisions::{Decided, Kind, Outcome, Place, Reason, What};
use crate::hot::ChunkAt;
use mlgw_common::ids::BucketId;
use mlgw_common::ids::SegmentId;
use mlgw_metadata::schema::Extent;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Percent of the capacity from which on segments go.
const FULL_PERCENT: u64 = 92;
/// How often it is looked though nobody kept anything: others may fill the disk.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the index is brought to the disk, in looks: what is fetched in half a minute may be fetched again after a crash.
const FLUSH_LOOKS: u64 = 30;
/// Of a segment's chunks so many percent are appended again at most.
const AGAIN_PERCENT: usize = 50;

/// Evicts until the copies are dropped.
pub(super) async fn run(copies: Weak<Inner>) {
    let mut looks = 0_u64;
    loop {
        let wake = match copies.upgrade() {
            Some(inner) => inner.wake.clone(),
            None => return,
        };
        let woken = tokio::time::timeout(LOOK_EVERY, wake.notified()).await.is_ok();
        let Some(inner) = copies.upgrade() else { return };
        let mut last = None;
        while inner.is_too_full() {
            last = inner.map.oldest_sealed(last);
            let Some(segment) = last else { break };
            inner.evict(segment).await;
        }
        looks += u64::from(!woken);
        if !woken
            && looks.is_multiple_of(FLUSH_LOOKS)
            && let Err(error) = inner.flush().await
        {
            tracing::warn!(%error, "the index of clean copies was not flushed");
        }
    }
}

/// What became of the chunks of a segment, by bucket and reason: an entry each in the log of decisions.
#[derive(Default)]
struct Tally(BTreeMap<(BucketId, Reason, Outcome), (u64, u64)>);

impl Tally {
    fn add(&mut self, chunk: &ChunkAt, extent: &Extent, reason: Reason, outcome: Outcome) {
        let (count, bytes) = self.0.entry((chunk.bucket, reason, outcome)).or_default();
        *count += 1;
        *bytes += extent.logical_bytes;
    }

    fn record(self, inner: &Inner) {
        for ((bucket, reason, outcome), (count, bytes)) in self.0 {
            let (kind, to) = match reason {
                Reason::Watermark => (Kind::Evict, Place::Nowhere),
                _ => (Kind::Relocate, Place::Copies),
            };
            let what = What::Objects { bucket, count, prefix: "" };
            let from = Place::Copies;
            inner.decisions.record(&Decided { kind, what, from, to, bytes, why: reason.into(), outcome });
        }
    }
}

/// A chunk, and what refers to it.
type Held = (ChunkAt, Extent);

impl Inner {
    /// By either bound: what the copies may take, and what the disk has.
    pub(super) fn is_too_full(&self) -> bool {
        let (used_bytes, room_bytes) = self.segments.fill();
        used_bytes > (used_bytes + room_bytes) / 100 * FULL_PERCENT
    }

    /// Lets go of a segment and of what is in it, but for what was read lately. What is pinned and finds no room elsewhere stays where it is,
    /// and the segment comes up again when others have made room.
    async fn evict(self: &Arc<Self>, segment: SegmentId) {
        let _alone = self.evicting.lock().await;
        let (pinned, others) = self.pinned_first(segment, self.chunks(segment).await);
        // What is pinned stays at any price; the rest is kept on only while there is a budget for it.
        let allowed = self.segments.flash().allows();
        let mut again = if allowed { others.len() * AGAIN_PERCENT / 100 } else { 0 };
        let mut is_left = false;
        let mut tally = Tally::default();
        for (chunk, extent) in pinned {
            if self.move_chunk(&chunk, &extent).await {
                tally.add(&chunk, &extent, Reason::Pin, Outcome::Done);
            } else if self.extent_of(&chunk, segment).is_some() {
                is_left = true;
                tally.add(&chunk, &extent, Reason::Pin, Outcome::NoRoom);
            }
        }
        for (chunk, extent) in others {
            if again > 0 && self.index.is_recent(chunk.bucket, &chunk.key) {
                again -= 1;
                if self.move_chunk(&chunk, &extent).await {
                    tally.add(&chunk, &extent, Reason::Heat, Outcome::Done);
                    continue;
                }
            }
            self.let_go(&chunk, &extent);
            tally.add(&chunk, &extent, Reason::Watermark, Outcome::Done);
        }
        tally.record(self);
        if !is_left {
            self.release(segment).await;
        }
    }

    /// The chunks of a segment; none of one that cannot be read.
    async fn chunks(&self, segment: SegmentId) -> Vec<ChunkAt> {
        self.segments.chunks_in(segment).await.unwrap_or_else(|error| {
            tracing::warn!(%segment, %error, "a segment of clean copies cannot be read and goes as it is");
            Vec::new()
        })
    }

    /// What of a segment is referred to: first what is pinned.
    fn pinned_first(&self, segment: SegmentId, chunks: Vec<ChunkAt>) -> (Vec<Held>, Vec<Held>) {
        let mut pins = self.pins.lock();
        let (used_bytes, room_bytes) = self.segments.fill();
        pins.come_to(segment, &self.map.sealed(), used_bytes + room_bytes);
        let held = chunks.into_iter().filter_map(|chunk| {
            let extent = self.extent_of(&chunk, segment)?;
            Some((chunk, extent))
        });
        held.partition(|(chunk, extent)| pins.keeps(chunk.bucket, chunk.key.as_str(), extent.logical_bytes))
    }

    fn let_go(&self, chunk: &ChunkAt, extent: &Extent) {
        self.replace_extent(chunk, extent, None);
        self.evicted_bytes.fetch_add(extent.logical_bytes, Relaxed);
    }

    /// Removes the sealed segments that nothing is in any more.
    pub(super) async fn release_dead(&self) {
        let _alone = self.evicting.lock().await;
        for segment in self.map.sealed() {
            let chunks = self.chunks(segment).await;
            if chunks.iter().all(|chunk| self.extent_of(chunk, segment).is_none()) {
                self.release(segment).await;
            }
        }
    }

    async fn release(&self, segment: SegmentId) {
        if let Err(error) = self.map.remove(segment) {
            tracing::warn!(%segment, %error, "a segment of clean copies is not forgotten");
            return;
        }
        if let Err(error) = self.segments.release(segment).await {
            tracing::warn!(%segment, %error, "the file of a segment of clean copies is not removed");
        }
    }

    /// The extent that refers to a chunk of `segment`, if one does.
    fn extent_of(&self, chunk: &ChunkAt, segment: SegmentId) -> Option<Extent> {
        let extents = self.extents_near(chunk)?;
        extents.into_iter().find(|extent| extent.segment == segment.0 && extent.offset == chunk.offset)
    }

    async fn move_chunk(&self, chunk: &ChunkAt, extent: &Extent) -> bool {
        match self.segments.append_moved(extent, chunk.body).await {
            Ok(moved) => self.replace_extent(chunk, extent, Some(&moved.extent)),
            Err(_) => false,
        }
    }

    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), String> {
        let inner = self.clone();
        let flushed = tokio::task::spawn_blocking(move || inner.index.flush()).await;
        flushed.map_err(|stopped| stopped.to_string())?.map_err(|error| error.to_string())
    }
}
