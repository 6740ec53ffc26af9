//! Timestamps, and the only source of the time of day.
//!
//! Clock times are used for Last-Modified, signatures and reports only; no order of writes depends on them.
//! Code that needs the time takes a [`Clock`], so a test controls the time.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};

/// Milliseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Converts whole seconds since the Unix epoch.
    #[must_use]
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Parses a text such as `2026-11-20T11:36:23.000Z`; `None` if it is invalid.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|time| Self(time.as_millisecond()))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    #[must_use]
    pub const fn as_secs(self) -> i64 {
        self.0.div_euclid(1000)
    }
}

impl fmt::Display for Timestamp {
    /// Formats as RFC 3339 with milliseconds, as S3's XML does: `2026-11-20T11:36:23.000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => write!(f, "{t:.3}"),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

/// Source of the time of day.
pub trait Clock: Send + Sync + 'static {
    /// The time of day.
    fn now(&self) -> Timestamp;
}

/// Clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system clock")]
    fn now(&self) -> Timestamp {
        Timestamp(jiff::Timestamp::now().as_millisecond())
    }
}

/// Clock that a test sets explicitly.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that is fixed at `now`.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.0))
    }

    /// Sets the time to `now`.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn shows_times_as_s3_does() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(1_700_000_000_123).to_string(), "2023-11-14T22:13:20.123Z");
    }

    #[test]
    fn seconds_round_down_before_the_epoch_too() {
        assert_eq!(Timestamp(-1).as_secs(), -1);
        assert_eq!(Timestamp(1_999).as_secs(), 1);
    }
}
