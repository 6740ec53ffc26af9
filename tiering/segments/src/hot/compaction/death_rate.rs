//! Finds segments that lose live bytes so fast that emptying them later is cheaper. Pure.
//!
//! Emptying a segment moves its live bytes, and bytes that would have been overwritten a moment later are
//! moved in vain. Waiting costs the segment's dead bytes for as long as it lasts. So a segment is left while
//! it would lose, at its current rate, more bytes within the configured patience than are dead in it already.
//! Under uniformly distributed overwrites each move then frees several times the bytes that it moves, and a
//! segment that stopped losing bytes is emptied in the next pass. The trade of gain against age is that of
//! cost-benefit cleaning (Rosenblum and Ousterhout, "The Design and Implementation of a Log-Structured File
//! System", 1992, section 3.5).

use mlgw_common::time::Instant;
use std::collections::HashMap;
use std::time::Duration;

use mlgw_common::ids::SegmentId;

use super::choose::SegmentStats;

/// Minimum interval over which a rate is measured: a single batch is not representative.
const SAMPLE_MIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct DeadBytesSample {
    at: Instant,
    dead_bytes: u64,
    bytes_per_second: f64,
}

/// Rate at which each segment loses live bytes.
#[derive(Debug, Default)]
pub(in crate::hot) struct DeathRates(HashMap<SegmentId, DeadBytesSample>);

impl DeathRates {
    /// Updates the rates from the current state of all segments.
    pub(in crate::hot) fn update(&mut self, now: Instant, facts: &[SegmentStats]) {
        let seen = facts.iter().map(|segment| {
            let dead_bytes = segment.dead_bytes();
            let fresh = DeadBytesSample { at: now, dead_bytes, bytes_per_second: 0.0 };
            (segment.id, self.0.get(&segment.id).map_or(fresh, |before| before.next(now, dead_bytes)))
        });
        self.0 = seen.collect();
    }

    /// True if more bytes of `segment` than are dead now will die within `patience` at the current rate.
    pub(in crate::hot) fn is_worth_waiting_for(&self, segment: &SegmentStats, patience: Duration) -> bool {
        let pace = self.0.get(&segment.id).map_or(0.0, |seen| seen.bytes_per_second);
        pace * patience.as_secs_f64() > segment.dead_bytes() as f64
    }
}

impl DeadBytesSample {
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
    use mlgw_common::SegmentTier;
    use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn facts(dead_bytes: u64) -> SegmentStats {
        let referenced_bytes = 1_000_000 - dead_bytes;
        SegmentStats {
            tier: SegmentTier::Hot,
            id: SegmentId(1),
            sealed: true,
            bytes: 1_000_000 + SEGMENT_HEADER_BYTES,
            referenced_bytes,
            references: referenced_bytes / 100,
            in_flight: false,
        }
    }

    /// Returns true if a segment with these samples of (milliseconds, dead bytes) is left at the last sample.
    fn left(looks: &[(u64, u64)]) -> bool {
        let (mut dying, begin, mut last) = (DeathRates::default(), Instant::now(), facts(0));
        for &(millis, dead_bytes) in looks {
            last = facts(dead_bytes);
            dying.update(begin + Duration::from_millis(millis), &[last]);
        }
        dying.is_worth_waiting_for(&last, PATIENCE)
    }

    #[test]
    fn a_fast_dying_segment_is_left_and_a_resting_one_is_not() {
        assert!(left(&[(0, 200_000), (5_000, 300_000)]), "1.2 million in a minute, 0.3 are dead");
        assert!(!left(&[(0, 280_000), (5_000, 300_000)]), "0.24 million in a minute");
        assert!(!left(&[(0, 0), (5_000, 300_000), (10_000, 300_000)]), "it is idle");
        assert!(!left(&[(0, 300_000)]), "its rate is unknown");
    }

    #[test]
    fn a_rate_is_measured_over_at_least_a_second() {
        assert!(
            !left(&[(0, 299_000), (10, 300_000)]),
            "one batch would give a rate of a hundred thousand a second"
        );
        assert!(
            left(&[(0, 200_000), (1_000, 300_000), (1_010, 300_000)]),
            "10 ms without deaths are not idle"
        );
    }

    #[test]
    fn released_segments_are_dropped_from_the_rates() {
        let mut dying = DeathRates::default();
        dying.update(Instant::now(), &[facts(0)]);
        dying.update(Instant::now(), &[]);
        assert!(dying.0.is_empty());
    }

    #[test]
    fn uniform_overwrites_free_more_bytes_than_they_move() {
        // 4 % of the live bytes die per second; a pass every five seconds.
        let (mut dying, begin) = (DeathRates::default(), Instant::now());
        for second in (0..300).step_by(5) {
            let living = 1_000_000.0 * f64::exp(-0.04 * second as f64);
            let segment = facts(1_000_000 - living as u64);
            dying.update(begin + Duration::from_secs(second), &[segment]);
            if segment.has_dead_percent(30) && !dying.is_worth_waiting_for(&segment, PATIENCE) {
                let moved_per_freed = living / (1_000_000.0 - living);
                assert!(moved_per_freed < 0.5, "{moved_per_freed} moved for each that was freed");
                return;
            }
        }
        panic!("it was never emptied");
    }
}
