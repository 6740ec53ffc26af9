//! Leases: the time in which a leader reads without a confirmation by a quorum.
//!
//! A voter that has answered an append refuses for a while to vote for another member. So no other member can
//! lead while a quorum has answered appends that were sent a short while ago. openraft lets voters refuse for
//! the longest election timeout ([`Config::election_timeout_max`](openraft::Config)), measured from the
//! arrival, and names the time at which the leader sent what a quorum has answered. The lease of a leader
//! begins at that time and is shorter by [`LEASE_MARGIN`].
//!
//! Four things would break that, so each is excluded here or by [`super::vote_pause`]:
//!
//! - A voter loses its refusal with a restart. It neither votes nor asks for votes until that is over.
//! - A leader that hands its leadership over lets voters vote at once. Its lease ends before.
//! - The metrics of openraft may be older than a vote of this member. A lease ends before the vote leaves.
//! - Clocks stand still while a machine is suspended. What was answered before a suspension does not count.
//!
//! Followers apply an entry of a leadership as soon as its leader has sent that the entry is committed, maybe
//! before the leader applies it. A read by lease waits until the leader has applied what it has sent, so that
//! it is never older than an earlier read at a follower.
//!
//! Clocks of nodes may run at different rates, as long as no voter's clock gains [`LEASE_MARGIN`] on that of
//! the leader within a lease. Nothing is stored: a member that restarts does not lead.

use super::vote_pause::votes_refused;
use mlgw_common::SuspensionWatch;
use mlgw_common::time::Instant;
use mlgw_formats::log_types::{Leadership, RaftTypes};
use openraft::Instant as _;
use openraft::RaftMetrics;
use openraft::alias::SerdeInstantOf;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time by which a lease is shorter than the time for which voters refuse, for clocks that run at different
/// rates and for unnoticed suspensions. Heartbeats are far more frequent, so a lease of what is left lasts.
const LEASE_MARGIN: Duration = Duration::from_millis(500);

/// State of a member's leadership at one moment. Pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaderFacts {
    /// Its leadership; `None` if it does not lead.
    leads: Option<Leadership>,
    /// Leadership under which the last entry was proposed that it has applied.
    applied: Option<Leadership>,
    /// Time at which it sent the last appends that a quorum has answered.
    acked: Option<Instant>,
}

impl LeaderFacts {
    fn of(metrics: &RaftMetrics<RaftTypes>, node: u64) -> Self {
        let vote = metrics.vote;
        // openraft hands the leadership of a member over that is no voter any more.
        let mut voters = metrics.membership_config.membership().get_joint_config().iter();
        let leads = metrics.state.is_leader()
            && vote.committed
            && vote.leader_id.node_id == node
            && voters.all(|voters| voters.contains(&node));
        // The own clock is read first, so this is not later than the time that openraft recorded.
        let time_of = |acked: SerdeInstantOf<RaftTypes>| Instant::now().checked_sub(acked.elapsed());
        Self {
            leads: leads.then_some(vote.leader_id),
            applied: metrics.last_applied.map(|id| id.leader_id),
            acked: metrics.last_quorum_acked.and_then(time_of),
        }
    }
}

/// Leaderships of this member that have no lease any more. Pure.
#[derive(Debug, Default)]
struct EndedLeases {
    /// The highest leadership of another member for which this one has voted. Lower ones are over.
    voted: Option<Leadership>,
    /// The highest leadership that was handed over.
    handed_over: Option<Leadership>,
    /// Number of hand-overs that are being begun.
    handing_over: usize,
}

impl EndedLeases {
    fn contains(&self, leadership: Leadership) -> bool {
        let is_replaced = self.voted.is_some_and(|voted| voted > leadership);
        let is_handed_over = self.handed_over.is_some_and(|ended| ended >= leadership);
        self.handing_over > 0 || is_replaced || is_handed_over
    }
}

/// Leases of one member.
#[derive(Debug)]
pub(super) struct MemberLease {
    /// Length of a lease.
    length: Duration,
    ended: Mutex<EndedLeases>,
    suspensions: SuspensionWatch,
    /// Index of the last entry that this member has sent to others as committed; 0 before the first one.
    sent_committed: AtomicU64,
}

impl MemberLease {
    /// Leases of a member of a group with this election timeout.
    pub(super) fn new(election_timeout_max_ms: u64) -> Self {
        Self {
            length: votes_refused(election_timeout_max_ms).saturating_sub(LEASE_MARGIN),
            ended: Mutex::default(),
            suspensions: SuspensionWatch::of_machine(),
            sent_committed: AtomicU64::default(),
        }
    }

    /// Records that other members may apply the entries up to `index`. Call this before they are informed,
    /// because the metrics of openraft may be published after that.
    pub(super) fn record_committed(&self, index: u64) {
        self.sent_committed.fetch_max(index, Ordering::SeqCst);
    }

    /// Index up to which other members may have applied entries of the leaderships of this member.
    pub(super) fn sent_committed(&self) -> u64 {
        self.sent_committed.load(Ordering::SeqCst)
    }

    /// Ends the leases of all leaderships below one for which this member votes. Call this before the vote
    /// leaves.
    pub(super) fn voted_for(&self, other: Leadership) {
        let mut ended = self.ended.lock();
        ended.voted = ended.voted.max(Some(other));
    }

    /// Begins to hand a leadership over: there is no lease until [`Self::handed_over`].
    pub(super) fn hand_over(&self) {
        self.ended.lock().handing_over += 1;
    }

    /// Ends the leases of all leaderships up to the one that was handed over.
    pub(super) fn handed_over(&self, last: Leadership) {
        let mut ended = self.ended.lock();
        ended.handed_over = ended.handed_over.max(Some(last));
        ended.handing_over = ended.handing_over.saturating_sub(1);
    }

    /// The leadership of the member `node` that has a lease now.
    pub(super) fn of(&self, metrics: &RaftMetrics<RaftTypes>, node: u64) -> Option<Leadership> {
        self.holds(LeaderFacts::of(metrics, node))
    }

    /// Returns the leadership, if the facts prove that it has a lease.
    fn holds(&self, facts: LeaderFacts) -> Option<Leadership> {
        let leadership = facts.leads?;
        // The first entry of a leadership follows all that earlier leaders have acknowledged.
        if facts.applied != Some(leadership) || self.ended.lock().contains(leadership) {
            return None;
        }
        let (now, acked) = (Instant::now(), facts.acked?);
        (acked >= self.suspensions.none_since() && now < acked + self.length).then_some(leadership)
    }
}

#[cfg(test)]
mod tests {
    use super::{LeaderFacts, MemberLease};
    use mlgw_common::time::{Instant, sleep};
    use mlgw_formats::log_types::Leadership;
    use std::time::Duration;

    const REFUSED_MS: u64 = 2000;
    const OWN: Leadership = Leadership { term: 5, node_id: 2 };

    fn facts() -> LeaderFacts {
        LeaderFacts { leads: Some(OWN), applied: Some(OWN), acked: Some(Instant::now()) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_before_any_voter_votes_for_another_member() {
        let (lease, facts) = (MemberLease::new(REFUSED_MS), facts());
        let mut lasted = Duration::ZERO;
        while lease.holds(facts) == Some(OWN) {
            sleep(Duration::from_millis(1)).await;
            lasted += Duration::from_millis(1);
        }
        // A voter whose clock runs faster by a quarter refuses for 1.6 s.
        assert!(lasted <= Duration::from_millis(1600), "{lasted:?}");
        assert!(lasted >= Duration::from_millis(1000), "it outlasts three heartbeats: {lasted:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_needs_a_leader_that_a_quorum_answered_and_that_has_applied_its_first_entry() {
        let (lease, facts) = (MemberLease::new(REFUSED_MS), facts());
        assert_eq!(lease.holds(facts), Some(OWN));
        assert_eq!(lease.holds(LeaderFacts { leads: None, ..facts }), None);
        assert_eq!(lease.holds(LeaderFacts { acked: None, ..facts }), None);
        let earlier = Leadership { term: 4, ..OWN };
        for applied in [None, Some(earlier)] {
            assert_eq!(lease.holds(LeaderFacts { applied, ..facts }), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_vote_for_another_member_ends_lower_leaderships_only() {
        let (lease, facts) = (MemberLease::new(REFUSED_MS), facts());
        lease.voted_for(Leadership { term: 4, node_id: 3 });
        assert_eq!(lease.holds(facts), Some(OWN), "it was elected later");
        lease.voted_for(Leadership { term: 6, node_id: 1 });
        lease.voted_for(Leadership { term: 4, node_id: 3 });
        assert_eq!(lease.holds(facts), None);
        let later = Some(Leadership { term: 7, ..OWN });
        assert_eq!(lease.holds(LeaderFacts { leads: later, applied: later, ..facts }), later);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leadership_that_is_handed_over_has_no_lease_whatever_becomes_of_it() {
        let (lease, facts) = (MemberLease::new(REFUSED_MS), facts());
        lease.hand_over();
        assert_eq!(lease.holds(facts), None);
        lease.handed_over(OWN);
        assert_eq!(lease.holds(facts), None);
        let later = Some(Leadership { term: 6, ..OWN });
        assert_eq!(lease.holds(LeaderFacts { leads: later, applied: later, ..facts }), later);
    }
}
