//! Rate limit of one store: bytes and requests per second, shared by all clients of the store.
//!
//! Two token buckets, each a pure function of the times passed to it. Each request is assigned its own moment
//! from which it may proceed, and later requests get later moments, so requests proceed in order of arrival
//! and none starves. Unused time is saved for at most a quarter of a second, so that a store never receives a
//! burst after a quiet period. Nothing is kept over a restart.

use mlgw_common::time::Instant;
use std::time::Duration;

use parking_lot::Mutex;

/// Maximum unused time that is saved: enough to even out a sleep that lasted too long, too little for a
/// burst.
const SAVED_MAX: Duration = Duration::from_millis(250);

/// Bytes and requests of one store per second.
#[derive(Debug)]
pub struct UpstreamBudget {
    bytes: Mutex<RateBucket>,
    requests: Mutex<RateBucket>,
}

impl Default for UpstreamBudget {
    /// Creates a budget without a limit.
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl UpstreamBudget {
    /// Creates a budget per second; 0 means no limit.
    #[must_use]
    pub fn new(bytes_per_second: u64, requests_per_second: u64) -> Self {
        Self {
            bytes: Mutex::new(RateBucket::new(bytes_per_second)),
            requests: Mutex::new(RateBucket::new(requests_per_second)),
        }
    }

    /// Charges `requests` requests that carry `bytes` bytes in either direction. Returns the moment from
    /// which they may be sent.
    pub fn charge_and_schedule(&self, now: Instant, requests: u64, bytes: u64) -> Instant {
        let requests = self.requests.lock().take(now, requests);
        let bytes = self.bytes.lock().take(now, bytes);
        requests.max(bytes)
    }

    /// Charges one request with `bytes` bytes, and waits until it may be sent.
    pub async fn wait_for_request(&self, bytes: u64) {
        let now = Instant::now();
        let due = self.charge_and_schedule(now, 1, bytes);
        if due > now {
            mlgw_common::time::sleep_until(due).await;
        }
    }

    /// Charges the bytes of a piece of a stream, and waits until it may pass.
    pub async fn wait_for_bytes(&self, bytes: u64) {
        let now = Instant::now();
        let due = self.charge_and_schedule(now, 0, bytes);
        if due > now {
            mlgw_common::time::sleep_until(due).await;
        }
    }

    /// Charges bytes that were transferred without waiting; the next request waits for them.
    pub fn charge(&self, bytes: u64) {
        self.charge_and_schedule(Instant::now(), 0, bytes);
    }
}

/// Token bucket.
#[derive(Debug)]
struct RateBucket {
    /// Rate; 0 means no limit.
    per_second: u64,
    /// Moment from which the next amount is available.
    next: Option<Instant>,
}

impl RateBucket {
    fn new(per_second: u64) -> Self {
        Self { per_second, next: None }
    }

    /// Takes `amount`, and returns the moment from which it is available.
    fn take(&mut self, now: Instant, amount: u64) -> Instant {
        if self.per_second == 0 || amount == 0 {
            return now;
        }
        let saved = now.checked_sub(SAVED_MAX).unwrap_or(now);
        let due = self.next.map_or(saved, |next| next.max(saved));
        self.next = Some(due + Duration::from_secs_f64(amount as f64 / self.per_second as f64));
        due.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::{RateBucket, SAVED_MAX, UpstreamBudget};
    use mlgw_common::time::Instant;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn the_rate_is_kept_and_at_most_a_quarter_of_a_second_is_saved() {
        let (budget, now) = (UpstreamBudget::new(1000, 0), Instant::now());
        let due: Vec<Duration> = (0..5).map(|_| budget.charge_and_schedule(now, 1, 250) - now).collect();
        assert_eq!(due, [0, 0, 250, 500, 750].map(Duration::from_millis));
        let later = now + Duration::from_secs(3600);
        assert_eq!(budget.charge_and_schedule(later, 1, 250), later);
        assert_eq!(budget.charge_and_schedule(later, 1, 250), later, "a quarter of a second was accumulated");
        assert_eq!(budget.charge_and_schedule(later, 1, 250), later + SAVED_MAX, "and not an hour");
    }

    #[test]
    fn the_scarcer_resource_decides() {
        let (budget, now) = (UpstreamBudget::new(1 << 40, 2), Instant::now());
        let due: Vec<Duration> = (0..3).map(|_| budget.charge_and_schedule(now, 1, 1000) - now).collect();
        assert_eq!(due, [0, 250, 750].map(Duration::from_millis));
        let unbounded = UpstreamBudget::new(0, 0);
        assert!((0..1000).all(|_| unbounded.charge_and_schedule(now, 1, u64::MAX) == now));
    }

    proptest! {
        #[test]
        fn no_second_exceeds_its_share(
            rate in 1u64..10_000,
            requests in proptest::collection::vec((0u64..500, 1u64..2000), 1..60),
        ) {
            let (mut bucket, begun) = (RateBucket::new(rate), Instant::now());
            let (mut now, mut before, mut taken) = (begun, begun, 0);
            for (pause, amount) in requests {
                now += Duration::from_millis(pause);
                let due = bucket.take(now, amount);
                prop_assert!(due >= now && due >= before, "first come, first served");
                // Amounts granted before this moment fit into the elapsed time plus the saved time.
                let allowed = (due - begun + SAVED_MAX).as_secs_f64() * rate as f64;
                prop_assert!(taken as f64 <= allowed + 1.0, "{taken} of {allowed}");
                (before, taken) = (due, taken + amount);
            }
        }
    }
}
