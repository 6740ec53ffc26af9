//! The range map and the order of candidates.

use crate::route::{
    CandidateQueue, MapEpoch, RangeMembers, RangeRoute, RoutePreference, RouteTable, RouteTarget,
};
use crate::verdict::RoutingVerdict;
use mlgw_common::NodeId;
use mlgw_common::limits::FORWARD_ATTEMPTS_MAX;
use proptest::prelude::*;

fn group(members: &[u64], leader: Option<u64>) -> RangeMembers {
    RangeMembers::new(members.iter().copied().map(NodeId).collect(), leader.map(NodeId))
}

fn range(begin: &str, members: &[u64]) -> RangeRoute {
    RangeRoute { begin: begin.to_owned(), group: group(members, members.first().copied()) }
}

fn table() -> RouteTable {
    let mut table = RouteTable::new(MapEpoch(5), group(&[1, 2, 3], Some(2)));
    table.add_bucket("data", vec![range("", &[1]), range("m", &[2, 4]), range("z", &[3])]).unwrap();
    table
}

const fn target<'a>(bucket: Option<&'a str>, key: Option<&'a str>) -> RouteTarget<'a> {
    RouteTarget { bucket, key }
}

#[test]
fn a_key_belongs_to_the_last_range_that_begins_before_it() {
    let table = table();
    for (bucket, key, members) in [
        (Some("data"), Some("a"), &[1][..]),
        (Some("data"), Some("lzzz"), &[1]),
        (Some("data"), Some("m"), &[2, 4]),
        (Some("data"), Some("y\u{e9}"), &[2, 4]),
        (Some("data"), Some("z"), &[3]),
        (Some("data"), None, &[1]),
        (Some("unknown"), Some("z"), &[1, 2, 3]),
        (None, None, &[1, 2, 3]),
    ] {
        let found = &table.members_of(target(bucket, key)).members;
        assert_eq!(*found, members.iter().copied().map(NodeId).collect::<Vec<_>>(), "{bucket:?} {key:?}");
    }
}

#[test]
fn a_bucket_of_several_ranges_belongs_to_the_nodes_that_have_all_groups() {
    let mut table = table();
    table.add_whole_bucket("whole", group(&[4], None));
    assert_eq!(table.members_of_all(), None);
    table.set_all_groups(group(&[2, 3], None));
    assert_eq!(table.members_of_all(), Some(&group(&[2, 3], None)));
    for (bucket, key, members) in [
        (Some("data"), None, &[2, 3][..]),
        (Some("data"), Some("a"), &[1]),
        (Some("whole"), None, &[4]),
        (None, None, &[1, 2, 3]),
    ] {
        let found = &table.members_of(target(bucket, key)).members;
        assert_eq!(*found, members.iter().copied().map(NodeId).collect::<Vec<_>>(), "{bucket:?} {key:?}");
    }
}

#[test]
fn ranges_that_leave_keys_out_are_refused() {
    let mut table = RouteTable::default();
    for ranges in [vec![], vec![range("a", &[1])], vec![range("", &[1]), range("b", &[1]), range("b", &[2])]]
    {
        assert!(table.add_bucket("data", ranges).is_err());
    }
}

#[test]
fn a_member_accepts_what_its_map_does_not_refuse_and_its_rows_decide_the_rest() {
    let (table, key) = (table(), target(Some("data"), Some("n")));
    let accepted = RoutingVerdict::Accepted { epoch: MapEpoch(5) };
    for epoch in [MapEpoch(4), MapEpoch(5)] {
        assert_eq!(table.judge(NodeId(2), epoch, key), accepted);
        assert_eq!(table.judge(NodeId(1), epoch, key), accepted, "the group may be moving away from it");
        let other = RoutingVerdict::NotMine { leader: Some(NodeId(2)), epoch: MapEpoch(5) };
        assert_eq!(table.judge(NodeId(9), epoch, key), other, "it leaves");
    }
    let behind = RoutingVerdict::NotMine { leader: None, epoch: MapEpoch(5) };
    assert_eq!(table.judge(NodeId(2), MapEpoch(6), key), behind, "it may have lost the key meanwhile");
}

#[test]
fn a_node_is_left_out_by_a_map_with_other_nodes() {
    let table = RouteTable::new(MapEpoch(1), group(&[1, 3], None));
    assert!(table.is_left_out(NodeId(2)));
    assert!(!table.is_left_out(NodeId(3)));
    assert!(!RouteTable::default().is_left_out(NodeId(2)), "the map has not arrived");
}

fn candidates(preference: RoutePreference, turn: u64, own: u64, suspects: &[u64]) -> Vec<u64> {
    let group = group(&[1, 2, 3], Some(2));
    let is_suspect = |member: NodeId| suspects.contains(&member.get());
    CandidateQueue::new(&group, preference, turn, NodeId(own), is_suspect).map(NodeId::get).collect()
}

#[test]
fn the_leader_is_first_for_changes_and_the_turn_decides_otherwise() {
    use RoutePreference::{Any, Leader};
    assert_eq!(candidates(Leader, 0, 9, &[]), [2, 1, 3]);
    assert_eq!(candidates(Leader, 2, 9, &[]), [2, 3, 1]);
    assert_eq!(candidates(Any, 0, 9, &[]), [1, 2, 3]);
    assert_eq!(candidates(Any, 1, 9, &[]), [2, 3, 1]);
    assert_eq!(candidates(Any, u64::MAX, 9, &[]), [1, 2, 3]);
    assert_eq!(candidates(Leader, 0, 9, &[2]), [1, 3, 2], "a suspect is the last");
    assert_eq!(candidates(Leader, 0, 2, &[]), [1, 3], "a node does not forward to itself");
}

#[test]
fn reads_fill_one_healthy_member_before_the_next() {
    let first = |requests: [usize; 3], suspects: &[u64]| {
        let group = RangeMembers { others: vec![NodeId(4)], ..group(&[1, 2, 3], Some(1)) };
        let is_suspect = |member: NodeId| suspects.contains(&member.get());
        let mut queue = CandidateQueue::new(&group, RoutePreference::Any, 1, NodeId(9), is_suspect);
        queue.prefer_below(8, |member| requests[member.get() as usize - 1]);
        let queue: Vec<_> = queue.map(NodeId::get).collect();
        assert_eq!(queue.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "all are tried");
        queue[0]
    };
    assert_eq!(first([0, 7, 0], &[]), 2);
    assert_eq!(first([0, 8, 0], &[]), 3);
    assert_eq!(first([7, 9, 8], &[]), 1);
    assert_eq!(first([10, 9, 8], &[]), 3, "it has the fewest");
    assert_eq!(first([9, 9, 0], &[3]), 2, "a suspect is the last");
    assert_eq!(first([0, 0, 0], &[1, 2, 3]), 4, "no member is healthy");
}

#[test]
fn other_nodes_with_the_rows_are_tried_after_the_members_and_before_suspects() {
    let group = RangeMembers { others: [2, 4, 5, 6].map(NodeId).into(), ..group(&[1, 2, 3], None) };
    let is_suspect = |node: NodeId| [3, 5].map(NodeId).contains(&node);
    let queue = CandidateQueue::new(&group, RoutePreference::Any, 1, NodeId(6), is_suspect);
    assert_eq!(queue.map(NodeId::get).collect::<Vec<_>>(), [2, 1, 4, 3, 5]);
}

#[test]
fn a_node_that_the_group_does_not_have_is_tried_first_or_last_if_it_is_a_suspect() {
    let order = |own: u64, is_suspect: bool| {
        let group = group(&[1, 2], None);
        let mut queue = CandidateQueue::new(&group, RoutePreference::Any, 0, NodeId(own), |_| false);
        queue.add(NodeId(7), is_suspect);
        queue.map(NodeId::get).collect::<Vec<_>>()
    };
    assert_eq!([order(9, false), order(9, true)], [[7, 1, 2], [1, 2, 7]]);
    assert_eq!([order(7, false), order(7, true)], [[1, 2], [1, 2]], "a node does not forward to itself");
}

#[test]
fn a_hint_is_tried_next_unless_it_was_tried() {
    let mut queue =
        CandidateQueue::new(&group(&[1, 2, 3], None), RoutePreference::Any, 0, NodeId(9), |_| false);
    assert_eq!(queue.next(), Some(NodeId(1)));
    queue.prefer(NodeId(3));
    assert_eq!(queue.next(), Some(NodeId(3)));
    queue.prefer(NodeId(1));
    queue.prefer(NodeId(9));
    queue.prefer(NodeId(7));
    assert_eq!(queue.collect::<Vec<_>>(), [NodeId(7), NodeId(2)], "a newer map may name further members");
}

proptest! {
    /// Members that name each other for ever end the attempts after a fixed number, and none is tried twice.
    #[test]
    fn attempts_are_limited_and_never_repeated(
        members in prop::collection::vec(1_u64..8, 0..8),
        leader in prop::option::of(1_u64..8),
        turn in any::<u64>(),
        hints in prop::collection::vec(1_u64..30, 0..40),
        suspects in prop::collection::vec(1_u64..8, 0..4),
    ) {
        let mut members = members;
        members.sort_unstable();
        members.dedup();
        let is_suspect = |member: NodeId| suspects.contains(&member.get());
        let group = group(&members, leader);
        let mut queue = CandidateQueue::new(&group, RoutePreference::Leader, turn, NodeId(1), is_suspect);
        let (mut tried, mut hints) = (Vec::new(), hints.into_iter());
        while let Some(member) = queue.next() {
            prop_assert!(!tried.contains(&member) && member != NodeId(1));
            tried.push(member);
            hints.next().into_iter().for_each(|hint| queue.prefer(NodeId(hint)));
        }
        prop_assert!(tried.len() <= FORWARD_ATTEMPTS_MAX);
    }
}
