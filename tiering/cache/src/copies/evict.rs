//! Makes room among clean copies, a little ahead of need.
//!
//! Where somebody keeps books of blocks and lets go of them by their ids, only the disk can run out: others
//! fill it, or more is dead than cleaning gains in time ([`super::clean`]). Then, and where nobody does, the
//! oldest segment goes. What of it was read lately is appended again first, so that what is read stays
//! however old it is (a queue with reinsertion, after Corbató's CLOCK, "A Paging Experiment with the Multics
//! System", 1968); but never more than half of a segment, or there would be no end to it. What is pinned
//! stays, too (see `pins.rs`). Always: every block that goes is told to who keeps books.
//!
//! What a crash interrupts is begun anew: a segment goes only when nothing that it holds is named any more.

use super::clean::CLEANED_BYTES_PER_SECOND;
use super::walk::{self, KeptCursor};
use super::{Inner, known};
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_formats::decision_entry::{Decided, What};
use mlgw_formats::decision_words::{Kind, Outcome, Place, Reason};
use mlgw_formats::schema::Extent;
use mlgw_segments::hot::{ChunkAt, Pace};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Percent of the capacity from which on segments go, where nobody lets go of blocks.
const FULL_PERCENT: u64 = 92;
/// The same where somebody does, in time.
const FULL_PERCENT_WATCHED: u64 = 98;
/// How often it is looked though nobody kept anything: others may fill the disk.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the index is brought to the disk, in looks: what is fetched in half a minute may be fetched
/// again after a crash.
const FLUSH_LOOKS: u64 = 30;
/// Of a segment's chunks so many percent are appended again at most.
const AGAIN_PERCENT: usize = 50;

/// Makes room until the copies are dropped.
pub(super) async fn run(copies: Weak<Inner>) {
    let (mut looks, mut pace, mut clean_from) = (0_u64, Pace::default(), Instant::now());
    loop {
        let wake = match copies.upgrade() {
            Some(inner) => inner.wake.clone(),
            None => return,
        };
        let woken = tokio::time::timeout(LOOK_EVERY, wake.notified()).await.is_ok();
        let Some(inner) = copies.upgrade() else { return };
        let now = Instant::now();
        if let Some(moved_bytes) = inner.turn(now >= clean_from).await {
            pace.due(now, moved_bytes, CLEANED_BYTES_PER_SECOND);
            clean_from = pace.due(now, 0, CLEANED_BYTES_PER_SECOND);
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
pub(super) struct Tally(BTreeMap<(BucketId, Reason, Outcome), (u64, u64)>);

impl Tally {
    pub(super) fn add(&mut self, bucket: BucketId, bytes: u64, reason: Reason, outcome: Outcome) {
        let (count, sum) = self.0.entry((bucket, reason, outcome)).or_default();
        *count += 1;
        *sum += bytes;
    }

    pub(super) fn record(self, inner: &Inner) {
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
    /// Gives back what is dead, cleans a segment if it `may_clean`, and makes room. Returns the bytes that
    /// were moved if one was cleaned.
    pub(super) async fn turn(self: &Arc<Self>, may_clean: bool) -> Option<u64> {
        self.give_back().await;
        self.release_empty().await;
        let moved = if may_clean { self.clean_one().await } else { None };
        let mut last = None;
        while self.is_too_full() {
            last = self.map.oldest_sealed(last);
            let Some(segment) = last else { break };
            if !self.segments.is_held(segment) {
                self.evict(segment).await;
            }
        }
        moved
    }

    /// By either bound: what the copies may take, and what the disk has.
    pub(super) fn is_too_full(&self) -> bool {
        self.is_fuller_than(if self.ledger.is_watched() { FULL_PERCENT_WATCHED } else { FULL_PERCENT })
    }

    pub(super) fn is_fuller_than(&self, percent: u64) -> bool {
        let (used_bytes, room_bytes) = self.segments.fill();
        used_bytes > (used_bytes + room_bytes) / 100 * percent
    }

    /// Lets go of a segment and of what is in it, but for what was read lately. What is pinned and finds no
    /// room elsewhere stays where it is, and the segment comes up again when others have made room.
    pub(super) async fn evict(self: &Arc<Self>, segment: SegmentId) {
        let _alone = self.evicting.lock().await;
        let (pinned, others) = self.pinned_first(segment, self.chunks(segment).await);
        // What is pinned stays at any price; the rest is kept on only while there is a budget for it.
        let allowed = self.segments.flash().allows();
        let mut again = if allowed { others.len() * AGAIN_PERCENT / 100 } else { 0 };
        let mut is_left = false;
        let mut tally = Tally::default();
        for (chunk, extent) in pinned {
            let bytes = extent.logical_bytes;
            if self.move_chunk(&chunk, &extent).await {
                tally.add(chunk.bucket, bytes, Reason::Pin, Outcome::Done);
            } else if self.ledger.extent_of(&chunk, segment).is_some() {
                is_left = true;
                tally.add(chunk.bucket, bytes, Reason::Pin, Outcome::NoRoom);
            }
        }
        for (chunk, extent) in others {
            if again > 0 && self.index.is_recent(chunk.bucket, &chunk.key) {
                again -= 1;
                if self.move_chunk(&chunk, &extent).await {
                    tally.add(chunk.bucket, extent.logical_bytes, Reason::Heat, Outcome::Done);
                    continue;
                }
            }
            if let Some(bytes) = self.drop_block(&chunk, &extent) {
                tally.add(chunk.bucket, bytes, Reason::Watermark, Outcome::Done);
            }
        }
        tally.record(self);
        if !is_left {
            self.end(segment).await;
        }
        // What went with its blocks and is elsewhere.
        self.give_back().await;
    }

    /// The chunks of a segment; none of one that cannot be read.
    pub(super) async fn chunks(&self, segment: SegmentId) -> Vec<ChunkAt> {
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
            let extent = self.ledger.extent_of(&chunk, segment)?;
            Some((chunk, extent))
        });
        held.partition(|(chunk, extent)| pins.keeps(chunk.bucket, chunk.key.as_str(), extent.logical_bytes))
    }

    /// Lets go of the block that a chunk is of. Returns its bytes, unless it has gone already.
    fn drop_block(&self, chunk: &ChunkAt, extent: &Extent) -> Option<u64> {
        let number = chunk.first / COPY_BLOCK_BYTES;
        let place = (chunk.bucket, &chunk.key);
        let bytes = self.ledger.lose(place, chunk.body, number, std::slice::from_ref(extent))?;
        self.evicted_bytes.fetch_add(bytes, Relaxed);
        Some(bytes)
    }

    /// Removes a segment out of which everything was moved or let go of that it told of. What else is named
    /// in it is lost.
    pub(super) async fn end(self: &Arc<Self>, segment: SegmentId) {
        if !self.ledger.retire(segment) {
            if self.map.segment(segment).is_none() {
                return;
            }
            let inner = self.clone();
            let lost = tokio::task::spawn_blocking(move || inner.lose_segment(segment)).await;
            if lost.is_err() || !self.ledger.drop_segment(segment) {
                return;
            }
        }
        self.remove_file(segment).await;
    }

    /// Lets go of every block that is named in a segment which does not tell what is in it. Looks through the
    /// whole index.
    fn lose_segment(&self, segment: SegmentId) {
        tracing::warn!(%segment, "a segment of clean copies does not tell what is in it; the index is looked through");
        let mut from: Option<KeptCursor> = None;
        while let Some((found, next)) = known(walk::page(&self.index, from)) {
            for block in found {
                let here: Vec<Extent> =
                    block.extents.into_iter().filter(|extent| extent.segment == segment.0).collect();
                let place = (block.bucket, &block.key);
                if let Some(bytes) = self.ledger.lose(place, block.copy.object.body(), block.number, &here) {
                    self.evicted_bytes.fetch_add(bytes, Relaxed);
                }
            }
            from = next;
            if from.is_none() {
                break;
            }
        }
    }

    /// Whether a chunk could be appended again.
    pub(super) fn has_room(&self, extent: &Extent) -> bool {
        self.segments.has_room_to_move(u64::from(extent.head_bytes) + extent.stored_bytes)
    }

    pub(super) async fn move_chunk(&self, chunk: &ChunkAt, extent: &Extent) -> bool {
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
