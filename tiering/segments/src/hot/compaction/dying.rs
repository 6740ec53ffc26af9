//! Which segments are worth waiting for, because they die fast enough by themselves: a pure decision.
//!
//! Whoever empties a segment moves what lives in it, and what would have been overwritten a moment
//! later is moved for nothing. Leaving it costs its dead bytes, for as long as it is left. So a
//! segment is left while it would lose, at the pace of the last look, more within the time that one
//! has patience than is dead in it already. Under overwrites drawn uniformly each move then frees
//! several times what it moves, and a segment that rests is emptied at the next look. The trade of
//! gain against age is that of cost-benefit cleaning (Rosenblum and Ousterhout, "The Design and
//! Implementation of a Log-Structured File System", 1992, section 3.5).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mlgw_common::ids::SegmentId;

use super::choose::SegmentFacts;

/// A pace is taken over no less than this: a single batch says little.
const SAMPLE_MIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    dead_bytes: u64,
    bytes_per_second: f64,
}

/// How fast each segment dies.
#[derive(Debug, Default)]
pub(in crate::hot) struct Dying(HashMap<SegmentId, Seen>);

impl Dying {
    /// Takes a look at all segments into account.
    pub(in crate::hot) fn look(&mut self, now: Instant, facts: &[SegmentFacts]) {
        let seen = facts.iter().map(|segment| {
            let dead_bytes = segment.dead_bytes();
            let fresh = Seen { at: now, dead_bytes, bytes_per_second: 0.0 };
            (segment.id, self.0.get(&segment.id).map_or(fresh, |before| before.next(now, dead_bytes)))
        });
        self.0 = seen.collect();
    }

    /// Whether so much of `segment` will be dead within `patience` that it is better left until then.
    pub(in crate::hot) fn is_worth_waiting_for(&self, segment: &SegmentFacts, patience: Duration) -> bool {
        let pace = self.0.get(&segment.id).map_or(0.0, |seen| seen.bytes_per_second);
        pace * patience.as_secs_f64() > segment.dead_bytes() as f64
    }
}

impl Seen {
    fn next(self, now: Instant, dead_bytes: u64) -> Self {
        let elapsed = now.saturating_duration_since(self.at);
        if elapsed < SAMPLE_MIN {
            return self;
        }
        let died = dead_bytes.saturating_sub(self.dead_bytes);
        Self { at: now, dead_bytes, bytes_per_second: died as f64 / elapsed.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn facts(dead_bytes: u64) -> SegmentFacts {
        let referenced_bytes = 1_000_000 - dead_bytes;
        SegmentFacts {
            tier: 0,
            id: SegmentId(1),
            sealed: true,
            bytes: 1_000_000 + SEGMENT_HEADER_BYTES,
            referenced_bytes,
            references: referenced_bytes / 100,
            in_flight: false,
        }
    }

    /// Whether a segment is left that had so many dead bytes at some seconds, at the last of them.
    fn left(looks: &[(u64, u64)]) -> bool {
        let (mut dying, begin, mut last) = (Dying::default(), Instant::now(), facts(0));
        for &(millis, dead_bytes) in looks {
            last = facts(dead_bytes);
            dying.look(begin + Duration::from_millis(millis), &[last]);
        }
        dying.is_worth_waiting_for(&last, PATIENCE)
    }

    #[test]
    fn what_dies_fast_is_left_and_what_rests_is_not() {
        assert!(left(&[(0, 200_000), (5_000, 300_000)]), "1.2 million in a minute, 0.3 are dead");
        assert!(!left(&[(0, 280_000), (5_000, 300_000)]), "0.24 million in a minute");
        assert!(!left(&[(0, 0), (5_000, 300_000), (10_000, 300_000)]), "it rests");
        assert!(!left(&[(0, 300_000)]), "nothing is known of its pace");
    }

    #[test]
    fn a_pace_is_taken_over_a_second_at_least() {
        assert!(
            !left(&[(0, 299_000), (10, 300_000)]),
            "a hundred thousand in a second, if one batch were a pace"
        );
        assert!(left(&[(0, 200_000), (1_000, 300_000), (1_010, 300_000)]), "10 ms of rest are no rest");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut dying = Dying::default();
        dying.look(Instant::now(), &[facts(0)]);
        dying.look(Instant::now(), &[]);
        assert!(dying.0.is_empty());
    }

    #[test]
    fn overwrites_drawn_uniformly_are_moved_less_than_freed() {
        // 4 % of what lives dies in a second; a look every five.
        let (mut dying, begin) = (Dying::default(), Instant::now());
        for second in (0..300).step_by(5) {
            let living = 1_000_000.0 * f64::exp(-0.04 * second as f64);
            let segment = facts(1_000_000 - living as u64);
            dying.look(begin + Duration::from_secs(second), &[segment]);
            if segment.is_worth(30) && !dying.is_worth_waiting_for(&segment, PATIENCE) {
                let moved_per_freed = living / (1_000_000.0 - living);
                assert!(moved_per_freed < 0.5, "{moved_per_freed} moved for each that was freed");
                return;
            }
        }
        panic!("it was never emptied");
    }
}
