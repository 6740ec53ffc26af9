//! Chunks that are known to be dead, in memory, so that compaction need not look them up in the catalogue.
//!
//! A chunk is recorded when a command removes the record that named it. The set is a hint: it is empty after
//! a start, it is bounded, and a proposal that is sent twice may have named the chunk again. A caller that
//! skips chunks because of it must therefore check the reference count of their segment afterwards.

use crate::view::FreedChunk;
use mlgw_common::SegmentId;
use mlgw_common::limits::DEAD_CHUNKS_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Dead chunks of all segments.
#[derive(Debug, Default)]
pub(super) struct DeadChunks(Mutex<DeadOffsets>);

#[derive(Debug, Default)]
struct DeadOffsets {
    /// Offsets, in the order in which the chunks died.
    segments: HashMap<SegmentId, Vec<u32>>,
    chunks: usize,
}

/// Chunks of one segment that are known to be dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadSet(Vec<u32>);

impl DeadSet {
    /// True if the chunk at `offset` is known to be dead.
    #[must_use]
    pub fn contains(&self, offset: u64) -> bool {
        u32::try_from(offset).is_ok_and(|offset| self.0.binary_search(&offset).is_ok())
    }

    /// True if no chunk is known to be dead.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl DeadChunks {
    /// Records chunks that died. Chunks beyond 4 GiB of a segment are not recorded: 32-bit offsets save
    /// memory.
    pub(super) fn record(&self, freed: &[FreedChunk]) {
        if freed.is_empty() {
            return;
        }
        let mut known = self.0.lock();
        for (segment, offset) in freed {
            let Ok(offset) = u32::try_from(*offset) else { continue };
            if known.chunks == DEAD_CHUNKS_MAX {
                known.evict_half();
            }
            assert!(known.chunks < DEAD_CHUNKS_MAX, "the known dead chunks are bounded");
            known.segments.entry(*segment).or_default().push(offset);
            known.chunks += 1;
        }
    }

    /// Known dead chunks of `segment`.
    pub(super) fn dead_set(&self, segment: SegmentId) -> DeadSet {
        let mut dead = self.0.lock().segments.get(&segment).cloned().unwrap_or_default();
        dead.sort_unstable();
        DeadSet(dead)
    }

    /// Removes the entries of a segment that no longer exists.
    pub(super) fn remove_segment(&self, segment: SegmentId) {
        let mut known = self.0.lock();
        let gone = known.segments.remove(&segment).map_or(0, |dead| dead.len());
        assert!(known.chunks >= gone, "the dead chunks of every segment are counted");
        known.chunks -= gone;
    }
}

impl DeadOffsets {
    /// Halves the entries. Segments with the fewest known dead chunks go first, because they are compacted
    /// last, if ever.
    fn evict_half(&mut self) {
        let mut counts: Vec<_> = self.segments.iter().map(|(id, dead)| (dead.len(), *id)).collect();
        counts.sort_unstable();
        for (count, segment) in counts {
            if self.chunks <= DEAD_CHUNKS_MAX / 2 {
                break;
            }
            self.segments.remove(&segment);
            self.chunks -= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DEAD_CHUNKS_MAX, DeadChunks, DeadSet};
    use mlgw_common::SegmentId;

    #[test]
    fn dead_chunks_are_known_until_their_segment_is_removed() {
        let dead = DeadChunks::default();
        dead.record(&[(SegmentId(1), 900), (SegmentId(2), 8), (SegmentId(1), 16), (SegmentId(1), 1 << 40)]);
        let one = dead.dead_set(SegmentId(1));
        assert!([16, 900].iter().all(|offset| one.contains(*offset)));
        assert!([8, 17, 1 << 40].iter().all(|offset| !one.contains(*offset)));
        dead.remove_segment(SegmentId(1));
        assert_eq!(
            (dead.dead_set(SegmentId(1)), dead.dead_set(SegmentId(2))),
            (DeadSet::default(), DeadSet(vec![8]))
        );
    }

    #[test]
    fn memory_is_bounded_and_used_for_segments_with_the_most_dead_chunks() {
        let dead = DeadChunks::default();
        let chunk = |at: u64| (SegmentId(if at.is_multiple_of(4) { 100 + at / 1000 } else { 7 }), at);
        let all: Vec<_> = (0..2 * DEAD_CHUNKS_MAX as u64).map(chunk).collect();
        for some in all.chunks(1000) {
            dead.record(some);
            assert!(dead.0.lock().chunks <= DEAD_CHUNKS_MAX);
        }
        let known = dead.0.lock();
        assert_eq!(known.chunks, known.segments.values().map(Vec::len).sum::<usize>());
        drop(known);
        assert!(!dead.dead_set(SegmentId(100)).contains(0), "few of its records were known");
    }
}
