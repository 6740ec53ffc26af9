//! Slow-request log: one line per request over the threshold, at a bounded rate.
//!
//! A stalled disk makes all requests slow at the same time, which must not flood the log. Suppressed lines
//! are counted and reported with the next line. Paths come from clients and are logged without their query,
//! which may contain a signature.

use mlgw_common::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Maximum logged bytes of a path: more than the longest key has.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum lines per second.
const LINES_PER_SECOND_MAX: u64 = 10;

/// Rate-limited writer of the log.
#[derive(Debug)]
pub struct SlowLog {
    threshold_millis: AtomicU64,
    started: Instant,
    /// Current second since `started`; its low eight bits are the number of lines written in it.
    window: AtomicU64,
    suppressed: AtomicU64,
}

/// Fields of a line.
#[derive(Clone, Copy, Debug)]
pub struct SlowRequest<'a> {
    /// Operation.
    pub operation: &'static str,
    /// Path of the request.
    pub path: &'a str,
    /// Status of the response.
    pub status: u16,
    /// Duration of the request.
    pub took: Duration,
    /// Id of the request.
    pub request_id: &'a str,
}

impl SlowLog {
    /// Returns a log of requests that take at least `threshold_millis`; 0 disables it.
    #[must_use]
    pub fn new(threshold_millis: u64) -> Self {
        Self {
            threshold_millis: AtomicU64::new(threshold_millis),
            started: Instant::now(),
            window: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Changes the threshold.
    pub fn set_threshold(&self, millis: u64) {
        self.threshold_millis.store(millis, Relaxed);
    }

    /// True if a request with the duration `took` is slow.
    #[must_use]
    pub fn is_slow(&self, took: Duration) -> bool {
        let threshold = self.threshold_millis.load(Relaxed);
        threshold > 0 && took >= Duration::from_millis(threshold)
    }

    /// Writes the line of a slow request, unless the rate is exceeded.
    pub fn log_request(&self, slow: SlowRequest<'_>) {
        if !self.admit(self.started.elapsed().as_secs()) {
            self.suppressed.fetch_add(1, Relaxed);
            return;
        }
        tracing::warn!(
            operation = slow.operation,
            path = &slow.path[..slow.path.floor_char_boundary(PATH_BYTES_MAX)],
            status = slow.status,
            took_ms = u64::try_from(slow.took.as_millis()).unwrap_or(u64::MAX),
            request_id = slow.request_id,
            left_out = self.suppressed.swap(0, Relaxed),
            "slow request"
        );
    }

    fn admit(&self, second: u64) -> bool {
        let next = |window: u64| match window.checked_sub(second << 8) {
            Some(lines) if lines < LINES_PER_SECOND_MAX => Some(window + 1),
            Some(_) => None,
            None => Some((second << 8) + 1),
        };
        self.window.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{LINES_PER_SECOND_MAX, SlowLog};
    use std::time::Duration;

    #[test]
    fn lines_are_limited_per_second() {
        let log = SlowLog::new(1000);
        for second in [0, 1, 2, 9] {
            let admitted = (0..100).filter(|_| log.admit(second)).count();
            assert_eq!(admitted as u64, LINES_PER_SECOND_MAX);
        }
    }

    #[test]
    fn the_threshold_can_change_and_zero_writes_none() {
        let log = SlowLog::new(1000);
        assert!(log.is_slow(Duration::from_secs(1)) && !log.is_slow(Duration::from_millis(999)));
        log.set_threshold(0);
        assert!(!log.is_slow(Duration::from_secs(100)));
    }
}
