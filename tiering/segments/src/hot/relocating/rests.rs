//! Rests between passes over the rows of a group. Pure.
//!
//! A scan for the chunks of a group reads all of its rows. Scans take at most a tenth of the time, and the
//! rests of a group are longer and longer while its passes move nothing. Chunks that are counted and not
//! found are those of deleted bodies that wait to be freed, or were written meanwhile; chunks that do not
//! verify, or that no node can read, are found each time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mlgw_common::time::Instant;

/// Duration of a rest in relation to that of the scan.
const REST_FACTOR: u32 = 9;
/// The rest after a pass that failed, and the first one after a pass that moved nothing. Each further one is
/// twice as long.
const IDLE_REST_MIN: Duration = Duration::from_secs(10);
/// The longest of these rests.
const IDLE_REST_MAX: Duration = Duration::from_secs(3600);

/// How a pass over the rows of a group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassEnd {
    /// It moved chunks, or was interrupted.
    Moved,
    /// It found no chunk that could be moved.
    Idle,
    /// It failed.
    Failed,
}

/// Rests of the groups that this node has scanned, by group.
#[derive(Debug, Default)]
pub(super) struct PassRests(BTreeMap<u32, PassRest>);

#[derive(Clone, Copy, Debug)]
struct PassRest {
    until: Instant,
    /// Rest after the newest pass that moved nothing; zero after one that did.
    idle: Duration,
}

impl PassRests {
    /// True if the rows of a group may be scanned.
    pub(super) fn is_due(&self, group: u32, now: Instant) -> bool {
        self.0.get(&group).is_none_or(|rest| now >= rest.until)
    }

    /// Records a pass that ended now, after it scanned rows for `scanning`.
    pub(super) fn record(&mut self, group: u32, now: Instant, scanning: Duration, end: PassEnd) {
        let before = self.0.get(&group).map_or(Duration::ZERO, |rest| rest.idle);
        let idle = match end {
            PassEnd::Moved => Duration::ZERO,
            PassEnd::Idle => before.saturating_mul(2).clamp(IDLE_REST_MIN, IDLE_REST_MAX),
            PassEnd::Failed => IDLE_REST_MIN,
        };
        let rest = idle.max(scanning.saturating_mul(REST_FACTOR).min(IDLE_REST_MAX));
        self.0.insert(group, PassRest { until: now + rest, idle });
    }

    /// Keeps the rests of these groups only.
    pub(super) fn retain(&mut self, groups: &BTreeSet<u32>) {
        self.0.retain(|group, _| groups.contains(group));
    }
}

#[cfg(test)]
mod tests {
    use super::{IDLE_REST_MAX, IDLE_REST_MIN, PassEnd, PassRests};
    use mlgw_common::time::Instant;
    use std::time::Duration;

    #[test]
    fn scans_take_at_most_a_tenth_of_the_time() {
        let (mut rests, now) = (PassRests::default(), Instant::now());
        assert!(rests.is_due(3, now));
        rests.record(3, now, Duration::from_secs(2), PassEnd::Moved);
        assert!(!rests.is_due(3, now + Duration::from_secs(17)));
        assert!(rests.is_due(3, now + Duration::from_secs(18)) && rests.is_due(4, now));
        rests.retain(&[4].into());
        assert!(rests.is_due(3, now));
    }

    #[test]
    fn a_group_whose_passes_move_nothing_rests_longer_and_longer() {
        let (mut rests, now) = (PassRests::default(), Instant::now());
        let rest = |rests: &PassRests| {
            let seconds = (0..=IDLE_REST_MAX.as_secs()).map(Duration::from_secs);
            seconds.into_iter().find(|rest| rests.is_due(3, now + *rest)).unwrap()
        };
        for expected in [1, 2, 4, 8] {
            rests.record(3, now, Duration::ZERO, PassEnd::Idle);
            assert_eq!(rest(&rests), IDLE_REST_MIN * expected);
        }
        (0..10).for_each(|_| rests.record(3, now, Duration::ZERO, PassEnd::Idle));
        assert_eq!(rest(&rests), IDLE_REST_MAX);
        rests.record(3, now, Duration::ZERO, PassEnd::Failed);
        assert_eq!(rest(&rests), IDLE_REST_MIN, "a node may answer again");
        rests.record(3, now, Duration::ZERO, PassEnd::Moved);
        assert_eq!(rest(&rests), Duration::ZERO);
    }
}
