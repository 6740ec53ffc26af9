//! Tests of reads that another replica answers, since the local disk does not.

use super::super::{append, bytes_of, chunk, packed, text_of};
use super::testbed::{OBJECT_BYTES, SourceFault, TestNodes};
use crate::fair::{DiskQueue, DiskSlot, Lane};
use crate::hot::{HotTier, ReadFault, SegmentReadError};
use bytes::Bytes;
use futures_util::future::join_all;
use mlgw_common::ids::{BodyId, SegmentId};
use mlgw_formats::schema::{Extent, SegmentRecord, SegmentState};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// A chunk of an object of node 1, in a sealed segment.
struct SealedChunk {
    extent: Extent,
    body: BodyId,
    bytes: Vec<u8>,
}

impl SealedChunk {
    fn segment(&self) -> SegmentId {
        self.extent.segment_id()
    }

    /// Offset of a byte of the payload in the file.
    fn payload_at(&self, byte: u64) -> u64 {
        self.extent.offset + u64::from(self.extent.head_bytes) + byte
    }

    async fn read(&self, tier: &HotTier) -> Result<Bytes, SegmentReadError> {
        tier.read(&self.extent, self.body, 0..self.extent.logical_bytes, Lane::Inference).await
    }
}

/// Returns a node with objects and one without files, whose drivers do nothing.
async fn two_nodes() -> (TestNodes, HotTier, SealedChunk) {
    let nodes = TestNodes::idle().await;
    let second = nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    let (object, body) = &nodes.objects[0];
    let extent = nodes.bench.extents(object).remove(0);
    let mut bytes = bytes_of(body.0, OBJECT_BYTES);
    bytes.truncate(usize::try_from(extent.logical_bytes).unwrap());
    let chunk = SealedChunk { extent, body: *body, bytes };
    assert!(nodes.is_sealed(chunk.segment()));
    (nodes, second, chunk)
}

/// Asserts that no read found damage or returned an error.
fn assert_undamaged(tier: &HotTier) {
    let metrics = tier.metrics();
    assert_eq!((metrics.corrupt_blocks, metrics.read_errors), (0, 0));
    assert!(tier.take_suspects().is_empty());
}

/// Takes all free slots of a disk.
fn free_slots(queue: &DiskQueue) -> Vec<DiskSlot<'_>> {
    std::iter::from_fn(|| queue.try_acquire(Lane::Training)).collect()
}

fn requests(nodes: &TestNodes) -> Vec<(u64, Range<u64>)> {
    let reads = std::mem::take(&mut *nodes.cluster.reads.lock());
    reads.into_iter().map(|read| (read.source, read.range)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_file_reads_the_owners() {
    let (nodes, second, chunk) = two_nodes().await;
    assert!(chunk.read(&second).await.unwrap() == chunk.bytes);
    let record = chunk.extent.offset..chunk.extent.offset + chunk.extent.record_bytes();
    assert_eq!(requests(&nodes), [(1, record.clone())]);
    let metrics = second.metrics();
    assert_eq!(metrics.reads_other_replica, 1);
    assert_eq!(metrics.read_bytes_other_replica, record.end - record.start);
    assert_eq!(metrics.read_bytes, chunk.bytes.len() as u64);
    assert_undamaged(&second);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_middle_of_a_long_record_in_an_open_segment_is_read_in_two_parts() {
    let (nodes, second, _) = two_nodes().await;
    let (first, bytes) = (&nodes.bench.tier, bytes_of(1, 1 << 20));
    let extent = append(&second, chunk(1, bytes.clone())).await.unwrap();
    assert_eq!(nodes.record(extent.segment_id()).state(), SegmentState::Open);
    let read = first.read(&extent, BodyId(1), 900_000..900_100, Lane::Inference).await.unwrap();
    assert!(read == bytes[900_000..900_100]);
    let payload_at = extent.offset + u64::from(extent.head_bytes);
    let mut ranges: Vec<_> = requests(&nodes).into_iter().map(|(_, range)| range).collect();
    ranges.sort_by_key(|range| range.start);
    let block = payload_at + 13 * 65_536..payload_at + 14 * 65_536;
    assert_eq!(ranges, [extent.offset..payload_at, block]);
    assert_undamaged(first);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_and_whole_chunks_are_read_from_another_node_too() {
    let (nodes, second, sealed) = two_nodes().await;
    let (first, text) = (&nodes.bench.tier, text_of(1, 1 << 20));
    let extent = append(&second, packed(1, &text)).await.unwrap();
    for range in [0..1 << 20, 70_000..70_100, 0..1] {
        let part = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        let read = first.read(&extent, BodyId(1), range, Lane::Inference).await.unwrap();
        assert!(read == text[part.clone()], "{part:?}");
    }
    let stored = first.read_stored(&extent, BodyId(1)).await.unwrap();
    assert_eq!(stored.uncompressed(), None);
    let stored = second.read_stored(&sealed.extent, sealed.body).await.unwrap();
    assert!(stored.uncompressed().unwrap() == &sealed.bytes && stored.is_first());
    assert_eq!([first, &second].map(|tier| tier.metrics().reads_other_replica), [4, 1]);
    for tier in [first, &second] {
        assert_undamaged(tier);
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_a_followed_replica_lacks_are_read_from_the_owner_and_are_no_damage() {
    let nodes = TestNodes::new().await;
    let second = nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    let bytes = bytes_of(1, 5_000);
    let extent = append(&nodes.bench.tier, chunk(1, bytes.clone())).await.unwrap();
    let segment = extent.segment_id();
    assert_eq!(nodes.listed(segment), [(1, false), (2, false)]);
    assert_eq!(nodes.record(segment).state(), SegmentState::Open);
    let (path, whole) = (nodes.path(2, segment), nodes.bytes(2, segment));
    let read = async || second.read(&extent, BodyId(1), 0..5_000, Lane::Inference).await.unwrap();
    // The closed marker, a header without records, and a part of the record.
    let part = usize::try_from(extent.offset + 2_000).unwrap();
    for (answered, length) in (1..).zip([0, 64, part]) {
        nodes.write(2, segment, &whole[..length]);
        assert!(read().await == bytes, "{length} bytes");
        assert_eq!(second.metrics().reads_other_replica, answered);
    }
    assert_undamaged(&second);

    // The file is replaced, as by a copy: the one that was open is not read any more.
    let copy = path.with_extension("new");
    std::fs::write(&copy, &whole).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    assert!(read().await == bytes);
    assert_eq!(second.metrics().reads_other_replica, 3, "the local disk answers again");

    // The writer has the bytes, and cannot be read now.
    nodes.write(2, segment, &whole[..64]);
    nodes.cluster.set_fault(1, Some(SourceFault::Unreachable));
    let failed = second.read(&extent, BodyId(1), 0..5_000, Lane::Inference).await;
    assert!(matches!(failed, Err(SegmentReadError::NoReplica { .. })), "{failed:?}");
    assert!(second.metrics().corrupt_blocks == 0 && second.take_suspects().is_empty());
    nodes.cluster.set_fault(1, None);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_of_a_complete_replica_is_answered_by_another_one_and_recorded() {
    let (nodes, second, chunk) = two_nodes().await;
    let segment = chunk.segment();
    nodes.add_replica(2, segment).await;
    let at = chunk.payload_at(100);
    for (node, tier) in [(1, &nodes.bench.tier), (2, &second)] {
        nodes.flip(node, segment, at);
        // The second read finds the damage in the page cache, if its file stays open.
        for reads in 1..3 {
            assert!(chunk.read(tier).await.unwrap() == chunk.bytes, "node {node}");
            let metrics = tier.metrics();
            assert_eq!((metrics.corrupt_blocks, metrics.reads_other_replica), (reads, reads));
            assert_eq!(metrics.read_errors, 0);
            assert_eq!(
                tier.take_suspects().into_iter().collect::<Vec<_>>(),
                [(segment, chunk.payload_at(0))]
            );
        }
        nodes.flip(node, segment, at);
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_another_replica_the_read_fails_with_the_cause() {
    let (nodes, second, chunk) = two_nodes().await;
    nodes.cluster.set_reachable(1, false);
    assert!(chunk.read(&second).await.unwrap() == chunk.bytes, "it answers, as the next probe will show");
    nodes.cluster.set_fault(1, Some(SourceFault::Unreachable));
    let failed = chunk.read(&second).await.unwrap_err();
    assert!(matches!(failed, SegmentReadError::NoReplica { segment } if segment == chunk.segment()));
    let expected = format!("no node with a replica of segment {} can be read now", chunk.segment());
    assert!(failed.to_string().starts_with(&expected), "{failed}");
    nodes.cluster.set_reachable(1, true);
    assert!(matches!(chunk.read(&second).await, Err(SegmentReadError::NoReplica { .. })));
    assert!(second.read_stored(&chunk.extent, chunk.body).await.is_err());

    nodes.add_replica(2, chunk.segment()).await;
    nodes.flip(2, chunk.segment(), chunk.payload_at(100));
    let failed = chunk.read(&second).await;
    assert!(matches!(failed, Err(SegmentReadError::Corrupt { fault: ReadFault::Block(0), .. })));
    assert_eq!((second.metrics().corrupt_blocks, second.metrics().read_errors), (1, 3));

    let unknown = Extent { segment: 1 << 40, ..chunk.extent.clone() };
    let gone = second.read(&unknown, chunk.body, 0..1, Lane::Inference).await;
    assert!(matches!(gone, Err(SegmentReadError::Gone { .. })), "{gone:?}");
    second.await_segments(&[unknown.segment_id(), chunk.segment()]).await.unwrap();
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_another_node_are_verified() {
    let (nodes, second, chunk) = two_nodes().await;
    nodes.flip(1, chunk.segment(), chunk.payload_at(100));
    assert!(matches!(chunk.read(&second).await, Err(SegmentReadError::NoReplica { .. })));
    nodes.flip(1, chunk.segment(), chunk.payload_at(100));
    nodes.cluster.set_fault(1, Some(SourceFault::BreaksAfter(1_000)));
    assert!(matches!(chunk.read(&second).await, Err(SegmentReadError::NoReplica { .. })));
    nodes.cluster.set_fault(1, None);
    assert!(chunk.read(&second).await.unwrap() == chunk.bytes);
    assert_eq!(second.metrics().reads_other_replica, 1);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_does_not_wait_for_a_local_disk_that_hangs() {
    let (nodes, second, chunk) = two_nodes().await;
    nodes.add_replica(2, chunk.segment()).await;
    let queue = second.queues().hot.clone();
    let slots = free_slots(&queue);
    let background = tokio::spawn({
        let (tier, extent, body) = (second.clone(), chunk.extent.clone(), chunk.body);
        async move { tier.read(&extent, body, 0..1, Lane::Background).await }
    });
    assert!(chunk.read(&second).await.unwrap() == chunk.bytes);
    assert_eq!(second.metrics().reads_other_replica, 1);
    assert!(!background.is_finished(), "no client waits for it");
    // The disk answers again.
    drop(slots);
    assert!(background.await.unwrap().unwrap() == chunk.bytes[..1]);
    assert!(chunk.read(&second).await.unwrap() == chunk.bytes);
    assert_eq!(second.metrics().reads_other_replica, 1);
    assert_undamaged(&second);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_for_its_permit_while_the_local_disk_hangs() {
    let (nodes, second, chunk) = two_nodes().await;
    nodes.add_replica(2, chunk.segment()).await;
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    let queue = second.queues().hot.clone();
    let mut slots = free_slots(&queue);
    let reader = &second.inner.reader;
    let blocked = RefCell::new(reader.block_other_replicas());
    assert_eq!(blocked.borrow().len(), 64);
    let reading = tokio::spawn({
        let (tier, extent, body) = (second.clone(), chunk.extent.clone(), chunk.body);
        async move { tier.read(&extent, body, 0..extent.logical_bytes, Lane::Inference).await }
    });
    // The permit goes to a read that waits for it. It is taken again at once if there is none.
    let has_ended = || {
        drop(blocked.borrow_mut().pop());
        blocked.borrow_mut().extend(reader.block_other_replicas());
        reading.is_finished()
    };
    nodes.cluster.until(has_ended).await;
    assert!(reading.await.unwrap().unwrap() == chunk.bytes);
    assert_eq!(second.metrics().reads_other_replica, 1);
    // No thread executes the local read: it does not take the next slot.
    drop(slots.pop());
    assert!(queue.try_acquire(Lane::Training).is_some());
    drop((blocked, slots));
    assert_undamaged(&second);
    nodes.close().await;
}

// Threads of the runtime may wait for the files, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_that_hangs_keeps_its_slot_and_the_damage_that_it_finds_is_recorded() {
    let (nodes, second, chunk) = two_nodes().await;
    let segment = chunk.segment();
    nodes.add_replica(2, segment).await;
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    nodes.flip(2, segment, chunk.payload_at(100));
    let queue = second.queues().hot.clone();
    let mut slots = free_slots(&queue);
    drop(slots.pop());
    let begun_reads = || second.inner.shared.metrics.reads_disk.load(Relaxed);
    let (before, blocked) = (begun_reads(), second.inner.reader.block_other_replicas());
    let hanging = second.inner.reader.block_opening();
    let until_hanging = async {
        nodes.cluster.until(|| begun_reads() > before).await;
        drop(blocked);
    };
    let (read, ()) = tokio::join!(chunk.read(&second), until_hanging);
    assert!(read.unwrap() == chunk.bytes);
    assert!(queue.try_acquire(Lane::Training).is_none(), "the read of the disk has not ended");
    drop(hanging);
    nodes.cluster.until(|| second.metrics().corrupt_blocks == 1).await;
    let found = second.take_suspects().into_iter().collect::<Vec<_>>();
    assert_eq!(found, [(segment, chunk.payload_at(0))]);
    assert!(queue.try_acquire(Lane::Training).is_some());
    drop(slots);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_is_refused_while_too_many_other_ones_do_not_end() {
    let (nodes, second, chunk) = two_nodes().await;
    let (first, segment) = (&nodes.bench.tier, chunk.segment());
    nodes.flip(1, segment, chunk.payload_at(100));
    let blocked = [first, &second].map(|tier| tier.inner.reader.block_other_replicas());
    assert!(blocked.iter().all(|permits| permits.len() == 64));
    let (damaged, absent) = tokio::join!(chunk.read(first), chunk.read(&second));
    for refused in [damaged, absent] {
        assert!(matches!(refused, Err(SegmentReadError::NoReplica { .. })), "{refused:?}");
    }
    assert!(requests(&nodes).is_empty(), "no other node is asked");
    let found = first.take_suspects().into_iter().collect::<Vec<_>>();
    assert_eq!(found, [(segment, chunk.payload_at(0))], "the damage is recorded nevertheless");
    drop(blocked);
    nodes.flip(1, segment, chunk.payload_at(100));
    assert!(chunk.read(&second).await.unwrap() == chunk.bytes);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspect_replica_is_read_last_and_is_better_than_none() {
    let (nodes, _, chunk) = two_nodes().await;
    let (third, segment) = (nodes.open(3).await, chunk.segment());
    nodes.add_replica(2, segment).await;
    let SegmentRecord { mut replicas, changes, .. } = nodes.record(segment);
    replicas[0].is_suspect = true;
    nodes.bench.catalogue.set_replicas(segment, changes, replicas).await.unwrap();
    let sources = || requests(&nodes).into_iter().map(|(source, _)| source).collect::<Vec<_>>();
    assert!(chunk.read(&third).await.unwrap() == chunk.bytes);
    assert_eq!(sources(), [2]);
    nodes.cluster.set_fault(2, Some(SourceFault::Unreachable));
    assert!(chunk.read(&third).await.unwrap() == chunk.bytes);
    assert_eq!(sources(), [2, 1]);

    // Its damage is known: it is not recorded again.
    nodes.cluster.set_fault(2, None);
    nodes.flip(1, segment, chunk.payload_at(100));
    assert!(chunk.read(&nodes.bench.tier).await.unwrap() == chunk.bytes);
    assert_undamaged(&nodes.bench.tier);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_do_not_wait_for_a_node_that_hangs() {
    /// More than can be read from other nodes at a time.
    const READS: usize = 200;
    let (nodes, _, chunk) = two_nodes().await;
    let third = nodes.open(3).await;
    nodes.add_replica(2, chunk.segment()).await;
    nodes.cluster.set_fault(1, Some(SourceFault::Hangs));
    assert!(chunk.read(&third).await.unwrap() == chunk.bytes, "the second node is read meanwhile");
    assert!(nodes.cluster.hung_reads.load(Relaxed) > 0);
    let reads = join_all((0..READS).map(|_| chunk.read(&third))).await;
    assert!(reads.into_iter().all(|read| read.unwrap() == chunk.bytes));
    nodes.close().await;
}
