//! Tests of the recovery of open segments whose writer is gone.

use super::super::{append, bytes_of, chunk, read_all};
use super::testbed::TestNodes;
use crate::hot::replicas::recover::{OpenSegmentRecovery, UNREACHABLE_MIN};
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::Instant;
use mlgw_formats::schema::{Extent, SegmentState};
use std::sync::Arc;

/// Chunks that node 2 appends.
const CHUNKS: u64 = 5;

/// Returns the nodes 1 and 2. Node 2 was killed after it appended chunks to a segment that node 1 follows.
async fn with_killed_writer() -> (TestNodes, SegmentId, Vec<Extent>) {
    let nodes = TestNodes::new().await;
    nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    let (segment, extents) = append_and_kill(&nodes).await;
    (nodes, segment, extents)
}

/// Appends chunks to a segment of node 2, and kills the node.
async fn append_and_kill(nodes: &TestNodes) -> (SegmentId, Vec<Extent>) {
    let mut extents = Vec::new();
    for body in 0..CHUNKS {
        let tier = nodes.cluster.tier(2);
        extents.push(append(&tier, chunk(body, bytes_of(body, 5_000))).await.unwrap());
    }
    let segment = extents[0].segment_id();
    assert!(extents.iter().all(|extent| extent.segment_id() == segment));
    let appends = nodes.cluster.tier(2).inner.shared.segments.appends.as_ref().map(Arc::downgrade).unwrap();
    nodes.kill(2);
    // A background task may use the tier a little longer, and would see that a follower ends.
    nodes.cluster.until(|| appends.strong_count() == 0).await;
    assert_eq!(nodes.record(segment).state(), SegmentState::Open);
    (segment, extents)
}

fn end_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.offset + extent.record_bytes()).max().unwrap()
}

async fn are_readable(nodes: &TestNodes, node: u64, extents: &[Extent]) {
    for (body, extent) in (0..).zip(extents) {
        assert!(read_all(&nodes.cluster.tier(node), extent, body).await == bytes_of(body, 5_000));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_writer_seals_its_segment_with_all_replicas() {
    let (nodes, segment, extents) = with_killed_writer().await;
    nodes.open(2).await;
    nodes.cluster.until(|| nodes.is_sealed(segment)).await;
    assert_eq!(nodes.record(segment).length, end_of(&extents));
    assert_eq!(nodes.listed(segment), [(2, false), (1, false)]);
    for node in [1, 2] {
        are_readable(&nodes, node, &extents).await;
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_of_an_unreachable_node_is_sealed_by_another_one() {
    let (nodes, segment, extents) = with_killed_writer().await;
    nodes.cluster.set_reachable(2, false);
    let tier = &nodes.bench.tier;
    let replication = tier.inner.replicas.replication().unwrap();
    let (mut recovery, now) = (OpenSegmentRecovery::default(), Instant::now());
    recovery.run_pass(&tier.inner, &replication, now).await.unwrap();
    assert!(!nodes.is_sealed(segment), "the node may return");
    recovery.run_pass(&tier.inner, &replication, now + UNREACHABLE_MIN).await.unwrap();
    assert!(nodes.is_sealed(segment));
    let record = nodes.record(segment);
    assert_eq!((record.length, record.owner()), (end_of(&extents), Some(NodeId(2))), "it may return");
    assert_eq!(nodes.listed(segment), [(2, true), (1, false)]);
    are_readable(&nodes, 1, &extents).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_replica_is_marked_and_healed() {
    let (nodes, segment, extents) = with_killed_writer().await;
    // The drivers heal nothing yet.
    nodes.cluster.set_nodes([]);
    let mut torn = nodes.bytes(1, segment);
    torn.truncate(usize::try_from(end_of(&extents)).unwrap() - 100);
    nodes.write(1, segment, &torn);
    nodes.open(2).await;
    nodes.cluster.until(|| nodes.is_sealed(segment)).await;
    assert_eq!(nodes.record(segment).length, end_of(&extents), "the longest replica decides");
    assert_eq!(nodes.listed(segment), [(2, false), (1, true)]);
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.listed(segment) == [(2, false), (1, false)]).await;
    are_readable(&nodes, 1, &extents).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_last_record_waits_for_the_node_that_may_have_it() {
    let nodes = TestNodes::new().await;
    for node in [2, 3] {
        nodes.open(node).await;
    }
    nodes.cluster.set_nodes([2, 3]);
    let (segment, extents) = append_and_kill(&nodes).await;
    assert_eq!(nodes.listed(segment), [(2, false), (3, false)]);
    // The follower restarts, and a byte of the last record that it acknowledged is bad.
    nodes.kill(3);
    let last = extents.last().unwrap();
    nodes.flip(3, segment, last.offset + u64::from(last.head_bytes) + 100);
    let tier = nodes.open(3).await;
    nodes.cluster.set_reachable(2, false);
    let replication = tier.inner.replicas.replication().unwrap();
    let (mut recovery, now) = (OpenSegmentRecovery::default(), Instant::now());
    for now in [now, now + UNREACHABLE_MIN] {
        recovery.run_pass(&tier.inner, &replication, now).await.unwrap();
        assert!(!nodes.is_sealed(segment), "node 2 may have the last record");
    }
    nodes.open(2).await;
    nodes.cluster.set_reachable(2, true);
    nodes.cluster.until(|| nodes.is_sealed(segment)).await;
    assert_eq!(nodes.record(segment).length, end_of(&extents));
    nodes.cluster.until(|| nodes.listed(segment) == [(2, false), (3, false)]).await;
    let end = usize::try_from(end_of(&extents)).unwrap();
    assert!(nodes.bytes(3, segment)[..end] == nodes.bytes(2, segment)[..end], "the record is back");
    for node in [2, 3] {
        are_readable(&nodes, node, &extents).await;
    }
    drop(tier);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_write_in_all_replicas_is_left_out_of_the_segment() {
    let (nodes, segment, extents) = with_killed_writer().await;
    let end = usize::try_from(end_of(&extents)).unwrap();
    for node in [1, 2] {
        let mut torn = nodes.bytes(node, segment);
        torn.truncate(end);
        torn.extend([7; 500]);
        nodes.write(node, segment, &torn);
    }
    nodes.open(2).await;
    nodes.cluster.until(|| nodes.is_sealed(segment)).await;
    assert_eq!(nodes.record(segment).length, end_of(&extents));
    assert_eq!(nodes.listed(segment), [(2, false), (1, false)]);
    are_readable(&nodes, 2, &extents).await;
    nodes.close().await;
}
