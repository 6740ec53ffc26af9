//! The time at which a member last accepted an append of its leader. In memory: a member that starts has
//! accepted none.

use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::time::Duration;

/// Time since the last accepted append after which [`super::election_clock`] lets the clock tick.
pub(super) const QUIET_MAX: Duration = Duration::from_secs(1);

/// Time at which a member last accepted an append of its leader.
#[derive(Debug, Default)]
pub(super) struct LastAppend(Mutex<Option<Instant>>);

impl LastAppend {
    /// Records that an append was accepted now.
    pub(super) fn record(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// True if an append was accepted within [`QUIET_MAX`].
    pub(super) fn is_recent(&self) -> bool {
        self.0.lock().is_some_and(|at| at.elapsed() < QUIET_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{LastAppend, QUIET_MAX};
    use mlgw_common::time::sleep;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn an_append_is_recent_for_a_second() {
        let last = LastAppend::default();
        assert!(!last.is_recent(), "the clock ticks after a start");
        last.record();
        assert!(last.is_recent());
        sleep(QUIET_MAX / 2).await;
        last.record();
        sleep(QUIET_MAX - Duration::from_millis(1)).await;
        assert!(last.is_recent());
        sleep(Duration::from_millis(1)).await;
        assert!(!last.is_recent());
    }
}
