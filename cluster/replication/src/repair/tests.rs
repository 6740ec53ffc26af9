//! Cases of each decision about copies, and the order of the tasks.

use super::{
    COPIES, CopyCounts, LeavingCounts, RepairInput, RepairKind, RepairTask, ReplicaFacts, SegmentFacts,
    StorageNode, StorageViews, count_copies, count_leaving, is_lost, next_tasks, weight,
};
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeSet;

/// Nodes 1 to `count`; those in `down` do not answer.
fn nodes(count: u64, down: &[u64]) -> Vec<StorageNode> {
    let node = |node| StorageNode {
        node: NodeId(node),
        is_reachable: !down.contains(&node),
        is_leaving: false,
        is_full: false,
    };
    (1..=count).map(node).collect()
}

/// These nodes; those in `leaving` leave.
fn leaving(mut nodes: Vec<StorageNode>, leaving: &[u64]) -> Vec<StorageNode> {
    nodes.iter_mut().for_each(|node| node.is_leaving = leaving.contains(&node.node.0));
    nodes
}

/// These nodes without the removed ones.
fn without(mut nodes: Vec<StorageNode>, removed: &[u64]) -> Vec<StorageNode> {
    nodes.retain(|node| !removed.contains(&node.node.0));
    nodes
}

/// A segment with good replicas, and marked ones.
fn segment(id: u64, good: &[u64], marked: &[u64]) -> SegmentFacts {
    let replica = |is_suspect| move |node: &u64| ReplicaFacts { node: NodeId(*node), is_suspect };
    let replicas = good.iter().map(replica(false)).chain(marked.iter().map(replica(true))).collect();
    let (segment, bytes, is_at_upstream) = (SegmentId(id), 10 * id, false);
    SegmentFacts { segment, set: 0, bytes, changes: 7, replicas, is_at_upstream }
}

fn tasks(own: u64, nodes: &[StorageNode], segments: &[SegmentFacts]) -> Vec<RepairTask> {
    tasks_by(own, &nodes.to_vec().into(), segments)
}

fn tasks_by(own: u64, nodes: &StorageViews, segments: &[SegmentFacts]) -> Vec<RepairTask> {
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
    for id in 1..50 {
        assert_eq!(nodes_with(RepairKind::Copy, &nodes(6, &[]), &segment(id, &[1, 2, 3], &[])), [0; 0]);
        let one = nodes_with(RepairKind::Copy, &nodes(6, &[]), &segment(id, &[1, 2], &[]));
        assert!(one.len() == 1 && one[0] > 2, "{one:?}");
        let two = nodes_with(RepairKind::Copy, &nodes(6, &[]), &segment(id, &[1], &[]));
        assert!(two.len() == 2 && !two.contains(&1), "{two:?}");
    }
}

/// These nodes; those in `full` have no space.
fn full(mut nodes: Vec<StorageNode>, full: &[u64]) -> Vec<StorageNode> {
    nodes.iter_mut().for_each(|node| node.is_full = full.contains(&node.node.0));
    nodes
}

#[test]
fn a_full_node_copies_only_if_too_few_others_can() {
    for id in 1..50 {
        let facts = segment(id, &[1, 2], &[]);
        let copying = |of: &[u64]| nodes_with(RepairKind::Copy, &full(nodes(5, &[]), of), &facts);
        assert_eq!(copying(&[3, 4]), [5], "the nodes that copy know that they are full");
        assert_eq!(copying(&[1, 2]), copying(&[]), "they have a copy");
        assert_eq!(copying(&[3, 4, 5]), copying(&[]), "one of them may have another tier");
    }
    assert_eq!(nodes_with(RepairKind::Copy, &full(nodes(3, &[]), &[3]), &segment(1, &[1, 2], &[])), [3]);
}

#[test]
fn copies_are_limited_by_the_number_of_nodes() {
    assert_eq!(nodes_with(RepairKind::Copy, &nodes(2, &[]), &segment(1, &[1, 2], &[])), [0; 0]);
    assert_eq!(nodes_with(RepairKind::Copy, &nodes(2, &[]), &segment(1, &[2], &[])), [1]);
    assert_eq!(nodes_with(RepairKind::Copy, &nodes(3, &[]), &segment(1, &[2], &[])), [1, 3]);
}

#[test]
fn the_choice_passes_to_another_node_while_the_first_one_is_down() {
    for id in 1..50 {
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
    let of_four = (1..=1_000)
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
    for id in 1..50 {
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

    let (busy, views) = (BTreeSet::from([SegmentId(6), SegmentId(4)]), StorageViews::from(all));
    let input = RepairInput {
        own: NodeId(3),
        copies: COPIES,
        nodes: &views,
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
fn replicas_of_a_node_that_leaves_are_sources_and_no_copies() {
    for id in 1..50 {
        let facts = segment(id, &[1, 2, 3], &[]);
        let all = leaving(nodes(5, &[]), &[2]);
        let copying = nodes_with(RepairKind::Copy, &all, &facts);
        assert!(copying.len() == 1 && copying[0] > 3, "{copying:?}");
        assert_eq!(task(copying[0], &all, &facts).unwrap().1.len(), 3, "node 2 is a source");
        assert_eq!(task(2, &all, &facts), None, "it keeps its replica until there is another copy");
        // Only the nodes that stay count.
        let three = leaving(nodes(3, &[]), &[2]);
        assert_eq!(nodes_with(RepairKind::Drop, &three, &facts), [2]);
    }
}

#[test]
fn a_node_that_leaves_takes_no_copies_and_drops_its_own_last() {
    let all = leaving(nodes(5, &[]), &[4]);
    assert_eq!(task(4, &all, &segment(1, &[1], &[])), None);
    let kind = |facts: &SegmentFacts, down: &[u64]| {
        task(4, &leaving(nodes(5, down), &[4]), facts).map(|(kind, _)| kind)
    };
    assert_eq!(kind(&segment(1, &[1, 2, 3, 4], &[]), &[]), Some(RepairKind::Drop));
    assert_eq!(kind(&segment(1, &[1, 2, 3, 4], &[]), &[3]), None, "one does not answer");
    assert_eq!(kind(&segment(1, &[1, 2, 4], &[3]), &[]), None, "one is marked");
    assert_eq!(kind(&segment(1, &[1, 2], &[4]), &[]), Some(RepairKind::Heal));
    assert_eq!(kind(&segment(1, &[4, 1, 2, 3], &[]), &[]), None, "another node becomes the owner first");
    let both = leaving(nodes(2, &[]), &[1, 2]);
    assert_eq!(nodes_with(RepairKind::Drop, &both, &segment(1, &[1, 2], &[])), [0; 0], "no node stays");
    assert_eq!(task(9, &nodes(3, &[]), &segment(1, &[1, 2, 3, 9], &[])), None, "it is not in the cluster");
}

#[test]
fn the_first_good_replica_that_stays_takes_over_from_an_owner_that_leaves() {
    let facts = segment(1, &[1, 2, 3], &[]);
    let takers = |nodes: &[StorageNode], facts: &SegmentFacts| nodes_with(RepairKind::TakeOver, nodes, facts);
    assert_eq!(takers(&nodes(3, &[]), &facts), [0; 0], "the owner stays");
    assert_eq!(takers(&nodes(3, &[1]), &facts), [0; 0], "it may return");
    assert_eq!(takers(&leaving(nodes(3, &[]), &[1]), &facts), [2]);
    assert_eq!(takers(&leaving(nodes(3, &[2]), &[1]), &facts), [3]);
    assert_eq!(takers(&leaving(nodes(3, &[]), &[1, 2]), &facts), [3]);
    assert_eq!(takers(&without(nodes(3, &[]), &[1]), &facts), [2]);
    assert_eq!(takers(&leaving(nodes(3, &[]), &[1]), &segment(1, &[1], &[2, 3])), [0; 0], "marked");
    assert_eq!(task(2, &leaving(nodes(3, &[]), &[1]), &facts), Some((RepairKind::TakeOver, vec![])));
}

#[test]
fn segments_without_files_are_taken_over_by_one_node() {
    let all = leaving(nodes(4, &[]), &[1]);
    let upstream = SegmentFacts { is_at_upstream: true, ..segment(3, &[1], &[]) };
    let empty = SegmentFacts { bytes: 0, ..segment(3, &[1], &[]) };
    for facts in [upstream, empty] {
        assert_eq!(nodes_with(RepairKind::TakeOver, &all, &facts).len(), 1);
        assert_eq!(nodes_with(RepairKind::Copy, &all, &facts), [0; 0]);
        assert_eq!(nodes_with(RepairKind::TakeOver, &nodes(4, &[]), &facts), [0; 0]);
    }
    let listed = SegmentFacts { bytes: 0, ..segment(3, &[1], &[3]) };
    assert_eq!(nodes_with(RepairKind::TakeOver, &all, &listed), [3], "one in the record comes first");
}

/// Kinds of the tasks of nodes 1 to 5, with the sets 0 of nodes 1 to 3, and 1 of nodes 3 to 5.
fn kinds_in_sets(facts: &SegmentFacts) -> Vec<Option<RepairKind>> {
    let set = |nodes: [u64; 3]| nodes.map(NodeId).to_vec();
    let views = StorageViews::new(nodes(5, &[]), [(0, set([1, 2, 3])), (1, set([3, 4, 5]))]);
    let kind = |own| tasks_by(own, &views, std::slice::from_ref(facts)).first().map(|task| task.kind);
    (1..=5).map(kind).collect()
}

#[test]
fn replicas_move_to_the_nodes_of_the_set() {
    use RepairKind::{Copy, Drop, TakeOver};
    let of_set = |set, good: &[u64]| SegmentFacts { set, ..segment(1, good, &[]) };
    assert_eq!(kinds_in_sets(&of_set(0, &[1, 2, 3])), [None; 5]);
    assert_eq!(kinds_in_sets(&of_set(1, &[1, 2, 3])), [None, None, Some(TakeOver), Some(Copy), Some(Copy)]);
    assert_eq!(kinds_in_sets(&of_set(1, &[3, 1, 2])), [None, None, None, Some(Copy), Some(Copy)]);
    let all = of_set(1, &[3, 1, 2, 4, 5]);
    assert_eq!(kinds_in_sets(&all), [Some(Drop), Some(Drop), None, None, None]);
    assert_eq!(kinds_in_sets(&of_set(1, &[3, 4])), [None, None, None, None, Some(Copy)]);
    assert_eq!(kinds_in_sets(&of_set(9, &[1, 4, 5])), [None; 5], "a set without a row is that of all nodes");
}

#[test]
fn copies_on_nodes_outside_of_the_set_are_not_counted() {
    let set = |nodes: [u64; 3]| nodes.map(NodeId).to_vec();
    let views = StorageViews::new(nodes(5, &[]), [(0, set([1, 2, 3])), (1, set([3, 4, 5]))]);
    let segments = [segment(1, &[1, 2, 3], &[]), SegmentFacts { set: 1, ..segment(2, &[1, 2, 3], &[]) }];
    let counts = count_copies(COPIES, &views, &segments);
    assert_eq!((counts.below_segments, counts.below_bytes), (1, 20));
    let of_two = count_leaving(COPIES, &views, &segments, NodeId(2));
    assert_eq!(of_two, LeavingCounts { segments: 2, copied_segments: 0 });
}

#[test]
fn a_set_that_is_too_small_gives_up_no_copy_elsewhere() {
    let set = |nodes: &[u64]| -> Vec<NodeId> { nodes.iter().copied().map(NodeId).collect() };
    let facts = segment(1, &[1, 2, 3], &[]);
    let kind = |own, of: &[u64]| {
        let views = StorageViews::new(nodes(5, &[]), [(0, set(of))]);
        tasks_by(own, &views, std::slice::from_ref(&facts)).first().map(|task| task.kind)
    };
    assert_eq!([1, 2, 3, 4, 5].map(|own| kind(own, &[1, 2])), [None; 5]);
    assert_eq!(kind(4, &[1, 2, 4]), Some(RepairKind::Copy));
    let (all, too_few) =
        (segment(1, &[1, 2, 3, 4], &[]), StorageViews::new(nodes(5, &[]), [(0, set(&[1, 4]))]));
    assert!(tasks_by(3, &too_few, std::slice::from_ref(&all)).is_empty());
    let counts = count_copies(COPIES, &too_few, &[all]);
    assert_eq!(counts.below_segments, 1, "two of its copies count");
}

#[test]
fn one_node_becomes_the_owner_of_all_segments_of_a_removed_node_at_upstreams() {
    for id in 1..50 {
        let facts = SegmentFacts { is_at_upstream: true, ..segment(id, &[1], &[]) };
        let heirs = |nodes: &[StorageNode]| nodes_with(RepairKind::TakeOver, nodes, &facts);
        assert_eq!(heirs(&without(nodes(5, &[]), &[1])), [2]);
        assert_eq!(heirs(&without(nodes(5, &[2]), &[1])), [0; 0], "it is waited for");
        assert_eq!(heirs(&leaving(without(nodes(5, &[]), &[1]), &[2])), [3]);
    }
}

#[test]
fn segments_at_an_upstream_keep_their_owner_when_sets_change() {
    let views = |nodes: Vec<StorageNode>| {
        let sets = [(0, [2, 3, 4]), (1, [3, 4, 5])];
        StorageViews::new(nodes, sets.map(|(set, nodes)| (set, nodes.map(NodeId).to_vec())))
    };
    for set in [0, 1] {
        let facts = SegmentFacts { set, is_at_upstream: true, ..segment(1, &[1], &[]) };
        let heirs = |nodes: Vec<StorageNode>| -> Vec<u64> {
            let (views, facts) = (views(nodes), std::slice::from_ref(&facts));
            (1..=5).filter(|own| !tasks_by(*own, &views, facts).is_empty()).collect()
        };
        assert_eq!(heirs(nodes(5, &[])), [0; 0], "set {set}: the prefix belongs to node 1");
        assert_eq!(heirs(leaving(nodes(5, &[]), &[1])), [2], "set {set}: the first node with all groups");
        assert_eq!(heirs(leaving(without(nodes(5, &[]), &[1]), &[2])), [3], "set {set}");
    }
}

#[test]
fn the_owner_drops_replicas_of_removed_nodes() {
    let facts = segment(1, &[1, 2, 3, 4], &[]);
    let left = without(nodes(4, &[]), &[3]);
    assert_eq!(nodes_with(RepairKind::Forget, &left, &facts), [1]);
    assert_eq!(nodes_with(RepairKind::Forget, &without(left, &[1]), &facts), [0; 0], "first the owner");
    assert_eq!(nodes_with(RepairKind::Forget, &nodes(4, &[3]), &facts), [0; 0], "it may return");
}

#[test]
fn the_progress_of_a_node_that_leaves_is_counted() {
    let upstream = SegmentFacts { is_at_upstream: true, ..segment(5, &[4], &[]) };
    let segments = [
        segment(1, &[1, 2, 3], &[]),
        segment(2, &[1, 2, 3, 4], &[]),
        segment(3, &[1, 2, 4], &[]),
        segment(4, &[1, 2, 4], &[3]),
        upstream,
    ];
    let count = |nodes: &[StorageNode]| count_leaving(COPIES, &nodes.to_vec().into(), &segments, NodeId(4));
    let expected = LeavingCounts { segments: 4, copied_segments: 2 };
    assert_eq!(count(&leaving(nodes(4, &[]), &[4])), expected);
    assert_eq!(count(&nodes(4, &[])), expected, "also before it leaves");
    assert_eq!(count(&leaving(nodes(4, &[]), &[3, 4])), LeavingCounts { segments: 4, copied_segments: 4 });
}

#[test]
fn a_segment_is_lost_when_all_its_replicas_were_on_removed_nodes() {
    let left = without(nodes(4, &[2]), &[3, 4]);
    assert!(is_lost(&segment(1, &[3, 4], &[]), &left));
    assert!(!is_lost(&segment(1, &[3], &[2]), &left), "node 2 may return");
    assert!(!is_lost(&SegmentFacts { is_at_upstream: true, ..segment(1, &[3], &[]) }, &left));
    assert!(!is_lost(&SegmentFacts { bytes: 0, ..segment(1, &[3], &[]) }, &left));
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
    assert_eq!(count_copies(COPIES, &nodes(4, &[2]).into(), &segments), expected);
    assert_eq!(count_copies(COPIES, &nodes(2, &[]).into(), &segments[1..3]).below_segments, 1);
    assert_eq!(count_copies(0, &nodes(2, &[]).into(), &[]), CopyCounts::default());
}

#[test]
fn weights_never_change() {
    assert_eq!(weight(SegmentId(0), NodeId(0)), 0xa706_dd2f_4d19_7e6f);
    assert_eq!(weight(SegmentId(12), NodeId(3)), 0x6cd7_f7b0_bbd3_0a7c);
}
