//! Commands of sets, one by one: what each accepts, and the reason of each rejection.

use super::membership_tests::{SystemGroup, remove};
use crate::view::RowReader as _;
use mlgw_common::NodeId;
use mlgw_common::limits::{
    GROUP_ID_MAX, GUEST_END_SEGMENTS_MAX, GUEST_SETS_MAX, NODE_GROUPS_MAX, NODE_TEXT_BYTES_MAX, SETS_MAX,
};
use mlgw_formats::command::{
    AssignGroup, Change, CreateSegment, EndGuest, EndRebalance, PutPartition, PutSet, Reject, RemoveSegment,
    Reply, RequestRebalance, SealSegment, SetNodeRole,
};
use mlgw_formats::schema::set::{group_row, row};
use mlgw_formats::schema::{GroupSet, Node, NodeRole, NodeSet, NodeState, Rebalance, decode, encode, node};

const DONE: Result<Reply, Reject> = Ok(Reply::Done);

fn put(set: u32, nodes: &[u64], changes: u64) -> Change {
    Change::PutSet(PutSet { set, nodes: nodes.to_vec(), changes })
}

fn assign(group: u32, set: u32, changes: u64) -> Change {
    Change::AssignGroup(AssignGroup { group, set, changes })
}

/// A cluster of `count` storage nodes that serve.
fn nodes(count: u64) -> SystemGroup {
    let mut group = SystemGroup::new();
    for id in 2..=count {
        add_node(&mut group, id, NodeRole::Storage, NodeState::Active);
    }
    group
}

fn add_node(group: &mut SystemGroup, id: u64, role: NodeRole, state: NodeState) {
    let added = Node { id, role: role as i32, state: state as i32, ..Node::default() };
    group.rows.0.insert(node::row(NodeId(id)), encode(&added));
}

fn set(group: &SystemGroup, id: u32) -> Option<NodeSet> {
    group.rows.get(&row(id)).unwrap().map(|value| decode(&value).unwrap())
}

fn set_of(group: &SystemGroup, id: u32) -> Option<GroupSet> {
    group.rows.get(&group_row(id)).unwrap().map(|value| decode(&value).unwrap())
}

fn is_malformed<T>(outcome: &Result<T, Reject>) -> bool {
    matches!(outcome, Err(Reject::Malformed { .. }))
}

#[test]
fn a_set_changes_by_compare_and_set() {
    let mut group = nodes(5);
    assert!(is_malformed(&group.apply(put(1, &[2, 3, 4], 0))), "the first set is missing");
    assert_eq!(group.apply(put(0, &[1, 2, 3], 0)), DONE);
    assert_eq!(group.apply(put(0, &[1, 2, 3], 0)), DONE, "a repetition");
    assert_eq!(set(&group, 0), Some(NodeSet { id: 0, nodes: vec![1, 2, 3], changes: 1 }));
    assert_eq!(group.apply(put(0, &[1, 2, 4], 0)), Err(Reject::SetChanged { set: 0 }));
    assert_eq!(group.apply(put(0, &[1, 2, 4], 1)), DONE);
    assert_eq!(group.apply(put(0, &[1, 2, 3], 1)), Err(Reject::SetChanged { set: 0 }), "a late command");
    assert_eq!(group.apply(put(0, &[1, 2, 4], 2)), DONE);
    assert_eq!(set(&group, 0).unwrap().changes, 2, "the same nodes are no change");
    assert_eq!(group.apply(put(1, &[3, 4, 5], 0)), DONE);
    assert_eq!(group.apply(put(1, &[3, 4, 5], 7)), Err(Reject::SetChanged { set: 1 }));
}

#[test]
fn a_set_has_one_to_three_different_storage_nodes_that_serve() {
    let mut group = nodes(3);
    add_node(&mut group, 4, NodeRole::Gateway, NodeState::Active);
    add_node(&mut group, 5, NodeRole::Storage, NodeState::Joining);
    add_node(&mut group, 6, NodeRole::Storage, NodeState::Draining);
    for wrong in [&[][..], &[1, 1], &[1, 2, 3, 6], &[1, 2, 4]] {
        assert!(is_malformed(&group.apply(put(0, wrong, 0))), "{wrong:?}");
    }
    assert!(is_malformed(&group.apply(put(SETS_MAX, &[1], 0))));
    assert_eq!(group.apply(put(0, &[1, 9], 0)), Err(Reject::NoSuchNode { node: 9 }));
    for (node, state) in [(5, NodeState::Joining), (6, NodeState::Draining)] {
        assert_eq!(group.apply(put(0, &[1, node], 0)), Err(Reject::WrongNodeState { node, state }));
    }
    assert_eq!(group.apply(put(0, &[1, 2, 3], 0)), DONE);
    for (id, state) in [(2, NodeState::Leaving), (3, NodeState::Draining)] {
        add_node(&mut group, id, NodeRole::Storage, state);
    }
    add_node(&mut group, 7, NodeRole::Storage, NodeState::Active);
    assert_eq!(group.apply(put(0, &[1, 7, 3], 1)), DONE, "a node that leaves stays until it is replaced");
}

#[test]
fn a_group_is_assigned_by_compare_and_set() {
    let mut group = nodes(5);
    assert_eq!(group.apply(assign(1, 0, 0)), Err(Reject::NoSuchSet { set: 0 }));
    group.apply(put(0, &[1, 2, 3], 0)).unwrap();
    group.apply(put(1, &[3, 4, 5], 0)).unwrap();
    group.apply(put(2, &[5, 1, 2], 0)).unwrap();
    assert_eq!(group.apply(assign(1, 0, 0)), DONE);
    assert_eq!(set_of(&group, 1), None, "it is in the first set already");
    assert_eq!(group.apply(assign(1, 3, 0)), Err(Reject::NoSuchSet { set: 3 }));
    assert_eq!(group.apply(assign(1, 1, 0)), DONE);
    assert_eq!(group.apply(assign(1, 1, 0)), DONE, "a repetition");
    assert_eq!(group.apply(assign(1, 2, 0)), Err(Reject::GroupAssigned { group: 1 }));
    assert_eq!(group.apply(assign(1, 2, 1)), DONE);
    let assigned = GroupSet { group: 1, set: 2, guest_of: vec![1], changes: 2 };
    assert_eq!(set_of(&group, 1), Some(assigned));
    assert_eq!(group.apply(assign(1, 1, 0)), Err(Reject::GroupAssigned { group: 1 }), "a late command");
    assert!(is_malformed(&group.apply(assign(0, 1, 0))), "the system group is in no set");
    assert!(is_malformed(&group.apply(assign(GROUP_ID_MAX + 1, 1, 0))));
}

#[test]
fn guest_sets_and_assigned_groups_have_limits() {
    let mut group = nodes(3);
    let sets = u32::try_from(GUEST_SETS_MAX).unwrap() + 2;
    for id in 0..=sets {
        group.apply(put(id, &[1, 2, 3], 0)).unwrap();
    }
    for (id, changes) in (1..sets).zip(0..) {
        assert_eq!(group.apply(assign(7, id, changes)), DONE, "set {id}");
    }
    let changes = u64::from(sets) - 1;
    assert_eq!(set_of(&group, 7).unwrap().guest_of.len(), GUEST_SETS_MAX);
    assert_eq!(group.apply(assign(7, sets, changes)), Err(Reject::TooManyGuestSets { group: 7 }));
    assert_eq!(group.apply(assign(7, 1, changes)), DONE, "it returns to one of them");
    for id in 8..7 + u32::try_from(NODE_GROUPS_MAX).unwrap() {
        group.apply(assign(id, 1, 0)).unwrap();
    }
    assert!(is_malformed(&group.apply(assign(5, 1, 0))));
    assert_eq!(group.apply(assign(8, 2, 1)), DONE, "a group that has a row");
}

#[test]
fn a_node_of_a_set_is_not_removed_and_keeps_its_role() {
    let mut group = nodes(4);
    group.apply(put(0, &[1, 2, 3], 0)).unwrap();
    group.apply(put(1, &[2, 3, 4], 0)).unwrap();
    assert_eq!(group.node_change(remove(4)).unwrap().state(), NodeState::Leaving);
    assert_eq!(group.node_change(remove(4)).unwrap().state(), NodeState::Leaving, "it is in set 1");
    group.apply(put(1, &[2, 3, 1], 1)).unwrap();
    assert_eq!(group.node_change(remove(4)).unwrap().state(), NodeState::Removed);
    add_node(&mut group, 3, NodeRole::Storage, NodeState::Draining);
    let role = Change::SetNodeRole(SetNodeRole { node: 3, role: NodeRole::Gateway as i32 });
    assert_eq!(group.apply(role.clone()), Err(Reject::NodeInSet { node: 3, set: 0 }));
    group.apply(put(0, &[1, 2], 1)).unwrap();
    group.apply(put(1, &[2, 1], 2)).unwrap();
    assert_eq!(group.node_change(role).unwrap().role(), NodeRole::Gateway);
}

/// A sealed segment of a set.
fn segment_of(group: &mut SystemGroup, set: u32) -> u64 {
    let create = CreateSegment { node: 1, set, ..CreateSegment::default() };
    let Ok(Reply::Segment(record)) = group.apply(Change::CreateSegment(create)) else { panic!("set {set}") };
    let seal = SealSegment { segment: record.id, length: 9, replicas: vec![] };
    group.apply(Change::SealSegment(seal)).unwrap();
    assert_eq!(record.set, set);
    record.id
}

#[test]
fn a_segment_is_removed_when_each_group_has_released_it_that_may_refer_to_it_by_then() {
    let mut group = nodes(5);
    for (id, nodes) in [(0, [1, 2, 3]), (1, [3, 4, 5]), (2, [5, 1, 2])] {
        group.apply(put(id, &nodes, 0)).unwrap();
    }
    for (bucket_id, group_id) in [(0, 1), (5, 2), (7, 3)] {
        let range = PutPartition { bucket_id, key: vec![], group: group_id };
        group.apply(Change::PutPartition(range)).unwrap();
    }
    group.apply(assign(2, 1, 0)).unwrap();
    let remove = |segment, released_in: &[u32]| {
        Change::RemoveSegment(RemoveSegment { segment, released_in: released_in.to_vec() })
    };
    let in_use = Err(Reject::SegmentInUse);
    let first = segment_of(&mut group, 1);
    assert_eq!(group.apply(remove(first, &[2])), DONE, "no other group is in its set");
    let second = segment_of(&mut group, 1);
    // Group 3 got into the set after it was looked at.
    group.apply(assign(3, 1, 0)).unwrap();
    assert_eq!(group.apply(remove(second, &[2])), in_use);
    // It may still refer to the segment when it has left the set.
    group.apply(assign(3, 2, 1)).unwrap();
    assert_eq!(group.apply(remove(second, &[2])), in_use);
    assert_eq!(group.apply(remove(second, &[3, 2])), DONE);
    let of_first_set = segment_of(&mut group, 0);
    assert_eq!(group.apply(remove(of_first_set, &[2, 3])), in_use);
    assert_eq!(group.apply(remove(of_first_set, &[1, 2, 3])), DONE, "every group may refer to it");
    let create = CreateSegment { node: 1, set: 9, ..CreateSegment::default() };
    assert_eq!(group.apply(Change::CreateSegment(create)), Err(Reject::NoSuchSet { set: 9 }));
}

fn end_guest(group: u32, set: u32, changes: u64, next_segment: u64) -> Change {
    Change::EndGuest(EndGuest { group, set, changes, next_segment })
}

#[test]
fn a_group_ceases_to_be_a_guest_unless_the_set_has_a_later_segment() {
    let mut group = nodes(5);
    for (id, nodes) in [(0, [1, 2, 3]), (1, [3, 4, 5]), (2, [5, 1, 2])] {
        group.apply(put(id, &nodes, 0)).unwrap();
    }
    group.apply(Change::PutPartition(PutPartition { bucket_id: 0, key: vec![], group: 7 })).unwrap();
    group.apply(assign(7, 1, 0)).unwrap();
    assert!(is_malformed(&group.apply(end_guest(7, 1, 1, 1))), "it is in the set");
    group.apply(assign(7, 2, 1)).unwrap();
    let first = segment_of(&mut group, 1);
    let in_use = Err(Reject::SegmentInUse);
    assert_eq!(group.apply(end_guest(7, 1, 2, first)), in_use, "it is a later segment");
    assert_eq!(group.apply(end_guest(7, 1, 2, 0)), in_use);
    assert_eq!(group.apply(end_guest(7, 1, 1, first + 1)), Err(Reject::GroupAssigned { group: 7 }), "late");
    assert!(is_malformed(&group.apply(end_guest(7, 0, 2, first + 1))), "a group is no guest of set 0");
    let remove = Change::RemoveSegment(RemoveSegment { segment: first, released_in: vec![9] });
    assert_eq!(group.apply(remove.clone()), in_use, "group 7 may refer to it");
    // Later segments of other sets do not matter.
    segment_of(&mut group, 2);
    for _ in 0..2 {
        assert_eq!(group.apply(end_guest(7, 1, 2, first + 1)), DONE);
    }
    let ended = GroupSet { group: 7, set: 2, guest_of: vec![], changes: 3 };
    assert_eq!(set_of(&group, 7), Some(ended));
    assert_eq!(group.apply(remove), DONE, "no other group is in its set");
    assert_eq!(group.apply(assign(7, 1, 3)), DONE, "it returns");
}

#[test]
fn the_end_of_a_guest_reads_a_limited_number_of_segments() {
    let mut group = nodes(3);
    for id in 0..3 {
        group.apply(put(id, &[1, 2, 3], 0)).unwrap();
    }
    group.apply(assign(7, 1, 0)).unwrap();
    group.apply(assign(7, 2, 1)).unwrap();
    let first = segment_of(&mut group, 2);
    for _ in 0..GUEST_END_SEGMENTS_MAX {
        segment_of(&mut group, 2);
    }
    assert_eq!(group.apply(end_guest(7, 1, 2, first)), Err(Reject::SegmentInUse));
    assert_eq!(group.apply(end_guest(7, 1, 2, first + 1)), DONE);
}

#[test]
fn a_rebalance_ends_unless_it_was_requested_again() {
    let mut group = nodes(1);
    let rebalance = |requested_ms| Rebalance { requested_ms, by: "AK".into() };
    let request =
        |requested_ms| Change::RequestRebalance(RequestRebalance { rebalance: rebalance(requested_ms) });
    let end = |requested_ms| Change::EndRebalance(EndRebalance { rebalance: rebalance(requested_ms) });
    let known = |group: &SystemGroup| {
        let row = group.rows.get(&Rebalance::row()).unwrap();
        row.map(|value| decode::<Rebalance>(&value).unwrap().requested_ms)
    };
    let long = Rebalance { requested_ms: 1, by: "x".repeat(NODE_TEXT_BYTES_MAX + 1) };
    assert!(is_malformed(&group.apply(Change::RequestRebalance(RequestRebalance { rebalance: long }))));
    assert_eq!((group.apply(end(5)), known(&group)), (DONE, None), "there is none");
    for requested_ms in [5, 5, 6] {
        assert_eq!((group.apply(request(requested_ms)), known(&group)), (DONE, Some(requested_ms)));
    }
    assert_eq!((group.apply(end(5)), known(&group)), (DONE, Some(6)), "the end of the earlier request");
    for _ in 0..2 {
        assert_eq!((group.apply(end(6)), known(&group)), (DONE, None));
    }
}
