//! Tests of the sets of segments: where their writers, followers and copies are, and who compacts them.

use super::super::bench::BenchOptions;
use super::super::{bytes_of, chunk, read_all};
use super::testbed::{TestCluster, TestNodes};
use crate::hot::{AppendError, Chunk, HotTier, Placement};
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, PutNode};
use mlgw_formats::schema::{Node, SegmentRecord, SegmentState};
use std::collections::BTreeSet;

/// Group of the keys of the bench.
const GROUP: u32 = 1;

/// Returns nodes of a cluster whose rows may have sets. Its nodes 1 to `count` have rows.
async fn with_rows(count: u64) -> TestNodes {
    let nodes = TestNodes::tuned(BenchOptions { groups: 2, ..BenchOptions::default() }).await;
    nodes.bench.catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
    for id in 2..=count {
        let put = PutNode { node: Node { id, ..Node::default() } };
        nodes.bench.catalogue.propose(Command::from(Change::PutNode(put))).await.unwrap();
    }
    nodes
}

/// Sets the nodes of a set, for the catalogue and for the drivers.
async fn put_set(nodes: &TestNodes, set: u32, ids: &[u64]) {
    let catalogue = &nodes.bench.catalogue;
    let known = catalogue.sets().into_iter().find(|of| of.id == set);
    let new: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
    catalogue.put_set(set, &new, known.map_or(0, |of| of.changes)).await.unwrap();
    nodes.cluster.set_set(set, ids);
}

/// Moves the group of the bench to a set.
async fn assign(nodes: &TestNodes, set: u32) {
    let catalogue = &nodes.bench.catalogue;
    let known = catalogue.group_sets().into_iter().find(|of| of.group == GROUP);
    catalogue.assign_group(GROUP, set, known.map_or(0, |of| of.changes)).await.unwrap();
}

/// Appends a chunk of a body of its own segment. Returns the record of the segment.
async fn append_own(nodes: &TestNodes, tier: &HotTier, body: u64) -> Result<SegmentRecord, AppendError> {
    let chunk = Chunk {
        bucket: nodes.bench.bucket.bucket_id(),
        placement: Placement::Own,
        ..chunk(body, bytes_of(body, 5_000))
    };
    Ok(nodes.record(tier.append(chunk).await?.extent.segment_id()))
}

fn nodes_of(record: &SegmentRecord) -> BTreeSet<u64> {
    record.replicas.iter().map(|replica| replica.node).collect()
}

fn open(nodes: &TestNodes, owner: u64) -> Vec<SegmentId> {
    let records = nodes.bench.catalogue.segments().unwrap().into_iter();
    let is_open = |of: &SegmentRecord| of.state() == SegmentState::Open && of.is_owned_by(NodeId(owner));
    records.filter(is_open).map(|record| record.segment_id()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_followers_of_a_segment_are_nodes_of_the_set_of_its_keys() {
    let nodes = with_rows(6).await;
    for node in 2..=6 {
        nodes.open(node).await;
    }
    nodes.cluster.set_nodes([1, 2, 3, 4, 5, 6]);
    for (set, ids) in [(0, [1, 2, 3]), (1, [4, 5, 1]), (2, [2, 6, 3])] {
        put_set(&nodes, set, &ids).await;
    }
    assign(&nodes, 1).await;
    let tier = |node| nodes.cluster.tier(node);
    for body in 0..4 {
        let record = append_own(&nodes, &tier(1), body).await.unwrap();
        assert_eq!((record.set, nodes_of(&record)), (1, [1, 4, 5].into()));
        let record = append_own(&nodes, &tier(5), body).await.unwrap();
        assert_eq!((record.set, nodes_of(&record)), (1, [1, 4, 5].into()));
        let record = append_own(&nodes, &tier(2), body).await.unwrap();
        assert_eq!((record.set, nodes_of(&record)), (0, [1, 2, 3].into()), "it is in the first set alone");
    }
    assert_eq!(append_own(&nodes, &tier(6), 4).await.err(), Some(AppendError::OtherSet));
    assign(&nodes, 2).await;
    for (node, set, ids) in [(6, 2, [2, 3, 6]), (4, 1, [1, 4, 5]), (1, 0, [1, 2, 3])] {
        let record = append_own(&nodes, &tier(node), 5).await.unwrap();
        assert_eq!((record.set, nodes_of(&record)), (set, ids.into()), "node {node}");
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_segments_of_a_set_that_changes_are_sealed_by_their_writer() {
    let nodes = with_rows(4).await;
    for node in 2..=4 {
        nodes.open(node).await;
    }
    nodes.cluster.set_nodes([1, 2, 3, 4]);
    put_set(&nodes, 0, &[1, 2, 3]).await;
    put_set(&nodes, 1, &[1, 2, 4]).await;
    let first = append_own(&nodes, &nodes.cluster.tier(1), 1).await.unwrap();
    assign(&nodes, 1).await;
    let second = append_own(&nodes, &nodes.cluster.tier(1), 2).await.unwrap();
    assert_eq!((first.set, second.set), (0, 1));
    put_set(&nodes, 0, &[1, 4, 3]).await;
    nodes.cluster.until(|| nodes.is_sealed(first.segment_id())).await;
    assert_eq!(open(&nodes, 1), [second.segment_id()], "that of set 1 has all its nodes");
    put_set(&nodes, 1, &[3, 2, 4]).await;
    nodes.cluster.until(|| nodes.is_sealed(second.segment_id())).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_segments_follow_their_set() {
    let nodes = with_rows(5).await;
    for node in 2..=5 {
        nodes.open(node).await;
    }
    nodes.cluster.set_nodes([1, 2, 3, 4, 5]);
    put_set(&nodes, 0, &[1, 2, 3]).await;
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2, 3])).await;
    put_set(&nodes, 0, &[4, 2, 3]).await;
    nodes.cluster.until(|| nodes.are_all_on(&[2, 3, 4])).await;
    let segments: Vec<SegmentId> = nodes.segments().iter().map(SegmentRecord::segment_id).collect();
    assert!(nodes.segments().iter().all(|record| !record.is_owned_by(NodeId(1))));
    nodes.cluster.until(|| segments.iter().all(|segment| !nodes.path(1, *segment).exists())).await;
    // Its nodes are gone for ever: the bytes are kept on the nodes that have them.
    nodes.cluster.set_set(0, &[8, 9]);
    for node in 1..=5 {
        nodes.cluster.pass(node).await;
    }
    assert!(nodes.are_all_on(&[2, 3, 4]));
    nodes.close().await;
}

/// Waits until an append fails because too few nodes can follow.
async fn refused(nodes: &TestNodes, body: u64) {
    assert_eq!(append_own(nodes, &nodes.bench.tier, body).await.err(), Some(AppendError::NoQuorum));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_a_set_whose_other_nodes_do_not_answer_are_refused_until_others_take_their_place() {
    let nodes = with_rows(5).await;
    for node in [2, 3] {
        nodes.open(node).await;
    }
    nodes.cluster.set_nodes([1, 2, 3, 4, 5]);
    nodes.cluster.set_reachable(4, false);
    nodes.cluster.set_reachable(5, false);
    put_set(&nodes, 0, &[1, 2, 3]).await;
    put_set(&nodes, 1, &[1, 4, 5]).await;
    let tier = nodes.cluster.tier(1);
    assert!(append_own(&nodes, &tier, 1).await.is_ok(), "keys of the first set are stored");
    assign(&nodes, 1).await;
    refused(&nodes, 2).await;
    assert!(append_own(&nodes, &nodes.cluster.tier(2), 3).await.is_ok(), "node 2 stores in the first set");
    // Both are removed, and the set still names them: other nodes have the replicas for now.
    nodes.cluster.set_nodes([1, 2, 3]);
    let record = append_own(&nodes, &tier, 4).await.unwrap();
    assert_eq!((record.set, nodes_of(&record)), (1, [1, 2, 3].into()));
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_moves_chunks_to_the_set_of_their_keys() {
    let nodes = with_rows(3).await;
    let bench = &nodes.bench;
    put_set(&nodes, 0, &[1, 2]).await;
    put_set(&nodes, 1, &[1, 3]).await;
    assign(&nodes, 1).await;
    // All objects are in segments of the first set, which are half dead then.
    for (object, _) in nodes.objects.iter().step_by(2) {
        bench.delete(object).await;
    }
    bench.compact(1).await;
    let kept: Vec<_> = nodes.objects.iter().skip(1).step_by(2).collect();
    assert!(bench.tier.compaction().moved_bytes > 0);
    let mut sets = BTreeSet::new();
    for (object, body) in kept {
        for extent in bench.extents(object) {
            sets.insert(nodes.record(extent.segment_id()).set);
            assert!(!read_all(&bench.tier, &extent, body.0).await.is_empty());
        }
    }
    assert!(sets.contains(&1), "{sets:?}");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_outside_of_the_set_of_a_segment_moves_no_chunk_out_of_it() {
    let nodes = TestNodes::idle().await;
    let bench = &nodes.bench;
    let cluster: &TestCluster = &nodes.cluster;
    cluster.set_nodes([1, 2]);
    cluster.set_set(0, &[2]);
    let (released, emptied) = (nodes.segment_of(0), nodes.segment_of(4));
    for (object, _) in nodes.objects.iter().enumerate().filter(|(at, _)| *at != 4).map(|(_, one)| one) {
        bench.delete(object).await;
    }
    bench.compact(1).await;
    assert_eq!(bench.tier.compaction().moved_bytes, 0, "node 2 is to become the owner");
    let record = |id: SegmentId| bench.catalogue.segment_record(id).unwrap();
    assert_eq!(record(released.segment_id()), None, "a segment without references is released");
    assert!(record(emptied.segment_id()).is_some());
    cluster.set_set(0, &[1, 2]);
    bench.compact(1).await;
    assert!(bench.tier.compaction().moved_bytes > 0);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_not_listed_stays_until_nodes_of_the_set_have_all_copies() {
    let nodes = TestNodes::new().await;
    let segment = nodes.segment_of(0).segment_id();
    for node in [2, 3] {
        nodes.open(node).await;
        nodes.add_replica(node, segment).await;
    }
    nodes.cluster.set_set(0, &[3, 8, 9]);
    nodes.cluster.set_nodes([1, 2, 3, 4]);
    nodes.write(4, segment, &nodes.bytes(1, segment));
    nodes.open(4).await;
    nodes.cluster.pass(4).await;
    assert!(nodes.path(4, segment).exists(), "of the three replicas one is on a node of the set");
    nodes.cluster.set_set(0, &[1, 2, 3]);
    // The directories are read in the first pass after a start.
    nodes.stop(4).await;
    nodes.open(4).await;
    nodes.cluster.until(|| !nodes.path(4, segment).exists()).await;
    nodes.close().await;
}
