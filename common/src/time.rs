//! Monotonic time, sleeps and time limits: the only source of both.
//!
//! All of them follow the clock of tokio. In a test with `#[tokio::test(start_paused = true)]` that clock
//! stands still while work can run and jumps to the next deadline when none can, so a part that waits for
//! minutes is tested in milliseconds and does not depend on the load of the machine. Elsewhere the clock is
//! the monotonic clock of the operating system, which stands still while the machine is suspended. Only
//! [`block_for`], [`suspended_time`] and [`time_since_boot`] do not follow a paused clock.
//!
//! Nothing is stored, so a power failure has no effect.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

pub use tokio::time::error::Elapsed;
pub use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, Timeout};

/// Waits for a duration.
#[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
pub fn sleep(duration: Duration) -> Sleep {
    tokio::time::sleep(duration)
}

/// Waits until a deadline.
#[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
pub fn sleep_until(deadline: Instant) -> Sleep {
    tokio::time::sleep_until(deadline)
}

/// Runs a future with a time limit.
///
/// # Errors
/// The future returns [`Elapsed`] if the work did not complete within `limit`.
#[expect(clippy::disallowed_methods, reason = "the one place that limits time")]
pub fn timeout<F: IntoFuture>(limit: Duration, work: F) -> Timeout<F::IntoFuture> {
    tokio::time::timeout(limit, work)
}

/// Runs a future until a deadline.
///
/// # Errors
/// The future returns [`Elapsed`] if the work did not complete before `deadline`.
#[expect(clippy::disallowed_methods, reason = "the one place that limits time")]
pub fn timeout_at<F: IntoFuture>(deadline: Instant, work: F) -> Timeout<F::IntoFuture> {
    tokio::time::timeout_at(deadline, work)
}

/// Returns an interval whose first tick is now.
#[expect(clippy::disallowed_methods, reason = "the one place that makes intervals")]
#[must_use]
pub fn interval(period: Duration) -> Interval {
    tokio::time::interval(period)
}

/// Returns the wait after `failures` failures in a row, at least one: `min_ms`, doubled with each further one
/// up to `max_ms`.
#[must_use]
pub fn doubled_wait(failures: u32, min_ms: u64, max_ms: u64) -> Duration {
    let factor = 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_millis(min_ms.saturating_mul(factor).min(max_ms))
}

/// Blocks the thread for a duration.
#[expect(clippy::disallowed_methods, reason = "the one place that blocks")]
pub fn block_for(duration: Duration) {
    std::thread::sleep(duration);
}

/// Bounds of the time for which this machine was suspended since it booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuspendedTime {
    /// It was suspended for at least this long.
    pub at_least: Duration,
    /// It was suspended for at most this long.
    pub at_most: Duration,
}

/// Returns the time for which this machine was suspended, which no [`Instant`] contains.
#[must_use]
pub fn suspended_time() -> SuspendedTime {
    // Three clocks cannot be read at one moment, so the result is a range.
    let before = since_boot(clock_gettime(ClockId::Monotonic));
    let with_suspensions = since_boot(clock_gettime(ClockId::Boottime));
    let after = since_boot(clock_gettime(ClockId::Monotonic));
    SuspendedTime {
        at_least: with_suspensions.saturating_sub(after),
        at_most: with_suspensions.saturating_sub(before),
    }
}

/// Returns the time since this machine booted, which contains its suspensions.
#[must_use]
pub fn time_since_boot() -> Duration {
    since_boot(clock_gettime(ClockId::Boottime))
}

/// A time of a clock that begins at the boot and is never negative.
fn since_boot(time: Timespec) -> Duration {
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Instant, sleep, suspended_time, time_since_boot, timeout};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_jumps_to_the_next_deadline() {
        let (begin, hour) = (Instant::now(), Duration::from_hours(1));
        sleep(hour).await;
        assert_eq!(begin.elapsed(), hour);
        assert!(timeout(hour, std::future::pending::<()>()).await.is_err());
        assert_eq!(begin.elapsed(), 2 * hour);
    }

    #[test]
    fn suspended_time_never_falls() {
        let (first, second) = (suspended_time(), suspended_time());
        assert!(first.at_least <= first.at_most);
        assert!(first.at_least <= second.at_most, "{first:?}, {second:?}");
    }

    #[test]
    fn the_time_since_the_boot_contains_suspensions() {
        let (suspended, now) = (suspended_time().at_least, time_since_boot());
        assert!(suspended < now && now <= time_since_boot());
    }
}
