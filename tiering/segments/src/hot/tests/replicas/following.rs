//! Tests of a follower: appends of a writer on another node, and requests to close the replica.

use super::super::bench::Bench;
use super::super::*;
use super::testbed::TestCluster;
use crate::hot::{
    CompactionSettings, FileCall, Intercept, InterceptAction, ReplicaBytes, ReplicaRefused, segment_file_name,
};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use mlgw_common::ids::NodeId;
use mlgw_common::time::{Instant, sleep};
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeName};
use mlgw_formats::append_frames::AppendHead;
use mlgw_formats::cluster_version::REPLICATION_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, CreateSegment, Reply};
use mlgw_formats::schema::{Replica, SegmentRecord};
use mlgw_formats::segment_calls::{CloseReplica, ClosedReplica, OpenReplica};
use mlgw_formats::segment_header::{NewSegment, SEGMENT_HEADER_BYTES, SegmentHeader};
use mlgw_formats::segment_record::{RecordAddress, RecordOwner, encode_head};
use parking_lot::Condvar;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc;

const WRITER: NodeId = NodeId(1);
/// A segment that the map of the follower has not seen yet.
const SEGMENT: SegmentId = SegmentId(1 << 40);
const EIO: i32 = 5;
const EINVAL: i32 = 22;

/// Counts calls, and holds syncs while its gate is closed.
#[derive(Default)]
struct GatedDisk {
    gate: Mutex<SyncGate>,
    changed: Condvar,
}

#[derive(Default)]
struct SyncGate {
    is_closed: bool,
    waiting: usize,
    writes: usize,
    fails: Option<(FileCall, i32)>,
}

impl GatedDisk {
    fn set_closed(&self, is_closed: bool) {
        self.gate.lock().is_closed = is_closed;
        self.changed.notify_all();
    }

    fn fail(&self, call: FileCall) {
        self.fail_with(call, EIO);
    }

    fn fail_with(&self, call: FileCall, errno: i32) {
        self.gate.lock().fails = Some((call, errno));
    }

    fn waiting(&self) -> usize {
        self.gate.lock().waiting
    }

    fn writes(&self) -> usize {
        self.gate.lock().writes
    }
}

impl Intercept for GatedDisk {
    fn before(&self, call: FileCall, _segment: Option<SegmentId>) -> InterceptAction {
        let mut gate = self.gate.lock();
        if let Some((_, errno)) = gate.fails.take_if(|(of, _)| *of == call) {
            return InterceptAction::Fail(errno);
        }
        if call == FileCall::Write {
            gate.writes += 1;
        }
        if call == FileCall::Sync {
            gate.waiting += 1;
            while gate.is_closed {
                self.changed.wait(&mut gate);
            }
            gate.waiting -= 1;
        }
        InterceptAction::Go
    }
}

/// A node that follows segments of node 1.
struct FollowerNode {
    dir: TempDir,
    disk: Arc<GatedDisk>,
    tier: HotTier,
}

impl Drop for FollowerNode {
    fn drop(&mut self) {
        // A test that fails must not wait for the disk.
        self.disk.set_closed(false);
    }
}

impl FollowerNode {
    async fn new() -> Self {
        let (dir, disk) = (tempfile::tempdir().unwrap(), Arc::new(GatedDisk::default()));
        let tier = open_tier(dir.path(), &disk).await;
        Self { dir, disk, tier }
    }

    async fn restart(&mut self) {
        self.tier.clone().shutdown().await;
        self.tier = open_tier(self.dir.path(), &self.disk).await;
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("segments").join(segment_file_name(SEGMENT))
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    fn write_file(&self, bytes: &[u8]) {
        std::fs::write(self.path(), bytes).unwrap();
    }

    async fn open(&self) -> Result<WriterStream, ReplicaRefused> {
        self.open_segment(SEGMENT).await
    }

    async fn open_segment(&self, segment: SegmentId) -> Result<WriterStream, ReplicaRefused> {
        self.open_of(&header(segment)).await
    }

    async fn open_of(&self, header: &SegmentHeader) -> Result<WriterStream, ReplicaRefused> {
        let (frames, received) = frames();
        let answers = self.tier.open_replica(WRITER, &open_request(header), received).await?;
        let mut stream = WriterStream { frames, answers, end: SEGMENT_HEADER_BYTES, records: Vec::new() };
        assert_eq!(stream.length().await.unwrap(), SEGMENT_HEADER_BYTES);
        Ok(stream)
    }

    async fn close(&self) -> ClosedReplica {
        let answer = self.tier.close_replica(&CloseReplica::new(SEGMENT, SEED).encode_request()).await;
        ClosedReplica::decode_answer(&answer.unwrap()).unwrap()
    }
}

async fn open_tier(dir: &Path, disk: &Arc<GatedDisk>) -> HotTier {
    let lineage = Lineage { node: NodeId(2), ..Lineage::default() };
    let replication = Some(Arc::new(TestCluster::default()).options(2));
    let options = HotOptions { lineage, replication, intercept: Some(disk.clone()), ..options(dir) };
    HotTier::open_with(options, Arc::new(MemoryMap::default())).await.unwrap()
}

fn header(segment: SegmentId) -> SegmentHeader {
    let new = NewSegment { id: segment, seed: SEED, created: Timestamp(1_000) };
    SegmentHeader::of(&new, SegmentClass::Small, &Identity::default())
}

fn open_request(header: &SegmentHeader) -> Bytes {
    let header = Bytes::copy_from_slice(&header.encode());
    OpenReplica { header, is_background: false }.encode_request()
}

fn frames() -> (mpsc::UnboundedSender<io::Result<Bytes>>, ReplicaBytes) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let pieces = stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<_>| async move {
        let piece = receiver.recv().await?;
        Some((piece, receiver))
    });
    (sender, pieces.boxed())
}

/// The stream of the writer to a follower.
struct WriterStream {
    frames: mpsc::UnboundedSender<io::Result<Bytes>>,
    answers: ReplicaBytes,
    end: u64,
    /// All records that were sent.
    records: Vec<u8>,
}

impl WriterStream {
    /// Sends a record in a frame.
    fn send(&mut self, length: usize) {
        let record = record(self.end, length);
        self.send_frame(self.end, &record);
        self.end += record.len() as u64;
        self.records.extend(record);
    }

    fn send_frame(&self, offset: u64, payload: &[u8]) {
        let payload = Bytes::copy_from_slice(payload);
        let head = AppendHead::of(offset, std::slice::from_ref(&payload)).encode();
        self.frames.send(Ok(Bytes::copy_from_slice(&head))).unwrap();
        self.frames.send(Ok(payload)).unwrap();
    }

    /// The next synced length.
    async fn length(&mut self) -> io::Result<u64> {
        let answer = self.answers.next().await.expect("the answers ended")?;
        Ok(u64::from_le_bytes(answer[..].try_into().unwrap()))
    }

    /// Waits until everything that was sent is synced.
    async fn all_synced(&mut self) {
        while self.length().await.unwrap() < self.end {}
    }

    /// Waits for the fault of the replica.
    async fn fault(&mut self) -> String {
        loop {
            if let Err(fault) = self.length().await {
                return fault.to_string();
            }
        }
    }

    fn has_answer(&mut self) -> bool {
        self.answers.next().now_or_never().is_some()
    }
}

/// A record at `offset` of the segment.
fn record(offset: u64, length: usize) -> Vec<u8> {
    record_of(SEGMENT, SEED, offset, length)
}

fn record_of(segment: SegmentId, seed: SegmentSeed, offset: u64, length: usize) -> Vec<u8> {
    let place = RecordAddress { segment, seed, offset };
    let owner = RecordOwner {
        bucket: BucketId(1),
        key: ObjectKey::new("key").unwrap(),
        body: BodyId(1),
        part: None,
        offset: 0,
        written: Timestamp(1_000),
    };
    let (payload, mut bytes) = (Payload::raw(Bytes::from(bytes_of(offset, length))), Vec::new());
    encode_head(place, &owner, &payload, None, &mut bytes);
    bytes.extend_from_slice(&payload.stored);
    bytes
}

async fn until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the state is not reached");
        sleep(Duration::from_millis(2)).await;
    }
}

const fn whole(length: u64) -> ClosedReplica {
    ClosedReplica { has_file: true, length, damaged_bytes: 0, uncertain_bytes: 0 }
}

/// Bytes up to the last one that is not zero.
fn nonzero_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_are_acknowledged_after_the_sync_and_space_and_flash_are_charged() {
    let follower = FollowerNode::new().await;
    let mut stream = follower.open().await.unwrap();
    follower.disk.set_closed(true);
    stream.send(3000);
    until(|| follower.disk.waiting() == 1).await;
    assert_eq!(follower.bytes().len() as u64, stream.end, "it is written");
    assert!(!stream.has_answer(), "it is not synced");
    follower.disk.set_closed(false);
    stream.all_synced().await;
    let expected = [&header(SEGMENT).encode()[..], &stream.records[..]].concat();
    assert!(follower.bytes() == expected);
    let bytes = stream.records.len() as u64;
    assert_eq!(follower.tier.metrics().used_bytes, bytes);
    assert_eq!(follower.tier.flash().written()[0].1, bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_segment_of_a_single_body_is_written_in_blocks_and_trimmed_at_the_end_of_its_stream() {
    let own = SegmentHeader { class: SegmentClass::Own, ..header(SEGMENT) };
    for is_closed in [true, false] {
        let follower = FollowerNode::new().await;
        let mut stream = follower.open_of(&own).await.unwrap();
        for lengths in [&[1000][..], &[1 << 20; 3], &[70]] {
            lengths.iter().for_each(|length| stream.send(*length));
            stream.all_synced().await;
            let bytes = follower.bytes();
            assert_eq!(bytes.len() as u64, stream.end.next_multiple_of(4096), "whole blocks");
            let (file, padding) = bytes.split_at(stream.end as usize);
            assert!(file == [&own.encode()[..], &stream.records[..]].concat());
            assert!(padding.iter().all(|byte| *byte == 0));
        }
        if is_closed {
            assert_eq!(follower.close().await, whole(stream.end), "padding is not uncertain");
            continue;
        }
        let (unused, _) = frames();
        drop(std::mem::replace(&mut stream.frames, unused));
        assert!(stream.answers.next().await.is_none());
        assert_eq!(follower.bytes().len() as u64, stream.end);
        assert_eq!(follower.close().await, whole(stream.end));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_without_direct_io_is_written_through_the_page_cache() {
    let follower = FollowerNode::new().await;
    let own = SegmentHeader { class: SegmentClass::Own, ..header(SEGMENT) };
    let mut stream = follower.open_of(&own).await.unwrap();
    follower.disk.fail_with(FileCall::Write, EINVAL);
    for length in [5000, 300_000] {
        stream.send(length);
        stream.all_synced().await;
        assert!(follower.bytes() == [&own.encode()[..], &stream.records[..]].concat());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_arrive_during_a_sync_are_the_next_batch() {
    let follower = FollowerNode::new().await;
    let mut stream = follower.open().await.unwrap();
    follower.disk.set_closed(true);
    stream.send(100);
    until(|| follower.disk.waiting() == 1).await;
    for length in [2000, 1, 60_000] {
        stream.send(length);
    }
    follower.disk.set_closed(false);
    stream.all_synced().await;
    assert_eq!(follower.disk.writes(), 2, "one write for all that arrived");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_has_a_bounded_number_of_bytes_in_memory() {
    const PIECE: usize = 1 << 20;
    let follower = FollowerNode::new().await;
    follower.disk.set_closed(true);
    let taken = Arc::new(AtomicUsize::new(0));
    let (count, mut offset) = (taken.clone(), SEGMENT_HEADER_BYTES);
    // More than the bound, however the frames are taken.
    let pieces = (0..20).map(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let payload = [Bytes::from(vec![7; PIECE])];
        let head = AppendHead::of(offset, &payload).encode();
        offset += PIECE as u64;
        Ok(Bytes::from([&head[..], &payload[0][..]].concat()))
    });
    let frames = stream::iter(pieces).boxed();
    let answers = follower.tier.open_replica(WRITER, &open_request(&header(SEGMENT)), frames).await.unwrap();
    until(|| follower.disk.waiting() == 1 && taken.load(Ordering::SeqCst) >= 8).await;
    // Time for reads that there must not be.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(taken.load(Ordering::SeqCst), 8);
    follower.disk.set_closed(false);
    let last = answers.map(Result::unwrap).collect::<Vec<_>>().await.pop().unwrap();
    assert_eq!(u64::from_le_bytes(last[..].try_into().unwrap()), 20 * PIECE as u64 + SEGMENT_HEADER_BYTES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clean_end_of_the_frames_ends_the_answers_and_the_file_is_complete() {
    let follower = FollowerNode::new().await;
    let mut stream = follower.open().await.unwrap();
    stream.send(500);
    let (unused, _) = frames();
    drop(std::mem::replace(&mut stream.frames, unused));
    assert_eq!(stream.length().await.unwrap(), stream.end);
    assert!(stream.answers.next().await.is_none());
    assert_eq!(follower.close().await, whole(stream.end));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_at_another_offset_or_a_damaged_one_ends_the_replica() {
    for is_damaged in [false, true] {
        let follower = FollowerNode::new().await;
        let mut stream = follower.open().await.unwrap();
        stream.send(500);
        stream.all_synced().await;
        let (before, writes) = (follower.bytes(), follower.disk.writes());
        if is_damaged {
            stream.frames.send(Ok(Bytes::from_static(&[7; 24]))).unwrap();
        } else {
            stream.send_frame(stream.end + 1, b"later");
        }
        let fault = stream.fault().await;
        let expected = if is_damaged { "damaged" } else { "and the file ends at" };
        assert!(fault.contains(expected), "{fault}");
        // The task is gone, so this is never read.
        drop(stream.frames.send(Ok(Bytes::new())));
        assert_eq!((follower.close().await, follower.disk.writes()), (whole(stream.end), writes));
        assert!(follower.bytes() == before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_opened_once_also_over_a_restart() {
    let mut follower = FollowerNode::new().await;
    let mut stream = follower.open().await.unwrap();
    stream.send(500);
    stream.all_synced().await;
    assert_eq!(follower.open().await.err(), Some(ReplicaRefused::Exists(SEGMENT)));
    // The right is in the stream, and not in the file.
    let before = follower.bytes();
    std::fs::remove_file(follower.path()).unwrap();
    assert_eq!(follower.open().await.err(), Some(ReplicaRefused::Known(SEGMENT)));
    follower.write_file(&before);
    follower.restart().await;
    assert_eq!(follower.open().await.err(), Some(ReplicaRefused::Exists(SEGMENT)));
    assert_eq!(follower.close().await, whole(stream.end));
    assert!(follower.bytes() == before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_call_ends_the_replica_and_the_file_is_read_at_the_close() {
    for call in [FileCall::Write, FileCall::Sync] {
        let follower = FollowerNode::new().await;
        let mut stream = follower.open().await.unwrap();
        stream.send(500);
        stream.all_synced().await;
        let (end, used) = (stream.end, follower.tier.metrics().used_bytes);
        follower.disk.fail(call);
        stream.send(700);
        assert!(stream.fault().await.contains("os error 5"), "{call:?}");
        assert_eq!(follower.tier.metrics().used_bytes, used, "the space is given back");
        // With a failed sync the record is there, and the close syncs it.
        let expected = if call == FileCall::Write { end } else { stream.end };
        assert_eq!(follower.close().await, whole(expected), "{call:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_waits_for_the_write_in_progress_and_nothing_is_written_afterwards() {
    let follower = FollowerNode::new().await;
    let mut stream = follower.open().await.unwrap();
    follower.disk.set_closed(true);
    stream.send(500);
    until(|| follower.disk.waiting() == 1).await;
    let end = stream.end;
    stream.send(700);
    let mut close = Box::pin(follower.close());
    assert!(close.as_mut().now_or_never().is_none(), "a sync is in progress");
    follower.disk.set_closed(false);
    assert_eq!(close.await, whole(end));
    let (before, writes) = (follower.bytes(), follower.disk.writes());
    assert_eq!(before.len() as u64, end);
    assert!(stream.fault().await.contains("the replica was closed"));
    assert_eq!((follower.close().await, follower.disk.writes()), (whole(end), writes), "the same answer");
    assert!(follower.bytes() == before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_arrived_in_part_does_not_count() {
    let mut follower = FollowerNode::new().await;
    let mut stream = follower.open().await.unwrap();
    stream.send(500);
    let half = &record(stream.end, 900)[..400];
    stream.send_frame(stream.end, half);
    while stream.length().await.unwrap() < stream.end + 400 {}
    let expected = ClosedReplica { uncertain_bytes: nonzero_bytes(half), ..whole(stream.end) };
    assert_eq!(follower.close().await, expected);
    follower.restart().await;
    assert_eq!(follower.close().await, expected, "the same after a restart");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_without_a_file_prevents_that_the_replica_is_opened() {
    let mut follower = FollowerNode::new().await;
    let none = ClosedReplica::default();
    for _ in 0..2 {
        assert_eq!(follower.close().await, none);
        assert_eq!(follower.bytes(), b"");
        assert_eq!(follower.open().await.err(), Some(ReplicaRefused::Exists(SEGMENT)));
        follower.restart().await;
        assert_eq!(follower.bytes(), b"", "the marker stays");
        assert_eq!(follower.open().await.err(), Some(ReplicaRefused::Exists(SEGMENT)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_that_is_not_durable_is_no_answer() {
    for call in [FileCall::SyncNew, FileCall::SyncDirectory] {
        let follower = FollowerNode::new().await;
        follower.disk.fail(call);
        let request = CloseReplica::new(SEGMENT, SEED).encode_request();
        let failed = follower.tier.close_replica(&request).await.unwrap_err();
        assert!(matches!(failed, ReplicaRefused::Disk(_)), "{failed}");
        assert!(!follower.close().await.has_file);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_close_of_a_torn_file_states_its_last_whole_record() {
    let header = header(SEGMENT).encode();
    let first = record(SEGMENT_HEADER_BYTES, 500);
    let second_at = SEGMENT_HEADER_BYTES + first.len() as u64;
    let second = record(second_at, 900);
    let end = second_at + second.len() as u64;
    let damage = |record: &[u8]| {
        let mut damaged = record.to_vec();
        damaged[300] ^= 1;
        damaged
    };
    let mut bad_header = header;
    bad_header[20] ^= 1;
    let (torn, cut) = (&second[..second.len() - 1], &second[..second.len() - 100]);
    let (bad_end, zeros) = (damage(&second), [0; 5000]);
    let damaged = |length, damaged_bytes| ClosedReplica { damaged_bytes, ..whole(length) };
    let uncertain = |tail: &[u8]| ClosedReplica { uncertain_bytes: nonzero_bytes(tail), ..whole(second_at) };
    let cases = [
        ([&header[..], &first[..], torn].concat(), uncertain(torn)),
        ([&header[..], &first[..], &bad_end[..]].concat(), uncertain(&second)),
        ([&header[..], &first[..], cut, &zeros[..]].concat(), uncertain(cut)),
        ([&header[..], &first[..], &zeros[..]].concat(), whole(second_at)),
        ([&header[..], &damage(&first)[..], &second[..]].concat(), damaged(end, first.len() as u64)),
        ([&bad_header[..], &first[..]].concat(), damaged(second_at, SEGMENT_HEADER_BYTES)),
        (header.to_vec(), whole(SEGMENT_HEADER_BYTES)),
        (header[..40].to_vec(), ClosedReplica::default()),
    ];
    for (bytes, expected) in cases {
        let follower = FollowerNode::new().await;
        follower.write_file(&bytes);
        assert_eq!(follower.close().await, expected);
        assert_eq!(follower.open().await.err(), Some(ReplicaRefused::Exists(SEGMENT)));
        assert!(follower.bytes() == bytes, "the file stays as it is");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_requests_are_refused() {
    let follower = FollowerNode::new().await;
    let refusal = async |request: Bytes| {
        let (_sender, received) = frames();
        follower.tier.open_replica(WRITER, &request, received).await.err()
    };
    assert!(matches!(refusal(Bytes::new()).await, Some(ReplicaRefused::Malformed(_))));
    let other = SegmentHeader { cluster: ClusterId(9), ..header(SEGMENT) };
    assert_eq!(refusal(open_request(&other)).await, Some(ReplicaRefused::OtherTimeline(SEGMENT)));
    assert!(!follower.path().exists());
    let mut open = Vec::new();
    for segment in 0..64 {
        open.push(follower.open_segment(SegmentId(SEGMENT.0 + 1 + segment)).await.unwrap());
    }
    assert_eq!(follower.open().await.err(), Some(ReplicaRefused::Busy));
    open.pop();
    open.push(follower.open().await.unwrap());
    follower.tier.inner.compaction.stop();
    assert_eq!(refusal(open_request(&header(SEGMENT))).await, Some(ReplicaRefused::Stopping));
    let close = CloseReplica::new(SEGMENT, SEED).encode_request();
    assert_eq!(follower.tier.close_replica(&close).await, Err(ReplicaRefused::Stopping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_the_tier_and_a_writer_that_gives_up_end_the_replica() {
    let follower = FollowerNode::new().await;
    let mut stream = follower.open().await.unwrap();
    follower.tier.clone().shutdown().await;
    assert_eq!(stream.fault().await, "the node stops");

    let follower = FollowerNode::new().await;
    let stream = follower.open().await.unwrap();
    drop(stream.answers);
    until(|| stream.frames.is_closed()).await;
    assert_eq!(follower.close().await, whole(SEGMENT_HEADER_BYTES));
}

#[tokio::test]
async fn files_of_segments_without_a_record_stay_on_every_node_with_peers() {
    let cluster = Arc::new(TestCluster::default());
    for (node, has_peers) in [(1, false), (1, true), (2, true)] {
        let own = Identity { cluster: ClusterId(1), node: NodeName(node), incarnation: Incarnation(3) };
        let lineage = Lineage { own, node: NodeId(node), marking: true, ..Lineage::default() };
        let dir = tempfile::tempdir().unwrap();
        let open = async || {
            let (lineage, replication) = (lineage.clone(), has_peers.then(|| cluster.options(node)));
            let options = HotOptions { lineage, replication, ..options(dir.path()) };
            HotTier::open_with(options, Arc::new(MemoryMap::default())).await.unwrap()
        };
        open().await.shutdown().await;
        let path = |at: u64| dir.path().join("segments").join(segment_file_name(SegmentId(SEGMENT.0 + at)));
        let header = |at: u64, incarnation| {
            let of = header(SegmentId(SEGMENT.0 + at));
            SegmentHeader { cluster: own.cluster, incarnation, ..of }.encode()
        };
        std::fs::write(path(0), header(0, own.incarnation)).unwrap();
        std::fs::write(path(1), b"").unwrap();
        std::fs::write(path(2), header(2, Incarnation(4))).unwrap();
        let tier = open().await;
        assert_eq!([0, 1, 2].map(|at| path(at).exists()), [has_peers, has_peers, false], "node {node}");
        assert_eq!(tier.stray_files().len(), if has_peers { 1 } else { 3 });
        tier.shutdown().await;
    }
}

/// A follower with the rows of the cluster, which has no drivers, and a bench with the catalogue.
struct RecordedFollower {
    bench: Bench,
    tier: HotTier,
}

impl RecordedFollower {
    async fn new() -> Self {
        let bench = Bench::new().await;
        bench.catalogue.raise_cluster_version(REPLICATION_CLUSTER_VERSION).await.unwrap();
        let lineage = Lineage { node: NodeId(2), ..Lineage::default() };
        let interval = Duration::from_secs(3600);
        let compaction = CompactionSettings { interval, ..CompactionSettings::default() };
        let options = HotOptions { lineage, compaction, ..options(&bench.dir.path().join("node-2")) };
        let tier = HotTier::open(options, bench.catalogue.clone()).await.unwrap();
        Self { bench, tier }
    }

    /// Creates a segment that node 1 writes.
    async fn create(&self, followers: &[u64]) -> SegmentRecord {
        let follower =
            |node: &u64| Replica { node: *node, location: "segments".into(), ..Replica::default() };
        let create = CreateSegment {
            class: SegmentClass::Small as i32,
            node: WRITER.0,
            location: "segments".into(),
            created_ms: 1_000,
            stamp: SEED.stamp.0,
            followers: followers.iter().map(follower).collect(),
            write_quorum: 1,
            ..CreateSegment::default()
        };
        let created = self.bench.catalogue.propose(Command::from(Change::CreateSegment(create))).await;
        let Ok(Reply::Segment(record)) = created else { panic!("{created:?}") };
        record
    }

    async fn open(
        &self,
        from: NodeId,
        record: &SegmentRecord,
        received: ReplicaBytes,
    ) -> Result<ReplicaBytes, ReplicaRefused> {
        let (id, seed, created) = (record.segment_id(), record.seed(), Timestamp(record.created_ms));
        let new = NewSegment { id, seed, created };
        let header = SegmentHeader::of(&new, SegmentClass::Small, &Identity::default());
        self.tier.open_replica(from, &open_request(&header), received).await
    }

    async fn close(self) {
        self.tier.shutdown().await;
        self.bench.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_opened_only_as_its_record_names_it() {
    let follower = RecordedFollower::new().await;
    let refusal =
        async |from: u64, record: &SegmentRecord| follower.open(NodeId(from), record, frames().1).await.err();
    let record = follower.create(&[2]).await;
    let segment = record.segment_id();
    assert_eq!(refusal(3, &record).await, Some(ReplicaRefused::NotFollower(segment)));
    let other = SegmentRecord { stamp: record.stamp ^ 1, ..record.clone() };
    assert_eq!(refusal(1, &other).await, Some(ReplicaRefused::NotFollower(segment)));
    let elsewhere = follower.create(&[3]).await;
    let refused = ReplicaRefused::NotFollower(elsewhere.segment_id());
    assert_eq!(refusal(1, &elsewhere).await, Some(refused));
    assert_eq!(refusal(1, &record).await, None);
    let sealed = follower.create(&[2]).await;
    follower.bench.catalogue.seal_segment(sealed.segment_id(), 0, Vec::new()).await.unwrap();
    assert_eq!(refusal(1, &sealed).await, Some(ReplicaRefused::NotOpen(sealed.segment_id())));
    follower.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_this_process_is_read_from_its_marked_length() {
    let follower = RecordedFollower::new().await;
    let record = follower.create(&[2]).await;
    let (segment, (sender, received)) = (record.segment_id(), frames());
    let answers = follower.open(WRITER, &record, received).await.unwrap();
    let first = record_of(segment, record.seed(), SEGMENT_HEADER_BYTES, 500);
    let second_at = SEGMENT_HEADER_BYTES + first.len() as u64;
    let second = record_of(segment, record.seed(), second_at, 900);
    let mut stream = WriterStream { frames: sender, answers, end: SEGMENT_HEADER_BYTES, records: Vec::new() };
    for bytes in [first, second] {
        stream.send_frame(stream.end, &bytes);
        stream.end += bytes.len() as u64;
    }
    stream.all_synced().await;
    follower.bench.catalogue.mark_segment(segment, second_at).await.unwrap();
    let path = follower.bench.dir.path().join("node-2/segments").join(segment_file_name(segment));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[300] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let request = CloseReplica::new(segment, record.seed()).encode_request();
    let answer = follower.tier.close_replica(&request).await.unwrap();
    assert_eq!(ClosedReplica::decode_answer(&answer), Ok(whole(stream.end)), "the damage is not read");
    follower.close().await;
}
