//! Tests of the driver: copies that are listed, replicas that are healed, and segments of other owners.

use super::super::bench::clock;
use super::super::{append, bytes_of, chunk, read_all};
use super::testbed::{OBJECT_BYTES, SourceFault, TestNodes};
use crate::fair::Lane;
use crate::hot::compaction::stats::segment_stats;
use crate::hot::{HotTier, Scrub, ScrubOptions, SegmentDirs};
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_formats::schema::{Extent, SegmentRecord, SegmentState};
use std::time::Duration;

/// Starts a scrub on a node, which reads segments on request.
fn scrub(nodes: &TestNodes, node: u64) -> Scrub {
    let options = ScrubOptions {
        segments: SegmentDirs::new(nodes.dir(node), vec![]),
        state: nodes.dir(node).join("../scrub.json"),
        bytes_per_second: 0,
        search_interval: Duration::from_millis(20),
        clock: clock(),
        proofs: None,
    };
    Scrub::start(options, nodes.bench.catalogue.clone(), nodes.cluster.tier(node)).unwrap()
}

/// Returns the nodes 1 and 2 with all replicas, an extent of the first object, and its segment.
async fn two_nodes() -> (TestNodes, HotTier, Extent, SegmentId) {
    let nodes = TestNodes::new().await;
    let second = nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    let extent = nodes.bench.extents(&nodes.objects[0].0).remove(0);
    let segment = extent.segment_id();
    (nodes, second, extent, segment)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_segments_reach_three_nodes_and_open_ones_none() {
    let nodes = TestNodes::new().await;
    let opened = append(&nodes.bench.tier, chunk(1, vec![1; 100])).await.unwrap().segment_id();
    for node in [2, 3] {
        nodes.open(node).await;
    }
    nodes.cluster.set_nodes([1, 2, 3]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2, 3])).await;
    for record in nodes.segments() {
        let segment = record.segment_id();
        assert_eq!(record.owner(), Some(NodeId(1)), "the owner stays the first");
        for node in [2, 3] {
            assert!(nodes.bytes(node, segment) == nodes.bytes(1, segment), "{segment} on node {node}");
        }
    }
    assert!(!nodes.path(2, opened).exists() && nodes.listed(opened) == [(1, false)]);
    let copied = nodes.cluster.tier(2).replication();
    assert_eq!((copied.copied_segments, copied.failed_tasks), (nodes.segments().len() as u64, 0));
    let length: u64 = nodes.segments().iter().map(|record| record.length).sum();
    assert_eq!(nodes.cluster.requested_bytes(), 2 * length, "each byte crosses once for each copy");
    for (object, body) in &nodes.objects {
        let mut bytes = Vec::new();
        for extent in nodes.bench.extents(object) {
            bytes.extend(read_all(&nodes.cluster.tier(3), &extent, body.0).await);
        }
        assert_eq!(bytes.len(), OBJECT_BYTES);
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_gives_its_segments_to_others() {
    let nodes = TestNodes::new().await;
    for node in [2, 3, 4] {
        nodes.open(node).await;
    }
    nodes.cluster.set_nodes([1, 2, 3]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2, 3])).await;
    nodes.cluster.set_nodes([1, 2, 3, 4]);
    nodes.cluster.set_leaving(1);
    let is_given = |record: &SegmentRecord| {
        record.replicas.len() == 3 && record.replica_of(NodeId(1)).is_none() && record.owner().is_some()
    };
    nodes.cluster.until(|| nodes.segments().iter().all(is_given)).await;
    let segments: Vec<SegmentId> = nodes.segments().iter().map(|record| record.segment_id()).collect();
    nodes.cluster.until(|| segments.iter().all(|segment| !nodes.path(1, *segment).exists())).await;
    for segment in segments {
        assert!(nodes.bytes(2, segment) == nodes.bytes(4, segment), "{segment}");
    }
    // The node still answers, from the replicas of others.
    let (object, body) = &nodes.objects[0];
    let mut bytes = Vec::new();
    for extent in nodes.bench.extents(object) {
        bytes.extend(read_all(&nodes.cluster.tier(1), &extent, body.0).await);
    }
    assert_eq!(bytes.len(), OBJECT_BYTES);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_task_is_repeated_when_its_source_is_back() {
    let nodes = TestNodes::new().await;
    let second = nodes.open(2).await;
    nodes.cluster.set_fault(1, Some(SourceFault::Unreachable));
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| second.replication().failed_tasks > 0).await;
    assert!(nodes.are_all_on(&[1]));
    nodes.cluster.set_fault(1, None);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_whose_record_changed_meanwhile_is_listed_without_reading_it_again() {
    let nodes = TestNodes::new().await;
    let second = nodes.open(2).await;
    nodes.cluster.change_record_at_next_read(&nodes.bench.catalogue);
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    let length: u64 = nodes.segments().iter().map(|record| record.length).sum();
    assert_eq!((nodes.cluster.requested_bytes(), second.replication().failed_tasks), (length, 0));
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_left_by_a_crash_are_adopted() {
    let nodes = TestNodes::new().await;
    let damaged = nodes.segment_of(0).segment_id();
    for record in nodes.segments() {
        nodes.write(2, record.segment_id(), &nodes.bytes(1, record.segment_id()));
    }
    nodes.flip(2, damaged, 5000);
    let second = nodes.open(2).await;
    assert!(nodes.segments().iter().all(|record| nodes.path(2, record.segment_id()).exists()));
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    assert!(nodes.bytes(2, damaged) == nodes.bytes(1, damaged));
    let reads = nodes.cluster.reads.lock().clone();
    assert!(reads.iter().all(|read| read.segment == damaged), "{reads:?}");
    assert_eq!(second.replication().copied_segments, nodes.segments().len() as u64);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_the_scrub_finds_damaged_is_marked_healed_and_delisted() {
    let (nodes, second, extent, segment) = two_nodes().await;
    // The owner cannot be reached at first, so that the mark and the bad block are seen.
    nodes.cluster.set_reachable(1, false);
    nodes.flip(2, segment, extent.offset + 5000);
    let scrubbing = scrub(&nodes, 2);
    scrubbing.start_pass();
    nodes.cluster.until(|| nodes.listed(segment) == [(1, false), (2, true)]).await;
    nodes.cluster.until(|| scrubbing.quarantined_blocks() == 1).await;
    nodes.cluster.until(|| !scrubbing.status().running).await;
    let passes = scrubbing.status().passes;
    nodes.cluster.set_reachable(1, true);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    assert!(nodes.bytes(2, segment) == nodes.bytes(1, segment));
    nodes.cluster.until(|| scrubbing.quarantined_blocks() == 0).await;
    assert_eq!((scrubbing.status().passes, second.replication().healed_segments), (passes, 1));
    drop(scrubbing);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_a_read_finds_on_the_owner_is_healed_from_another_node() {
    let (nodes, _, extent, segment) = two_nodes().await;
    let (tier, body) = (&nodes.bench.tier, nodes.objects[0].1);
    nodes.flip(1, segment, extent.offset + u64::from(extent.head_bytes) + 100);
    let scrubbing = scrub(&nodes, 1);
    let read = tier.read(&extent, body, 0..1000, Lane::Training).await.unwrap();
    assert!(read == bytes_of(body.0, OBJECT_BYTES)[..1000], "node 2 answers");
    nodes.cluster.until(|| tier.replication().healed_segments == 1).await;
    tier.read(&extent, body, 0..1000, Lane::Training).await.unwrap();
    assert_eq!(nodes.listed(segment), [(1, false), (2, false)]);
    assert_eq!(nodes.record(segment).owner(), Some(NodeId(1)));
    drop(scrubbing);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_every_replica_stays_and_is_reported_once() {
    let (nodes, second, extent, segment) = two_nodes().await;
    let at = extent.offset + u64::from(extent.head_bytes) + 100;
    nodes.flip(1, segment, at);
    nodes.flip(2, segment, at);
    let before = nodes.bytes(2, segment);
    second.report_damage([segment]);
    nodes.cluster.until(|| second.replication().healed_segments == 1).await;
    assert_eq!(second.replication().damaged_bytes, extent.record_bytes());
    assert!(nodes.bytes(2, segment) == before);
    let changes = nodes.record(segment).changes;
    second.report_damage([segment]);
    nodes.cluster.pass(2).await;
    assert_eq!(nodes.record(segment).changes, changes, "no replica can heal it");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_replica_is_never_marked() {
    let nodes = TestNodes::new().await;
    let record = nodes.segment_of(0);
    nodes.cluster.set_nodes([1]);
    nodes.bench.tier.report_damage([record.segment_id()]);
    nodes.cluster.pass(1).await;
    assert_eq!(nodes.record(record.segment_id()), record);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_whose_files_are_lost_are_copied_again() {
    let (nodes, _, _, _) = two_nodes().await;
    nodes.cluster.set_nodes([]);
    nodes.stop(2).await;
    std::fs::remove_dir_all(nodes.dir(2)).unwrap();
    let second = nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    let count = nodes.segments().len() as u64;
    nodes.cluster.until(|| second.replication().healed_segments == count).await;
    assert!(nodes.are_all_on(&[1, 2]));
    for record in nodes.segments() {
        assert!(nodes.bytes(2, record.segment_id()) == nodes.bytes(1, record.segment_id()));
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_neither_seals_nor_compacts_segments_of_another_owner() {
    let (nodes, second, _, _) = two_nodes().await;
    // The open segment gets no follower.
    nodes.cluster.set_nodes([]);
    let opened = append(&nodes.bench.tier, chunk(1, vec![1; 100])).await.unwrap().segment_id();
    for (object, _) in &nodes.objects {
        nodes.bench.delete(object).await;
    }
    nodes.stop(2).await;
    drop(second);
    let second = nodes.open(2).await;
    assert_eq!(nodes.record(opened).state(), SegmentState::Open, "its owner appends to it");
    let before = nodes.segments();
    let until = second.compact(1);
    nodes.cluster.until(|| second.compaction().passes >= until).await;
    assert_eq!(nodes.segments(), before);
    assert_eq!(second.compaction().garbage_bytes, 0);
    assert!(segment_stats(&second.inner, &nodes.bench.catalogue).await.unwrap().is_empty());
    let owned = segment_stats(&nodes.bench.tier.inner, &nodes.bench.catalogue).await.unwrap();
    assert!(owned.len() > before.len());
    nodes.close().await;
}
