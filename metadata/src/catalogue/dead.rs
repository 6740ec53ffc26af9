//! Chunks that are known to be dead, in memory: compaction need not ask the catalogue about them.
//!
//! A chunk is noted when a command takes away the record that named it. It is a hint: a start begins with
//! none, only so many are kept, and a proposal that is sent twice may have named the chunk again. So whoever
//! passes chunks over on this word counts afterwards what refers to their segment.

use crate::view::Freed;
use mlgw_common::SegmentId;
use mlgw_common::limits::DEAD_CHUNKS_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;

/// What is known of all segments.
#[derive(Debug, Default)]
pub(super) struct DeadChunks(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Offsets, in the order of their deaths.
    segments: HashMap<SegmentId, Vec<u32>>,
    chunks: usize,
}

/// Chunks of one segment that are known to be dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadSet(Vec<u32>);

impl DeadSet {
    /// Whether the chunk at `offset` is known to be dead.
    #[must_use]
    pub fn contains(&self, offset: u64) -> bool {
        u32::try_from(offset).is_ok_and(|offset| self.0.binary_search(&offset).is_ok())
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl DeadChunks {
    /// Remembers chunks that died. Those beyond 4 GiB of a segment are not worth more memory for each.
    pub(super) fn note(&self, freed: &[Freed]) {
        if freed.is_empty() {
            return;
        }
        let mut known = self.0.lock();
        for (segment, offset) in freed {
            let Ok(offset) = u32::try_from(*offset) else { continue };
            if known.chunks == DEAD_CHUNKS_MAX {
                known.forget_the_least();
            }
            known.segments.entry(*segment).or_default().push(offset);
            known.chunks += 1;
        }
    }

    /// What is known of `segment`.
    pub(super) fn of(&self, segment: SegmentId) -> DeadSet {
        let mut dead = self.0.lock().segments.get(&segment).cloned().unwrap_or_default();
        dead.sort_unstable();
        DeadSet(dead)
    }

    /// Forgets a segment that is no more.
    pub(super) fn forget(&self, segment: SegmentId) {
        let mut known = self.0.lock();
        let gone = known.segments.remove(&segment).map_or(0, |dead| dead.len());
        known.chunks -= gone;
    }
}

impl Known {
    /// Makes room by a half: segments of which the least is known will be emptied last, if ever.
    fn forget_the_least(&mut self) {
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
    fn what_died_is_known_until_its_segment_goes() {
        let dead = DeadChunks::default();
        dead.note(&[(SegmentId(1), 900), (SegmentId(2), 8), (SegmentId(1), 16), (SegmentId(1), 1 << 40)]);
        let one = dead.of(SegmentId(1));
        assert!([16, 900].iter().all(|offset| one.contains(*offset)));
        assert!([8, 17, 1 << 40].iter().all(|offset| !one.contains(*offset)));
        dead.forget(SegmentId(1));
        assert_eq!((dead.of(SegmentId(1)), dead.of(SegmentId(2))), (DeadSet::default(), DeadSet(vec![8])));
    }

    #[test]
    fn memory_is_bounded_and_goes_to_the_segments_that_die() {
        let dead = DeadChunks::default();
        let chunk = |at: u64| (SegmentId(if at.is_multiple_of(4) { 100 + at / 1000 } else { 7 }), at);
        let all: Vec<_> = (0..2 * DEAD_CHUNKS_MAX as u64).map(chunk).collect();
        for some in all.chunks(1000) {
            dead.note(some);
            assert!(dead.0.lock().chunks <= DEAD_CHUNKS_MAX);
        }
        let known = dead.0.lock();
        assert_eq!(known.chunks, known.segments.values().map(Vec::len).sum::<usize>());
        drop(known);
        assert!(!dead.of(SegmentId(100)).contains(0), "little was known of it");
    }
}
