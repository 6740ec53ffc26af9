//! The clock of a node, and what the node knows of its deviation from the clocks of the other nodes.
//!
//! The deviation is measured against the median of the clocks of all nodes that answer. Between two
//! measurements it follows from the monotonic clock, so a clock that jumps is found at once, and not only by
//! the next measurement.
//!
//! Invariant: a node whose clock was not compared since its start, or not in the last seconds, acts on
//! nothing that is due by time. Nothing is stored, so a start after a power failure compares again.

use crate::clock::{Clock, Timestamp};
use crate::limits::{CLOCK_CHECK_MS_MAX, CLOCK_SKEW_REFUSED_MS};
use crate::time::Instant;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Result of a comparison of the clocks of all nodes that answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockComparison {
    /// There is no other node, or none that has ever served.
    Alone,
    /// No other node has answered.
    #[default]
    Unknown,
    /// The clocks differ, and there are too few to find out which of them is right.
    Disagree {
        /// Difference in milliseconds: of the other clock from that of this node if there are two.
        by_ms: i64,
    },
    /// The clock of this node was compared with the median.
    Compared {
        /// Time of this node less the median, in milliseconds.
        skew_ms: i64,
    },
}

/// A comparison with the moment at which it was made, by the clocks of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockCheck {
    /// The result.
    pub comparison: ClockComparison,
    /// The moment.
    pub made: ClockMoment,
}

/// A moment by both clocks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockMoment {
    /// Time of day.
    pub now: Timestamp,
    /// Monotonic time.
    pub at: Instant,
}

impl ClockMoment {
    /// Returns the present moment.
    #[must_use]
    pub fn present(clock: &dyn Clock) -> Self {
        Self { now: clock.now(), at: Instant::now() }
    }

    /// Returns the milliseconds by which the time of day ran ahead of the monotonic clock since `earlier`.
    #[must_use]
    pub fn jumped_ms(self, earlier: Self) -> i64 {
        let passed = self.at.saturating_duration_since(earlier.at);
        let passed_ms = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        let shown_ms = self.now.as_millis().saturating_sub(earlier.now.as_millis());
        shown_ms.saturating_sub(passed_ms)
    }
}

/// A clock with the newest comparison. Clones share it.
#[derive(Clone)]
pub struct CheckedClock {
    clock: Arc<dyn Clock>,
    checks: watch::Receiver<ClockCheck>,
}

impl fmt::Debug for CheckedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedClock").field("comparison", &self.comparison()).finish_non_exhaustive()
    }
}

impl Clock for CheckedClock {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl CheckedClock {
    /// Returns a clock that is not compared yet, and the sender of its comparisons.
    #[must_use]
    pub fn unknown(clock: Arc<dyn Clock>) -> (watch::Sender<ClockCheck>, Self) {
        let made = ClockMoment::present(&*clock);
        let check = ClockCheck { comparison: ClockComparison::Unknown, made };
        let (sender, checks) = watch::channel(check);
        (sender, Self { clock, checks })
    }

    /// Returns the clock of a server without peers, which is never compared.
    #[must_use]
    pub fn alone(clock: Arc<dyn Clock>) -> Self {
        let (sender, checked) = Self::unknown(clock);
        sender.send_modify(|check| check.comparison = ClockComparison::Alone);
        checked
    }

    /// The newest comparison. That with the median is carried on to the present time.
    #[must_use]
    pub fn comparison(&self) -> ClockComparison {
        let check = *self.checks.borrow();
        match check.comparison {
            ClockComparison::Compared { skew_ms } => {
                let jumped_ms = ClockMoment::present(&*self.clock).jumped_ms(check.made);
                ClockComparison::Compared { skew_ms: skew_ms.saturating_add(jumped_ms) }
            }
            comparison => comparison,
        }
    }

    /// Returns the deviation in milliseconds, if it is so large that this node must store nothing under its
    /// time.
    #[must_use]
    pub fn refused_skew_ms(&self) -> Option<i64> {
        match self.comparison() {
            ClockComparison::Compared { skew_ms } => {
                Some(skew_ms).filter(|skew| skew.unsigned_abs() > CLOCK_SKEW_REFUSED_MS)
            }
            ClockComparison::Alone | ClockComparison::Unknown | ClockComparison::Disagree { .. } => None,
        }
    }

    /// True if this node may act on what is due by its clock: the clock was compared in the last seconds, and
    /// is close to the median.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        let check = *self.checks.borrow();
        match check.comparison {
            ClockComparison::Alone => true,
            ClockComparison::Unknown | ClockComparison::Disagree { .. } => false,
            ClockComparison::Compared { .. } => {
                check.made.at.elapsed() <= Duration::from_millis(CLOCK_CHECK_MS_MAX)
                    && self.refused_skew_ms().is_none()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CheckedClock, ClockCheck, ClockComparison, ClockMoment};
    use crate::clock::{Clock as _, ManualClock, Timestamp};
    use crate::limits::CLOCK_CHECK_MS_MAX;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::watch;
    use tokio::time::advance;

    const BEGIN: Timestamp = Timestamp(1_800_000_000_000);

    struct TestClock {
        manual: Arc<ManualClock>,
        sender: watch::Sender<ClockCheck>,
        checked: CheckedClock,
    }

    impl TestClock {
        fn new() -> Self {
            let manual = Arc::new(ManualClock::new(BEGIN));
            let (sender, checked) = CheckedClock::unknown(manual.clone());
            Self { manual, sender, checked }
        }

        fn record(&self, comparison: ClockComparison) {
            let made = ClockMoment::present(&*self.manual);
            self.sender.send_replace(ClockCheck { comparison, made });
        }

        /// Lets time pass by both clocks, and the time of day jump.
        async fn pass(&self, passed_ms: u64, jump_ms: i64) {
            advance(Duration::from_millis(passed_ms)).await;
            let passed = i64::try_from(passed_ms).unwrap();
            self.manual.set(Timestamp(self.manual.now().as_millis() + passed + jump_ms));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_is_confirmed_within_five_seconds_of_the_median() {
        let clock = TestClock::new();
        assert!(!clock.checked.is_confirmed(), "it was not compared since the start");
        assert_eq!(clock.checked.refused_skew_ms(), None, "nothing is known against it");
        let cases = [(0, true), (5_000, true), (-5_000, true), (5_001, false), (-5_001, false)];
        for (skew_ms, is_confirmed) in cases {
            clock.record(ClockComparison::Compared { skew_ms });
            assert_eq!(clock.checked.is_confirmed(), is_confirmed, "{skew_ms}");
            let refused = (!is_confirmed).then_some(skew_ms);
            assert_eq!(clock.checked.refused_skew_ms(), refused);
        }
        clock.record(ClockComparison::Disagree { by_ms: 501 });
        assert_eq!((clock.checked.is_confirmed(), clock.checked.refused_skew_ms()), (false, None));
        clock.record(ClockComparison::Alone);
        assert!(clock.checked.is_confirmed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_jumps_is_found_before_the_next_comparison() {
        let clock = TestClock::new();
        clock.record(ClockComparison::Compared { skew_ms: 100 });
        clock.pass(900, 0).await;
        assert_eq!(clock.checked.comparison(), ClockComparison::Compared { skew_ms: 100 });
        clock.pass(10, 4_901).await;
        assert_eq!(clock.checked.refused_skew_ms(), Some(5_001));
        assert!(!clock.checked.is_confirmed());
        clock.pass(10, -10_100).await;
        assert_eq!(clock.checked.refused_skew_ms(), Some(-5_099));
        clock.pass(10, 5_099).await;
        assert!(clock.checked.is_confirmed(), "it was set back to the right time");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_comparison_confirms_nothing() {
        let clock = TestClock::new();
        clock.record(ClockComparison::Compared { skew_ms: 0 });
        clock.pass(CLOCK_CHECK_MS_MAX, 0).await;
        assert!(clock.checked.is_confirmed());
        clock.pass(1, 0).await;
        assert!(!clock.checked.is_confirmed());
        assert_eq!(clock.checked.refused_skew_ms(), None, "nothing is known against it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_peers_trusts_its_clock_for_ever() {
        let clock = Arc::new(ManualClock::new(BEGIN));
        let checked = CheckedClock::alone(clock.clone());
        clock.set(Timestamp(0));
        advance(Duration::from_secs(3600)).await;
        assert_eq!((checked.is_confirmed(), checked.refused_skew_ms()), (true, None));
        assert_eq!(checked.now(), Timestamp(0));
    }
}
