//! Tests of the bytes that a node serves to other nodes.

use super::super::{append, chunk, read_all};
use super::testbed::TestNodes;
use crate::hot::{HotTier, ReplicaReadRefused};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use mlgw_common::ids::{SegmentId, SegmentSeed, SegmentStamp};
use mlgw_formats::schema::SegmentRecord;
use mlgw_formats::segment_calls::{RECORD_READ_BYTES_MAX, ReadReplica};
use std::fs::File;
use std::io;
use std::ops::Range;
use tokio::sync::Semaphore;

fn request(record: &SegmentRecord, range: Range<u64>) -> Bytes {
    ReadReplica::new(record.segment_id(), record.seed(), range).encode_request()
}

fn refusal(tier: &HotTier, request: &[u8]) -> ReplicaReadRefused {
    tier.read_replica(request).map(drop).unwrap_err()
}

/// A request for which a client waits.
fn client_request(record: &SegmentRecord, range: Range<u64>) -> Bytes {
    ReadReplica::for_client(record.segment_id(), record.seed(), range).encode_request()
}

async fn read(tier: &HotTier, record: &SegmentRecord, range: Range<u64>) -> io::Result<Vec<u8>> {
    answer(tier, &request(record, range)).await
}

async fn answer(tier: &HotTier, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut pieces = tier.read_replica(request).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend(piece?);
    }
    Ok(bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_of_a_sealed_replica_is_served_as_it_is() {
    let nodes = TestNodes::new().await;
    let record = nodes.segment_of(0);
    let segment = record.segment_id();
    nodes.flip(1, segment, 5000);
    let whole = nodes.bytes(1, segment);
    for range in [0..record.length, 0..1, 4_999..5_001, record.length - 1..record.length] {
        let expected = &whole[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()];
        let found = read(&nodes.bench.tier, &record, range).await.unwrap();
        assert!(found == expected, "damage is not hidden");
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_other_bytes_are_refused() {
    let nodes = TestNodes::new().await;
    let (tier, record) = (&nodes.bench.tier, nodes.segment_of(0));
    let (segment, length) = (record.segment_id(), record.length);
    assert!(matches!(refusal(tier, b""), ReplicaReadRefused::Malformed(_)));
    let end = length + 1;
    let beyond = ReplicaReadRefused::BeyondEnd { segment, length, end };
    assert_eq!(refusal(tier, &request(&record, 0..end)), beyond);
    let seed = SegmentSeed { stamp: SegmentStamp(record.stamp ^ 1), ..record.seed() };
    let other = ReadReplica::new(segment, seed, 0..1).encode_request();
    assert_eq!(refusal(tier, &other), ReplicaReadRefused::OtherSegment(segment));
    let unknown = ReadReplica::new(SegmentId(1 << 40), record.seed(), 0..1).encode_request();
    assert_eq!(refusal(tier, &unknown), ReplicaReadRefused::NotHere(SegmentId(1 << 40)));
    let second = nodes.open(2).await;
    assert_eq!(refusal(&second, &request(&record, 0..1)), ReplicaReadRefused::NotHere(segment));
    let opened = append(tier, chunk(1, vec![1; 100])).await.unwrap().segment_id();
    let open = request(&nodes.record(opened), 0..1);
    assert_eq!(refusal(tier, &open), ReplicaReadRefused::Open(opened));
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_four_reads_run_at_a_time() {
    let nodes = TestNodes::new().await;
    let (tier, record) = (&nodes.bench.tier, nodes.segment_of(0));
    let taken = tier.inner.replicas.read_permits().try_acquire_many_owned(4).unwrap();
    let refused = refusal(tier, &request(&record, 0..1));
    assert_eq!(refused, ReplicaReadRefused::Busy);
    assert_eq!(refused.to_string(), "4 other reads of replicas are in progress");
    drop(taken);
    assert_eq!(read(tier, &record, 0..1).await.unwrap().len(), 1);
    let permits = tier.inner.replicas.read_permits();
    assert_eq!(Semaphore::acquire_many(&permits, 4).await.unwrap().num_permits(), 4, "a read gives its back");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_end_with_the_error_of_the_disk() {
    let nodes = TestNodes::new().await;
    let record = nodes.segment_of(0);
    let file = File::options().write(true).open(nodes.path(1, record.segment_id())).unwrap();
    file.set_len(record.length - 1).unwrap();
    let failed = read(&nodes.bench.tier, &record, 0..record.length).await.unwrap_err();
    assert_eq!(failed.kind(), io::ErrorKind::UnexpectedEof);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_the_disk_fails_to_read_for_another_node_becomes_suspect() {
    let nodes = TestNodes::new().await;
    let second = nodes.open(2).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    let record = nodes.segment_of(0);
    let segment = record.segment_id();
    let path = nodes.path(2, segment);
    for request in [client_request(&record, 0..100), request(&record, 0..100)] {
        std::fs::remove_file(&path).unwrap();
        // Its first page is not mapped: a read fails with an error of the device.
        std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
        assert!(answer(&second, &request).await.is_err());
        nodes.cluster.until(|| nodes.listed(segment) == [(1, false), (2, true)]).await;
        std::fs::remove_file(&path).unwrap();
        nodes.write(2, segment, &nodes.bytes(1, segment));
        nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    }
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_a_stopped_tier_do_not_end_as_if_they_were_complete() {
    let nodes = TestNodes::new().await;
    let record = nodes.segment_of(0);
    nodes.bench.tier.inner.compaction.stop();
    let failed = read(&nodes.bench.tier, &record, 0..record.length).await.unwrap_err();
    assert_eq!(failed.to_string(), "the node stopped reading the replica");
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_gets_bytes_of_open_segments_and_of_suspect_replicas() {
    let nodes = TestNodes::new().await;
    let tier = &nodes.bench.tier;
    let extent = append(tier, chunk(1, vec![1; 100])).await.unwrap();
    let (record, end) = (nodes.record(extent.segment_id()), extent.offset + extent.record_bytes());
    let written = nodes.bytes(1, extent.segment_id());
    // The first read opens the file, and the next one finds it open if the tier has read it.
    for _ in 0..2 {
        let served = answer(tier, &client_request(&record, 0..end)).await.unwrap();
        assert!(served == written[..usize::try_from(end).unwrap()]);
        read_all(tier, &extent, 1).await;
    }
    let beyond = answer(tier, &client_request(&record, 0..end + 1)).await.unwrap_err();
    assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    assert!(beyond.to_string().ends_with("is beyond the end of the file"), "{beyond}");

    let sealed = nodes.segment_of(0);
    let mut replicas = sealed.replicas.clone();
    replicas[0].is_suspect = true;
    nodes.bench.catalogue.set_replicas(sealed.segment_id(), sealed.changes, replicas).await.unwrap();
    assert_eq!(answer(tier, &client_request(&sealed, 5..9)).await.unwrap().len(), 4);
    let (segment, length, end) = (sealed.segment_id(), sealed.length, sealed.length + 1);
    let refused = refusal(tier, &client_request(&sealed, length..end));
    assert_eq!(refused, ReplicaReadRefused::BeyondEnd { segment, length, end });
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_for_clients_are_short_and_have_permits_of_their_own() {
    let nodes = TestNodes::new().await;
    let (tier, record) = (&nodes.bench.tier, nodes.segment_of(0));
    let long = client_request(&record, 0..RECORD_READ_BYTES_MAX + 1);
    assert!(matches!(refusal(tier, &long), ReplicaReadRefused::Malformed(_)));

    let copies = tier.inner.replicas.read_permits().try_acquire_many_owned(4).unwrap();
    assert_eq!(answer(tier, &client_request(&record, 0..1)).await.unwrap().len(), 1);
    drop(copies);
    let taken = tier.inner.replicas.client_read_permits().try_acquire_many_owned(64).unwrap();
    let wanted = client_request(&record, 0..1);
    let mut waiting = Box::pin(answer(tier, &wanted));
    assert!(waiting.as_mut().now_or_never().is_none(), "it waits for a permit");
    assert_eq!(read(tier, &record, 0..1).await.unwrap().len(), 1);
    drop(taken);
    assert_eq!(waiting.await.unwrap().len(), 1);
    let permits = tier.inner.replicas.client_read_permits();
    assert_eq!(Semaphore::acquire_many(&permits, 64).await.unwrap().num_permits(), 64);
    // The permit belongs to the bytes: they are in memory until the last slice is sent.
    let piece = tier.read_replica(&client_request(&record, 0..100)).unwrap().next().await.unwrap().unwrap();
    let rest = piece.slice(90..);
    drop(piece);
    assert_eq!(permits.available_permits(), 63);
    drop(rest);
    assert_eq!(permits.available_permits(), 64);
    // A stream that is not read has no permit.
    let unread = tier.read_replica(&client_request(&record, 0..1)).unwrap();
    assert_eq!(permits.available_permits(), 64);
    drop(unread);
    nodes.close().await;
}
