//! Limits work to a rate of bytes per second.

use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::time::Duration;

/// Time at which the next bytes are due. Shared by all tasks that work at one rate, so that a task that fails
/// leaves the bytes that it used charged.
#[derive(Debug, Default)]
pub struct ByteRateLimiter(Mutex<Option<Instant>>);

impl ByteRateLimiter {
    /// Returns the time at which `bytes`, requested at `now`, are due at `bytes_per_second`. Unused time does
    /// not accumulate.
    pub fn due_at(&self, now: Instant, bytes: u64, bytes_per_second: u64) -> Instant {
        let mut next = self.0.lock();
        let due = next.map_or(now, |due| due.max(now));
        let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_second.max(1) as f64);
        *next = Some(due + takes);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::ByteRateLimiter;
    use mlgw_common::time::Instant;
    use std::time::Duration;

    #[test]
    fn bytes_are_spread_at_the_rate() {
        let (pace, now) = (ByteRateLimiter::default(), Instant::now());
        let after = |millis| now + Duration::from_millis(millis);
        let due: Vec<Instant> = (0..3).map(|_| pace.due_at(now, 100, 1000)).collect();
        assert_eq!(due, [now, after(100), after(200)]);
        assert_eq!(pace.due_at(after(5000), 100, 1000), after(5000));
        assert_eq!(pace.due_at(after(5000), 100, 1000), after(5100), "idle time does not accumulate");
    }
}
