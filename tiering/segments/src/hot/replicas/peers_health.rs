//! Health of the nodes that follow open segments, from their answers and from the probes of the cluster.
//!
//! The rules are those of [`PeerHealth`]: a node that answers late is left out of all segments, and returns
//! after a growing pause. While a node is left out it gets no appends, so an answered probe counts as its
//! answer: it may follow the next segment then, and is left out for twice as long if it is still late. A node
//! without answers to probes has no lease. Nothing is stored.

use mlgw_common::ids::NodeId;
use mlgw_replication::{PeerChange, PeerHealth, StorageNode};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;

/// Health of the other storage nodes.
#[derive(Default)]
pub(super) struct FollowerHealth(Mutex<KnownPeers>);

#[derive(Default)]
struct KnownPeers {
    health: PeerHealth,
    /// Nodes that have answered a probe. The others were never in, so they need no pause when they answer.
    known: BTreeSet<NodeId>,
}

impl FollowerHealth {
    /// Takes over the storage nodes, and the results of their probes.
    pub(super) fn refresh(&self, own: NodeId, nodes: &[StorageNode], now: Duration) {
        let mut state = self.0.lock();
        let KnownPeers { health, known } = &mut *state;
        let is_known = |node: &&StorageNode| node.is_reachable || known.contains(&node.node);
        let peers: Vec<StorageNode> =
            nodes.iter().filter(|node| node.node != own).filter(is_known).copied().collect();
        *known = peers.iter().map(|peer| peer.node).collect();
        health.set_peers(known);
        for peer in peers {
            let change = if peer.is_reachable {
                health.lease_held(peer.node);
                health.answered(peer.node, Duration::ZERO, now)
            } else {
                health.lease_ended(peer.node, now)
            };
            report(change);
        }
    }

    /// Returns the nodes that open segments may have replicas at.
    pub(super) fn usable(&self) -> BTreeSet<NodeId> {
        self.0.lock().health.usable()
    }

    /// Records an answer of a follower, and the time that it took.
    pub(super) fn answered(&self, node: NodeId, took: Duration, now: Duration) {
        report(self.0.lock().health.answered(node, took, now));
    }

    /// Records that a follower ended its replica, or did not open it.
    pub(super) fn failed(&self, node: NodeId, now: Duration) {
        report(self.0.lock().health.failed(node, now));
    }

    /// Records the age of the oldest bytes that a follower has not acknowledged.
    pub(super) fn unanswered(&self, node: NodeId, age: Duration, now: Duration) {
        report(self.0.lock().health.unanswered(node, age, now));
    }
}

fn report(change: Option<PeerChange>) {
    match change {
        Some(PeerChange::LeftOut(node)) => {
            tracing::warn!(%node,
                "a node answers late, not at all, or with an error; it follows no segments for a while");
        }
        Some(PeerChange::Returned(node)) => tracing::info!(%node, "a node may follow new segments again"),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::FollowerHealth;
    use mlgw_common::ids::NodeId;
    use mlgw_replication::StorageNode;
    use std::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn nodes(reachable: [bool; 3]) -> Vec<StorageNode> {
        let node = |(id, is_reachable)| StorageNode {
            node: NodeId(id),
            is_reachable,
            is_leaving: false,
            is_full: false,
        };
        (1..).zip(reachable).map(node).collect()
    }

    #[test]
    fn a_node_without_answers_is_out_and_returns_with_them() {
        let health = FollowerHealth::default();
        let usable = |reachable, now| {
            health.refresh(NodeId(1), &nodes(reachable), now);
            health.usable().into_iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(usable([true, false, false], ms(0)), [0; 0]);
        assert_eq!(usable([true, true, false], ms(1)), [2], "its first answer needs no pause");
        assert_eq!(usable([true, true, true], ms(2)), [2, 3]);
        assert_eq!(usable([true, false, true], ms(3)), [3]);
        assert_eq!(usable([true, true, true], ms(1_002)), [3], "it pauses for a second");
        assert_eq!(usable([true, true, true], ms(1_003)), [2, 3]);
    }

    #[test]
    fn a_late_node_returns_with_a_probe_after_its_pause() {
        let health = FollowerHealth::default();
        health.refresh(NodeId(1), &nodes([true; 3]), ms(0));
        health.unanswered(NodeId(2), ms(501), ms(600));
        assert!(!health.usable().contains(&NodeId(2)));
        health.refresh(NodeId(1), &nodes([true; 3]), ms(1_599));
        assert!(!health.usable().contains(&NodeId(2)));
        health.refresh(NodeId(1), &nodes([true; 3]), ms(1_600));
        assert!(health.usable().contains(&NodeId(2)));
    }
}
