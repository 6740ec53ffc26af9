//! State of the duty in a process, besides the row.

use mlgw_common::NodeId;
use mlgw_common::time::{Instant, doubled_wait, timeout};
use mlgw_formats::schema::Duty;
use mlgw_membership::duty::LEFT_WAIT_MS;
use mlgw_membership::{DutyWaits, HeldDuty};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Shortest time for which a node counts as unfit for the duty after its work did not begin. It doubles each
/// time.
const UNFIT_MS_MIN: u64 = 60_000;

/// Longest such time.
const UNFIT_MS_MAX: u64 = 64 * UNFIT_MS_MIN;

/// Time in which an aborted task has ended.
const ABORT_MAX: Duration = Duration::from_secs(1);

/// The duty in this process.
#[derive(Default)]
pub(super) struct DutyProcess {
    pub(super) running: Option<RunningTerm>,
    /// The last term that this process took over.
    pub(super) own: Option<OwnTerm>,
    pub(super) leader: Option<KnownLeader>,
    pub(super) failures: FailedBegins,
}

/// A term that runs here.
pub(super) struct RunningTerm {
    pub(super) term: u64,
    /// False for a term that began before terms were known.
    pub(super) has_number: bool,
    /// Acts on origins were allowed.
    pub(super) acts: bool,
    pub(super) renewal: Renewing,
}

/// The task that renews the lease of a term. It is aborted with this value.
pub(super) struct Renewing(JoinHandle<()>);

/// The waits of a term that this process took over.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnTerm {
    pub(super) term: u64,
    /// Time from which no other node has a lease.
    pub(super) serve_at: Instant,
    /// Time from which nothing that was sent before can have an effect at an origin.
    act_at: Instant,
}

/// The leader of the system group.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownLeader {
    pub(super) node: NodeId,
    /// It can take the duty over.
    pub(super) is_able: bool,
    pub(super) knows_terms: bool,
    /// Time since which all of this is so.
    pub(super) since: Instant,
}

/// Begins of the work that failed, since the last one that did not.
#[derive(Debug, Default)]
pub(super) struct FailedBegins {
    count: u32,
    last: Option<Instant>,
}

impl DutyProcess {
    /// What is left of the waits of the term in the row, if this process took it over.
    pub(super) fn own_waits(&self, own: NodeId, duty: &Duty) -> Option<DutyWaits> {
        let known = self.own.filter(|known| duty.node_id() == own && duty.term == known.term);
        known.map(|known| known.rest())
    }

    pub(super) fn held(&self) -> Option<HeldDuty> {
        let RunningTerm { term, has_number, acts, .. } = self.running.as_ref()?;
        let own = self.own.filter(|own| own.term == *term);
        let act_ms = own.map_or(0, |own| own.rest().act_ms);
        Some(HeldDuty { term: *term, has_number: *has_number, acts: *acts, act_ms })
    }

    /// True if the task that renews the lease has ended, which it never should.
    pub(super) fn has_failed(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.renewal.0.is_finished())
    }

    /// Notes that outcomes of changes of origins are unknown, after the last one was cut.
    pub(super) fn add_doubt(&mut self) {
        if let Some(own) = &mut self.own {
            own.act_at = own.act_at.max(Instant::now() + Duration::from_millis(LEFT_WAIT_MS));
        }
    }
}

impl OwnTerm {
    /// A term whose row has been written by now.
    pub(super) fn new(term: u64, waits: DutyWaits) -> Self {
        let now = Instant::now();
        let at = |wait_ms| now + Duration::from_millis(wait_ms);
        Self { term, serve_at: at(waits.serve_ms), act_at: at(waits.act_ms) }
    }

    /// What is left of the waits.
    pub(super) fn rest(&self) -> DutyWaits {
        let now = Instant::now();
        let left = |at: Instant| millis(at.saturating_duration_since(now));
        DutyWaits { serve_ms: left(self.serve_at), act_ms: left(self.act_at) }
    }
}

impl KnownLeader {
    /// Returns the leader with the time of the last change of it: that of `before` if nothing has changed.
    pub(super) fn after(self, before: Option<Self>) -> Self {
        let is_same =
            |of: &Self| (of.node, of.is_able, of.knows_terms) == (self.node, self.is_able, self.knows_terms);
        Self { since: before.filter(is_same).map_or(self.since, |of| of.since), ..self }
    }
}

impl FailedBegins {
    pub(super) fn add(&mut self) {
        self.count = self.count.saturating_add(1);
        self.last = Some(Instant::now());
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// True for a while after a begin that failed.
    pub(super) fn are_recent(&self) -> bool {
        let pause = doubled_wait(self.count, UNFIT_MS_MIN, UNFIT_MS_MAX);
        self.last.is_some_and(|last| last.elapsed() < pause)
    }
}

impl Renewing {
    pub(super) const fn new(task: JoinHandle<()>) -> Self {
        Self(task)
    }

    /// Ends the task: the lease is extended no more.
    pub(super) async fn end(mut self) {
        self.0.abort();
        let _ = timeout(ABORT_MAX, &mut self.0).await;
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A duration in whole milliseconds, rounded up.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{FailedBegins, KnownLeader, OwnTerm, UNFIT_MS_MIN};
    use mlgw_common::NodeId;
    use mlgw_common::time::{Instant, sleep};
    use mlgw_membership::DutyWaits;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_node_whose_work_did_not_begin_is_unfit_for_longer_each_time() {
        let (mut failures, shortest) = (FailedBegins::default(), Duration::from_millis(UNFIT_MS_MIN));
        assert!(!failures.are_recent());
        failures.add();
        sleep(shortest - Duration::from_secs(1)).await;
        assert!(failures.are_recent());
        sleep(Duration::from_secs(1)).await;
        assert!(!failures.are_recent());
        failures.add();
        sleep(shortest).await;
        assert!(failures.are_recent(), "twice as long");
        failures.clear();
        assert!(!failures.are_recent());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_leader_begins_when_it_could_take_the_duty_over() {
        let leader = |knows_terms, is_able| KnownLeader {
            node: NodeId(2),
            is_able,
            knows_terms,
            since: Instant::now(),
        };
        let first = leader(false, true).after(None);
        sleep(Duration::from_secs(9)).await;
        assert_eq!(leader(false, true).after(Some(first)).since, first.since);
        for changed in [leader(true, true), leader(false, false)] {
            assert_eq!(changed.after(Some(first)).since, Instant::now());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_waits_of_a_term_pass() {
        let own = OwnTerm::new(5, DutyWaits { serve_ms: 1_000, act_ms: 5_000 });
        sleep(Duration::from_secs(2)).await;
        assert_eq!(own.rest(), DutyWaits { serve_ms: 0, act_ms: 3_000 });
    }
}
