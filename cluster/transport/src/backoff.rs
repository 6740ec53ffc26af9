//! Waits between two dials, and the rate of requests to join. Pure.

use mlgw_common::limits::{JOINS_BURST_MAX, JOINS_PER_SECOND_MAX, PEER_REDIAL_MS_MAX, PEER_REDIAL_MS_MIN};
use mlgw_common::time::{Instant, doubled_wait};
use std::time::Duration;

/// Wait before the next dial after a number of dials that failed.
pub(crate) fn redial_wait(failures: u32) -> Duration {
    debug_assert!(failures > 0, "the first dial does not wait");
    doubled_wait(failures, PEER_REDIAL_MS_MIN, PEER_REDIAL_MS_MAX)
}

/// Rate of requests to join: a bucket of [`JOINS_BURST_MAX`] that fills with [`JOINS_PER_SECOND_MAX`]. The
/// state is the time at which the bucket is full again.
#[derive(Debug)]
pub(crate) struct JoinRate {
    full_at: Instant,
}

impl JoinRate {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// True if a request at `now` is within the rate; it is then counted.
    pub(crate) fn is_within(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(1) / JOINS_PER_SECOND_MAX;
        let full_at = self.full_at.max(now) + each;
        if full_at - now > each * JOINS_BURST_MAX {
            return false;
        }
        self.full_at = full_at;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{JoinRate, redial_wait};
    use mlgw_common::limits::{JOINS_BURST_MAX, JOINS_PER_SECOND_MAX};
    use mlgw_common::time::Instant;
    use std::time::Duration;

    #[test]
    fn waits_double_up_to_two_seconds() {
        let waits_ms: Vec<u128> = (1..9).map(|failures| redial_wait(failures).as_millis()).collect();
        assert_eq!(waits_ms, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(redial_wait(u32::MAX), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_followed_by_the_rate() {
        let now = Instant::now();
        let mut rate = JoinRate::new(now);
        let within = |rate: &mut JoinRate, at| (0..1000).filter(|_| rate.is_within(at)).count();
        assert_eq!(within(&mut rate, now), JOINS_BURST_MAX as usize);
        let second = now + Duration::from_secs(1);
        assert_eq!(within(&mut rate, second), JOINS_PER_SECOND_MAX as usize);
        assert_eq!(within(&mut rate, second), 0);
        assert_eq!(within(&mut rate, now + Duration::from_hours(1)), JOINS_BURST_MAX as usize);
    }
}
