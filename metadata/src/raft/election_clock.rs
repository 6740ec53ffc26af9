//! When openraft's clock ticks in a group: only while an election may become due.
//!
//! openraft ticks five times a second in each group, which wakes its task although nothing is due: a quarter
//! of what an idle node does. A tick does nothing in a leader. In any other voter it begins an election when
//! no append has arrived for [`ELECTION_AFTER`]. So the clock of a group stands still while this member leads
//! or has accepted an append a moment ago, and ticks again long before an election is due.
//!
//! Nothing is stored. After a start the clock ticks.

use super::group::Group;
use super::heartbeats::HEARTBEAT_INTERVAL;
use mlgw_common::time::Instant;
use openraft::async_runtime::WatchReceiver as _;
use parking_lot::Mutex;
use std::time::Duration;

/// Time since the last accepted append after which the clock ticks.
const QUIET_MAX: Duration = Duration::from_secs(1);

/// Shortest time after the last accepted append at which openraft begins an election: the time for which a
/// voter keeps its promise to the leader, and the shortest election timeout.
const ELECTION_AFTER: Duration = Duration::from_secs(3);

const _: () = assert!(
    QUIET_MAX.as_millis() + 2 * HEARTBEAT_INTERVAL.as_millis() < ELECTION_AFTER.as_millis(),
    "the clock ticks before an election is due"
);

/// Time at which a member last accepted an append of its leader.
#[derive(Debug, Default)]
pub(super) struct LastAppend(Mutex<Option<Instant>>);

impl LastAppend {
    /// Records that an append was accepted now.
    pub(super) fn record(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    fn is_recent(&self) -> bool {
        self.0.lock().is_some_and(|at| at.elapsed() < QUIET_MAX)
    }
}

impl Group {
    /// Starts or stops openraft's clock of this group. Call this once in each interval of heartbeats.
    pub(crate) fn set_clock(&self) {
        let leads = self.raft.metrics().borrow_watched().state.is_leader();
        self.raft.runtime_config().tick(!leads && !self.last_append.is_recent());
    }
}

#[cfg(test)]
mod tests {
    use super::{LastAppend, QUIET_MAX};
    use mlgw_common::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn an_append_is_recent_for_a_second() {
        let last = LastAppend::default();
        assert!(!last.is_recent(), "the clock ticks after a start");
        last.record();
        assert!(last.is_recent());
        sleep(QUIET_MAX / 2).await;
        last.record();
        sleep(QUIET_MAX - std::time::Duration::from_millis(1)).await;
        assert!(last.is_recent());
        sleep(std::time::Duration::from_millis(1)).await;
        assert!(!last.is_recent());
    }
}
