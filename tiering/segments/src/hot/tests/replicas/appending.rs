//! Tests of appends to segments with followers, and of followers in trouble.

use super::super::{append, bytes_of, chunk, read_all};
use super::testbed::{BlockedDisk, TestNodes};
use crate::hot::{AppendError, HotTier};
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::{Instant, sleep};
use mlgw_formats::schema::{Extent, SegmentState};
use mlgw_formats::segment_calls::{CloseReplica, ClosedReplica};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Returns the nodes 1 and 2 as storage nodes, and the disk of node 2.
async fn two_nodes() -> (TestNodes, Arc<BlockedDisk>) {
    let (nodes, disk) = (TestNodes::new().await, Arc::new(BlockedDisk::default()));
    nodes.open_with(2, Some(disk.clone())).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    (nodes, disk)
}

fn begin_append(tier: &HotTier, body: u64) -> JoinHandle<Result<Extent, AppendError>> {
    let tier = tier.clone();
    tokio::spawn(async move { append(&tier, chunk(body, bytes_of(body, 5_000))).await })
}

async fn stored(tier: &HotTier, body: u64) -> Extent {
    begin_append(tier, body).await.unwrap().unwrap()
}

fn end_of(extent: &Extent) -> u64 {
    extent.offset + extent.record_bytes()
}

/// The open segment of a node.
fn open_segment(nodes: &TestNodes, owner: u64) -> SegmentId {
    let mut open = nodes.bench.catalogue.segments().unwrap();
    open.retain(|record| record.state() == SegmentState::Open && record.is_owned_by(NodeId(owner)));
    assert_eq!(open.len(), 1, "{open:?}");
    open[0].segment_id()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_is_acknowledged_when_two_nodes_have_synced_it() {
    let (nodes, disk) = two_nodes().await;
    let tier = &nodes.bench.tier;
    let first = stored(tier, 1).await;
    let record = nodes.record(first.segment_id());
    assert_eq!((record.quorum(), nodes.listed(first.segment_id())), (2, vec![(1, false), (2, false)]));
    let synced = || tier.metrics().syncs.iter().map(|(_, took)| took.count()).sum::<u64>();
    let before = synced();
    let blocked = disk.block();
    let appending = begin_append(tier, 2);
    nodes.cluster.until(|| disk.is_waiting() && synced() > before).await;
    // The own sync has ended. Without the rule the acknowledgement follows at once.
    for _ in 0..50 {
        assert!(!appending.is_finished(), "one node alone has synced the chunk");
        sleep(Duration::from_millis(1)).await;
    }
    drop(blocked);
    let second = appending.await.unwrap().unwrap();
    assert_eq!(second.segment, first.segment);
    let end = usize::try_from(end_of(&second)).unwrap();
    let segment = second.segment_id();
    assert!(nodes.bytes(1, segment)[..end] == nodes.bytes(2, segment)[..end]);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_seals_a_segment_with_all_followers() {
    let (nodes, _disk) = two_nodes().await;
    let extent = stored(&nodes.bench.tier, 1).await;
    nodes.bench.tier.clone().shutdown().await;
    let record = nodes.record(extent.segment_id());
    assert_eq!((record.state(), record.length), (SegmentState::Sealed, end_of(&extent)));
    assert_eq!(nodes.listed(extent.segment_id()), [(1, false), (2, false)]);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_seals_also_the_segment_that_it_created_ahead() {
    let (nodes, _disk) = two_nodes().await;
    nodes.open(3).await;
    nodes.cluster.set_nodes([1, 2, 3]);
    let open_segments = || {
        let records = nodes.bench.catalogue.segments().unwrap();
        records.iter().filter(|record| record.state() == SegmentState::Open).count()
    };
    // When three quarters of a segment are filled, the next one is created.
    let mut body = 0;
    while open_segments() < 2 {
        body += 1;
        stored(&nodes.bench.tier, body).await;
    }
    nodes.cluster.set_leaving(1);
    // Nothing is appended any more.
    nodes.cluster.until(|| open_segments() == 0).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failure_of_a_follower_the_batch_is_in_the_next_segment() {
    let (nodes, disk) = two_nodes().await;
    let tier = &nodes.bench.tier;
    let first = stored(tier, 1).await;
    disk.fail_next();
    let second = stored(tier, 2).await;
    assert_ne!(second.segment, first.segment);
    nodes.cluster.until(|| nodes.is_sealed(first.segment_id())).await;
    // Both nodes have what was acknowledged, so both are named.
    assert_eq!(nodes.record(first.segment_id()).length, end_of(&first));
    assert_eq!(nodes.listed(first.segment_id()), [(1, false), (2, false)]);
    for (body, extent) in [(1, &first), (2, &second)] {
        assert!(read_all(tier, extent, body).await == bytes_of(body, 5_000));
        assert!(read_all(&nodes.cluster.tier(2), extent, body).await == bytes_of(body, 5_000));
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_whose_file_is_removed_while_it_is_open_is_sealed_and_copied_again() {
    for node in [1, 2] {
        let (nodes, _disk) = two_nodes().await;
        let tier = &nodes.bench.tier;
        let first = stored(tier, 1).await;
        let (segment, end) = (first.segment_id(), usize::try_from(end_of(&first)).unwrap());
        std::fs::remove_file(nodes.path(node, segment)).unwrap();
        // Nothing is appended any more.
        nodes.cluster.until(|| nodes.is_sealed(segment)).await;
        nodes.cluster.until(|| nodes.are_all_on(&[1, 2]) && nodes.path(node, segment).exists()).await;
        assert!(nodes.bytes(1, segment)[..end] == nodes.bytes(2, segment)[..end]);
        let second = stored(tier, 2).await;
        assert_ne!(second.segment, first.segment);
        for (body, extent) in [(1, &first), (2, &second)] {
            assert!(read_all(tier, extent, body).await == bytes_of(body, 5_000));
            assert!(read_all(&nodes.cluster.tier(2), extent, body).await == bytes_of(body, 5_000));
        }
        nodes.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_third_node_delays_nothing_and_is_left_out() {
    let (nodes, _second) = two_nodes().await;
    let disk = Arc::new(BlockedDisk::default());
    nodes.open_with(3, Some(disk.clone())).await;
    nodes.cluster.set_nodes([1, 2, 3]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2, 3])).await;
    let tier = &nodes.bench.tier;
    let first = stored(tier, 1).await;
    assert_eq!(nodes.listed(first.segment_id()).len(), 3);
    let blocked = disk.block();
    // Acknowledged while node 3 syncs nothing, in segments that it left and in those that it follows.
    for body in 2..6 {
        stored(tier, body).await;
    }
    nodes.cluster.until(|| nodes.is_sealed(first.segment_id())).await;
    assert!(nodes.record(first.segment_id()).length >= end_of(&first));
    // Node 3 may have added its replica again, with bytes that it has received.
    assert!(nodes.listed(first.segment_id()).starts_with(&[(1, false), (2, false)]));
    drop(blocked);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_quorum_of_all_an_append_is_on_every_replica_of_its_segment() {
    let (nodes, disk) = (TestNodes::acknowledging_by_all().await, Arc::new(BlockedDisk::default()));
    nodes.open(2).await;
    nodes.open_with(3, Some(disk.clone())).await;
    nodes.cluster.set_nodes([1, 2, 3]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2, 3])).await;
    let tier = &nodes.bench.tier;
    let first = stored(tier, 1).await;
    assert_eq!(nodes.record(first.segment_id()).quorum(), 3);
    assert_eq!(nodes.listed(first.segment_id()).len(), 3);
    let blocked = disk.block();
    // Two nodes alone do not acknowledge it there.
    let second = stored(tier, 2).await;
    assert_ne!(second.segment, first.segment);
    let record = nodes.record(second.segment_id());
    assert_eq!((record.quorum(), nodes.listed(second.segment_id())), (2, vec![(1, false), (2, false)]));
    nodes.cluster.until(|| nodes.is_sealed(first.segment_id())).await;
    assert_eq!(nodes.record(first.segment_id()).length, end_of(&first), "what all have");
    drop(blocked);
    for node in [1, 2] {
        let read = read_all(&nodes.cluster.tier(node), &second, 2).await;
        assert!(read == bytes_of(2, 5_000), "node {node}");
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_only_follower_appends_fail_until_it_returns() {
    let (nodes, _disk) = two_nodes().await;
    let tier = &nodes.bench.tier;
    let first = stored(tier, 1).await;
    nodes.stop(2).await;
    // It is reachable at first as far as node 1 knows.
    assert_eq!(begin_append(tier, 2).await.unwrap(), Err(AppendError::NoQuorum));
    nodes.cluster.set_reachable(2, false);
    let begun = Instant::now();
    let is_refused = |stored: &Result<Extent, AppendError>| *stored == Err(AppendError::NoQuorum);
    assert!(is_refused(&begin_append(tier, 3).await.unwrap()));
    nodes.open(2).await;
    nodes.cluster.set_reachable(2, true);
    let last = loop {
        let stored = begin_append(tier, 4).await.unwrap();
        if !is_refused(&stored) {
            break stored.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "appends work again");
        sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(nodes.listed(last.segment_id()), [(1, false), (2, false)]);
    assert!(read_all(tier, &first, 1).await == bytes_of(1, 5_000));
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_segment_gets_no_more_records() {
    let (nodes, _disk) = two_nodes().await;
    let tier = &nodes.bench.tier;
    let first = stored(tier, 1).await;
    let segment = first.segment_id();
    let request = CloseReplica::new(segment, nodes.record(segment).seed()).encode_request();
    let closed = ClosedReplica::decode_answer(&tier.close_replica(&request).await.unwrap()).unwrap();
    let length = end_of(&first);
    assert_eq!(closed, ClosedReplica { has_file: true, length, damaged_bytes: 0, uncertain_bytes: 0 });
    let second = stored(tier, 2).await;
    assert_ne!(second.segment, first.segment);
    nodes.cluster.until(|| nodes.is_sealed(segment)).await;
    assert_eq!(nodes.record(segment).length, end_of(&first));
    assert_eq!(nodes.bytes(1, segment).len() as u64, end_of(&first));
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_whose_seal_is_proposed_is_known_while_its_writer_has_it() {
    let (nodes, _disk) = two_nodes().await;
    let tier = &nodes.bench.tier;
    let segment = stored(tier, 1).await.segment_id();
    let appends = tier.inner.shared.segments.appends.clone().unwrap();
    let open = appends.find_or_close(segment).unwrap();
    open.request_seal();
    nodes.cluster.until(|| nodes.is_sealed(segment)).await;
    let found = appends.find_or_close(segment);
    assert!(found.is_some_and(|found| Arc::ptr_eq(&found, &open)), "its writer may still write");
    drop(open);
    nodes.cluster.until(|| appends.find_or_close(segment).is_none()).await;
    drop(appends);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_waits_for_the_write_in_progress() {
    let (nodes, disk) = two_nodes().await;
    // Node 2 appends, and its own disk is blocked.
    let tier = nodes.cluster.tier(2);
    stored(&tier, 1).await;
    let segment = open_segment(&nodes, 2);
    let request = CloseReplica::new(segment, nodes.record(segment).seed()).encode_request();
    let blocked = disk.block();
    let appending = begin_append(&tier, 2);
    nodes.cluster.until(|| disk.is_waiting()).await;
    let closing = tokio::spawn({
        let tier = tier.clone();
        async move { tier.close_replica(&request).await }
    });
    for _ in 0..50 {
        assert!(!closing.is_finished(), "the write is in progress");
        sleep(Duration::from_millis(1)).await;
    }
    drop(blocked);
    let closed = ClosedReplica::decode_answer(&closing.await.unwrap().unwrap()).unwrap();
    let second = appending.await.unwrap().unwrap();
    assert!(second.segment != segment.0 || end_of(&second) <= closed.length);
    nodes.cluster.until(|| nodes.is_sealed(segment)).await;
    assert!(nodes.record(segment).length <= closed.length);
    drop(tier);
    nodes.close().await;
}
