//! Cleaning of segments of clean copies: the live records of a segment are appended elsewhere, and its file
//! is removed.
//!
//! Evicted blocks leave holes, but records that do not fill a block of the file system remain: heads, edges,
//! small objects, and everything on a file system without holes. The choice of the segment follows Rosenblum
//! and Ousterhout, "The Design and Implementation of a Log-Structured File System" (1992): the space gained
//! per byte moved, times the age of the segment, because records of a young segment soon die without cleaning
//! ([`choose_segment`], pure). A nearly empty segment is cleaned even if no space is needed, because its file
//! would otherwise remain for a long time for little content.
//!
//! Invariants: at most `CLEANED_BYTES_PER_SECOND` (see `make_room.rs`) are moved per second, and nothing
//! while the flash budget is exhausted. The budget counts moved records like appended blocks. After a power
//! failure in the middle, some records exist twice, one of them unnamed.

use super::CopiesShared;
use super::make_room::EvictionTally;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_formats::decision_words::{DecisionOutcome, DecisionReason};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Fill level in percent from which segments are cleaned for their dead records.
const CLEAN_FROM_PERCENT: u64 = 88;
/// Maximum percentage of live bytes in the space of a segment that is worth cleaning: at worst, three bytes
/// are written for each byte gained.
const WORTH_PERCENT: u64 = 75;
/// Fraction of a segment's length below which it is cleaned at any time. The cost is a sixteenth of all bytes
/// kept, and if blocks are evicted at random there are three files for each full one instead of seven.
const SPARSE_DIVISOR: u64 = 16;
/// Overhead of a segment besides its bytes: an inode, its extent tree, opening and removing it.
const SEGMENT_OVERHEAD_BYTES: u64 = 16 << 10;

/// Sealed segment as input of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CleaningCandidate {
    pub(super) segment: SegmentId,
    /// Bytes of its records as they were written.
    pub(super) length_bytes: u64,
    /// Bytes of disk space that it takes.
    pub(super) disk_bytes: u64,
    /// Bytes of live records.
    pub(super) live_bytes: u64,
}

/// Purpose for which a segment is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CleaningGoal {
    /// Space is needed: any segment whose space outweighs the bytes to move.
    Space,
    /// No space is needed: only a nearly empty segment.
    SparseSegments,
}

impl CleaningCandidate {
    fn is_worth_it(&self, goal: CleaningGoal) -> bool {
        let gains = self.live_bytes <= self.disk_bytes / 100 * WORTH_PERCENT;
        self.live_bytes <= self.length_bytes / SPARSE_DIVISOR || goal == CleaningGoal::Space && gains
    }

    /// Returns gain per moved byte times the age in segments, as a fraction.
    fn score(&self, newest: SegmentId) -> (u128, u128) {
        let gained = self.disk_bytes.saturating_sub(self.live_bytes) + SEGMENT_OVERHEAD_BYTES;
        let age = newest.0.saturating_sub(self.segment.0) + 1;
        (u128::from(gained) * u128::from(age), u128::from(self.live_bytes + SEGMENT_OVERHEAD_BYTES))
    }
}

/// Returns the segment to clean next, if one is worth it.
pub(super) fn choose_segment(
    candidates: &[CleaningCandidate],
    goal: CleaningGoal,
) -> Option<CleaningCandidate> {
    let newest = candidates.iter().map(|candidate| candidate.segment).max()?;
    let worth = candidates.iter().filter(|candidate| candidate.is_worth_it(goal));
    let better = |one: &&CleaningCandidate, other: &&CleaningCandidate| {
        let ((gain, cost), (other_gain, other_cost)) = (one.score(newest), other.score(newest));
        // Compares the fractions; none is near the bounds of 128 bits.
        (gain * other_cost).cmp(&(other_gain * cost))
    };
    worth.max_by(better).copied()
}

impl CopiesShared {
    /// Cleans the segment that is most worth it. Returns the number of bytes moved, if a segment was cleaned.
    pub(super) async fn clean_one(self: &Arc<Self>) -> Option<u64> {
        if !self.segments.flash().can_start_own_write() {
            return None;
        }
        let candidate = |(segment, known): (SegmentId, super::segment_map::CopySegmentState)| {
            let length_bytes = known.length?.saturating_sub(SEGMENT_HEADER_BYTES);
            let held_bytes = length_bytes.saturating_sub(self.segments.holes_in(segment));
            Some(CleaningCandidate {
                segment,
                length_bytes,
                disk_bytes: held_bytes,
                live_bytes: known.live_bytes,
            })
        };
        let sealed = self.map.all_sealed().filter(|(segment, _)| !self.segments.is_held(*segment));
        let candidates: Vec<CleaningCandidate> = sealed.filter_map(candidate).collect();
        let is_full = self.is_fuller_than(CLEAN_FROM_PERCENT);
        let goal = if is_full { CleaningGoal::Space } else { CleaningGoal::SparseSegments };
        let chosen = choose_segment(&candidates, goal)?;
        Some(self.clean(chosen.segment).await)
    }

    async fn clean(self: &Arc<Self>, segment: SegmentId) -> u64 {
        let _alone = self.segment_lock.lock().await;
        let (mut tally, mut moved_bytes, mut is_left) = (EvictionTally::default(), 0, false);
        for chunk in self.chunks(segment).await {
            let Some(extent) = self.ledger.extent_of(&chunk, segment) else { continue };
            if self.move_chunk(&chunk, &extent).await {
                moved_bytes += u64::from(extent.head_bytes) + extent.stored_bytes;
                tally.add(
                    chunk.bucket,
                    extent.logical_bytes,
                    DecisionReason::Compaction,
                    DecisionOutcome::Done,
                );
            } else if self.has_room(&extent) {
                // The record does not verify any more, so it is no copy.
                let number = chunk.first / COPY_BLOCK_BYTES;
                self.ledger.invalidate(chunk.bucket, &chunk.key, chunk.body, number, &[extent]);
            } else {
                is_left = true;
                break;
            }
        }
        tally.record(self);
        self.cleaned_bytes.fetch_add(moved_bytes, Relaxed);
        if !is_left {
            self.remove_segment(segment).await;
        }
        moved_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::CleaningGoal::{Space, SparseSegments};
    use super::{CleaningCandidate, CleaningGoal, choose_segment};
    use mlgw_common::ids::SegmentId;

    const LENGTH: u64 = 64 << 20;

    fn candidate(segment: u64, held: u64, live: u64) -> CleaningCandidate {
        let of = |percent: u64| LENGTH / 100 * percent;
        let segment = SegmentId(segment);
        CleaningCandidate { segment, length_bytes: LENGTH, disk_bytes: of(held), live_bytes: of(live) }
    }

    fn chosen(candidates: &[CleaningCandidate], goal: CleaningGoal) -> Option<u64> {
        choose_segment(candidates, goal).map(|chosen| chosen.segment.0)
    }

    #[test]
    fn the_largest_gain_per_moved_byte_goes_first() {
        let all = [candidate(7, 100, 60), candidate(8, 100, 30), candidate(9, 100, 50)];
        assert_eq!((chosen(&all, Space), chosen(&all, SparseSegments)), (Some(8), None));
        let holes = [candidate(8, 31, 30), candidate(9, 100, 50)];
        assert_eq!(chosen(&holes, Space), Some(9), "cleaning gains nothing with holes");
        assert_eq!(chosen(&[candidate(1, 100, 80)], Space), None, "too much of it is live");
        assert_eq!(chosen(&[], Space), None);
    }

    #[test]
    fn of_two_equal_segments_the_older_one_goes() {
        assert_eq!(chosen(&[candidate(1, 100, 50), candidate(9, 100, 50)], Space), Some(1));
        assert_eq!(chosen(&[candidate(8, 100, 50), candidate(9, 100, 20)], Space), Some(9));
    }

    #[test]
    fn a_nearly_empty_segment_is_cleaned_at_any_time() {
        assert_eq!(chosen(&[candidate(1, 7, 6), candidate(2, 8, 7)], SparseSegments), Some(1));
    }
}
