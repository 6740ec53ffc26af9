//! The facts from which the next change of the sets follows, and the sets as a status shows them.
//!
//! Every node collects these facts alike; only the leader of the system group acts on them. A missing fact
//! counts as a move that is not complete: it may delay a change, and never permits one.

use crate::facts::SYSTEM_GROUP;
use crate::probes::Probes;
use crate::services::NodeServices;
use crate::sets::set_rows;
use mlgw_common::NodeId;
use mlgw_formats::schema::{GroupSet, Node, NodeRole, NodeSet, NodeState, Rebalance};
use mlgw_membership::{GroupProgress, SetInput, SetRows, SetStep, next_set_step};
use mlgw_metadata::Catalogue;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Sets of nodes, and what moves between them, from the rows and members of one node.
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

/// The sets, from the rows and members of this node.
pub(crate) fn sets_status(catalogue: &Catalogue, answers: NodeAnswers) -> SetsStatus {
    let (facts, rebalance) = (SetFacts::of(catalogue, answers), catalogue.rebalance());
    let is_here = |group: &u32| !catalogue.voters(*group).is_empty();
    let waits = if let SetStep::Wait(reason) = facts.next_step() { Some(reason.to_string()) } else { None };
    SetsStatus {
        sets: facts.rows.sets().map(|set| facts.set_status(set)).collect(),
        rebalance,
        moving: facts.moving().filter(is_here).collect(),
        waits: waits.filter(|_| facts.groups.keys().all(is_here)),
    }
}

/// Facts that nodes state in their answers to probes, and no row has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeAnswers {
    /// Nodes that do not answer.
    pub(crate) silent: BTreeSet<NodeId>,
    /// Nodes that do not state that they have the rows of all groups.
    pub(crate) lacking: BTreeSet<NodeId>,
}

impl NodeAnswers {
    /// Collects the newest answers.
    pub(crate) fn of(catalogue: &Catalogue, probes: &Probes, services: &NodeServices) -> Self {
        let nodes: Vec<NodeId> = catalogue.nodes().iter().map(|node| node.node_id()).collect();
        let has_all_groups = |node| match node == catalogue.node() {
            true => services.load().has_all_groups(),
            false => probes.load(node).is_some_and(|load| load.has_all_groups()),
        };
        Self {
            silent: nodes.iter().copied().filter(|node| probes.is_silent(*node)).collect(),
            lacking: nodes.into_iter().filter(|node| !has_all_groups(*node)).collect(),
        }
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
    /// What the nodes answer.
    pub(crate) answers: NodeAnswers,
    /// Nodes that take the places of others, by the node that leaves.
    pub(crate) successors: BTreeMap<NodeId, NodeId>,
    /// True while a rebalance is requested.
    pub(crate) is_rebalancing: bool,
}

impl SetFacts {
    /// Collects the facts. A group without a member on this node counts as moving; a node of the first set
    /// has members of all groups.
    pub(crate) fn of(catalogue: &Catalogue, answers: NodeAnswers) -> Self {
        let (rows, nodes) = (set_rows(catalogue), catalogue.nodes());
        let states = storage_states(&nodes);
        let groups = catalogue.object_groups().into_iter().filter(|group| *group != SYSTEM_GROUP);
        let progress = |group: u32| (group, progress(&rows, &states, group, &catalogue.voters(group)));
        Self {
            groups: groups.map(progress).collect(),
            nodes: states,
            rows,
            answers,
            successors: successors(&nodes),
            is_rebalancing: catalogue.rebalance().is_some(),
        }
    }

    /// Decides the next change.
    pub(crate) fn next_step(&self) -> SetStep {
        let Self { nodes, rows, groups, answers, successors, is_rebalancing } = self;
        let (NodeAnswers { silent, lacking }, is_rebalancing) = (answers, *is_rebalancing);
        next_set_step(&SetInput { nodes, rows, groups, silent, lacking, successors, is_rebalancing })
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

/// The replacements of nodes that are replaced.
fn successors(nodes: &[Arc<Node>]) -> BTreeMap<NodeId, NodeId> {
    let replaced = nodes.iter().filter(|node| node.replaced_by != 0);
    replaced.map(|node| (node.node_id(), NodeId(node.replaced_by))).collect()
}

/// Progress of a group with these voters on the way to the nodes of its set. Without sets it is settled.
fn progress(
    rows: &SetRows,
    states: &BTreeMap<NodeId, NodeState>,
    group: u32,
    voters: &BTreeSet<NodeId>,
) -> GroupProgress {
    if rows.is_empty() {
        return GroupProgress::Settled;
    }
    let mut active = rows.nodes_of_group(group);
    active.retain(|node| states.get(node) == Some(&NodeState::Active));
    GroupProgress::of(&active, voters)
}

#[cfg(test)]
mod tests {
    use super::{progress, storage_states, successors};
    use crate::test_nodes::in_every_state;
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{Node, NodeSet, NodeState};
    use mlgw_membership::GroupProgress::{Moving, Settled};
    use mlgw_membership::SetRows;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    #[test]
    fn a_group_is_settled_when_the_active_nodes_of_its_set_vote() {
        let mut states: BTreeMap<NodeId, NodeState> =
            (1..=4).map(|node| (NodeId(node), NodeState::Active)).collect();
        let set = |nodes: &[u64]| Arc::new(NodeSet { id: 0, nodes: nodes.to_vec(), changes: 1 });
        let (none, rows) = (SetRows::default(), SetRows::new([set(&[1, 2, 4])], []));
        let voters = |ids: [u64; 3]| ids.map(NodeId).into();
        assert_eq!(progress(&none, &states, 1, &voters([1, 2, 3])), Settled, "there are no sets");
        assert_eq!(progress(&rows, &states, 1, &voters([1, 2, 4])), Settled);
        assert_eq!(progress(&rows, &states, 1, &voters([1, 2, 3])), Moving);
        states.insert(NodeId(4), NodeState::Draining);
        assert_eq!(progress(&rows, &states, 1, &voters([1, 2, 3])), Settled, "node 4 gets no vote any more");
    }

    #[test]
    fn a_node_that_another_one_replaces_has_it_as_successor() {
        let of = |id, replaced_by| Arc::new(Node { id, replaced_by, ..Node::default() });
        let expected = [(NodeId(2), NodeId(4))];
        assert_eq!(successors(&[of(1, 0), of(2, 4), of(4, 0)]), expected.into());
    }

    #[test]
    fn gateways_and_removed_nodes_have_no_part_in_sets() {
        let expected = [
            (NodeId(1), NodeState::Active),
            (NodeId(2), NodeState::Joining),
            (NodeId(4), NodeState::Draining),
            (NodeId(5), NodeState::Leaving),
        ];
        assert_eq!(storage_states(&in_every_state()), expected.into());
    }
}
