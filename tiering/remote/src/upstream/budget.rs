//! What may be asked of one store in a second: bytes and requests, shared by all who use it.
//!
//! Two buckets, each a pure function of the times it is given. Who asks gets a moment from which it may go
//! on, and that moment is its own: the next one who asks gets a later one, so whoever asks first goes first
//! and nobody starves. Time that was not used is saved up for a quarter of a second, no longer, so that a
//! store never sees a burst of what was not asked for all day. Nothing is kept over a restart.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How much unused time is saved up: enough to even out a sleep that lasted too long, too little to be a
/// burst.
const SAVED: Duration = Duration::from_millis(250);

/// Bytes and requests of one store in a second.
#[derive(Debug)]
pub struct Budget {
    bytes: Mutex<Bucket>,
    requests: Mutex<Bucket>,
}

impl Default for Budget {
    /// No bound.
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl Budget {
    /// A budget of so much in a second; 0 is no bound.
    #[must_use]
    pub fn new(bytes_per_second: u64, requests_per_second: u64) -> Self {
        Self {
            bytes: Mutex::new(Bucket::new(bytes_per_second)),
            requests: Mutex::new(Bucket::new(requests_per_second)),
        }
    }

    /// When so many requests that carry so many bytes, either way, may be sent. They count as sent.
    pub fn due(&self, now: Instant, requests: u64, bytes: u64) -> Instant {
        let requests = self.requests.lock().take(now, requests);
        let bytes = self.bytes.lock().take(now, bytes);
        requests.max(bytes)
    }

    /// Takes a budget for one request, and waits until it may be sent.
    pub async fn spend(&self, bytes: u64) {
        let now = Instant::now();
        let due = self.due(now, 1, bytes);
        if due > now {
            tokio::time::sleep_until(due.into()).await;
        }
    }

    /// Takes bytes out of the budget, and waits until it is their turn: of what comes in pieces.
    pub async fn pace(&self, bytes: u64) {
        let now = Instant::now();
        let due = self.due(now, 0, bytes);
        if due > now {
            tokio::time::sleep_until(due.into()).await;
        }
    }

    /// Counts bytes that came without having been asked for; who asks next waits for them.
    pub fn owe(&self, bytes: u64) {
        self.due(Instant::now(), 0, bytes);
    }
}

/// So much in a second.
#[derive(Debug)]
struct Bucket {
    /// 0 is no bound.
    per_second: u64,
    /// From when there is something again.
    next: Option<Instant>,
}

impl Bucket {
    fn new(per_second: u64) -> Self {
        Self { per_second, next: None }
    }

    /// Takes `amount`, and says when it is there.
    fn take(&mut self, now: Instant, amount: u64) -> Instant {
        if self.per_second == 0 || amount == 0 {
            return now;
        }
        let saved = now.checked_sub(SAVED).unwrap_or(now);
        let due = self.next.map_or(saved, |next| next.max(saved));
        self.next = Some(due + Duration::from_secs_f64(amount as f64 / self.per_second as f64));
        due.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bucket, Budget, SAVED};
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    #[test]
    fn as_much_as_a_second_allows_and_no_more_than_a_moment_is_saved_up() {
        let (budget, now) = (Budget::new(1000, 0), Instant::now());
        let due: Vec<Duration> = (0..5).map(|_| budget.due(now, 1, 250) - now).collect();
        assert_eq!(due, [0, 0, 250, 500, 750].map(Duration::from_millis));
        let later = now + Duration::from_secs(3600);
        assert_eq!(budget.due(later, 1, 250), later);
        assert_eq!(budget.due(later, 1, 250), later, "a quarter of a second was saved up");
        assert_eq!(budget.due(later, 1, 250), later + SAVED, "and not an hour");
    }

    #[test]
    fn the_scarcer_of_the_two_decides() {
        let (budget, now) = (Budget::new(1 << 40, 2), Instant::now());
        let due: Vec<Duration> = (0..3).map(|_| budget.due(now, 1, 1000) - now).collect();
        assert_eq!(due, [0, 250, 750].map(Duration::from_millis));
        let unbounded = Budget::new(0, 0);
        assert!((0..1000).all(|_| unbounded.due(now, 1, u64::MAX) == now));
    }

    proptest! {
        #[test]
        fn no_second_ever_gets_more_than_its_share(
            rate in 1u64..10_000,
            asked in proptest::collection::vec((0u64..500, 1u64..2000), 1..60),
        ) {
            let (mut bucket, begun) = (Bucket::new(rate), Instant::now());
            let (mut now, mut before, mut taken) = (begun, begun, 0);
            for (pause, amount) in asked {
                now += Duration::from_millis(pause);
                let due = bucket.take(now, amount);
                prop_assert!(due >= now && due >= before, "first come, first served");
                // What was granted before this moment fits into the time that has passed and what was saved
                // up.
                let allowed = (due - begun + SAVED).as_secs_f64() * rate as f64;
                prop_assert!(taken as f64 <= allowed + 1.0, "{taken} of {allowed}");
                (before, taken) = (due, taken + amount);
            }
        }
    }
}
