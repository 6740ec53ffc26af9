//! Minimum rate at which an origin must deliver a body. Pure.
//!
//! An origin that sends a few bytes now and then would block a reader for hours although it is never silent.
//! Only time spent waiting for the origin counts, so a slow client does not count against the origin.

use mlgw_common::limits::ORIGIN_RATE_MIN;
use std::time::Duration;

/// Time waited and bytes received in the current window.
#[derive(Debug)]
pub(super) struct LeastRate {
    window: Duration,
    waited: Duration,
    came: u64,
}

impl LeastRate {
    /// Creates a check that evaluates the rate after each `window` of waiting.
    pub(super) const fn over(window: Duration) -> Self {
        Self { window, waited: Duration::ZERO, came: 0 }
    }

    /// Counts bytes received after a wait. Returns true if the rate is high enough.
    pub(super) fn note(&mut self, waited: Duration, bytes: u64) -> bool {
        self.waited += waited;
        self.came += bytes;
        if self.waited < self.window {
            return true;
        }
        let is_enough = self.came as f64 >= self.waited.as_secs_f64() * ORIGIN_RATE_MIN as f64;
        (self.waited, self.came) = (Duration::ZERO, 0);
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::LeastRate;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts the pieces of `bytes` bytes, one a second, that are accepted.
    fn taken(bytes: u64) -> usize {
        let mut rate = LeastRate::over(3 * SECOND);
        (0..100).take_while(|_| rate.note(SECOND, bytes)).count()
    }

    #[test]
    fn a_trickle_is_rejected_after_one_window_and_a_slow_origin_is_not() {
        assert_eq!((taken(10), taken(1023), taken(1024), taken(5000)), (2, 2, 100, 100));
    }

    #[test]
    fn earlier_fast_delivery_does_not_offset_a_later_trickle() {
        let mut rate = LeastRate::over(3 * SECOND);
        assert!(rate.note(3 * SECOND, 1 << 30));
        assert!(rate.note(2 * SECOND, 10) && !rate.note(SECOND, 10));
    }

    #[test]
    fn a_slow_client_does_not_count_against_the_origin() {
        let mut rate = LeastRate::over(3 * SECOND);
        assert!((0..1000).all(|_| rate.note(Duration::ZERO, 1)));
    }
}
