//! Sets of storage nodes, and the sets of object groups. Rows: `set` in group 0, keyed by the set's id, and
//! `group_set` in group 0, keyed by the group's id. Of cluster version 6.
//!
//! The voters of an object group, and the replicas of a segment, are on the nodes of one set. A set keeps its
//! id while its nodes are replaced; sets may have nodes in common. Without any row there are no sets, and
//! every storage node is a member of every group.

use crate::key::{Family, number_key};
use mlgw_common::NodeId;

/// Id of the first set. Documents and messages call its nodes *home nodes*. It begins with all object groups:
/// those without a row belong to it. Its nodes have the rows of all groups, also of those that are in other
/// sets.
pub const FIRST_SET: u32 = 0;

/// Id of the system group, which is in no set.
pub const SYSTEM_GROUP: u32 = 0;

/// Place of a storage node in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberPlace {
    /// The node may vote.
    Votes,
    /// The node has the rows of the group. A vote that it has goes to a node that may vote.
    Learns,
    /// The node is to be in the group no more. A vote that it has goes to a node that may vote first.
    Leaves,
}

/// A set of storage nodes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NodeSet {
    /// Id of the set.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Ids of its nodes, all different.
    #[prost(uint64, repeated, tag = "2")]
    pub nodes: Vec<u64>,
    /// Number of changes of the row.
    #[prost(uint64, tag = "3")]
    pub changes: u64,
}

impl NodeSet {
    /// Returns true if the node is in the set.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains(&node.0)
    }
}

/// The set of an object group.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GroupSet {
    /// Id of the group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Id of its set.
    #[prost(uint32, tag = "2")]
    pub set: u32,
    /// Other sets whose segments records of the group may refer to, because the group was in them, until the
    /// bytes have followed it. The first set is never among them: every group may refer to its segments.
    #[prost(uint32, repeated, tag = "3")]
    pub guest_of: Vec<u32>,
    /// Number of changes of the row.
    #[prost(uint64, tag = "4")]
    pub changes: u64,
}

impl GroupSet {
    /// Returns the set of a group without a row.
    #[must_use]
    pub const fn first(group: u32) -> Self {
        Self { group, set: FIRST_SET, guest_of: Vec::new(), changes: 0 }
    }

    /// Returns true if records of the group may refer to segments of a set.
    #[must_use]
    pub fn may_refer_to(&self, set: u32) -> bool {
        set == FIRST_SET || set == self.set || self.guest_of.contains(&set)
    }

    /// Returns the place of a storage node in the group. `find` returns a set by its id.
    #[must_use]
    pub fn place<'s>(&self, node: NodeId, find: impl Fn(u32) -> Option<&'s NodeSet>) -> MemberPlace {
        // No set is ever removed, so only a cluster without sets has no row for it.
        let Some(set) = find(self.set).filter(|_| self.group != SYSTEM_GROUP) else {
            return MemberPlace::Votes;
        };
        if set.contains(node) {
            return MemberPlace::Votes;
        }
        let mut others = self.guest_of.iter().chain([&FIRST_SET]).filter_map(|id| find(*id));
        match others.any(|set| set.contains(node)) {
            true => MemberPlace::Learns,
            false => MemberPlace::Leaves,
        }
    }

    /// Returns the record after the group is assigned to another set. It becomes a guest of the present one.
    #[must_use]
    pub fn assigned_to(&self, set: u32) -> Self {
        let former = self.guest_of.iter().copied().chain([self.set]);
        let guest_of = former.filter(|of| *of != set && *of != FIRST_SET).collect();
        Self { group: self.group, set, guest_of, changes: self.changes + 1 }
    }

    /// Returns the record after the group has ceased to be a guest of a set.
    #[must_use]
    pub fn without_guest(&self, set: u32) -> Self {
        let guest_of = self.guest_of.iter().copied().filter(|of| *of != set).collect();
        Self { guest_of, changes: self.changes + 1, ..*self }
    }
}

/// Returns the row key of a set.
#[must_use]
pub fn row(set: u32) -> Vec<u8> {
    number_key(Family::Set, u64::from(set))
}

/// Returns the row key of the set of a group.
#[must_use]
pub fn group_row(group: u32) -> Vec<u8> {
    number_key(Family::GroupSet, u64::from(group))
}

#[cfg(test)]
mod tests {
    use super::{GroupSet, NodeSet, group_row, row};
    use crate::schema::golden;
    use mlgw_common::NodeId;

    #[test]
    fn the_records_have_these_bytes() {
        let set = NodeSet { id: 2, nodes: vec![3, 300, 5], changes: 7 };
        golden::check(&set, include_str!("golden/node_set.hex"));
        assert!(set.contains(NodeId(300)) && !set.contains(NodeId(2)));
        let of_group = GroupSet { group: 3, set: 2, guest_of: vec![1, 4], changes: 300 };
        golden::check(&of_group, include_str!("golden/group_set.hex"));
    }

    #[test]
    fn the_keys_have_these_bytes() {
        assert_eq!(row(0x0102), [0x0D, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(group_row(0x0102), [0x0E, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn a_group_is_a_guest_of_the_sets_in_which_it_was_except_the_first() {
        let of = |group: &GroupSet| (group.set, group.guest_of.clone(), group.changes);
        let second = GroupSet::first(4).assigned_to(2);
        assert_eq!(of(&second), (2, vec![], 1));
        let third = second.assigned_to(3);
        assert_eq!(of(&third), (3, vec![2], 2));
        assert_eq!(of(&third.assigned_to(1)), (1, vec![2, 3], 3));
        assert_eq!(of(&third.assigned_to(2)), (2, vec![3], 3), "it returns");
        assert_eq!(of(&third.assigned_to(0)), (0, vec![2, 3], 3));
        assert_eq!([0, 1, 2, 3, 4].map(|set| third.may_refer_to(set)), [true, false, true, true, false]);
        let ended = third.assigned_to(1).without_guest(2);
        assert_eq!(of(&ended), (1, vec![3], 4));
        assert_eq!([0, 1, 2, 3].map(|set| ended.may_refer_to(set)), [true, true, false, true]);
    }
}
