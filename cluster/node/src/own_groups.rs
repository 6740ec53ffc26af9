//! The groups of this node: it leaves those in which it has no place any more.
//!
//! The leaders add nodes to groups and remove them. A node that was removed may not have received that, so it
//! asks the nodes of the group's set. A group in which it has a place again is opened again: a leader that
//! adds this node opens it too, but may have done so before this node left.
//!
//! A node of the first set is to have the rows of all groups. It states that it has them once a barrier of
//! all groups has passed: its members may be new, and lack most rows.
//!
//! The catalogue has a durable record of each group that this node left or was added to, for offline tools.
//! The record is removed here, once a barrier of the group has passed.

use crate::facts::SYSTEM_GROUP;
use crate::services::NodeServices;
use crate::sets::set_rows;
use mlgw_common::NodeId;
use mlgw_common::time::sleep;
use mlgw_membership::{MemberPlace, SetRows};
use mlgw_metadata::{BarrierScope, Catalogue};
use std::collections::BTreeSet;
use std::time::Duration;

/// Interval between two passes over the groups.
const INTERVAL: Duration = Duration::from_secs(5);

/// A change of this node's part in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GroupPart {
    /// Leave the group, which has these nodes.
    Leave { group: u32, nodes: Vec<NodeId> },
    /// Open the group again.
    Open { group: u32 },
}

/// Leaves groups, opens them again, confirms that this node has everything of them, and states if it has all
/// groups, until the future is dropped.
pub(crate) async fn follow_sets(catalogue: Catalogue, services: NodeServices) {
    let mut complete = CompleteGroups::default();
    loop {
        let sets = set_rows(&catalogue);
        // Without sets the node has a place in every group.
        if !sets.is_empty() {
            for part in due_parts(&sets, catalogue.node(), catalogue.groups(), catalogue.left_groups()) {
                change(&catalogue, part).await;
            }
        }
        match catalogue.confirm_groups().await {
            Ok(behind) if behind.is_empty() => {}
            Ok(behind) => tracing::debug!(?behind, "this node may lack changes of some groups"),
            Err(error) => tracing::warn!(%error, "a record of a group that caught up was not removed"),
        }
        services.set_has_groups(complete.advance(&sets, &catalogue).await);
        sleep(INTERVAL).await;
    }
}

/// Groups whose rows this node has: all of them, or none that count.
#[derive(Debug, Default)]
struct CompleteGroups {
    known: BTreeSet<u32>,
}

impl CompleteGroups {
    /// Returns true if this node has the rows of all groups and keeps them.
    async fn advance(&mut self, sets: &SetRows, catalogue: &Catalogue) -> bool {
        let groups = catalogue.object_groups();
        if !sets.has_all_groups(catalogue.node()) || !catalogue.has_all_groups() {
            self.known.clear();
        } else if self.known != groups && catalogue.barrier(BarrierScope::AllGroups).await.is_ok() {
            self.known.clone_from(&groups);
        }
        !groups.is_empty() && self.known == groups
    }
}

async fn change(catalogue: &Catalogue, part: GroupPart) {
    match part {
        GroupPart::Leave { group, nodes } => match catalogue.leave_group(group, &nodes).await {
            Ok(has_left) => tracing::debug!(group, has_left, "this node has no place in a group"),
            Err(error) => tracing::warn!(group, %error, "the state of a group was not flushed"),
        },
        GroupPart::Open { group } => {
            if let Err(error) = catalogue.reopen_group(group).await {
                tracing::info!(group, %error, "a group is not open yet; repeated");
            }
        }
    }
}

/// The changes that are due on the node `own`, with members that run and members that were stopped.
fn due_parts(sets: &SetRows, own: NodeId, running: Vec<u32>, left: Vec<u32>) -> Vec<GroupPart> {
    let has_place = |group: &u32| sets.place(*group, own) != MemberPlace::Leaves;
    let leaves = running.into_iter().filter(|group| *group != SYSTEM_GROUP && !has_place(group));
    let leaves = leaves.map(|group| GroupPart::Leave { group, nodes: sets.nodes_of_group(group) });
    let opens = left.into_iter().filter(has_place).map(|group| GroupPart::Open { group });
    leaves.chain(opens).collect()
}

#[cfg(test)]
mod tests {
    use super::{CompleteGroups, GroupPart, due_parts};
    use crate::admission::tests::TestMember;
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{GroupSet, NodeSet};
    use mlgw_membership::SetRows;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_node_has_all_groups_after_a_barrier_unless_it_leaves_some() {
        let member = TestMember::new().await;
        let own = member.catalogue.node().get();
        let first = |nodes: [u64; 3]| {
            SetRows::new([Arc::new(NodeSet { id: 0, nodes: nodes.into(), changes: 1 })], [])
        };
        let mut complete = CompleteGroups::default();
        for (sets, has_all) in [
            (first([own, own + 1, own + 2]), true),
            (first([own + 1, own + 2, own + 3]), false),
            (SetRows::default(), true),
        ] {
            assert_eq!(complete.advance(&sets, &member.catalogue).await, has_all, "{sets:?}");
        }
        member.stop().await;
    }

    #[test]
    fn a_node_leaves_the_groups_in_which_it_has_no_place_and_opens_the_others() {
        let set = |id, nodes: &[u64]| Arc::new(NodeSet { id, nodes: nodes.to_vec(), changes: 1 });
        let in_set = |group, set| Arc::new(GroupSet { set, ..GroupSet::first(group) });
        let sets = [set(0, &[1, 2, 3]), set(1, &[3, 4, 5]), set(2, &[5, 6, 1])];
        let sets = SetRows::new(sets, [in_set(2, 1), in_set(3, 2), in_set(4, 1)]);
        let parts = |own, running: &[u32], left: &[u32]| {
            due_parts(&sets, NodeId(own), running.to_vec(), left.to_vec())
        };
        assert_eq!(parts(1, &[0, 1, 2, 3, 4], &[]), [], "a node of the first set has all groups");
        let leave = |group, nodes: [u64; 3]| GroupPart::Leave { group, nodes: nodes.map(NodeId).into() };
        let expected = [leave(1, [1, 2, 3]), leave(3, [5, 6, 1]), GroupPart::Open { group: 4 }];
        assert_eq!(parts(4, &[0, 1, 2, 3], &[4]), expected);
        assert_eq!(parts(6, &[0, 3], &[2]), []);
    }
}
