//! Cases of each decision about copies, and the order of the tasks.

use super::{
    COPIES, CopyCounts, RepairInput, RepairKind, RepairTask, ReplicaFacts, SegmentFacts, StorageNode,
    count_copies, next_tasks, weight,
};
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeSet;

/// Nodes 1 to `count`; those in `down` do not answer.
fn nodes(count: u64, down: &[u64]) -> Vec<StorageNode> {
    let node = |node| StorageNode { node: NodeId(node), is_reachable: !down.contains(&node) };
    (1..=count).map(node).collect()
}

/// A segment with good replicas, and marked ones.
fn segment(id: u64, good: &[u64], marked: &[u64]) -> SegmentFacts {
    let replica = |is_suspect| move |node: &u64| ReplicaFacts { node: NodeId(*node), is_suspect };
    let replicas = good.iter().map(replica(false)).chain(marked.iter().map(replica(true))).collect();
    SegmentFacts { segment: SegmentId(id), bytes: 10 * id, changes: 7, replicas, is_at_upstream: false }
}

fn tasks(own: u64, nodes: &[StorageNode], segments: &[SegmentFacts]) -> Vec<RepairTask> {
    let busy = BTreeSet::new();
    next_tasks(&RepairInput {
        own: NodeId(own),
        copies: COPIES,
        nodes,
        segments,
        busy: &busy,
        tasks_max: 100,
    })
}

/// Kind and sources of the only task of a node, if it has one.
fn task(own: u64, nodes: &[StorageNode], facts: &SegmentFacts) -> Option<(RepairKind, Vec<u64>)> {
    let found = tasks(own, nodes, std::slice::from_ref(facts));
    assert!(found.iter().all(|task| task.segment == facts.segment && task.changes == 7));
    found.into_iter().next().map(|task| (task.kind, task.sources.iter().map(|node| node.0).collect()))
}

/// Nodes that answer and have a task of a kind.
fn nodes_with(kind: RepairKind, nodes: &[StorageNode], facts: &SegmentFacts) -> Vec<u64> {
    let has = |own: &u64| task(*own, nodes, facts).is_some_and(|(found, _)| found == kind);
    nodes.iter().filter(|node| node.is_reachable).map(|node| node.node.0).filter(has).collect()
}

#[test]
fn as_many_nodes_copy_as_replicas_are_missing() {
    for id in 0..50 {
        assert_eq!(nodes_with(RepairKind::Copy, &nodes(6, &[]), &segment(id, &[1, 2, 3], &[])), [0; 0]);
        let one = nodes_with(RepairKind::Copy, &nodes(6, &[]), &segment(id, &[1, 2], &[]));
        assert!(one.len() == 1 && one[0] > 2, "{one:?}");
        let two = nodes_with(RepairKind::Copy, &nodes(6, &[]), &segment(id, &[1], &[]));
        assert!(two.len() == 2 && !two.contains(&1), "{two:?}");
    }
}

#[test]
fn copies_are_limited_by_the_number_of_nodes() {
    assert_eq!(nodes_with(RepairKind::Copy, &nodes(2, &[]), &segment(1, &[1, 2], &[])), [0; 0]);
    assert_eq!(nodes_with(RepairKind::Copy, &nodes(2, &[]), &segment(1, &[2], &[])), [1]);
    assert_eq!(nodes_with(RepairKind::Copy, &nodes(3, &[]), &segment(1, &[2], &[])), [1, 3]);
}

#[test]
fn the_choice_passes_to_another_node_while_the_first_one_is_down() {
    for id in 0..50 {
        let facts = segment(id, &[1, 2], &[]);
        let first = nodes_with(RepairKind::Copy, &nodes(5, &[]), &facts)[0];
        let second = nodes_with(RepairKind::Copy, &nodes(5, &[first]), &facts);
        assert!(second.len() == 1 && second[0] != first && second[0] > 2, "{second:?}");
    }
}

#[test]
fn a_replica_counts_while_its_node_is_down_and_not_once_the_node_is_removed() {
    let facts = segment(1, &[1, 2, 3], &[]);
    assert_eq!(nodes_with(RepairKind::Copy, &nodes(4, &[3]), &facts), [0; 0]);
    let removed: Vec<StorageNode> = nodes(4, &[]).into_iter().filter(|node| node.node.0 != 3).collect();
    assert_eq!(nodes_with(RepairKind::Copy, &removed, &facts), [4]);
    assert_eq!(task(4, &removed, &facts).unwrap().1.len(), 2, "a removed node is no source");
}

#[test]
fn copies_spread_over_the_nodes() {
    let all = nodes(4, &[]);
    let of_four = (0..1_000)
        .filter(|id| nodes_with(RepairKind::Copy, &all, &segment(*id, &[1, 2], &[])) == [4])
        .count();
    assert!((400..600).contains(&of_four), "{of_four}");
}

#[test]
fn a_marked_replica_is_healed_from_a_good_one_first() {
    let facts = segment(1, &[1], &[2, 3]);
    assert_eq!(task(2, &nodes(3, &[]), &facts), Some((RepairKind::Heal, vec![1, 3])));
    assert_eq!(task(2, &nodes(3, &[1]), &facts), Some((RepairKind::Heal, vec![3])));
    assert_eq!(task(2, &nodes(3, &[1, 3]), &facts), None, "no source is reachable");
    assert_eq!(task(1, &nodes(3, &[]), &facts), None);
}

#[test]
fn a_marked_replica_is_dropped_only_when_enough_verified_others_answer() {
    let kind = |facts: &SegmentFacts, down: &[u64]| task(4, &nodes(5, down), facts).map(|(kind, _)| kind);
    assert_eq!(kind(&segment(1, &[1, 2, 3], &[4]), &[]), Some(RepairKind::Drop));
    assert_eq!(kind(&segment(1, &[1, 2, 3], &[4]), &[2]), Some(RepairKind::Heal));
    assert_eq!(kind(&segment(1, &[1, 2], &[4, 5]), &[]), Some(RepairKind::Heal));
    assert_eq!(kind(&segment(1, &[], &[4]), &[]), None, "the last one stays");
}

#[test]
fn one_replica_too_many_is_dropped_and_never_the_owners() {
    for id in 0..50 {
        let facts = segment(id, &[1, 2, 3, 4], &[]);
        let dropping = nodes_with(RepairKind::Drop, &nodes(5, &[]), &facts);
        assert!(dropping.len() == 1 && dropping[0] != 1, "{dropping:?}");
        assert_eq!(nodes_with(RepairKind::Drop, &nodes(5, &[2]), &facts), [0; 0], "one does not answer");
        assert_eq!(nodes_with(RepairKind::Drop, &nodes(5, &[]), &segment(id, &[1, 2, 3], &[])), [0; 0]);
    }
}

#[test]
fn segments_with_the_fewest_good_replicas_come_first() {
    let all = nodes(3, &[]);
    let segments = [
        segment(1, &[], &[1, 2]),
        segment(2, &[1, 2], &[]),
        segment(3, &[1], &[2]),
        segment(4, &[1], &[]),
        segment(5, &[1, 2], &[3]),
        segment(6, &[1], &[3]),
    ];
    let order: Vec<(u64, RepairKind)> =
        tasks(3, &all, &segments).iter().map(|task| (task.segment.0, task.kind)).collect();
    let (heal, copy) = (RepairKind::Heal, RepairKind::Copy);
    assert_eq!(order, [(6, heal), (3, copy), (4, copy), (5, heal), (2, copy), (1, copy)]);

    let busy = BTreeSet::from([SegmentId(6), SegmentId(4)]);
    let input = RepairInput {
        own: NodeId(3),
        copies: COPIES,
        nodes: &all,
        segments: &segments,
        busy: &busy,
        tasks_max: 2,
    };
    let ids: Vec<u64> = next_tasks(&input).iter().map(|task| task.segment.0).collect();
    assert_eq!(ids, [3, 5], "segments in work are left out, and the number is limited");
}

#[test]
fn segments_at_an_upstream_need_no_copies() {
    let upstream = SegmentFacts { is_at_upstream: true, ..segment(3, &[1], &[2]) };
    assert_eq!(task(3, &nodes(3, &[]), &upstream), None);
    assert_eq!(task(2, &nodes(3, &[]), &upstream), None);
}

#[test]
fn counts_are_by_the_state_of_the_copies() {
    let upstream = SegmentFacts { is_at_upstream: true, ..segment(5, &[1], &[]) };
    let segments = [
        segment(1, &[1, 2, 3], &[]),
        segment(2, &[1, 2], &[3]),
        segment(3, &[1], &[]),
        segment(4, &[1, 2, 9], &[]),
        upstream,
    ];
    let expected =
        CopyCounts { segments: 5, bytes: 150, below_segments: 3, below_bytes: 90, suspect_segments: 1 };
    assert_eq!(count_copies(COPIES, &nodes(4, &[2]), &segments), expected);
    assert_eq!(count_copies(COPIES, &nodes(2, &[]), &segments[1..3]).below_segments, 1);
    assert_eq!(count_copies(0, &nodes(2, &[]), &[]), CopyCounts::default());
}

#[test]
fn weights_never_change() {
    assert_eq!(weight(SegmentId(0), NodeId(0)), 0xa706_dd2f_4d19_7e6f);
    assert_eq!(weight(SegmentId(12), NodeId(3)), 0x6cd7_f7b0_bbd3_0a7c);
}
