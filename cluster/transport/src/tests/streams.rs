//! Tests of streams: the order of heads and bodies, flow control, and ends that are none.

use super::nodes::{
    BROKEN, ECHO, LONG, REFUSE, SINK, SOURCE, TestCluster, TransportNode, WAIT, body_of, empty_body, late,
    read, take, until, zeros,
};
use crate::body::SentBody;
use crate::dial::dial_address;
use crate::wire::{NOT_UNDERSTOOD, PeerTarget, frame_head};
use crate::{CallError, Channel, NotSent, PeerBody, PeerBodyError, StreamAnswer, StreamClass};
use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_common::limits::{
    PEER_APPEND_STREAMS_MAX, PEER_REQUEST_STREAMS_MAX, PEER_SEND_BUFFER_BYTES, PEER_STREAM_HEAD_BYTES_MAX,
    PEER_STREAM_WINDOW_BYTES,
};
use mlgw_common::time::timeout;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_util::task::AbortOnDropHandle;

const TWO: NodeId = NodeId(2);
const MIB: usize = 1 << 20;

/// Bytes that may be in flight without a reader: the window, the sender's buffer, and some pieces.
const IN_FLIGHT_MAX: usize = PEER_STREAM_WINDOW_BYTES as usize + PEER_SEND_BUFFER_BYTES + 3 * (64 << 10);

async fn stream(one: &TransportNode, service: u16, body: PeerBody) -> Result<StreamAnswer, CallError> {
    let head = Bytes::from_static(b"head");
    one.transport.stream(TWO, StreamClass::Request, service, head, body, late()).await
}

/// Counter of streams of a node to node 2.
fn streams_in_flight(one: &TransportNode) -> u64 {
    one.transport.counters()[Channel::Bulk.index()].streams_in_flight
}

#[tokio::test]
async fn heads_and_bodies_go_both_ways() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    for bytes in [0, 1, 3 * MIB + 1] {
        let answer = stream(&one, ECHO, zeros(bytes, Arc::default())).await.unwrap();
        assert_eq!(&answer.head[..], b"re: head");
        assert_eq!(read(answer.body).await.unwrap().len(), bytes);
    }
    assert_eq!(two.services.calls.lock().as_slice(), [NodeId(1); 3]);
    until(|| streams_in_flight(&one) == 0).await;
    let longest = Bytes::from(vec![b'h'; PEER_STREAM_HEAD_BYTES_MAX - 4]);
    let answer = one.transport.stream(TWO, StreamClass::Transfer, ECHO, longest, empty_body(), late()).await;
    assert_eq!(answer.unwrap().head.len(), PEER_STREAM_HEAD_BYTES_MAX);
}

#[tokio::test]
async fn the_body_is_not_read_before_the_peer_accepted() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let taken = Arc::new(AtomicUsize::new(0));
    let body = zeros(MIB, taken.clone());
    let transport = one.transport.clone();
    let opening = tokio::spawn(async move {
        transport.stream(TWO, StreamClass::Request, WAIT, Bytes::new(), body, late()).await
    });
    take(&two.services.started).await;
    // Round trips on the same connection: enough for a body that is sent too early.
    for _ in 0..20 {
        one.transport.call(TWO, Channel::Bulk, ECHO, Bytes::new(), late()).await.unwrap();
    }
    assert_eq!(taken.load(Ordering::SeqCst), 0);
    two.services.gate.add_permits(1);
    let answer = opening.await.unwrap().unwrap();
    assert_eq!(read(answer.body).await.unwrap().len(), MIB);
    assert_eq!(taken.load(Ordering::SeqCst), MIB);
}

#[tokio::test]
async fn the_body_of_a_refused_stream_is_never_read() {
    let cluster = TestCluster::new();
    let [one, _two] = cluster.pair().await;
    let taken = Arc::new(AtomicUsize::new(0));
    let refused = stream(&one, REFUSE, zeros(MIB, taken.clone())).await.unwrap_err();
    let CallError::Refused { node: TWO, refusal } = refused else { panic!("{refused}") };
    assert_eq!(refusal.code, 7);
    for _ in 0..20 {
        one.transport.call(TWO, Channel::Bulk, ECHO, Bytes::new(), late()).await.unwrap();
    }
    assert_eq!(taken.load(Ordering::SeqCst), 0);
    until(|| streams_in_flight(&one) == 0).await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_stops_the_writer_and_no_other_stream() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let (bytes, taken) = (64 * MIB, Arc::new(AtomicUsize::new(0)));
    let answer = stream(&one, SINK, zeros(bytes, taken.clone())).await.unwrap();
    // Sixteen further megabytes pass on the same connection meanwhile.
    for _ in 0..16 {
        let echo = stream(&one, ECHO, zeros(MIB, Arc::default())).await.unwrap();
        assert_eq!(read(echo.body).await.unwrap().len(), MIB);
    }
    let taken_unread = taken.load(Ordering::SeqCst);
    assert!(taken_unread > 0 && taken_unread <= IN_FLIGHT_MAX, "{taken_unread} bytes");
    two.services.gate.add_permits(1 << 20);
    take(&two.services.sunk_end).await;
    assert_eq!(*two.services.sunk.lock(), Some(Ok(bytes)));
    assert_eq!(read(answer.body).await.unwrap().len(), 0);
}

#[tokio::test]
async fn an_answer_that_is_not_read_stops_its_service() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    two.services.source_bytes.store(64 * MIB, Ordering::SeqCst);
    let answer = stream(&one, SOURCE, empty_body()).await.unwrap();
    for _ in 0..16 {
        let echo = stream(&one, ECHO, zeros(MIB, Arc::default())).await.unwrap();
        assert_eq!(read(echo.body).await.unwrap().len(), MIB);
    }
    let produced = two.services.produced.load(Ordering::SeqCst);
    assert!(produced > 0 && produced <= IN_FLIGHT_MAX, "{produced} bytes");
    assert_eq!(read(answer.body).await.unwrap().len(), 64 * MIB);
}

/// Streams that end early are no errors of the connection, however many there are.
#[tokio::test]
async fn a_connection_outlives_any_number_of_streams_that_end_before_their_bodies() {
    const WRITERS: usize = 32;
    const STREAMS: usize = 100;
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    two.services.source_bytes.store(10, Ordering::SeqCst);
    for is_empty in [true, false] {
        // The service answers without reading the body.
        let body = || if is_empty { empty_body() } else { zeros(3, Arc::default()) };
        let write = async || {
            for at in 0..STREAMS {
                let answer = stream(&one, SOURCE, body()).await.unwrap_or_else(|error| panic!("{error}"));
                if at % 2 == 0 {
                    assert_eq!(read(answer.body).await.unwrap().len(), 10);
                }
            }
        };
        futures_util::future::join_all((0..WRITERS).map(|_| write())).await;
    }
    until(|| streams_in_flight(&one) == 0).await;
}

#[tokio::test]
async fn an_answer_that_is_given_up_cuts_the_body_of_the_request() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    // An answer that never ends: it echoes a body that never ends.
    let endless = || http_body_util::StreamBody::new(futures_util::stream::pending()).boxed_unsync();
    two.services.source_bytes.store(64 * MIB, Ordering::SeqCst);
    let answer = stream(&one, ECHO, endless()).await.unwrap();
    drop(answer);
    until(|| streams_in_flight(&one) == 0).await;
    // The service that reads the body learns of it.
    let answer = stream(&one, SINK, endless()).await.unwrap();
    two.services.gate.add_permits(10);
    drop(answer);
    take(&two.services.sunk_end).await;
    let sunk = two.services.sunk.lock().clone();
    assert!(matches!(sunk, Some(Err(PeerBodyError::Cut(_)))), "{sunk:?}");
}

#[tokio::test]
async fn a_body_that_fails_reaches_the_other_side_as_cut() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let mut answer = stream(&one, BROKEN, empty_body()).await.unwrap();
    let piece = answer.body.frame().await.unwrap().unwrap();
    assert_eq!(&piece.data_ref().unwrap()[..], b"piece");
    two.services.gate.add_permits(1);
    let cut = read(answer.body).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");

    let frames = vec![
        Ok(http_body::Frame::data(Bytes::from_static(b"a piece"))),
        Err(PeerBodyError::Failed("the client is gone".to_owned())),
    ];
    let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
    two.services.gate.add_permits(10);
    let _answer = stream(&one, SINK, body).await.unwrap();
    take(&two.services.sunk_end).await;
    let sunk = two.services.sunk.lock().clone();
    assert!(matches!(sunk, Some(Err(PeerBodyError::Cut(_)))), "{sunk:?}");
}

#[tokio::test]
async fn a_peer_that_dies_cuts_bodies_in_both_directions() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    two.services.source_bytes.store(64 * MIB, Ordering::SeqCst);
    let mut answer = stream(&one, SOURCE, empty_body()).await.unwrap();
    answer.body.frame().await.unwrap().unwrap();
    let endless = http_body_util::StreamBody::new(futures_util::stream::pending()).boxed_unsync();
    let _sinking = stream(&one, SINK, endless).await.unwrap();
    two.services.gate.add_permits(10);
    one.transport.stop().await;
    let cut = read(answer.body).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");
    take(&two.services.sunk_end).await;
    let sunk = two.services.sunk.lock().clone();
    assert!(matches!(sunk, Some(Err(PeerBodyError::Cut(_)))), "{sunk:?}");
}

#[tokio::test]
async fn forwarded_requests_leave_the_streams_of_transfers() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let mut open = Vec::new();
    for _ in 0..PEER_REQUEST_STREAMS_MAX {
        let endless = http_body_util::StreamBody::new(futures_util::stream::pending()).boxed_unsync();
        open.push(stream(&one, SINK, endless).await.unwrap());
        // The answer of SINK ends at once; the body of the request holds the permit.
    }
    // Without a wait: the deadline is late.
    let busy = one.transport.stream(TWO, StreamClass::Request, ECHO, Bytes::new(), empty_body(), late());
    let busy = busy.now_or_never().expect("it waits for a permit");
    let not_sent = CallError::NotSent { node: TWO, reason: NotSent::Busy(Channel::Bulk) };
    assert_eq!(busy.unwrap_err(), not_sent);
    let body = body_of("snapshot");
    let answer = one.transport.stream(TWO, StreamClass::Transfer, ECHO, Bytes::new(), body, late()).await;
    assert_eq!(read(answer.unwrap().body).await.unwrap(), b"snapshot");
    one.transport.call(TWO, Channel::Bulk, ECHO, Bytes::new(), late()).await.unwrap();
    drop(open);
    two.services.gate.add_permits(PEER_REQUEST_STREAMS_MAX);
    for _ in 0..PEER_REQUEST_STREAMS_MAX {
        take(&two.services.sunk_end).await;
    }
    until(|| streams_in_flight(&one) == 0).await;
    let answer = timeout(LONG, stream(&one, ECHO, body_of("next"))).await.unwrap().unwrap();
    assert_eq!(read(answer.body).await.unwrap(), b"next");
}

/// Opens a stream of appends whose body is not read.
async fn open_append(one: &TransportNode, body: PeerBody) -> Result<StreamAnswer, CallError> {
    one.transport.stream(TWO, StreamClass::Append, SINK, Bytes::new(), body, late()).await
}

#[tokio::test]
async fn appends_have_the_connection_of_log_entries_and_a_limit_of_their_own() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let endless = || http_body_util::StreamBody::new(futures_util::stream::pending()).boxed_unsync();
    let mut open = Vec::new();
    for _ in 0..PEER_APPEND_STREAMS_MAX {
        open.push(open_append(&one, endless()).await.unwrap());
    }
    let log_streams = || one.transport.counters()[Channel::Log.index()].streams_in_flight;
    assert_eq!((log_streams(), streams_in_flight(&one)), (PEER_APPEND_STREAMS_MAX as u64, 0));
    // Without a wait: the deadline is late.
    let busy = open_append(&one, empty_body()).now_or_never().expect("it waits for a permit");
    let not_sent = CallError::NotSent { node: TWO, reason: NotSent::Busy(Channel::Log) };
    assert_eq!(busy.unwrap_err(), not_sent);
    let body = body_of("snapshot");
    let answer = one.transport.stream(TWO, StreamClass::Transfer, ECHO, Bytes::new(), body, late()).await;
    assert_eq!(read(answer.unwrap().body).await.unwrap(), b"snapshot");
    drop(open);
    two.services.gate.add_permits(2 * PEER_APPEND_STREAMS_MAX);
    until(|| log_streams() == 0).await;
    open_append(&one, empty_body()).await.unwrap();
}

#[tokio::test]
async fn appends_that_nobody_reads_stop_no_log_entries() {
    let cluster = TestCluster::new();
    let [one, _two] = cluster.pair().await;
    let (mut open, mut all_taken) = (Vec::new(), Vec::new());
    for _ in 0..PEER_APPEND_STREAMS_MAX {
        let taken = Arc::new(AtomicUsize::new(0));
        let body = zeros(64 * MIB, taken.clone());
        let answer = one.transport.stream(TWO, StreamClass::Append, BROKEN, Bytes::new(), body, late()).await;
        // The body is sent while the answer is read, which does not end.
        open.push(AbortOnDropHandle::new(tokio::spawn(read(answer.unwrap().body))));
        all_taken.push(taken);
    }
    let window = PEER_STREAM_WINDOW_BYTES as usize;
    until(|| all_taken.iter().all(|taken| taken.load(Ordering::SeqCst) >= window)).await;
    for _ in 0..4 {
        let entries = Bytes::from(vec![7; 4 * MIB]);
        let call = one.transport.call(TWO, Channel::Log, ECHO, entries.clone(), late());
        assert_eq!(timeout(LONG, call).await.unwrap().unwrap(), entries);
    }
    let taken: Vec<usize> = all_taken.iter().map(|taken| taken.load(Ordering::SeqCst)).collect();
    assert!(taken.iter().all(|taken| *taken < 64 * MIB), "what the kernel buffers: {taken:?}");
    assert!(open.iter().all(|reading| !reading.is_finished()), "no stream has ended");
}

#[tokio::test]
async fn a_stream_on_the_connection_of_another_class_is_not_served() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    for channel in Channel::ALL {
        let dialed = dial_address(&one.transport.state, Some(TWO), channel, &two.address).await.unwrap();
        for class in StreamClass::ALL.into_iter().filter(|class| class.channel() != channel) {
            let target = PeerTarget::Stream { class, service: ECHO };
            let request = target.request(SentBody::whole(frame_head(b"head")), late());
            let response = dialed.sender.clone().send_request(request).await.unwrap();
            assert_eq!(response.status(), NOT_UNDERSTOOD, "{class:?} on {channel}");
        }
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_is_not_sent() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let (bytes, limit) = (PEER_STREAM_HEAD_BYTES_MAX + 1, PEER_STREAM_HEAD_BYTES_MAX);
    let head = Bytes::from(vec![0; bytes]);
    let refused = one.transport.stream(TWO, StreamClass::Request, ECHO, head, empty_body(), late()).await;
    let too_large = CallError::NotSent { node: TWO, reason: NotSent::TooLarge { bytes, limit } };
    assert_eq!(refused.unwrap_err(), too_large);
    assert_eq!(two.services.calls.lock().len(), 0);
}
