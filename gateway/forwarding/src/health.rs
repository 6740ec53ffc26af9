//! Members that failed recently. They are tried after all others, for a time that doubles with each failure.
//!
//! The state is in memory. After a restart every member is tried again.

use mlgw_common::NodeId;
use mlgw_common::limits::{FORWARD_SUSPECT_MAX_MS, FORWARD_SUSPECT_MIN_MS, FORWARD_SUSPECTS_MAX};
use mlgw_common::time::{Instant, doubled_wait};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Failures of one member without a success between them.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    failures: u32,
    until: Instant,
}

impl Suspicion {
    /// Returns the suspicion after one more failure.
    fn after(earlier: Option<Self>, now: Instant) -> Self {
        let failures = earlier.map_or(0, |earlier| earlier.failures).saturating_add(1);
        let wait = doubled_wait(failures, FORWARD_SUSPECT_MIN_MS, FORWARD_SUSPECT_MAX_MS);
        Self { failures, until: now + wait }
    }
}

/// Suspicions of all members.
#[derive(Debug, Default)]
pub(crate) struct MemberHealth(Mutex<HashMap<NodeId, Suspicion>>);

impl MemberHealth {
    pub(crate) fn is_suspect(&self, member: NodeId, now: Instant) -> bool {
        self.0.lock().get(&member).is_some_and(|suspicion| now < suspicion.until)
    }

    pub(crate) fn record_success(&self, member: NodeId) {
        let mut suspicions = self.0.lock();
        if !suspicions.is_empty() {
            suspicions.remove(&member);
        }
    }

    pub(crate) fn record_failure(&self, member: NodeId, now: Instant) {
        let mut suspicions = self.0.lock();
        if suspicions.len() >= FORWARD_SUSPECTS_MAX {
            suspicions.retain(|_, suspicion| now < suspicion.until);
        }
        let earlier = suspicions.get(&member).copied();
        if earlier.is_some() || suspicions.len() < FORWARD_SUSPECTS_MAX {
            suspicions.insert(member, Suspicion::after(earlier, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FORWARD_SUSPECT_MAX_MS, FORWARD_SUSPECTS_MAX, MemberHealth};
    use mlgw_common::NodeId;
    use mlgw_common::time::Instant;
    use std::time::Duration;

    #[test]
    fn suspicion_doubles_up_to_a_limit_and_ends_with_a_success() {
        let (health, now, member) = (MemberHealth::default(), Instant::now(), NodeId(2));
        let after = |millis| now + Duration::from_millis(millis);
        health.record_failure(member, now);
        assert!(health.is_suspect(member, after(499)) && !health.is_suspect(member, after(500)));
        health.record_failure(member, now);
        assert!(health.is_suspect(member, after(999)) && !health.is_suspect(member, after(1000)));
        (0..100).for_each(|_| health.record_failure(member, now));
        assert!(health.is_suspect(member, after(FORWARD_SUSPECT_MAX_MS - 1)));
        assert!(!health.is_suspect(member, after(FORWARD_SUSPECT_MAX_MS)));
        assert!(!health.is_suspect(NodeId(3), now));
        health.record_success(member);
        assert!(!health.is_suspect(member, now));
    }

    #[test]
    fn the_number_of_suspicions_is_limited() {
        let (health, now) = (MemberHealth::default(), Instant::now());
        (0..2 * FORWARD_SUSPECTS_MAX as u64).for_each(|id| health.record_failure(NodeId(id), now));
        assert_eq!(health.0.lock().len(), FORWARD_SUSPECTS_MAX);
    }
}
