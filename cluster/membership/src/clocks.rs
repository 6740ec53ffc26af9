//! Comparison of the clocks of all nodes that answer.
//!
//! The reference is the median, which one wrong clock among three cannot move beyond the right ones. Two
//! clocks that differ do not show which of them is right, and neither do the two in the middle of any even
//! number. Pure.

use mlgw_common::ClockComparison;
use mlgw_common::limits::{CLOCK_ROUND_TRIP_MS_MAX, CLOCK_SKEW_UNHEALTHY_MS};
use std::time::Duration;

/// The clock of another node, as one of its answers states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// Time of the other node less that of this node, in milliseconds.
    pub offset_ms: i64,
}

impl ClockSample {
    /// Compares the time `stated_ms` of an answer with that of this node, which was `sent_ms` when it sent
    /// the request. The answer was made in the middle of the round trip, give or take half of it. Returns
    /// nothing after a long round trip.
    #[must_use]
    pub fn of_answer(sent_ms: i64, stated_ms: i64, round_trip: Duration) -> Option<Self> {
        let round_trip_ms = u64::try_from(round_trip.as_millis()).ok()?;
        if round_trip_ms > CLOCK_ROUND_TRIP_MS_MAX {
            return None;
        }
        let half_ms = i64::try_from(round_trip_ms / 2).ok()?;
        Some(Self { offset_ms: stated_ms.saturating_sub(sent_ms).saturating_sub(half_ms) })
    }
}

/// Compares the clock of this node with those of the others that answer. `others` is the number of other
/// nodes that have ever served, whether they answer or not.
#[must_use]
pub fn compare_clocks(others: usize, samples: &[ClockSample]) -> ClockComparison {
    match median_of(samples) {
        _ if samples.is_empty() && others == 0 => ClockComparison::Alone,
        _ if samples.is_empty() => ClockComparison::Unknown,
        Median::Known(offset_ms) => ClockComparison::Compared { skew_ms: offset_ms.saturating_neg() },
        Median::Unclear { by_ms } => ClockComparison::Disagree { by_ms },
    }
}

/// Returns the time of another node less the median of all that answer, in milliseconds; `None` if the median
/// is not known. `comparison` is that of this node.
#[must_use]
pub const fn skew_of(sample: ClockSample, comparison: ClockComparison) -> Option<i64> {
    match comparison {
        ClockComparison::Compared { skew_ms } => Some(sample.offset_ms.saturating_add(skew_ms)),
        ClockComparison::Alone | ClockComparison::Unknown | ClockComparison::Disagree { .. } => None,
    }
}

/// The median of the clocks, as an offset from that of this node.
enum Median {
    Known(i64),
    /// The two clocks in the middle differ.
    Unclear {
        by_ms: i64,
    },
}

fn median_of(samples: &[ClockSample]) -> Median {
    // This node's own clock is one of them.
    let mut offsets: Vec<i64> = samples.iter().map(|sample| sample.offset_ms).chain([0]).collect();
    offsets.sort_unstable();
    let middle = offsets.len() / 2;
    if offsets.len() % 2 == 1 {
        return Median::Known(offsets[middle]);
    }
    let (lower, upper) = (offsets[middle - 1], offsets[middle]);
    let by_ms = upper.saturating_sub(lower);
    if by_ms.unsigned_abs() > CLOCK_SKEW_UNHEALTHY_MS {
        // The sign states which of two clocks is ahead.
        return Median::Unclear { by_ms: if lower < 0 { -by_ms } else { by_ms } };
    }
    Median::Known(lower + by_ms / 2)
}

#[cfg(test)]
mod tests {
    use super::{ClockSample, compare_clocks, skew_of};
    use mlgw_common::ClockComparison;
    use mlgw_common::limits::{CLOCK_ROUND_TRIP_MS_MAX, CLOCK_SKEW_UNHEALTHY_MS};
    use proptest::{collection, prop_assert, proptest};
    use std::time::Duration;

    const HOUR_MS: i64 = 3_600_000;

    fn compared(offsets: &[i64]) -> ClockComparison {
        let samples: Vec<_> = offsets.iter().map(|offset_ms| ClockSample { offset_ms: *offset_ms }).collect();
        compare_clocks(offsets.len(), &samples)
    }

    #[test]
    fn a_node_alone_has_nothing_to_compare_with() {
        assert_eq!(compare_clocks(0, &[]), ClockComparison::Alone);
        assert_eq!(compare_clocks(1, &[]), ClockComparison::Unknown, "the other one does not answer");
    }

    #[test]
    fn one_wrong_clock_of_three_deviates_and_the_others_do_not() {
        let skew = |skew_ms| ClockComparison::Compared { skew_ms };
        assert_eq!(compared(&[0, HOUR_MS]), skew(0), "another clock is wrong");
        assert_eq!(compared(&[-HOUR_MS, 3]), skew(0));
        assert_eq!(compared(&[-HOUR_MS, -HOUR_MS - 7]), skew(HOUR_MS), "this clock is ahead");
        assert_eq!(compared(&[HOUR_MS, HOUR_MS]), skew(-HOUR_MS));
        let other = ClockSample { offset_ms: -HOUR_MS };
        assert_eq!(skew_of(other, skew(HOUR_MS)), Some(0));
        assert_eq!(skew_of(ClockSample { offset_ms: HOUR_MS }, skew(0)), Some(HOUR_MS));
    }

    #[test]
    fn two_clocks_that_differ_leave_open_which_one_is_right() {
        assert_eq!(compared(&[500]), ClockComparison::Compared { skew_ms: -250 });
        assert_eq!(compared(&[501]), ClockComparison::Disagree { by_ms: 501 });
        assert_eq!(compared(&[-501]), ClockComparison::Disagree { by_ms: -501 });
        assert_eq!(compared(&[0, HOUR_MS, HOUR_MS]), ClockComparison::Disagree { by_ms: HOUR_MS });
        assert_eq!(compared(&[0, 0, HOUR_MS]), ClockComparison::Compared { skew_ms: 0 });
        assert_eq!(skew_of(ClockSample { offset_ms: 9 }, compared(&[501])), None);
    }

    #[test]
    fn an_answer_is_taken_to_be_made_in_the_middle_of_its_round_trip() {
        let of = |stated_ms, trip_ms| {
            let sample = ClockSample::of_answer(1_000, stated_ms, Duration::from_millis(trip_ms));
            sample.map(|sample| sample.offset_ms)
        };
        assert_eq!(of(1_100, 200), Some(0));
        assert_eq!(of(900, 0), Some(-100));
        assert_eq!(of(1_500, CLOCK_ROUND_TRIP_MS_MAX), Some(0));
        assert_eq!(of(1_500, CLOCK_ROUND_TRIP_MS_MAX + 1), None, "too long to be exact");
    }

    proptest! {
        #[test]
        fn equal_clocks_never_deviate_however_slow_the_answers_are(
            trips in collection::vec((0..=CLOCK_ROUND_TRIP_MS_MAX, 0..=100_u64), 1..8),
        ) {
            // A share of each round trip passes before the other node reads its clock.
            let samples: Vec<_> = trips.iter().filter_map(|(trip, percent)| {
                let stated = i64::try_from(trip * percent / 100).unwrap();
                ClockSample::of_answer(0, stated, Duration::from_millis(*trip))
            }).collect();
            let comparison = compare_clocks(samples.len(), &samples);
            match comparison {
                ClockComparison::Compared { skew_ms } => {
                    prop_assert!(skew_ms.unsigned_abs() <= CLOCK_SKEW_UNHEALTHY_MS, "{skew_ms}");
                }
                // Each of two answers may be wrong in another direction.
                ClockComparison::Disagree { .. } => prop_assert!(samples.len() % 2 == 1 && samples.len() > 1),
                ClockComparison::Alone | ClockComparison::Unknown => prop_assert!(false, "{comparison:?}"),
            }
        }

        #[test]
        fn one_wrong_clock_of_three_makes_no_right_one_deviate(
            right in -500..=500_i64,
            wrong in -HOUR_MS..HOUR_MS,
        ) {
            let comparison = compared(&[right, wrong]);
            let ClockComparison::Compared { skew_ms } = comparison else { panic!("{comparison:?}") };
            prop_assert!(skew_ms.unsigned_abs() <= CLOCK_SKEW_UNHEALTHY_MS, "{skew_ms}");
        }
    }
}
