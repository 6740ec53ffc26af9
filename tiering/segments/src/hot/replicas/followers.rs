//! Choice of the followers of a new segment. Pure.
//!
//! A follower is another storage node that answers, stays, and is not left out for its health. For a segment
//! of a set, nodes outside of the set leave. A node that leaves follows only if all others leave too. A full
//! one follows only segments of moved chunks, if too few others have space: it has a reserve for them,
//! without which a full cluster could not compact. Segments take turns among these nodes, so that each node
//! follows as many as the others. Nothing is stored: the record of the segment has the result.

use mlgw_common::ids::NodeId;
use mlgw_replication::{COPIES, StorageNode};
use std::collections::BTreeSet;

/// Minimum number of replicas that have synced an append before it is acknowledged, in a cluster with several
/// storage nodes. Any two of three replicas have a member in common.
pub(in crate::hot) const WRITE_QUORUM: usize = 2;

/// Replicas that have synced an append before it is acknowledged, in a cluster with several storage nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteQuorum {
    /// Two of them, the primary included.
    #[default]
    Two,
    /// All replicas of the segment.
    All,
}

impl WriteQuorum {
    /// The write quorum of a new segment with these followers; 0 if it has one replica.
    pub(in crate::hot) fn of(self, followers: usize) -> usize {
        match (self, followers) {
            (_, 0) => 0,
            (Self::Two, _) => WRITE_QUORUM,
            (Self::All, followers) => followers + 1,
        }
    }
}

const _: () = assert!(WRITE_QUORUM > 1 && WRITE_QUORUM <= COPIES);

/// The followers of a new segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FollowerChoice {
    /// There is no other storage node: the segment has one replica.
    Alone,
    /// There are others, and fewer of them can be used than the quorum needs.
    TooFew,
    /// These nodes follow.
    Nodes(Vec<NodeId>),
}

/// Facts from which the followers of a new segment follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct FollowerFacts<'a> {
    /// The node that appends to the segment.
    pub(super) own: NodeId,
    /// The storage nodes, as the writer of the segment's set sees them.
    pub(super) nodes: &'a [StorageNode],
    /// The healthy ones.
    pub(super) usable: &'a BTreeSet<NodeId>,
    /// A number that increases with each segment.
    pub(super) turn: usize,
    /// True for a segment of moved chunks.
    pub(super) is_background: bool,
}

/// Chooses the followers of a new segment.
pub(super) fn choose_followers(facts: FollowerFacts<'_>) -> FollowerChoice {
    let FollowerFacts { own, nodes, usable, turn, is_background } = facts;
    let is_member = nodes.iter().any(|node| node.node == own);
    if !is_member || nodes.len() < WRITE_QUORUM {
        return FollowerChoice::Alone;
    }
    let does_any_stay = nodes.iter().any(|node| node.node != own && !node.is_leaving);
    let can_follow = |node: &&StorageNode| {
        let is_chosen = node.node != own && !(node.is_leaving && does_any_stay);
        is_chosen && node.is_reachable && usable.contains(&node.node)
    };
    let able: Vec<&StorageNode> = nodes.iter().filter(can_follow).collect();
    let with_space: Vec<&StorageNode> = able.iter().copied().filter(|node| !node.is_full).collect();
    let is_reserve_used = is_background && with_space.len() + 1 < WRITE_QUORUM;
    let able = if is_reserve_used { able } else { with_space };
    let mut chosen: Vec<NodeId> = able.into_iter().map(|node| node.node).collect();
    if chosen.len() + 1 < WRITE_QUORUM {
        return FollowerChoice::TooFew;
    }
    chosen.sort_unstable();
    let first = turn % chosen.len();
    chosen.rotate_left(first);
    chosen.truncate(COPIES - 1);
    FollowerChoice::Nodes(chosen)
}

#[cfg(test)]
mod tests {
    use super::{FollowerChoice, FollowerFacts, WriteQuorum, choose_followers};
    use mlgw_common::ids::NodeId;
    use mlgw_replication::StorageNode;
    use std::collections::{BTreeMap, BTreeSet};

    const OWN: NodeId = NodeId(1);

    fn nodes(reachable: &[u64], unreachable: &[u64]) -> Vec<StorageNode> {
        let node = |node: &u64, is_reachable| StorageNode {
            node: NodeId(*node),
            is_reachable,
            is_leaving: false,
            is_full: false,
        };
        let up = reachable.iter().map(|id| node(id, true));
        up.chain(unreachable.iter().map(|id| node(id, false))).collect()
    }

    fn chosen(nodes: &[StorageNode], left_out: &[u64], turn: usize) -> FollowerChoice {
        let left_out: Vec<NodeId> = left_out.iter().copied().map(NodeId).collect();
        let usable: BTreeSet<NodeId> =
            nodes.iter().map(|node| node.node).filter(|node| !left_out.contains(node)).collect();
        choose_followers(FollowerFacts { own: OWN, nodes, usable: &usable, turn, is_background: false })
    }

    fn of(ids: &[u64]) -> FollowerChoice {
        FollowerChoice::Nodes(ids.iter().copied().map(NodeId).collect())
    }

    #[test]
    fn a_quorum_is_two_or_all_replicas_of_a_segment() {
        assert_eq!([0, 1, 2].map(|followers| WriteQuorum::Two.of(followers)), [0, 2, 2]);
        assert_eq!([0, 1, 2].map(|followers| WriteQuorum::All.of(followers)), [0, 2, 3]);
    }

    #[test]
    fn a_node_without_others_has_the_only_replica() {
        assert_eq!(chosen(&nodes(&[1], &[]), &[], 0), FollowerChoice::Alone);
        assert_eq!(chosen(&nodes(&[2, 3], &[]), &[], 0), FollowerChoice::Alone, "it is no storage node");
        assert_eq!(chosen(&[], &[], 0), FollowerChoice::Alone);
    }

    #[test]
    fn only_nodes_that_answer_in_time_follow() {
        assert_eq!(chosen(&nodes(&[1, 2, 3], &[]), &[], 0), of(&[2, 3]));
        assert_eq!(chosen(&nodes(&[1, 2], &[3]), &[], 7), of(&[2]));
        assert_eq!(chosen(&nodes(&[1, 2, 3], &[]), &[2], 7), of(&[3]));
        assert_eq!(chosen(&nodes(&[1, 2], &[3]), &[2], 0), FollowerChoice::TooFew);
        assert_eq!(chosen(&nodes(&[1], &[2]), &[], 0), FollowerChoice::TooFew);
    }

    #[test]
    fn a_node_that_leaves_follows_only_if_no_other_one_stays() {
        let leaving = |ids: &[u64]| {
            let mut nodes = nodes(&[1, 2, 3], &[]);
            nodes.iter_mut().for_each(|node| node.is_leaving = ids.contains(&node.node.0));
            nodes
        };
        assert_eq!(chosen(&leaving(&[2]), &[], 0), of(&[3]));
        assert_eq!(chosen(&leaving(&[2]), &[3], 0), FollowerChoice::TooFew);
        assert_eq!(chosen(&leaving(&[2, 3]), &[], 0), of(&[2, 3]));
        assert_eq!(chosen(&leaving(&[1]), &[], 0), of(&[2, 3]), "requests in flight are finished");
    }

    #[test]
    fn a_full_node_follows_only_segments_of_moved_chunks() {
        let full = |ids: &[u64]| {
            let mut nodes = nodes(&[1, 2, 3], &[]);
            nodes.iter_mut().for_each(|node| node.is_full = ids.contains(&node.node.0));
            nodes
        };
        assert_eq!(chosen(&full(&[2]), &[], 0), of(&[3]));
        assert_eq!(chosen(&full(&[1]), &[], 0), of(&[2, 3]), "its own space is checked elsewhere");
        assert_eq!(chosen(&full(&[2, 3]), &[], 0), FollowerChoice::TooFew);
        let moved = |ids: &[u64]| {
            let (nodes, usable) = (full(ids), [1, 2, 3].map(NodeId).into());
            let (nodes, usable) = (nodes.as_slice(), &usable);
            choose_followers(FollowerFacts { own: OWN, nodes, usable, turn: 0, is_background: true })
        };
        assert_eq!(moved(&[2]), of(&[3]), "another one has space");
        assert_eq!(moved(&[2, 3]), of(&[2, 3]), "both have a reserve");
    }

    #[test]
    fn each_node_follows_as_many_segments_as_the_others() {
        let mut counts = BTreeMap::<NodeId, usize>::new();
        for turn in 0..40 {
            let FollowerChoice::Nodes(chosen) = chosen(&nodes(&[1, 2, 3, 4, 5], &[]), &[], turn) else {
                panic!("there are enough nodes");
            };
            assert_eq!(chosen.len(), 2);
            chosen.into_iter().for_each(|node| *counts.entry(node).or_default() += 1);
        }
        assert_eq!(counts, [2, 3, 4, 5].map(|node| (NodeId(node), 20)).into());
    }
}
