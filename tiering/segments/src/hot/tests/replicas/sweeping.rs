//! Tests of the sweep: files that no record lists are removed, unless they are in use or needed.

use super::testbed::TestNodes;
use crate::hot::claims::ClaimOwner;
use crate::hot::segment_file_name;
use mlgw_common::ids::{NodeId, SegmentId};

/// Returns the nodes 1 and 2 with all replicas.
async fn two_nodes() -> TestNodes {
    let nodes = TestNodes::new().await;
    nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    nodes
}

/// Removes the records of all segments on their owner.
pub(super) async fn release_all(nodes: &TestNodes) {
    for (object, _) in &nodes.objects {
        nodes.bench.delete(object).await;
    }
    let is_released = |id| nodes.bench.catalogue.segment(id).is_none();
    let released: Vec<SegmentId> = nodes.segments().iter().map(|record| record.segment_id()).collect();
    for _ in 0..1000 {
        if released.iter().copied().all(is_released) {
            return;
        }
        nodes.bench.compact(1).await;
    }
    panic!("the segments are not released");
}

fn count_files(nodes: &TestNodes, node: u64) -> usize {
    let files = std::fs::read_dir(nodes.dir(node)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".seg")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_released_segments_are_removed_and_their_space_is_given_back() {
    let nodes = two_nodes().await;
    let (second, count) = (nodes.cluster.tier(2), nodes.segments().len());
    assert!(second.metrics().used_bytes > 0);
    release_all(&nodes).await;
    nodes.cluster.until(|| count_files(&nodes, 2) == 0).await;
    nodes.cluster.until(|| second.replication().removed_replicas == count as u64).await;
    // A copy is charged with its header.
    assert!(second.metrics().used_bytes <= 64 * count as u64, "{}", second.metrics().used_bytes);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_of_a_copy_whose_segment_is_released_in_the_same_pass_is_removed_in_the_next_one() {
    let nodes = TestNodes::new().await;
    nodes.open(2).await;
    // The directories are not read again for a minute.
    nodes.cluster.pass(2).await;
    nodes.cluster.copy_only_first(true);
    nodes.cluster.set_nodes([1, 2]);
    let copied = || {
        let mut records = nodes.bench.catalogue.segments().unwrap().into_iter();
        records.find(|record| record.replica_of(NodeId(2)).is_some())
    };
    nodes.cluster.until(|| copied().is_some()).await;
    let segment = copied().unwrap().segment_id();
    release_all(&nodes).await;
    assert!(nodes.path(2, segment).exists(), "the pass has not ended");
    nodes.cluster.copy_only_first(false);
    nodes.cluster.pass(2).await;
    assert!(!nodes.path(2, segment).exists());
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_stays_while_all_segments_are_pinned() {
    let nodes = two_nodes().await;
    let count = nodes.segments().len();
    let all = nodes.cluster.tier(2).pin_all();
    release_all(&nodes).await;
    nodes.cluster.pass(2).await;
    assert_eq!(count_files(&nodes, 2), count);
    drop(all);
    nodes.cluster.until(|| count_files(&nodes, 2) == 0).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_stays_while_it_is_pinned_or_claimed() {
    let nodes = two_nodes().await;
    let second = nodes.cluster.tier(2);
    let segments: Vec<SegmentId> = nodes.segments().iter().map(|record| record.segment_id()).collect();
    let pinned = second.pin(vec![segments[0]]).unwrap();
    let claimed = second.inner.claims.claim(segments[1], ClaimOwner::Compaction, 0).unwrap();
    release_all(&nodes).await;
    nodes.cluster.until(|| count_files(&nodes, 2) == 2).await;
    nodes.cluster.pass(2).await;
    assert!(segments[..2].iter().all(|segment| nodes.path(2, *segment).exists()));
    drop((pinned, claimed));
    nodes.cluster.until(|| count_files(&nodes, 2) == 0).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_without_a_file_is_found_in_the_pass_after_it_is_listed() {
    let nodes = TestNodes::new().await;
    nodes.open(2).await;
    // The directories are not read again for a minute.
    nodes.cluster.pass(2).await;
    let segment = nodes.segment_of(0).segment_id();
    nodes.list_replica(2, segment).await;
    nodes.cluster.pass(2).await;
    nodes.cluster.pass(2).await;
    assert_eq!(nodes.listed(segment), [(1, false), (2, true)]);
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    assert!(nodes.path(2, segment).exists());
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_not_listed_is_removed_once_enough_others_are_good() {
    let nodes = TestNodes::new().await;
    let segment = nodes.segment_of(0).segment_id();
    for node in [2, 3, 4] {
        nodes.write(node, segment, &nodes.bytes(1, segment));
        nodes.open(node).await;
    }
    // Two good replicas of three: one of the nodes without a replica adopts its file.
    nodes.add_replica(2, segment).await;
    nodes.cluster.set_nodes([1, 2, 3, 4]);
    nodes.cluster.until(|| nodes.listed(segment).len() == 3).await;
    let is_left = |node: u64| nodes.path(node, segment).exists();
    let listed: Vec<u64> = nodes.listed(segment).iter().map(|(node, _)| *node).collect();
    let redundant = if listed.contains(&3) { 4 } else { 3 };
    nodes.stop(redundant).await;
    assert!((1..=4).all(is_left), "the sweep of its start came before");
    nodes.open(redundant).await;
    nodes.cluster.until(|| !is_left(redundant)).await;
    assert!(listed.into_iter().all(is_left));
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_whose_id_was_never_given_out_stays() {
    let nodes = TestNodes::idle().await;
    nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    let never = SegmentId(nodes.bench.catalogue.next_segment().unwrap().0 + 5);
    nodes.write(2, never, b"later");
    assert!(nodes.cluster.reads.lock().is_empty() && nodes.are_all_on(&[1]), "the cluster is not upgraded");
    // The first pass reads the directories.
    nodes.start().await;
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    nodes.cluster.pass(2).await;
    assert!(nodes.dir(2).join(segment_file_name(never)).exists());
    nodes.close().await;
}
