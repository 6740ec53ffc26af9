//! The next single step towards the sets that a cluster should have. Pure.
//!
//! Sets begin when a rebalance is requested in a cluster of more nodes than a set has. From then on a node
//! that leaves is replaced in its sets, and a set that is too small is filled. While a rebalance is
//! requested, sets are created until there is one for each node, nodes get into about as many sets each, and
//! groups move to sets whose nodes have the least to do.
//!
//! - A step changes one node of one set, or the set of one group.
//! - A step waits until the voters of every group are the nodes of its set, except the replacement of a node
//!   that is being removed: the group may need the new one to get there.
//! - The first set changes only when one of its nodes leaves, because its nodes have the rows of all groups.
//! - A set is never removed, and keeps a node that stays if it has one.
//!
//! Nothing is kept between calls: after a step that failed, or whose outcome is unknown, the next one is
//! decided from the rows.

use crate::places::SetRows;
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
    /// Its voters are the nodes of its set.
    Settled,
    /// Its voters are others, or are being changed.
    Moving,
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
    /// A node that leaves is the only one of a set, and no other one is active.
    #[error("no storage node is active that could take the place of node {node} in set {set}")]
    NoReplacement {
        /// The set.
        set: u32,
        /// The node.
        node: NodeId,
    },
}

/// Decides the next step.
#[must_use]
pub fn next_set_step(input: &SetInput<'_>) -> SetStep {
    let active = input.nodes.iter().filter(|(_, state)| **state == NodeState::Active);
    let plan = SetPlan { input, active: active.map(|(node, _)| *node).collect() };
    if input.rows.is_empty() {
        return plan.begin();
    }
    plan.keep_up().or_else(|| plan.rebalance()).unwrap_or(SetStep::Idle)
}

struct SetPlan<'a> {
    input: &'a SetInput<'a>,
    /// Nodes that may be added to sets, by id.
    active: Vec<NodeId>,
}

impl SetPlan<'_> {
    /// The first set, which begins with all groups.
    fn begin(&self) -> SetStep {
        if !self.input.is_rebalancing || self.active.len() <= SET_NODES_MAX {
            return SetStep::Idle;
        }
        let nodes = self.active.iter().copied().take(SET_NODES_MAX).collect();
        SetStep::Put { set: FIRST_SET, nodes, changes: 0 }
    }

    /// Replaces nodes that leave, and fills sets that are too small.
    fn keep_up(&self) -> Option<SetStep> {
        self.input.rows.sets().find_map(|set| self.change_of(set))
    }

    fn change_of(&self, set: &NodeSet) -> Option<SetStep> {
        let leaving = self.leaving_node(set);
        let is_full = set.nodes.len() >= SET_NODES_MAX.min(self.active.len());
        if leaving.is_none() && is_full {
            return None;
        }
        let is_removed = leaving.is_some_and(|node| self.state(node) != Some(NodeState::Draining));
        if let Some(wait) = self.moving().filter(|_| !is_removed) {
            return Some(SetStep::Wait(wait));
        }
        let others = nodes_of(set).filter(|node| Some(*node) != leaving);
        let nodes: Vec<NodeId> = others.chain(self.candidate(set)).collect();
        match leaving {
            Some(node) if nodes.is_empty() => {
                Some(SetStep::Wait(SetWait::NoReplacement { set: set.id, node }))
            }
            _ => Some(put(set, nodes)),
        }
    }

    /// A node of the set that leaves: one that is being removed before one that is drained.
    fn leaving_node(&self, set: &NodeSet) -> Option<NodeId> {
        let leaving = nodes_of(set).filter(|node| !self.active.contains(node));
        leaving.min_by_key(|node| self.state(*node) == Some(NodeState::Draining))
    }

    fn state(&self, node: NodeId) -> Option<NodeState> {
        self.input.nodes.get(&node).copied()
    }

    /// The active node outside of a set that is in the fewest sets.
    fn candidate(&self, set: &NodeSet) -> Option<NodeId> {
        let counts = self.memberships();
        let outside = self.active.iter().copied().filter(|node| !set.contains(*node));
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
        moving.map(|(group, _)| SetWait::GroupMoves {
            group: *group,
            set: self.input.rows.of_group(*group).set,
        })
    }

    fn rebalance(&self) -> Option<SetStep> {
        if !self.input.is_rebalancing {
            return None;
        }
        if let Some(wait) = self.moving() {
            return Some(SetStep::Wait(wait));
        }
        self.missing_set().or_else(|| self.uneven_set()).or_else(|| self.group_to_move())
    }

    /// A further set, until there are as many as nodes: of the node that is in the fewest sets, and those
    /// that follow it.
    fn missing_set(&self) -> Option<SetStep> {
        let sets = u32::try_from(self.input.rows.sets().len()).unwrap_or(u32::MAX);
        let wanted = u32::try_from(self.active.len()).unwrap_or(u32::MAX).min(SETS_MAX);
        if sets >= wanted || self.active.len() <= SET_NODES_MAX {
            return None;
        }
        let (first, _) = self.memberships().into_iter().min_by_key(|(node, count)| (*count, *node))?;
        let at = self.active.iter().position(|node| *node == first)?;
        let nodes = self.active.iter().copied().cycle().skip(at).take(SET_NODES_MAX).collect();
        let set = self.input.rows.sets().last().map_or(FIRST_SET, |last| last.id + 1);
        Some(SetStep::Put { set, nodes, changes: 0 })
    }

    /// A set in which a node that is in many sets gives its place to one that is in at least two fewer. That
    /// with the fewest groups is changed.
    fn uneven_set(&self) -> Option<SetStep> {
        let counts = self.memberships();
        let changed = self.input.rows.sets().filter(|set| set.id != FIRST_SET).filter_map(|set| {
            let new = self.candidate(set)?;
            let old = nodes_of(set).max_by_key(|node| counts.get(node).copied().unwrap_or(0))?;
            let of = |node| counts.get(&node).copied().unwrap_or(0);
            (of(old) >= of(new) + 2).then_some((set, old, new))
        });
        let (set, old, new) = changed.min_by_key(|(set, _, _)| (self.groups_in(set.id), set.id))?;
        let nodes = nodes_of(set).map(|node| if node == old { new } else { node }).collect();
        Some(put(set, nodes))
    }

    fn groups_in(&self, set: u32) -> usize {
        self.input.groups.keys().filter(|group| self.input.rows.of_group(**group).set == set).count()
    }

    /// The move of a group that makes the work of the nodes most even.
    fn group_to_move(&self) -> Option<SetStep> {
        let work = NodeWork::of(self.input);
        let moves = self.input.groups.keys().flat_map(|group| {
            let of = self.input.rows.of_group(*group);
            let targets = self.input.rows.sets().map(|set| set.id).filter(move |set| *set != of.set);
            let work = &work;
            targets.filter_map(move |set| {
                let of = self.input.rows.of_group(*group);
                let fits = of.assigned_to(set).guest_of.len() <= GUEST_SETS_MAX;
                let change = work.change(self.input.rows, of.set, set);
                (fits && change < 0).then_some((change, *group, set, of.changes))
            })
        });
        let (_, group, set, changes) = moves.min()?;
        Some(SetStep::Assign { group, set, changes })
    }
}

fn nodes_of(set: &NodeSet) -> impl Iterator<Item = NodeId> + '_ {
    set.nodes.iter().copied().map(NodeId)
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
            let set = input.rows.of_group(*group).set;
            for node in set_nodes(input.rows, set) {
                *votes.entry(node).or_default() += 1;
            }
        }
        let groups = i64::try_from(input.groups.len()).unwrap_or(i64::MAX);
        Self { votes, learning: set_nodes(input.rows, FIRST_SET), groups }
    }

    /// Cost of a node that votes in so many groups. It grows with each vote by about twice the work that the
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
