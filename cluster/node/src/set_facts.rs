//! The facts from which the next change of the sets follows, and the sets as a status shows them.
//!
//! Every node collects these facts alike; only the leader of the system group acts on them. What this node
//! does not know counts as a move that is not complete, so it delays a change and never hurries one.

use crate::facts::SYSTEM_GROUP;
use crate::sets::set_rows;
use mlgw_common::NodeId;
use mlgw_common::limits::SET_NODES_MAX;
use mlgw_formats::schema::{GroupSet, Node, NodeRole, NodeSet, NodeState, Rebalance};
use mlgw_membership::{GroupProgress, SetInput, SetRows, SetStep, next_set_step};
use mlgw_metadata::Catalogue;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Sets of nodes, and what moves between them, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetsStatus {
    /// The sets, by id; empty while every storage node is a member of every group.
    pub sets: Vec<SetStatus>,
    /// The rebalance that is requested.
    pub rebalance: Option<Arc<Rebalance>>,
    /// Groups whose votes are moving to the nodes of their sets, among those with a member on this node.
    pub moving: Vec<u32>,
    /// What the next change of the sets waits for, if this node has members of all groups.
    pub waits: Option<String>,
}

/// A set of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetStatus {
    /// Its id.
    pub id: u32,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
    /// The groups in it.
    pub groups: Vec<u32>,
    /// The groups that were in it: their records may refer to its segments.
    pub guests: Vec<u32>,
}

/// The sets as this node knows them.
pub(crate) fn sets_status(catalogue: &Catalogue) -> SetsStatus {
    let (facts, rebalance) = (SetFacts::of(catalogue), catalogue.rebalance());
    let is_here = |group: &u32| !catalogue.voters(*group).is_empty();
    let waits = if let SetStep::Wait(reason) = facts.next_step() { Some(reason.to_string()) } else { None };
    SetsStatus {
        sets: facts.rows.sets().map(|set| facts.set_status(set)).collect(),
        rebalance,
        moving: facts.moving().filter(is_here).collect(),
        waits: waits.filter(|_| facts.groups.keys().all(is_here)),
    }
}

/// What the next change of the sets follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetFacts {
    /// States of the storage nodes that are not removed.
    pub(crate) nodes: BTreeMap<NodeId, NodeState>,
    /// The rows of sets.
    pub(crate) rows: SetRows,
    /// The groups of objects.
    pub(crate) groups: BTreeMap<u32, GroupProgress>,
    /// True while a rebalance is requested.
    pub(crate) is_rebalancing: bool,
}

impl SetFacts {
    /// Collects the facts. A group without a member on this node counts as moving; a node of the first set
    /// has members of all groups.
    pub(crate) fn of(catalogue: &Catalogue) -> Self {
        let rows = set_rows(catalogue);
        let groups = catalogue.object_groups().into_iter().filter(|group| *group != SYSTEM_GROUP);
        let progress = |group: u32| (group, progress(&rows.nodes_of_group(group), &catalogue.voters(group)));
        Self {
            nodes: storage_states(&catalogue.nodes()),
            groups: groups.map(progress).collect(),
            rows,
            is_rebalancing: catalogue.rebalance().is_some(),
        }
    }

    /// Decides the next change.
    pub(crate) fn next_step(&self) -> SetStep {
        let Self { nodes, rows, groups, is_rebalancing } = self;
        next_set_step(&SetInput { nodes, rows, groups, is_rebalancing: *is_rebalancing })
    }

    /// Groups that are not settled.
    fn moving(&self) -> impl Iterator<Item = u32> + '_ {
        let moving = self.groups.iter().filter(|(_, progress)| **progress == GroupProgress::Moving);
        moving.map(|(group, _)| *group)
    }

    fn set_status(&self, set: &NodeSet) -> SetStatus {
        let groups_that = |is_in: &dyn Fn(&GroupSet) -> bool| {
            let groups = self.groups.keys().copied();
            groups.filter(|group| is_in(&self.rows.of_group(*group))).collect()
        };
        SetStatus {
            id: set.id,
            nodes: set.nodes.iter().copied().map(NodeId).collect(),
            groups: groups_that(&|of| of.set == set.id),
            guests: groups_that(&|of| of.guest_of.contains(&set.id)),
        }
    }

    /// Number of storage nodes that serve.
    pub(crate) fn active_nodes(&self) -> usize {
        self.nodes.values().filter(|state| **state == NodeState::Active).count()
    }
}

fn storage_states(nodes: &[Arc<Node>]) -> BTreeMap<NodeId, NodeState> {
    let stores = |node: &&Arc<Node>| node.role() == NodeRole::Storage && !node.is_removed();
    nodes.iter().filter(stores).map(|node| (node.node_id(), node.state())).collect()
}

/// Progress of a group with these voters on the way to the nodes of its set. Without sets there is no way to
/// go. Voters are 1, 3 or 5, so those of a set that is too small cannot be its nodes exactly: then a voter
/// outside of it keeps its vote, or one node of the set votes alone.
fn progress(set: &[NodeId], voters: &BTreeSet<NodeId>) -> GroupProgress {
    let voting = set.iter().filter(|node| voters.contains(node)).count();
    let is_settled = match set.len() {
        0 => true,
        SET_NODES_MAX => voting == SET_NODES_MAX && voters.len() == SET_NODES_MAX,
        nodes => voting > 0 && voting == nodes.min(voters.len()),
    };
    if is_settled { GroupProgress::Settled } else { GroupProgress::Moving }
}

#[cfg(test)]
mod tests {
    use super::{progress, storage_states};
    use crate::test_nodes::{node, storage};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{NodeRole, NodeState};
    use mlgw_membership::GroupProgress::{Moving, Settled};

    #[test]
    fn a_group_is_settled_when_the_nodes_of_its_set_that_can_vote_do() {
        let of = |set: &[u64], voters: &[u64]| {
            let set: Vec<NodeId> = set.iter().copied().map(NodeId).collect();
            progress(&set, &voters.iter().copied().map(NodeId).collect())
        };
        assert_eq!(of(&[], &[1, 2, 3]), Settled, "there are no sets");
        assert_eq!(of(&[1, 2, 4], &[1, 2, 4]), Settled);
        assert_eq!(of(&[1, 2, 4], &[1, 2, 3]), Moving);
        assert_eq!(of(&[1, 2, 4], &[1, 2, 3, 4]), Moving, "inside a joint change");
        assert_eq!(of(&[1, 2, 4], &[1]), Moving);
        assert_eq!(of(&[1, 2, 4], &[]), Moving, "this node has no member of the group");
        assert_eq!(of(&[1, 2], &[1, 2, 3]), Settled, "no other node can take the third vote");
        assert_eq!(of(&[1, 2], &[2]), Settled);
        assert_eq!(of(&[1, 2], &[2, 3, 4]), Moving);
        assert_eq!(of(&[1, 2], &[3]), Moving);
        assert_eq!(of(&[1], &[]), Moving);
    }

    #[test]
    fn gateways_and_removed_nodes_have_no_part_in_sets() {
        let nodes = [
            storage(1),
            node(2, NodeRole::Gateway, NodeState::Active),
            node(3, NodeRole::Storage, NodeState::Leaving),
            node(4, NodeRole::Storage, NodeState::Removed),
        ];
        let expected = [(NodeId(1), NodeState::Active), (NodeId(3), NodeState::Leaving)];
        assert_eq!(storage_states(&nodes), expected.into());
    }
}
