//! Tests of the recovery of open segments whose writer is gone.

use super::super::{append, bytes_of, chunk, read_all};
use super::testbed::TestNodes;
use crate::hot::replicas::recover::{OpenSegmentRecovery, UNREACHABLE_MIN};
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::Instant;
use mlgw_formats::schema::{Extent, SegmentState};

/// Chunks that node 2 appends.
const CHUNKS: u64 = 5;

/// Returns the nodes 1 and 2. Node 2 was killed after it appended chunks to a segment that node 1 follows.
async fn with_killed_writer() -> (TestNodes, SegmentId, Vec<Extent>) {
    let nodes = TestNodes::new().await;
    nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    let mut extents = Vec::new();
    for body in 0..CHUNKS {
        let tier = nodes.cluster.tier(2);
        extents.push(append(&tier, chunk(body, bytes_of(body, 5_000))).await.unwrap());
    }
    let segment = extents[0].segment_id();
    assert!(extents.iter().all(|extent| extent.segment_id() == segment));
    nodes.kill(2);
    assert_eq!(nodes.record(segment).state(), SegmentState::Open);
    (nodes, segment, extents)
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
