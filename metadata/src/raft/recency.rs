//! Age of the rows of a member: how long ago it was confirmed that they contain every acknowledged change.
//!
//! A barrier that has passed confirms all changes up to its **begin**, so its begin is recorded. The clock
//! contains suspensions of the machine. A process that hangs, or a machine that was suspended, finds its rows
//! old before it uses them. Nothing is stored: after a restart no rows are confirmed.

use mlgw_common::time::time_since_boot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The last confirmation of a member's rows.
#[derive(Debug, Default)]
pub(super) struct LastConfirmation {
    /// Time since the boot at which the last barrier that passed began, in whole milliseconds and one more; 0
    /// without one.
    begun_ms: AtomicU64,
}

impl LastConfirmation {
    /// Records a barrier that has passed, by the time since the boot at its begin. Barriers may be recorded
    /// in any order.
    pub(super) fn record(&self, begun: Duration) {
        self.begun_ms.fetch_max(whole_ms(begun).saturating_add(1), Ordering::Release);
    }

    /// True if the rows contain every change that was acknowledged more than `age` ago.
    pub(super) fn is_within(&self, age: Duration) -> bool {
        self.is_within_at(age, time_since_boot())
    }

    fn is_within_at(&self, age: Duration, now: Duration) -> bool {
        match self.begun_ms.load(Ordering::Acquire) {
            0 => false,
            begun_ms => now.saturating_sub(Duration::from_millis(begun_ms - 1)) < age,
        }
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::LastConfirmation;
    use std::time::Duration;

    const AGE: Duration = Duration::from_secs(10);

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn rows_are_within_an_age_of_the_begin_of_the_last_barrier() {
        let confirmed = LastConfirmation::default();
        assert!(
            !confirmed.is_within_at(AGE, secs(3.0)),
            "none has passed, although the machine has just booted"
        );
        confirmed.record(secs(20.0));
        assert!(confirmed.is_within_at(AGE, secs(29.99)));
        assert!(!confirmed.is_within_at(AGE, secs(30.0)));
        confirmed.record(secs(25.0));
        confirmed.record(secs(21.0));
        assert!(confirmed.is_within_at(AGE, secs(34.99)), "an earlier one that ended later changes nothing");
        assert!(!confirmed.is_within_at(AGE, secs(35.0)));
    }

    #[test]
    fn a_barrier_right_after_the_boot_counts() {
        let confirmed = LastConfirmation::default();
        confirmed.record(Duration::ZERO);
        assert!(confirmed.is_within_at(AGE, secs(9.99)) && !confirmed.is_within_at(AGE, secs(10.0)));
    }
}
