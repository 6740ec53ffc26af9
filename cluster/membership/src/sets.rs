//! The next single step towards the sets that a cluster should have. Pure.
//!
//! Sets begin when a rebalance is requested in a cluster of more nodes than a set has. From then on a node
//! that leaves is replaced in its sets, and a set that is too small is filled. While a rebalance is
//! requested, sets are created until there is one for each node, nodes get into about as many sets each, and
//! groups move to sets whose nodes have the least to do.
//!
//! - A step changes one node of one set, or the set of one group.
//! - A step waits until all active nodes of its set vote in every group, except the replacement of a node
//!   that is being removed: the group may need the new one to get there. A step that waits hides no other.
//! - The first set changes only when one of its nodes leaves, because its nodes have the rows of all groups.
//!   A node that is drained leaves it when the others that stay have these rows, or one that leaves later.
//! - A set is never removed, and keeps a node that stays if it has one.
//! - A node that does not answer is not added to a set, and a set with one gets no further group: neither
//!   would be complete before the node returns. A rebalance waits for such a node when nothing else is left
//!   to do.
//!
//! Nothing is kept between calls: after a step that failed, or whose outcome is unknown, the next one is
//! decided from the rows.

use crate::places::{SetRows, nodes_of};
use mlgw_common::NodeId;
use mlgw_common::limits::{GUEST_SETS_MAX, SET_NODES_MAX, SETS_MAX};
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{NodeSet, NodeState};
use std::collections::{BTreeMap, BTreeSet};

/// Work of a voter, compared with that of a learner: it takes part in the commit of each command.
const VOTER_WORK: i64 = 2;

/// Progress of a group on the way to the nodes of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupProgress {
    /// The active nodes of its set vote.
    Settled,
    /// Some of them do not vote yet, or the voters are being changed.
    Moving,
}

impl GroupProgress {
    /// Progress of a group with these voters, those that leave in a joint change included. `active` are the
    /// active nodes of its set. A node of the set that leaves is not waited for: it gets no vote any more.
    ///
    /// Voters are 1, 3 or 5, so those of a set that is too small cannot be its nodes exactly: then a voter
    /// outside of it keeps its vote, or one node of the set votes alone.
    #[must_use]
    pub fn of(active: &[NodeId], voters: &BTreeSet<NodeId>) -> Self {
        let voting = active.iter().filter(|node| voters.contains(node)).count();
        let is_settled = match active.len() {
            0 => !voters.is_empty(),
            SET_NODES_MAX => voting == SET_NODES_MAX,
            nodes => voting > 0 && voting == nodes.min(voters.len()),
        };
        // More voters than a set has nodes are those of a joint change.
        if is_settled && voters.len() <= SET_NODES_MAX { Self::Settled } else { Self::Moving }
    }
}

/// Facts from which the next step follows.
#[derive(Clone, Copy, Debug)]
pub struct SetInput<'a> {
    /// States of the storage nodes that are not removed.
    pub nodes: &'a BTreeMap<NodeId, NodeState>,
    /// The rows of sets.
    pub rows: &'a SetRows,
    /// The groups of objects.
    pub groups: &'a BTreeMap<u32, GroupProgress>,
    /// Nodes that do not answer.
    pub silent: &'a BTreeSet<NodeId>,
    /// Nodes that have not confirmed that they have the rows of all groups.
    pub lacking: &'a BTreeSet<NodeId>,
    /// Nodes that are to take the places of others, which leave, by the node that leaves.
    pub successors: &'a BTreeMap<NodeId, NodeId>,
    /// True while a rebalance is requested.
    pub is_rebalancing: bool,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetStep {
    /// The sets are as they should be.
    Idle,
    /// Nothing can be done now.
    Wait(SetWait),
    /// Create a set, or change its nodes.
    Put {
        /// Id of the set.
        set: u32,
        /// Its nodes from now on.
        nodes: Vec<NodeId>,
        /// Number of changes of the row on which the step was decided.
        changes: u64,
    },
    /// Assign a group to another set.
    Assign {
        /// Id of the group.
        group: u32,
        /// Id of the set.
        set: u32,
        /// Number of changes of the row on which the step was decided.
        changes: u64,
    },
}

/// Reason to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetWait {
    /// A group is moving to the nodes of its set.
    #[error("group {group} is moving to the nodes of set {set}")]
    GroupMoves {
        /// The group.
        group: u32,
        /// Its set.
        set: u32,
    },
    /// A node of a set leaves, and no other node can be added: active nodes outside of the set do not answer,
    /// or there are none and the set would be empty.
    #[error("no storage node is active and answers that could take the place of node {node} in set {set}")]
    NoReplacement {
        /// The set.
        set: u32,
        /// The node.
        node: NodeId,
    },
    /// A node is drained, and another one of the first set lacks rows.
    #[error("node {node} does not have the rows of all groups yet")]
    LacksRows {
        /// The node that lacks rows.
        node: NodeId,
    },
    /// A node that is to get sets or groups in a rebalance does not answer.
    #[error("node {node} does not answer: start it, or remove it")]
    Silent {
        /// The node.
        node: NodeId,
    },
}

/// Decides the next step.
#[must_use]
pub fn next_set_step(input: &SetInput<'_>) -> SetStep {
    let active = input.nodes.iter().filter(|(_, state)| **state == NodeState::Active);
    let active: Vec<NodeId> = active.map(|(node, _)| *node).collect();
    let answering = active.iter().copied().filter(|node| !input.silent.contains(node)).collect();
    let plan = SetPlan { input, active, answering };
    if input.rows.is_empty() {
        return plan.begin();
    }
    plan.keep_up().or_else(|| plan.rebalance()).unwrap_or(SetStep::Idle)
}

struct SetPlan<'a> {
    input: &'a SetInput<'a>,
    /// Nodes that stay in sets, by id.
    active: Vec<NodeId>,
    /// Those of them that answer, and so may be added to sets.
    answering: Vec<NodeId>,
}

impl SetPlan<'_> {
    /// The first set, which begins with all groups.
    fn begin(&self) -> SetStep {
        if !self.input.is_rebalancing || self.active.len() <= SET_NODES_MAX {
            return SetStep::Idle;
        }
        if let Some(wait) = self.silent_node().filter(|_| self.answering.len() < SET_NODES_MAX) {
            return SetStep::Wait(wait);
        }
        let nodes = self.answering.iter().copied().take(SET_NODES_MAX).collect();
        SetStep::Put { set: FIRST_SET, nodes, changes: 0 }
    }

    /// Replaces nodes that leave, those that are being removed first, and fills sets that are too small. What
    /// one set waits for may be the change of another one.
    fn keep_up(&self) -> Option<SetStep> {
        let changes = self.input.rows.sets().filter_map(|set| {
            let leaving = self.leaving_node(set);
            let is_removed = leaving.is_some_and(|node| self.state(node) != Some(NodeState::Draining));
            let step = match leaving {
                Some(node) => self.replacement(set, node, is_removed),
                None => self.filling(set)?,
            };
            Some((matches!(step, SetStep::Wait(_)), !is_removed, step))
        });
        changes.min_by_key(|(waits, stays, _)| (*waits, *stays)).map(|(_, _, step)| step)
    }

    /// The replacement of a node that leaves. Without another node that could be added the set gets smaller.
    fn replacement(&self, set: &NodeSet, leaving: NodeId, is_removed: bool) -> SetStep {
        let waits = self.moving().or_else(|| self.lacks_rows(set, leaving));
        if let Some(wait) = waits.filter(|_| !is_removed) {
            return SetStep::Wait(wait);
        }
        let successor = self.input.successors.get(&leaving).copied();
        let successor = successor.filter(|node| self.answering.contains(node) && !set.contains(*node));
        let new = successor.or_else(|| self.candidate(set));
        let nodes: Vec<NodeId> = nodes_of(set).filter(|node| *node != leaving).chain(new).collect();
        let could_return = self.active.iter().any(|node| !set.contains(*node));
        match new.is_none() && (could_return || nodes.is_empty()) {
            true => SetStep::Wait(SetWait::NoReplacement { set: set.id, node: leaving }),
            false => put(set, nodes),
        }
    }

    /// A further node for a set that is too small; `None` if it is full, or no other node answers.
    fn filling(&self, set: &NodeSet) -> Option<SetStep> {
        if set.nodes.len() >= SET_NODES_MAX {
            return None;
        }
        let new = self.candidate(set)?;
        let filled = || put(set, nodes_of(set).chain([new]).collect());
        Some(self.moving().map_or_else(filled, SetStep::Wait))
    }

    /// A node of the first set for which a drained one waits, because it lacks rows of groups: one that
    /// stays, or any one if all others do. The drained one may be the last with the rows of all groups.
    fn lacks_rows(&self, set: &NodeSet, drained: NodeId) -> Option<SetWait> {
        let others = || nodes_of(set).filter(|node| set.id == FIRST_SET && *node != drained);
        let lacks = |node: &NodeId| self.input.lacking.contains(node);
        let staying = others().filter(|node| self.active.contains(node)).find(lacks);
        let any = || others().next().filter(|_| others().all(|node| lacks(&node)));
        staying.or_else(any).map(|node| SetWait::LacksRows { node })
    }

    /// An active node that does not answer.
    fn silent_node(&self) -> Option<SetWait> {
        let silent = self.active.iter().find(|node| self.input.silent.contains(node));
        silent.map(|node| SetWait::Silent { node: *node })
    }

    /// A node of the set that leaves: one that is being removed before one that is drained.
    fn leaving_node(&self, set: &NodeSet) -> Option<NodeId> {
        let leaving = nodes_of(set).filter(|node| !self.active.contains(node));
        leaving.min_by_key(|node| self.state(*node) == Some(NodeState::Draining))
    }

    fn state(&self, node: NodeId) -> Option<NodeState> {
        self.input.nodes.get(&node).copied()
    }

    /// The node outside of a set that is in the fewest sets, among those that may be added.
    fn candidate(&self, set: &NodeSet) -> Option<NodeId> {
        self.candidate_of(&self.answering, set)
    }

    /// The one of `nodes` outside of a set that is in the fewest sets.
    fn candidate_of(&self, nodes: &[NodeId], set: &NodeSet) -> Option<NodeId> {
        let counts = self.memberships();
        let outside = nodes.iter().copied().filter(|node| !set.contains(*node));
        outside.min_by_key(|node| (counts.get(node).copied().unwrap_or(0), *node))
    }

    /// Number of sets of each active node.
    fn memberships(&self) -> BTreeMap<NodeId, usize> {
        let mut counts: BTreeMap<NodeId, usize> = self.active.iter().map(|node| (*node, 0)).collect();
        for node in self.input.rows.sets().flat_map(nodes_of) {
            counts.entry(node).and_modify(|count| *count += 1);
        }
        counts
    }

    /// The first group that is not settled.
    fn moving(&self) -> Option<SetWait> {
        let moving = self.input.groups.iter().find(|(_, progress)| **progress == GroupProgress::Moving);
        moving.map(|(group, _)| SetWait::GroupMoves { group: *group, set: self.input.rows.set_of(*group) })
    }

    fn rebalance(&self) -> Option<SetStep> {
        if !self.input.is_rebalancing {
            return None;
        }
        if let Some(wait) = self.moving() {
            return Some(SetStep::Wait(wait));
        }
        let change = self.missing_set().or_else(|| self.uneven_set()).or_else(|| self.group_to_move());
        change.or_else(|| self.node_without_place())
    }

    /// A further set, until there are as many as nodes: of the node that is in the fewest sets, and those
    /// that follow it.
    fn missing_set(&self) -> Option<SetStep> {
        let sets = u32::try_from(self.input.rows.sets().len()).unwrap_or(u32::MAX);
        let wanted = u32::try_from(self.active.len()).unwrap_or(u32::MAX).min(SETS_MAX);
        if sets >= wanted || self.active.len() <= SET_NODES_MAX {
            return None;
        }
        if let Some(wait) = self.silent_node().filter(|_| self.answering.len() < SET_NODES_MAX) {
            return Some(SetStep::Wait(wait));
        }
        let counts = self.memberships();
        let nodes = self.answering.iter().enumerate();
        let (at, _) = nodes.min_by_key(|(_, node)| counts.get(node).copied().unwrap_or(0))?;
        let nodes = self.answering.iter().copied().cycle().skip(at).take(SET_NODES_MAX).collect();
        let set = self.input.rows.sets().last().map_or(FIRST_SET, |last| last.id + 1);
        Some(SetStep::Put { set, nodes, changes: 0 })
    }

    /// The change of a set in which a node gives its place to one that is in fewer sets.
    fn uneven_set(&self) -> Option<SetStep> {
        let (set, old, new) = self.uneven_place(&self.answering)?;
        let nodes = nodes_of(set).map(|node| if node == old { new } else { node }).collect();
        Some(put(set, nodes))
    }

    /// The wait for a node that would get a place in a set if it answered.
    fn node_without_place(&self) -> Option<SetStep> {
        let silent = self.active.iter().copied().filter(|node| self.input.silent.contains(node));
        let (_, _, node) = self.uneven_place(&silent.collect::<Vec<_>>())?;
        Some(SetStep::Wait(SetWait::Silent { node }))
    }

    /// A set, a node of it that is in many sets, and one of `nodes` that is in at least two fewer. Of several
    /// sets the one with the fewest groups.
    fn uneven_place(&self, nodes: &[NodeId]) -> Option<(&NodeSet, NodeId, NodeId)> {
        let counts = self.memberships();
        let uneven = self.input.rows.sets().filter(|set| set.id != FIRST_SET).filter_map(|set| {
            let new = self.candidate_of(nodes, set)?;
            let old = nodes_of(set).max_by_key(|node| counts.get(node).copied().unwrap_or(0))?;
            let of = |node| counts.get(&node).copied().unwrap_or(0);
            (of(old) >= of(new) + 2).then_some((set, old, new))
        });
        uneven.min_by_key(|(set, _, _)| (self.groups_in(set.id), set.id))
    }

    fn groups_in(&self, set: u32) -> usize {
        self.input.groups.keys().filter(|group| self.input.rows.set_of(**group) == set).count()
    }

    /// The move of a group that makes the work of the nodes most even, to a set whose nodes answer.
    fn group_to_move(&self) -> Option<SetStep> {
        let work = NodeWork::of(self.input);
        let moves = self.input.groups.keys().flat_map(|group| {
            let of = self.input.rows.of_group(*group);
            let targets = self.input.rows.sets().filter(move |set| set.id != of.set);
            let work = &work;
            targets.filter_map(move |target| {
                let fits = of.assigned_to(target.id).guest_of.len() <= GUEST_SETS_MAX;
                let change = work.change(self.input.rows, of.set, target.id);
                let silent = nodes_of(target).find(|node| self.input.silent.contains(node));
                (fits && change < 0).then_some((silent, change, *group, target.id, of.changes))
            })
        });
        // Those to a set without a silent node are the first ones.
        let (silent, _, group, set, changes) = moves.min()?;
        Some(match silent {
            Some(node) => SetStep::Wait(SetWait::Silent { node }),
            None => SetStep::Assign { group, set, changes },
        })
    }
}

fn put(set: &NodeSet, nodes: Vec<NodeId>) -> SetStep {
    SetStep::Put { set: set.id, nodes, changes: set.changes }
}

/// Work of the nodes: [`VOTER_WORK`] for each group in which a node votes, and one for each in which it
/// learns as a node of the first set.
struct NodeWork {
    votes: BTreeMap<NodeId, i64>,
    /// Nodes of the first set.
    learning: BTreeSet<NodeId>,
    groups: i64,
}

impl NodeWork {
    fn of(input: &SetInput<'_>) -> Self {
        let mut votes = BTreeMap::new();
        for group in input.groups.keys() {
            let set = input.rows.set_of(*group);
            for node in set_nodes(input.rows, set) {
                *votes.entry(node).or_default() += 1;
            }
        }
        let groups = i64::try_from(input.groups.len()).unwrap_or(i64::MAX);
        Self { votes, learning: set_nodes(input.rows, FIRST_SET), groups }
    }

    /// Cost of a node with this number of votes. It grows with each vote by about twice the work that the
    /// node has by then, so that the sum over all nodes is least when each vote went to the node with the
    /// least work.
    fn cost(&self, node: NodeId, votes: i64) -> i64 {
        match self.learning.contains(&node) {
            true => (VOTER_WORK - 1) * votes.pow(2) + 2 * self.groups * votes,
            false => VOTER_WORK * votes.pow(2),
        }
    }

    /// Change of the sum of costs by the move of a group.
    fn change(&self, rows: &SetRows, from: u32, to: u32) -> i64 {
        let (from, to) = (set_nodes(rows, from), set_nodes(rows, to));
        let change = |node: NodeId, by: i64| {
            let votes = self.votes.get(&node).copied().unwrap_or(0);
            self.cost(node, votes + by) - self.cost(node, votes)
        };
        let lost = from.difference(&to).map(|node| change(*node, -1));
        lost.chain(to.difference(&from).map(|node| change(*node, 1))).sum()
    }
}

fn set_nodes(rows: &SetRows, id: u32) -> BTreeSet<NodeId> {
    rows.sets().filter(|set| set.id == id).flat_map(nodes_of).collect()
}

#[cfg(test)]
mod tests;
