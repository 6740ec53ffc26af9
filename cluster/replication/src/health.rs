//! Health of peers, as it matters to open segments.
//!
//! - A peer that answers later than 500 ms, or has not answered for so long, is left out of all open and
//!   prepared segments together. So is one without a lease.
//! - It returns with the first answer in time after a back-off, which doubles from 1 s to 60 s.
//! - The last peer is never left out for being late: a quorum needs it.
//!
//! Nothing survives a restart: all peers are in until they answer late.

use crate::backoff::Backoff;
use crate::rules::{ReplicationRule, ReplicationRules};
use mlgw_common::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time within which a peer answers an append.
pub const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);

/// Change of the members of open segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerChange {
    /// The peer is left out: every open segment drops it, and every prepared segment with it is given up.
    LeftOut(NodeId),
    /// New segments may have replicas at the peer again.
    Returned(NodeId),
}

/// Health of all peers that store segments.
#[derive(Clone, Debug, Default)]
pub struct PeerHealth {
    peers: BTreeMap<NodeId, PeerState>,
    rules: Option<ReplicationRules>,
}

#[derive(Clone, Copy, Debug)]
struct PeerState {
    has_lease: bool,
    is_in: bool,
    backoff: Backoff,
}

impl PeerHealth {
    /// Returns the health of no peers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    pub(crate) fn by(rules: ReplicationRules) -> Self {
        Self { peers: BTreeMap::new(), rules: Some(rules) }
    }

    /// Sets the peers that store segments. New ones are in, with a lease; those that are gone are left out.
    pub fn set_peers(&mut self, peers: &BTreeSet<NodeId>) -> Vec<PeerChange> {
        let gone = self.peers.iter().filter(|(node, peer)| peer.is_in && !peers.contains(node));
        let changes = gone.map(|(node, _)| PeerChange::LeftOut(*node)).collect();
        self.peers.retain(|node, _| peers.contains(node));
        for node in peers {
            let fresh = PeerState { has_lease: true, is_in: true, backoff: Backoff::default() };
            self.peers.entry(*node).or_insert(fresh);
        }
        changes
    }

    /// Peers that new segments may have replicas at.
    #[must_use]
    pub fn usable(&self) -> BTreeSet<NodeId> {
        self.peers.iter().filter(|(_, peer)| peer.is_in).map(|(node, _)| *node).collect()
    }

    /// Records an answer, and the time that it took.
    pub fn answered(&mut self, node: NodeId, took: Duration, now: Duration) -> Option<PeerChange> {
        if took > ANSWER_TIME_MAX {
            return self.late(node, now);
        }
        let peer = self.peers.get_mut(&node)?;
        if peer.is_in || !peer.has_lease || !peer.backoff.is_over(now) {
            return None;
        }
        peer.is_in = true;
        Some(PeerChange::Returned(node))
    }

    /// Records the age of the oldest request that the peer has not answered. To be called every 100 ms or so.
    pub fn unanswered(&mut self, node: NodeId, age: Duration, now: Duration) -> Option<PeerChange> {
        if age > ANSWER_TIME_MAX { self.late(node, now) } else { None }
    }

    /// Records that the peer ended or refused a replica. It is left out for a while, also as one of the last
    /// two, since it would refuse the next one too. The pause of the last one does not grow.
    pub fn failed(&mut self, node: NodeId, now: Duration) -> Option<PeerChange> {
        let is_last = self.is_last();
        if let Some(peer) = self.peers.get_mut(&node).filter(|peer| is_last && peer.is_in) {
            peer.backoff = Backoff::default();
        }
        self.leave_out(node, now)
    }

    /// Records that the peer's lease is over.
    pub fn lease_ended(&mut self, node: NodeId, now: Duration) -> Option<PeerChange> {
        self.peers.get_mut(&node)?.has_lease = false;
        self.leave_out(node, now)
    }

    /// Records that the peer has a lease.
    pub fn lease_held(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.has_lease = true;
        }
    }

    fn late(&mut self, node: NodeId, now: Duration) -> Option<PeerChange> {
        let rules = self.rules.unwrap_or(ReplicationRules::ALL);
        let is_last = self.is_last() && rules.has(ReplicationRule::LastTwoStay);
        if is_last || !rules.has(ReplicationRule::LateIsLeftOut) {
            return None;
        }
        self.leave_out(node, now)
    }

    /// True if at most one peer is in: without it no quorum remains.
    fn is_last(&self) -> bool {
        self.peers.values().filter(|peer| peer.is_in).count() <= 1
    }

    fn leave_out(&mut self, node: NodeId, now: Duration) -> Option<PeerChange> {
        let peer = self.peers.get_mut(&node).filter(|peer| peer.is_in)?;
        peer.is_in = false;
        peer.backoff.fail(now);
        Some(PeerChange::LeftOut(node))
    }
}

#[cfg(test)]
mod tests {
    use super::{PeerChange, PeerHealth};
    use mlgw_common::NodeId;
    use std::collections::BTreeSet;
    use std::time::Duration;

    const A: NodeId = NodeId(2);
    const B: NodeId = NodeId(3);

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn with_peers(peers: &[NodeId]) -> PeerHealth {
        let mut health = PeerHealth::new();
        health.set_peers(&peers.iter().copied().collect());
        health
    }

    #[test]
    fn one_late_answer_leaves_a_peer_out_until_its_back_off_is_over() {
        let mut health = with_peers(&[A, B]);
        assert_eq!(health.answered(A, ms(500), ms(0)), None);
        assert_eq!(health.answered(A, ms(501), ms(0)), Some(PeerChange::LeftOut(A)));
        assert_eq!(health.usable(), BTreeSet::from([B]));
        assert_eq!(health.answered(A, ms(501), ms(10)), None, "it is out already");
        assert_eq!(health.answered(A, ms(1), ms(999)), None);
        assert_eq!(health.answered(A, ms(1), ms(1_000)), Some(PeerChange::Returned(A)));

        assert_eq!(health.unanswered(A, ms(500), ms(1_500)), None);
        assert_eq!(health.unanswered(A, ms(501), ms(2_000)), Some(PeerChange::LeftOut(A)));
        assert_eq!(health.answered(A, ms(1), ms(3_999)), None, "the back-off has doubled");
        assert_eq!(health.answered(A, ms(1), ms(4_000)), Some(PeerChange::Returned(A)));
    }

    #[test]
    fn the_last_two_stay_unless_a_lease_is_gone() {
        let mut pair = with_peers(&[A]);
        assert_eq!(pair.answered(A, ms(60_000), ms(0)), None);
        assert_eq!(pair.lease_ended(A, ms(1)), Some(PeerChange::LeftOut(A)));
        assert_eq!(pair.answered(A, ms(1), ms(5_000)), None, "it has no lease");
        pair.lease_held(A);
        assert_eq!(pair.answered(A, ms(1), ms(5_000)), Some(PeerChange::Returned(A)));

        let mut three = with_peers(&[A, B]);
        assert_eq!(three.answered(A, ms(501), ms(0)), Some(PeerChange::LeftOut(A)));
        assert_eq!(three.answered(B, ms(501), ms(0)), None);
        assert_eq!(three.answered(A, ms(1), ms(1_000)), Some(PeerChange::Returned(A)));
        assert_eq!(three.answered(B, ms(501), ms(1_000)), Some(PeerChange::LeftOut(B)));
    }

    #[test]
    fn a_peer_that_refuses_pauses_also_as_the_last_one() {
        let mut pair = with_peers(&[A]);
        assert_eq!(pair.failed(A, ms(0)), Some(PeerChange::LeftOut(A)));
        assert_eq!(pair.failed(A, ms(10)), None, "it is out already");
        assert_eq!(pair.answered(A, ms(1), ms(999)), None);
        assert_eq!(pair.answered(A, ms(1), ms(1_000)), Some(PeerChange::Returned(A)));
    }

    #[test]
    fn peers_come_and_go() {
        let mut health = with_peers(&[A, B]);
        assert_eq!(health.lease_ended(A, ms(0)), Some(PeerChange::LeftOut(A)));
        assert_eq!(health.set_peers(&BTreeSet::from([A, NodeId(4)])), [PeerChange::LeftOut(B)]);
        assert_eq!(health.usable(), BTreeSet::from([NodeId(4)]), "a known peer keeps its state");
        assert_eq!(health.answered(B, ms(900), ms(0)), None, "it is no peer any more");
        assert_eq!(health.lease_ended(B, ms(0)), None);
    }
}
