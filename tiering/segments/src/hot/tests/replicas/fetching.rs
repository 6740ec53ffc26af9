//! Tests of one copy: sources, damage, and the local file.

use super::super::placing::LyingDisk;
use super::testbed::{SourceFault, TestNodes, payload_at, two_holders};
use crate::hot::compaction::MoveStepError;
use mlgw_common::ids::SegmentId;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

/// True if a node has no file for a segment, complete or not.
fn has_no_file(nodes: &TestNodes, node: u64, segment: SegmentId) -> bool {
    let path = nodes.path(node, segment);
    !path.exists() && !path.with_extension("seg.copying").exists()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_equals_its_source_and_is_charged() {
    let (nodes, segment, _) = two_holders().await;
    let tier = nodes.cluster.tier(3);
    let (used, written) = (tier.metrics().used_bytes, tier.flash().written());
    let copied = nodes.fetch(3, segment, &[1]).await.unwrap();
    assert_eq!(copied.damaged_bytes, 0);
    assert_eq!(nodes.bytes(3, segment), nodes.bytes(1, segment));
    let length = nodes.record(segment).length;
    assert_eq!(tier.metrics().used_bytes, used + length);
    assert_ne!(tier.flash().written(), written);
    assert_eq!(tier.replication().copied_bytes, length);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_off_is_continued() {
    let (nodes, segment, _) = two_holders().await;
    nodes.cluster.set_fault(1, Some(SourceFault::BreaksAfter(70_000)));
    nodes.fetch(3, segment, &[1]).await.unwrap();
    assert_eq!(nodes.bytes(3, segment), nodes.bytes(1, segment));
    let begins: Vec<u64> = nodes.cluster.reads.lock().iter().map(|read| read.range.start).collect();
    let expected: Vec<u64> = (0..nodes.record(segment).length).step_by(70_000).collect();
    assert_eq!(begins, expected, "nothing is read twice");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_one_source_is_filled_from_another() {
    let (nodes, segment, [one, two]) = two_holders().await;
    let intact = nodes.bytes(1, segment);
    nodes.flip(1, segment, payload_at(&one, 10));
    nodes.flip(2, segment, payload_at(&two, 10));
    let copied = nodes.fetch(3, segment, &[1, 2]).await.unwrap();
    assert_eq!(copied.damaged_bytes, 0);
    assert!(nodes.bytes(3, segment) == intact, "no source is intact, and the copy is");
    let reads = nodes.cluster.reads.lock().clone();
    let second: Vec<_> = reads.iter().filter(|read| read.source == 2).collect();
    assert_eq!(second.len(), 1, "{reads:?}");
    assert_eq!(second[0].range, one.offset..one.offset + one.record_bytes(), "only what is missing");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_every_source_stays_as_the_first_has_it_and_is_counted() {
    let (nodes, segment, [one, _]) = two_holders().await;
    nodes.flip(1, segment, payload_at(&one, 10));
    nodes.flip(2, segment, payload_at(&one, 20));
    let copied = nodes.fetch(3, segment, &[2, 1]).await.unwrap();
    assert_eq!(copied.damaged_bytes, one.record_bytes());
    assert!(nodes.bytes(3, segment) == nodes.bytes(2, segment), "the first source is node 2");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_cannot_be_read_fails_the_copy_only_while_bytes_are_missing() {
    let (nodes, segment, [one, _]) = two_holders().await;
    nodes.cluster.set_fault(2, Some(SourceFault::Unreachable));
    let intact = nodes.bytes(1, segment);
    nodes.flip(1, segment, payload_at(&one, 10));
    for sources in [&[1, 2][..], &[1]] {
        let failed = nodes.fetch(3, segment, sources).await.unwrap_err();
        assert!(failed.to_string().contains("the replica on node 2 was not read"), "{failed}");
        assert!(has_no_file(&nodes, 3, segment));
    }
    assert_eq!(nodes.cluster.tier(3).metrics().used_bytes, 0, "its space is given back");
    nodes.write(1, segment, &intact);
    nodes.fetch(3, segment, &[1, 2]).await.unwrap();
    assert!(nodes.bytes(3, segment) == intact);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_a_source_fails_to_read_counts_as_damage_at_last() {
    let (nodes, segment, [one, _]) = two_holders().await;
    let place = payload_at(&one, 30_000);
    for node in [1, 2] {
        nodes.cluster.set_fault(node, Some(SourceFault::FailsAt(place..place + 1)));
    }
    assert!(matches!(nodes.fetch(3, segment, &[1, 2]).await, Err(MoveStepError::Io(_))));
    let copied = nodes.fetch_by(3, segment, &[1, 2], true).await.unwrap();
    assert_eq!(copied.damaged_bytes, one.record_bytes());
    let (found, intact) = (nodes.bytes(3, segment), nodes.bytes(1, segment));
    let record =
        usize::try_from(one.offset).unwrap()..usize::try_from(one.offset + one.record_bytes()).unwrap();
    assert!(found[..record.start] == intact[..record.start] && found[record.end..] == intact[record.end..]);
    let differing = record.filter(|at| found[*at] != intact[*at]).count();
    assert!((1..=16 << 10).contains(&differing), "{differing} bytes were passed over");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intact_local_file_is_not_read_from_another_node() {
    let (nodes, segment, _) = two_holders().await;
    nodes.write(3, segment, &nodes.bytes(1, segment));
    let copied = nodes.fetch(3, segment, &[1, 2]).await.unwrap();
    assert_eq!((copied.damaged_bytes, nodes.cluster.reads.lock().len()), (0, 0));
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_interrupted_task_left_is_completed() {
    let (nodes, segment, [one, _]) = two_holders().await;
    let intact = nodes.bytes(1, segment);
    nodes.write(3, segment, &intact[..intact.len() - 100]);
    nodes.flip(3, segment, payload_at(&one, 10));
    nodes.fetch(3, segment, &[1, 2]).await.unwrap();
    assert!(nodes.bytes(3, segment) == intact);
    let ranges: Vec<_> = nodes.cluster.reads.lock().iter().map(|read| read.range.clone()).collect();
    let after_one = one.offset + one.record_bytes();
    assert_eq!(ranges[0], one.offset..after_one, "{ranges:?}");
    assert!(ranges[1..].iter().all(|range| range.start > after_one), "{ranges:?}");
    assert!(nodes.cluster.requested_bytes() < intact.len() as u64);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_file_is_replaced_only_by_a_better_one_and_keeps_its_tail() {
    let (nodes, segment, [one, two]) = two_holders().await;
    let mut longer = nodes.bytes(1, segment);
    longer.extend([7; 1000]);
    nodes.write(3, segment, &longer);
    nodes.flip(3, segment, payload_at(&one, 10));
    nodes.flip(1, segment, payload_at(&one, 20));
    let file = |nodes: &TestNodes| std::fs::metadata(nodes.path(3, segment)).unwrap().ino();
    let before = file(&nodes);
    let copied = nodes.fetch(3, segment, &[1]).await;
    assert!(copied.is_err(), "node 2 was not read");
    // Node 2 has other damage and fills nothing.
    nodes.flip(2, segment, payload_at(&one, 30));
    nodes.flip(2, segment, payload_at(&two, 30));
    let copied = nodes.fetch(3, segment, &[1, 2]).await.unwrap();
    assert_eq!((copied.damaged_bytes, file(&nodes)), (one.record_bytes(), before));
    nodes.flip(1, segment, payload_at(&one, 20));
    let copied = nodes.fetch(3, segment, &[1, 2]).await.unwrap();
    assert_eq!(copied.damaged_bytes, 0);
    assert!(nodes.bytes(3, segment) == longer, "bytes after the sealed length stay");
    assert_ne!(file(&nodes), before);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_verified_on_its_disk_and_not_in_the_page_cache() {
    let nodes = TestNodes::new().await;
    let segment = nodes.segment_of(0).segment_id();
    let disk = Arc::new(LyingDisk::default());
    nodes.open_with(2, Some(disk.clone())).await;
    disk.lie_in(&[nodes.dir(2)]);
    let failed = nodes.fetch(2, segment, &[1]).await.unwrap_err();
    assert!(failed.to_string().contains("differs at 0"), "{failed}");
    assert!(has_no_file(&nodes, 2, segment));
    disk.lie_in(&[]);
    nodes.fetch(2, segment, &[1]).await.unwrap();
    nodes.close().await;
}
