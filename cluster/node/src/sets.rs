//! The rows of sets on this node, and the groups that a node needs for its start and to serve. Nothing is
//! stored here.

use crate::facts::SYSTEM_GROUP;
use mlgw_common::NodeId;
use mlgw_membership::{MemberPlace, SetRows};
use mlgw_metadata::Catalogue;
use std::collections::BTreeSet;

/// Returns the rows of sets.
pub(crate) fn set_rows(catalogue: &Catalogue) -> SetRows {
    SetRows::new(catalogue.sets(), catalogue.group_sets())
}

/// The groups on a node, as far as its start and its readiness depend on them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnGroups {
    /// True if there are sets.
    has_sets: bool,
    /// The groups of the node's sets, without the system group. Those that it only learns are not needed to
    /// serve.
    pub(crate) of_own_sets: BTreeSet<u32>,
}

impl OwnGroups {
    /// Returns those of the groups on the node `own`.
    pub(crate) fn new(sets: &SetRows, own: NodeId, groups: impl IntoIterator<Item = u32>) -> Self {
        let votes = |group: &u32| *group != SYSTEM_GROUP && sets.place(*group, own) == MemberPlace::Votes;
        Self { has_sets: !sets.is_empty(), of_own_sets: groups.into_iter().filter(votes).collect() }
    }

    /// True if the node can serve requests while the groups `lost` have no reachable majority. It needs the
    /// system group and, once there are sets, one of the groups of its own sets. The others are lost for
    /// every node, and no request for the rest should go elsewhere. Without sets it needs all groups.
    pub(crate) fn can_serve(&self, lost: &BTreeSet<u32>) -> bool {
        let is_served = |group: &u32| !lost.contains(group);
        !lost.contains(&SYSTEM_GROUP)
            && match self.has_sets {
                true => self.of_own_sets.is_empty() || self.of_own_sets.iter().any(is_served),
                false => lost.is_empty(),
            }
    }

    /// True if a start goes on without current rows of `group`: it has no reachable majority, and the system
    /// group has one. Requests for it wait at barriers, and segments are sealed and removed by rows of the
    /// system group. Without sets no group is given up.
    pub(crate) fn is_given_up(&self, group: u32, lost: &BTreeSet<u32>) -> bool {
        self.has_sets && lost.contains(&group) && !lost.contains(&SYSTEM_GROUP)
    }
}

#[cfg(test)]
mod tests {
    use super::OwnGroups;
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{GroupSet, NodeSet};
    use mlgw_membership::SetRows;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    /// Five nodes, and group 1 to 5 in a set each.
    fn five() -> SetRows {
        let nodes = [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 1], [5, 1, 2]];
        let set = |(id, nodes): (u32, [u64; 3])| Arc::new(NodeSet { id, nodes: nodes.to_vec(), changes: 1 });
        let of_group = |group| Arc::new(GroupSet { set: group - 1, ..GroupSet::first(group) });
        SetRows::new((0..).zip(nodes).map(set), (1..=5).map(of_group))
    }

    fn groups(ids: &[u32]) -> BTreeSet<u32> {
        ids.iter().copied().collect()
    }

    #[test]
    fn a_node_awaits_the_groups_of_its_sets_and_goes_on_without_those_that_are_lost() {
        // Node 3 is in the first set, so it has all groups.
        let of_three = OwnGroups::new(&five(), NodeId(3), 0..=5);
        assert_eq!(of_three.of_own_sets, groups(&[1, 2, 3]), "it learns the others");
        let lost = groups(&[1, 5]);
        assert_eq!([1, 2].map(|group| of_three.is_given_up(group, &lost)), [true, false]);
        assert!(!of_three.is_given_up(1, &groups(&[0, 1])), "the rows of sets may be old");
        let without_sets = OwnGroups::new(&SetRows::default(), NodeId(3), 0..=5);
        assert_eq!(without_sets.of_own_sets, groups(&[1, 2, 3, 4, 5]));
        assert!(!without_sets.is_given_up(1, &lost), "there are no sets");
    }

    #[test]
    fn a_node_can_serve_while_one_group_of_its_sets_has_a_majority() {
        let of_three = OwnGroups::new(&five(), NodeId(3), 0..=5);
        let serves = |lost: &[u32]| of_three.can_serve(&groups(lost));
        assert!(serves(&[]) && serves(&[1, 5]) && serves(&[4, 5]), "nodes 1 and 2 are lost, or two others");
        assert!(!serves(&[0]), "nothing is certain");
        assert!(!serves(&[1, 2, 3]), "only learned groups are left");
        let without_sets = OwnGroups::new(&SetRows::default(), NodeId(3), 0..=5);
        assert!(without_sets.can_serve(&groups(&[])) && !without_sets.can_serve(&groups(&[5])));
        let gateway = OwnGroups::new(&five(), NodeId(9), [0]);
        assert!(gateway.can_serve(&groups(&[])));
    }
}
