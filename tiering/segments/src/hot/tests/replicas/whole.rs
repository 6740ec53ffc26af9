//! Tests of segments that are read whole for a backup, on a node without a complete file.

use super::super::{append, bytes_of, chunk};
use super::testbed::{SourceFault, TestNodes, payload_at, two_holders};
use crate::hot::{WholeSegmentError, is_whole};
use mlgw_common::ids::SegmentId;
use mlgw_formats::schema::SegmentState;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// Reads the first `end` bytes of a segment through node 3.
async fn read(nodes: &TestNodes, segment: SegmentId, end: u64) -> Result<(u64, Vec<u8>), WholeSegmentError> {
    let (record, file) = (nodes.record(segment), Arc::new(tempfile::tempfile().unwrap()));
    let damaged = nodes.cluster.tier(3).read_whole(&record, end, file.clone()).await?;
    let mut bytes = vec![0; usize::try_from(end).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(is_whole(&file, &record, end).unwrap(), damaged == 0);
    Ok((damaged, bytes))
}

fn length_of(nodes: &TestNodes, segment: SegmentId) -> u64 {
    nodes.record(segment).length
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_one_replica_is_filled_from_another_and_nothing_stays_on_the_node() {
    let (nodes, segment, [one, two]) = two_holders().await;
    let intact = nodes.bytes(1, segment);
    nodes.flip(1, segment, payload_at(&one, 10));
    nodes.flip(2, segment, payload_at(&two, 10));
    let (damaged, bytes) = read(&nodes, segment, length_of(&nodes, segment)).await.unwrap();
    assert_eq!(damaged, 0);
    assert!(bytes == intact[..bytes.len()], "no replica is intact, and what was read is");
    assert!(!nodes.path(3, segment).exists());
    assert_eq!(nodes.cluster.tier(3).metrics().used_bytes, 0);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_intact_records_of_a_local_file_are_not_read_from_another_node() {
    let (nodes, segment, [one, _]) = two_holders().await;
    let intact = nodes.bytes(1, segment);
    nodes.write(3, segment, &intact);
    nodes.flip(3, segment, payload_at(&one, 10));
    let (damaged, bytes) = read(&nodes, segment, length_of(&nodes, segment)).await.unwrap();
    assert_eq!(damaged, 0);
    assert!(bytes == intact[..bytes.len()]);
    let reads = nodes.cluster.reads.lock().clone();
    let ranges: Vec<_> = reads.into_iter().filter(|read| read.segment == segment).collect();
    assert_eq!(ranges.len(), 1, "only what is damaged here: {ranges:?}");
    assert_eq!(ranges[0].range, one.offset..one.offset + one.record_bytes());
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_an_unread_replica_may_have_are_never_given_up() {
    let (nodes, segment, [one, _]) = two_holders().await;
    let length = length_of(&nodes, segment);
    nodes.flip(1, segment, payload_at(&one, 10));
    for fault in [SourceFault::Unreachable, SourceFault::BreaksAfter(10)] {
        nodes.cluster.set_fault(2, Some(fault));
        let refused = read(&nodes, segment, length).await.unwrap_err();
        assert!(matches!(refused, WholeSegmentError::Unread { .. }), "{refused}");
    }
    nodes.cluster.set_fault(2, None);
    nodes.flip(2, segment, payload_at(&one, 20));
    let (damaged, _) = read(&nodes, segment, length).await.unwrap();
    assert_eq!(damaged, one.record_bytes(), "what is damaged in every replica is counted");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_referenced_part_of_an_open_segment_is_read_from_its_owner() {
    let nodes = TestNodes::idle().await;
    let (second, third) = (nodes.open(2).await, nodes.open(3).await);
    nodes.cluster.set_nodes([1, 2, 3]);
    let long = append(&second, chunk(1, bytes_of(1, 1 << 20))).await.unwrap();
    let segment = long.segment_id();
    assert_eq!(nodes.record(segment).state(), SegmentState::Open);
    let end = long.offset + long.record_bytes();
    append(&second, chunk(2, bytes_of(2, 5_000))).await.unwrap();
    let (damaged, bytes) = read(&nodes, segment, end).await.unwrap();
    assert_eq!(damaged, 0);
    assert!(bytes == nodes.bytes(2, segment)[..bytes.len()]);
    nodes.cluster.set_fault(2, Some(SourceFault::Unreachable));
    assert!(read(&nodes, segment, end).await.is_err(), "its only replica is not read");
    drop(third);
    nodes.close().await;
}
