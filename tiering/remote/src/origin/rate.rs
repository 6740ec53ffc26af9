//! Minimum rate at which an origin must deliver a body. Pure.
//!
//! An origin that sends a few bytes now and then would block a reader for hours although it is never silent.
//! Only time spent waiting for the origin counts, so a slow client does not count against the origin.

use mlgw_common::limits::ORIGIN_RATE_MIN;
use std::time::Duration;

/// Time waited and bytes received in the current window.
#[derive(Debug)]
pub(super) struct MinimumRate {
    window: Duration,
    waited: Duration,
    received: u64,
}

impl MinimumRate {
    /// Creates a check that evaluates the rate after each `window` of waiting.
    pub(super) const fn per_window(window: Duration) -> Self {
        Self { window, waited: Duration::ZERO, received: 0 }
    }

    /// Counts bytes received after a wait. Returns true if the rate is high enough.
    pub(super) fn has_enough(&mut self, waited: Duration, bytes: u64) -> bool {
        self.waited += waited;
        self.received += bytes;
        if self.waited < self.window {
            return true;
        }
        let is_enough = self.received as f64 >= self.waited.as_secs_f64() * ORIGIN_RATE_MIN as f64;
        (self.waited, self.received) = (Duration::ZERO, 0);
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::MinimumRate;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts the pieces of `bytes` bytes, one a second, that are accepted.
    fn accepted_pieces(bytes: u64) -> usize {
        let mut rate = MinimumRate::per_window(3 * SECOND);
        (0..100).take_while(|_| rate.has_enough(SECOND, bytes)).count()
    }

    #[test]
    fn a_trickle_is_rejected_after_one_window_and_a_slow_origin_is_not() {
        assert_eq!(
            (accepted_pieces(10), accepted_pieces(1023), accepted_pieces(1024), accepted_pieces(5000)),
            (2, 2, 100, 100)
        );
    }

    #[test]
    fn earlier_fast_delivery_does_not_offset_a_later_trickle() {
        let mut rate = MinimumRate::per_window(3 * SECOND);
        assert!(rate.has_enough(3 * SECOND, 1 << 30));
        assert!(rate.has_enough(2 * SECOND, 10) && !rate.has_enough(SECOND, 10));
    }

    #[test]
    fn a_slow_client_does_not_count_against_the_origin() {
        let mut rate = MinimumRate::per_window(3 * SECOND);
        assert!((0..1000).all(|_| rate.has_enough(Duration::ZERO, 1)));
    }
}
