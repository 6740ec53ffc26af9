//! Input of the decisions about a group's members, from its leader's view. Pure.

use mlgw_common::NodeId;
use mlgw_formats::schema::{Node, NodeRole};
pub(crate) use mlgw_membership::SYSTEM_GROUP;
use mlgw_membership::{
    ChangeState, Contact, DecisionInput, DecisionLimits, MemberFacts, SetRows, SystemMembership, WaitReason,
};
use mlgw_metadata::{GroupMembers, MemberRole};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Reasons to wait, by group. Only groups that this node leads have one.
pub(crate) type GroupWaits = Arc<Mutex<BTreeMap<u32, WaitReason>>>;

/// Voters of a group of objects.
const OBJECT_VOTERS_MAX: usize = 3;

/// The input for a group that this node leads. Groups of objects have storage nodes only: those of their set,
/// and those that need their rows for other reasons.
pub(crate) fn decision_input(
    group: &GroupMembers,
    nodes: &[Arc<Node>],
    sets: &SetRows,
    contact: impl Fn(NodeId) -> Contact,
) -> DecisionInput {
    let is_system = group.group == SYSTEM_GROUP;
    let lag_of = |id: NodeId| {
        let status = group.members.iter().find(|member| member.node == id)?;
        // Without an answer under this leader the lag is what the leader assumes, not what it knows.
        status.last_contact.is_some().then_some(status.lag_bytes)
    };
    let facts = |node: &Arc<Node>| {
        let id = node.node_id();
        let is_leader = id == group.leader;
        let contact = if is_leader { Contact::Reachable { for_ms: u64::MAX } } else { contact(id) };
        let lag_bytes = if is_leader { Some(0) } else { lag_of(id) };
        let facts = MemberFacts {
            role: node.role(),
            state: node.state(),
            place: sets.place(group.group, id),
            is_in_set: sets.is_in_set_of(group.group, id),
            has_all_groups: sets.has_all_groups(id),
            is_held: sets.is_in_any_set(id),
            contact,
            lag_bytes,
        };
        (id, facts)
    };
    let belongs = |node: &&Arc<Node>| is_system || node.role() == NodeRole::Storage;
    let nodes: BTreeMap<NodeId, MemberFacts> = nodes.iter().filter(belongs).map(facts).collect();
    let learner =
        |member: &mlgw_metadata::MemberStatus| (member.role == MemberRole::Learner).then_some(member.node);
    let limits = DecisionLimits::default();
    DecisionInput {
        leader: group.leader,
        membership: SystemMembership {
            voters: group.voters.clone(),
            outgoing: group.outgoing.clone(),
            learners: group.members.iter().filter_map(learner).collect(),
        },
        change: if group.is_changing { ChangeState::InProgress } else { ChangeState::Committed },
        nodes,
        limits: if is_system { limits } else { DecisionLimits { voters_max: OBJECT_VOTERS_MAX, ..limits } },
        is_system,
        failed: BTreeSet::new(),
    }
}

/// The nodes that have not reported a build that knows this version of the cluster. Those that are down
/// count: they must be able to read what the others write meanwhile.
pub(crate) fn lacking_version(nodes: &[Arc<Node>], version: u32) -> impl Iterator<Item = NodeId> {
    let staying = nodes.iter().filter(|node| !node.is_removed());
    staying.filter(move |node| node.cluster_version < version).map(|node| node.node_id())
}

#[cfg(test)]
mod tests {
    use super::{decision_input, lacking_version};
    use crate::test_nodes::node;
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{GroupSet, Node, NodeRole, NodeSet, NodeState};
    use mlgw_membership::{Contact, MemberStep, SetRows, WaitReason, decide};
    use mlgw_metadata::{GroupMembers, MemberRole, MemberStatus};
    use std::sync::Arc;
    use std::time::Duration;

    fn group(id: u32, members: &[(u64, MemberRole)]) -> GroupMembers {
        let status = |(node, role): &(u64, MemberRole)| MemberStatus {
            node: NodeId(*node),
            role: *role,
            matched: Some(1),
            lag_entries: 0,
            lag_bytes: 0,
            last_contact: Some(Duration::ZERO),
        };
        let voters = members.iter().filter(|(_, role)| *role == MemberRole::Voter);
        GroupMembers {
            group: id,
            leader: NodeId(1),
            term: 1,
            last: 1,
            is_changing: false,
            voters: voters.map(|(node, _)| NodeId(*node)).collect(),
            outgoing: None,
            members: members.iter().map(status).collect(),
        }
    }

    const STEADY: Contact = Contact::Reachable { for_ms: 60_000 };

    #[test]
    fn a_gateway_joins_the_system_group_alone() {
        let nodes =
            [node(1, NodeRole::Storage, NodeState::Active), node(2, NodeRole::Gateway, NodeState::Joining)];
        let alone = [(1, MemberRole::Voter)];
        let sets = SetRows::default();
        let step = |id: u32| decide(&decision_input(&group(id, &alone), &nodes, &sets, |_| STEADY));
        assert_eq!(step(0), MemberStep::AddLearner(NodeId(2)));
        assert_eq!(step(1), MemberStep::Idle);
    }

    #[test]
    fn two_caught_up_storage_nodes_become_voters_at_once() {
        let nodes = [1, 2, 3].map(|id| node(id, NodeRole::Storage, NodeState::Active));
        let members = [(1, MemberRole::Voter), (2, MemberRole::Learner), (3, MemberRole::Learner)];
        let mut seen = group(1, &members);
        let sets = SetRows::default();
        let step = decide(&decision_input(&seen, &nodes, &sets, |_| STEADY));
        let MemberStep::ChangeVoters(change) = step else { panic!("{step:?}") };
        assert_eq!(change.voters, [1, 2, 3].map(NodeId).into());
        // A member that never answered under this leader has an unknown lag.
        seen.members[2].last_contact = None;
        let step = decide(&decision_input(&seen, &nodes, &sets, |_| STEADY));
        assert!(matches!(step, MemberStep::Wait(_)), "{step:?}");
        let input = decision_input(&seen, &nodes, &sets, |_| STEADY);
        assert_eq!(input.nodes[&NodeId(3)].lag_bytes, None);
    }

    #[test]
    fn a_version_is_lacking_until_every_node_that_is_not_removed_has_reported_it() {
        let node = |id, state: NodeState, cluster_version| {
            Arc::new(Node { id, state: state as i32, cluster_version, ..Node::default() })
        };
        let nodes = [
            node(1, NodeState::Active, 6),
            node(2, NodeState::Active, 5),
            node(3, NodeState::Removed, 5),
            node(4, NodeState::Joining, 0),
            node(5, NodeState::Leaving, 5),
        ];
        let lacking = |version| lacking_version(&nodes, version).map(NodeId::get).collect::<Vec<_>>();
        assert_eq!(lacking(6), [2, 4, 5]);
        assert_eq!(lacking_version(&nodes[..1], 6).next(), None);
    }

    #[test]
    fn a_group_moves_to_the_nodes_of_its_set_and_leaves_the_others() {
        let nodes = [1, 2, 3, 4, 5].map(|id| node(id, NodeRole::Storage, NodeState::Active));
        let set = |id, nodes: &[u64]| Arc::new(NodeSet { id, nodes: nodes.to_vec(), changes: 1 });
        let sets = [set(0, &[1, 2, 3]), set(1, &[1, 4, 5]), set(2, &[3, 4, 5])];
        let of_group = GroupSet { group: 7, set: 1, guest_of: vec![], changes: 1 };
        let sets = SetRows::new(sets, [Arc::new(of_group)]);
        let step = |members: &[(u64, MemberRole)]| {
            decide(&decision_input(&group(7, members), &nodes, &sets, |_| STEADY))
        };
        let (voter, learner) = (MemberRole::Voter, MemberRole::Learner);
        assert_eq!(step(&[(1, voter), (2, voter), (3, voter)]), MemberStep::AddLearner(NodeId(4)));
        let moving = step(&[(1, voter), (2, voter), (3, voter), (4, learner), (5, learner)]);
        let MemberStep::ChangeVoters(change) = moving else { panic!("{moving:?}") };
        assert_eq!(change.voters, [1, 4, 5].map(NodeId).into());
        let moved = [(1, voter), (2, learner), (3, learner), (4, voter), (5, voter)];
        assert_eq!(step(&moved), MemberStep::Idle, "nodes of the first set learn every group");
        let of_group = GroupSet { group: 7, set: 2, guest_of: vec![], changes: 2 };
        let of_first = SetRows::new([set(0, &[1, 4, 5]), set(2, &[3, 4, 5])], [Arc::new(of_group)]);
        let left = [(1, learner), (2, learner), (3, voter), (4, voter), (5, voter)];
        let mut left = group(7, &left);
        left.leader = NodeId(3);
        let step = decide(&decision_input(&left, &nodes, &of_first, |_| STEADY));
        assert_eq!(step, MemberStep::RemoveLearner(NodeId(2)));
    }

    #[test]
    fn a_node_that_is_removed_keeps_its_vote_until_another_one_is_in_its_place_in_the_set() {
        let mut nodes = [1, 2, 3, 4].map(|id| node(id, NodeRole::Storage, NodeState::Active));
        nodes[2] = node(3, NodeRole::Storage, NodeState::Leaving);
        let contact = |id: NodeId| match id.get() {
            3 => Contact::Unreachable { for_ms: 60_000 },
            _ => STEADY,
        };
        let sets = |nodes: &[u64]| {
            SetRows::new([Arc::new(NodeSet { id: 0, nodes: nodes.to_vec(), changes: 1 })], [])
        };
        let (voter, learner) = (MemberRole::Voter, MemberRole::Learner);
        let members = [(1, voter), (2, voter), (3, voter)];
        let step =
            |group: &GroupMembers, sets: &SetRows| decide(&decision_input(group, &nodes, sets, contact));
        let waits = MemberStep::Wait(WaitReason::VoteNotTaken { node: NodeId(3) });
        assert_eq!(step(&group(7, &members), &sets(&[1, 2, 3])), waits);
        let replaced = sets(&[1, 2, 4]);
        assert_eq!(step(&group(7, &members), &replaced), MemberStep::AddLearner(NodeId(4)));
        let joined = [(1, voter), (2, voter), (3, voter), (4, learner)];
        let MemberStep::ChangeVoters(change) = step(&group(7, &joined), &replaced) else { panic!() };
        assert_eq!(change.voters, [1, 2, 4].map(NodeId).into());
        let system = step(&group(0, &members), &sets(&[1, 2, 3]));
        assert_ne!(system, MemberStep::Idle, "the system group is in no set");
    }
}
