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
use super::last_append::QUIET_MAX;
use openraft::async_runtime::WatchReceiver as _;
use std::time::Duration;

/// Shortest time after the last accepted append at which openraft begins an election: the time for which a
/// voter keeps its promise to the leader, and the shortest election timeout.
const ELECTION_AFTER: Duration = Duration::from_secs(3);

const _: () = assert!(
    QUIET_MAX.as_millis() + 2 * HEARTBEAT_INTERVAL.as_millis() < ELECTION_AFTER.as_millis(),
    "the clock ticks before an election is due"
);

impl Group {
    /// Starts or stops openraft's clock of this group. Call this once in each interval of heartbeats.
    pub(crate) fn set_clock(&self) {
        let leads = self.raft.metrics().borrow_watched().state.is_leader();
        self.raft.runtime_config().tick(!leads && !self.last_append.is_recent());
    }
}
