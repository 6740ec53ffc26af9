//! Steps of groups whose sets change, and of the system group beside them.

use super::{MemberStep, WaitReason, decide};
use crate::facts::{ChangeState, Contact, DecisionInput, DecisionLimits, MemberFacts, SystemMembership};
use crate::places::{SYSTEM_GROUP, SetRows};
use mlgw_common::NodeId;
use mlgw_formats::schema::{GroupSet, NodeRole, NodeSet, NodeState};
use std::collections::BTreeSet;
use std::sync::Arc;

const STEADY: Contact = Contact::Reachable { for_ms: 60_000 };
const SILENT: Contact = Contact::Unreachable { for_ms: 60_000 };

/// Sets by id. Group 1 is in the first one, group 2 in the second one.
fn rows(sets: &[&[u64]]) -> SetRows {
    let set = |(id, nodes): (u32, &&[u64])| Arc::new(NodeSet { id, nodes: nodes.to_vec(), changes: 1 });
    SetRows::new((0..).zip(sets).map(set), [Arc::new(GroupSet::first(2).assigned_to(1))])
}

fn ids(nodes: &[u64]) -> BTreeSet<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

/// A group of six active nodes that answer and lack nothing. The first voter leads.
fn input(group: u32, rows: &SetRows, voters: &[u64], learners: &[u64]) -> DecisionInput {
    let facts = |node: NodeId| MemberFacts {
        role: NodeRole::Storage,
        state: NodeState::Active,
        place: rows.place(group, node),
        is_in_set: rows.is_in_set_of(group, node),
        has_all_groups: rows.has_all_groups(node),
        is_held: rows.is_in_any_set(node),
        contact: STEADY,
        lag_bytes: Some(0),
    };
    let is_system = group == SYSTEM_GROUP;
    DecisionInput {
        leader: NodeId(voters[0]),
        membership: SystemMembership { voters: ids(voters), outgoing: None, learners: ids(learners) },
        change: ChangeState::Committed,
        nodes: (1..=6).map(|node| (NodeId(node), facts(NodeId(node)))).collect(),
        limits: DecisionLimits { voters_max: if is_system { 5 } else { 3 }, ..DecisionLimits::default() },
        is_system,
        failed: BTreeSet::new(),
    }
}

fn facts(input: &mut DecisionInput, node: u64) -> &mut MemberFacts {
    input.nodes.get_mut(&NodeId(node)).expect("there are six nodes")
}

/// Nodes of the changed voters.
fn voters_after(input: &DecisionInput) -> Vec<u64> {
    match decide(input) {
        MemberStep::ChangeVoters(change) => change.voters.into_iter().map(NodeId::get).collect(),
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_node_that_is_removed_keeps_its_vote_until_another_one_takes_it() {
    let mut before = input(2, &rows(&[&[1, 2, 3], &[3, 4, 5]]), &[3, 4, 5], &[1, 2]);
    (facts(&mut before, 5).state, facts(&mut before, 5).contact) = (NodeState::Leaving, SILENT);
    assert_eq!(decide(&before), MemberStep::Wait(WaitReason::VoteNotTaken { node: NodeId(5) }));

    // Node 6 is in its place in the set: it is added, and gets the vote once it has caught up.
    let named = rows(&[&[1, 2, 3], &[3, 4, 6]]);
    let replaced = |learners: &[u64], contact, lag_bytes| {
        let mut input = input(2, &named, &[3, 4, 5], learners);
        (facts(&mut input, 5).state, facts(&mut input, 5).contact) = (NodeState::Leaving, SILENT);
        (facts(&mut input, 6).contact, facts(&mut input, 6).lag_bytes) = (contact, lag_bytes);
        input
    };
    assert_eq!(decide(&replaced(&[1, 2], STEADY, None)), MemberStep::AddLearner(NodeId(6)));
    let waits = |input: &DecisionInput| matches!(decide(input), MemberStep::Wait(_));
    assert!(waits(&replaced(&[1, 2, 6], STEADY, Some(2 << 20))), "node 6 lacks bytes");
    assert!(waits(&replaced(&[1, 2], SILENT, None)), "node 6 does not answer");
    assert_eq!(voters_after(&replaced(&[1, 2, 6], STEADY, Some(0))), [3, 4, 6]);
    // Node 6 is removed too, and no other node is in its place yet.
    let mut both = replaced(&[1, 2, 6], SILENT, None);
    facts(&mut both, 6).state = NodeState::Leaving;
    assert_eq!(decide(&both), MemberStep::RemoveLearner(NodeId(6)));
    both.membership.learners.remove(&NodeId(6));
    assert_eq!(decide(&both), MemberStep::Wait(WaitReason::VoteNotTaken { node: NodeId(5) }));
}

#[test]
fn a_vote_is_taken_without_another_node_only_if_the_set_cannot_be_filled() {
    let mut last = input(2, &rows(&[&[1, 2, 3], &[3, 4]]), &[3, 4, 5], &[]);
    facts(&mut last, 5).state = NodeState::Leaving;
    last.nodes.retain(|node, _| [3, 4, 5].contains(&node.0));
    assert_eq!(voters_after(&last), [3]);
    // A node that joins could get into the set.
    let mut joins = input(2, &rows(&[&[1, 2, 3], &[3, 4]]), &[3, 4, 5], &[]);
    facts(&mut joins, 5).state = NodeState::Leaving;
    joins.nodes.retain(|node, _| [3, 4, 5, 6].contains(&node.0));
    facts(&mut joins, 6).state = NodeState::Joining;
    assert!(matches!(decide(&joins), MemberStep::Wait(_)), "{:?}", decide(&joins));
}

#[test]
fn a_removal_is_recorded_last_by_the_system_group_and_when_no_set_has_the_node() {
    // Groups of objects record nothing, and remove the vote of node 2 although node 5 is gone here.
    let mut objects = input(1, &rows(&[&[1, 3, 4], &[3, 4, 6]]), &[1, 2, 3], &[4]);
    for node in [2, 5] {
        facts(&mut objects, node).state = NodeState::Leaving;
    }
    assert_eq!(voters_after(&objects), [1, 3, 4]);

    let mut system = input(SYSTEM_GROUP, &rows(&[&[1, 2, 3], &[3, 4, 6]]), &[1, 3, 4], &[6]);
    system.nodes.remove(&NodeId(5));
    (facts(&mut system, 2).state, facts(&mut system, 2).contact) = (NodeState::Leaving, SILENT);
    assert_ne!(decide(&system), MemberStep::RecordRemoval(NodeId(2)), "a set has it");
    facts(&mut system, 2).is_held = false;
    assert_eq!(decide(&system), MemberStep::RecordRemoval(NodeId(2)));
    // The node that joins in its place is added first.
    system.membership.learners.remove(&NodeId(6));
    assert_eq!(decide(&system), MemberStep::AddLearner(NodeId(6)));
    system.failed.insert(NodeId(6));
    assert_eq!(decide(&system), MemberStep::RecordRemoval(NodeId(2)), "it could not be added just now");
}

#[test]
fn a_learner_without_a_place_is_removed_when_the_others_have_the_rows() {
    // Node 6 is in the place of node 2 in the first set.
    let rows = rows(&[&[1, 3, 6], &[3, 4, 5]]);
    let step = |learners: &[u64], lag_bytes| {
        let mut input = input(2, &rows, &[3, 4, 5], learners);
        facts(&mut input, 6).lag_bytes = lag_bytes;
        decide(&input)
    };
    assert_eq!(step(&[1, 2], None), MemberStep::AddLearner(NodeId(6)), "not by the order of ids");
    assert_eq!(step(&[1, 2, 6], None), MemberStep::Idle);
    assert_eq!(step(&[1, 2, 6], Some(2 << 20)), MemberStep::Idle);
    assert_eq!(step(&[1, 2, 6], Some(0)), MemberStep::RemoveLearner(NodeId(2)));
}

#[test]
fn an_addition_that_failed_delays_no_other_step() {
    let rows = rows(&[&[1, 2, 3], &[3, 4, 5]]);
    let mut input = input(2, &rows, &[1, 2, 3], &[4]);
    assert_eq!(decide(&input), MemberStep::AddLearner(NodeId(5)));
    input.failed.insert(NodeId(5));
    facts(&mut input, 5).lag_bytes = None;
    assert_eq!(voters_after(&input), [1, 3, 4]);
}

#[test]
fn nodes_with_all_groups_vote_in_the_system_group_before_others() {
    let rows = rows(&[&[1, 2, 6], &[3, 4, 5]]);
    let mut system = input(SYSTEM_GROUP, &rows, &[1, 2, 3, 4, 5], &[6]);
    assert_eq!(voters_after(&system), [1, 2, 3, 4, 6]);
    facts(&mut system, 6).state = NodeState::Draining;
    assert_eq!(decide(&system), MemberStep::Idle, "it leaves");
}
