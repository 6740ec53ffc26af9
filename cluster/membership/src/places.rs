//! Places of nodes in the groups, from the rows of sets. Pure.
//!
//! The nodes of a group's set vote. Two kinds of other nodes have the rows of the group without a vote: those
//! of the first set, and those of the sets whose segments records of the group may refer to. All others leave
//! the group. Without rows of sets every node may vote in every group, and in the system group always.

use mlgw_common::NodeId;
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{GroupSet, NodeSet};
use std::collections::BTreeMap;
use std::sync::Arc;

pub use mlgw_formats::schema::set::{MemberPlace, SYSTEM_GROUP};

/// The rows of sets, and of the sets of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetRows {
    sets: BTreeMap<u32, Arc<NodeSet>>,
    groups: BTreeMap<u32, Arc<GroupSet>>,
}

impl SetRows {
    /// Returns the rows.
    pub fn new(
        sets: impl IntoIterator<Item = Arc<NodeSet>>,
        groups: impl IntoIterator<Item = Arc<GroupSet>>,
    ) -> Self {
        Self {
            sets: sets.into_iter().map(|set| (set.id, set)).collect(),
            groups: groups.into_iter().map(|of| (of.group, of)).collect(),
        }
    }

    /// True if there are no sets: every node is a member of every group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// The sets, by id.
    pub fn sets(&self) -> impl ExactSizeIterator<Item = &NodeSet> {
        self.sets.values().map(|set| &**set)
    }

    /// The set of a group; the first one if the group was never assigned.
    #[must_use]
    pub fn of_group(&self, group: u32) -> GroupSet {
        self.groups.get(&group).map_or_else(|| GroupSet::first(group), |of| GroupSet::clone(of))
    }

    /// Id of the set of a group.
    #[must_use]
    pub fn set_of(&self, group: u32) -> u32 {
        self.groups.get(&group).map_or(FIRST_SET, |of| of.set)
    }

    /// Nodes of the set of a group.
    #[must_use]
    pub fn nodes_of_group(&self, group: u32) -> Vec<NodeId> {
        self.set_of_group(group).into_iter().flat_map(nodes_of).collect()
    }

    /// The set of a group. `None` for the system group, and if there are no sets: none is ever removed.
    fn set_of_group(&self, group: u32) -> Option<&NodeSet> {
        if group == SYSTEM_GROUP {
            return None;
        }
        self.sets.get(&self.set_of(group)).map(|set| &**set)
    }

    /// True if the set of a group has the node. False without sets.
    #[must_use]
    pub fn is_in_set_of(&self, group: u32, node: NodeId) -> bool {
        self.set_of_group(group).is_some_and(|set| set.contains(node))
    }

    /// True if any set has the node.
    #[must_use]
    pub fn is_in_any_set(&self, node: NodeId) -> bool {
        self.sets().any(|set| set.contains(node))
    }

    /// Place of a storage node in a group.
    #[must_use]
    pub fn place(&self, group: u32, node: NodeId) -> MemberPlace {
        let find = |set: u32| self.sets.get(&set).map(|set| &**set);
        match self.groups.get(&group) {
            Some(of) => of.place(node, find),
            None => GroupSet::first(group).place(node, find),
        }
    }

    /// True if a storage node may lead a group. The leader of the system group has the duty, for which it
    /// needs the rows of all groups.
    #[must_use]
    pub fn may_lead(&self, group: u32, node: NodeId) -> bool {
        match group {
            SYSTEM_GROUP => self.has_all_groups(node),
            group => self.place(group, node) == MemberPlace::Votes,
        }
    }

    /// True if the node has the rows of all groups: it is in the first set, or there are no sets.
    #[must_use]
    pub fn has_all_groups(&self, node: NodeId) -> bool {
        self.sets.get(&FIRST_SET).is_none_or(|first| first.contains(node))
    }
}

/// Nodes of a set.
pub(crate) fn nodes_of(set: &NodeSet) -> impl Iterator<Item = NodeId> + '_ {
    set.nodes.iter().copied().map(NodeId)
}

#[cfg(test)]
mod tests {
    use super::MemberPlace::{self, Learns, Leaves, Votes};
    use super::SetRows;
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{GroupSet, NodeSet};
    use std::sync::Arc;

    fn set(id: u32, nodes: &[u64]) -> Arc<NodeSet> {
        Arc::new(NodeSet { id, nodes: nodes.to_vec(), changes: 1 })
    }

    fn in_set(group: u32, set: u32, guest_of: &[u32]) -> Arc<GroupSet> {
        Arc::new(GroupSet { group, set, guest_of: guest_of.to_vec(), changes: 1 })
    }

    fn places(rows: &SetRows, group: u32) -> Vec<MemberPlace> {
        (1..=6).map(|node| rows.place(group, NodeId(node))).collect()
    }

    #[test]
    fn without_sets_every_node_votes_and_has_all_groups() {
        let rows = SetRows::default();
        assert_eq!([places(&rows, 0), places(&rows, 3)], [[Votes; 6], [Votes; 6]]);
        assert!(rows.has_all_groups(NodeId(6)));
    }

    #[test]
    fn nodes_of_the_own_set_vote_and_those_of_the_first_set_and_of_guest_sets_learn() {
        let sets = [set(0, &[1, 2, 3]), set(1, &[3, 4, 5]), set(2, &[5, 6, 1])];
        let rows = SetRows::new(sets, [in_set(2, 1, &[]), in_set(3, 1, &[2])]);
        assert_eq!(places(&rows, 1), [Votes, Votes, Votes, Leaves, Leaves, Leaves]);
        assert_eq!(places(&rows, 2), [Learns, Learns, Votes, Votes, Votes, Leaves]);
        assert_eq!(places(&rows, 3), [Learns, Learns, Votes, Votes, Votes, Learns]);
        assert_eq!(places(&rows, 0), [Votes; 6], "the system group is in no set");
        let all: Vec<bool> = (1..=6).map(|node| rows.has_all_groups(NodeId(node))).collect();
        assert_eq!(all, [true, true, true, false, false, false]);
        let leaders =
            |group| (1..=6).filter(|node| rows.may_lead(group, NodeId(*node))).collect::<Vec<u64>>();
        assert_eq!([0, 2].map(leaders), [[1, 2, 3], [3, 4, 5]]);
    }

    #[test]
    fn the_system_group_is_in_no_set_and_the_nodes_of_all_sets_are_known() {
        let rows = SetRows::new([set(0, &[1, 2, 3]), set(1, &[3, 4])], [in_set(2, 1, &[])]);
        let is_in =
            |group| -> Vec<u64> { (1..=5).filter(|node| rows.is_in_set_of(group, NodeId(*node))).collect() };
        assert_eq!([0, 1, 2].map(is_in), [vec![], vec![1, 2, 3], vec![3, 4]]);
        assert_eq!((rows.nodes_of_group(0), rows.nodes_of_group(2)), (vec![], [3, 4].map(NodeId).into()));
        let named: Vec<u64> = (1..=5).filter(|node| rows.is_in_any_set(NodeId(*node))).collect();
        assert_eq!((named, rows.set_of(1), rows.set_of(2)), (vec![1, 2, 3, 4], 0, 1));
    }
}
