//! Tests of multiplexed connections: many requests at a time, long bodies, and the ends of requests and
//! connections.

use super::nodes::{
    BROKEN, ECHO, LONG, PANIC, REFUSE, SOURCE, TestCluster, TransportNode, WAIT, empty_body, late, read,
    take, until,
};
use crate::framed_io::FramedIo;
use crate::frames::{Frame, NUMBERED_BODY_BYTES_MAX, NumberedRequest, ReceivedFrames};
use crate::metered::{MeteredIo, StreamFacts};
use crate::multiplexed::{MultiplexedConnection, REQUESTS_MAX, SHARED_FROM};
use crate::rests::{KEPT_MAX, REST_OF_BODY, RestsOfBodies};
use crate::{CallError, Channel, PeerBodyError, StreamAnswer, UnknownOutcome};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_common::limits::PEER_REQUEST_STREAMS_MAX;
use mlgw_common::time::{Instant, sleep, timeout};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const TWO: NodeId = NodeId(2);
const HEAD: Bytes = Bytes::from_static(b"head");

fn multiplexed(node: &TransportNode) -> u64 {
    node.transport.counters().get(Channel::Bulk.index()).map_or(0, |counters| counters.multiplexed)
}

/// Number of requests that a node has sent on its multiplexed connection to node 2.
fn requests(one: &TransportNode) -> u32 {
    let opened = one.transport.state.peer(TWO).link(Channel::Bulk).opened();
    opened.and_then(|opened| opened.multiplexed.get()).map_or(0, |connection| connection.requests())
}

async fn stream(one: &TransportNode, service: u16) -> Result<StreamAnswer, CallError> {
    one.transport.read(TWO, service, HEAD, late()).await
}

/// The same in a task.
fn streaming(one: &TransportNode, service: u16) -> JoinHandle<Result<StreamAnswer, CallError>> {
    let transport = one.transport.clone();
    tokio::spawn(async move { transport.read(TWO, service, HEAD, late()).await })
}

/// Connects node 1 to node 2 by a multiplexed connection, and counts enough streams as in flight.
async fn connected(cluster: &TestCluster) -> [TransportNode; 2] {
    let [one, two] = cluster.pair().await;
    one.transport.call(TWO, Channel::Bulk, ECHO, Bytes::new(), late()).await.unwrap();
    let peer = one.transport.state.peer(TWO);
    stream(&one, ECHO).await.unwrap();
    assert_eq!(multiplexed(&one), 0, "few streams are in flight");
    peer.meter(Channel::Bulk).streams_in_flight.fetch_add(SHARED_FROM - 1, Ordering::Relaxed);
    stream(&one, ECHO).await.unwrap();
    until(|| multiplexed(&one) == 1 && multiplexed(&two) == 1).await;
    assert_eq!(requests(&one), 0, "it was made for later requests");
    for _ in 0..3 {
        take(&two.services.started).await;
    }
    [one, two]
}

#[tokio::test]
async fn requests_at_the_same_time_share_a_connection_and_are_answered_in_any_order() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let waiting: Vec<_> = (0..REQUESTS_MAX / 2).map(|_| streaming(&one, WAIT)).collect();
    for _ in &waiting {
        take(&two.services.started).await;
    }
    for _ in 0..3 {
        let answer = stream(&one, ECHO).await.unwrap();
        assert_eq!(&answer.head[..], b"re: head");
        assert_eq!(read(answer.body).await.unwrap(), b"");
    }
    two.services.gate.add_permits(waiting.len());
    for answer in waiting {
        assert_eq!(&answer.await.unwrap().unwrap().head[..], b"re: head");
    }
    assert_eq!(multiplexed(&one), 1);
    assert_eq!(one.transport.counters()[Channel::Bulk.index()].streams_in_flight, SHARED_FROM - 1);
    assert_eq!(requests(&one) as usize, REQUESTS_MAX / 2 + 3);
}

#[tokio::test]
async fn bodies_of_any_length_are_complete() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let most = NUMBERED_BODY_BYTES_MAX;
    for bytes in [0, 1, 5000, most - 1, most, most + 1, 2 * most, 3 << 20] {
        two.services.source_bytes.store(bytes, Ordering::SeqCst);
        for answer in [(); 8].map(|()| streaming(&one, SOURCE)) {
            let answer = answer.await.unwrap().unwrap();
            assert_eq!(&answer.head[..], b"re: head");
            assert_eq!(read(answer.body).await.unwrap().len(), bytes);
        }
    }
    assert_eq!(requests(&one), 8 * 8);
}

#[tokio::test]
async fn a_request_ends_alone_whatever_its_end() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    for _ in 0..2 {
        let CallError::Refused { refusal, .. } = stream(&one, REFUSE).await.unwrap_err() else { panic!() };
        assert_eq!((refusal.code, &refusal.message[..]), (7, "not today; come again"));
        let failed = UnknownOutcome::BadAnswer("its service failed".to_owned());
        let failed = CallError::Unknown { node: TWO, reason: failed };
        assert_eq!(stream(&one, PANIC).await.unwrap_err(), failed);
        // The body fails when its beginning was sent.
        let mut answer = stream(&one, BROKEN).await.unwrap();
        let piece = answer.body.frame().await.unwrap().unwrap();
        assert_eq!(&piece.data_ref().unwrap()[..], b"piece");
        two.services.gate.add_permits(1);
        let cut = read(answer.body).await.unwrap_err();
        assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");
        // It fails before.
        two.services.gate.add_permits(1);
        assert_eq!(stream(&one, BROKEN).await.unwrap_err(), failed);
    }
    assert_eq!((multiplexed(&one), requests(&one)), (1, 8));
}

#[tokio::test]
async fn a_request_that_is_given_up_is_dropped_and_one_without_an_answer_in_time_is_unknown() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let given_up = streaming(&one, WAIT);
    take(&two.services.started).await;
    given_up.abort();
    let soon = Instant::now() + Duration::from_millis(100);
    let late = one.transport.read(TWO, WAIT, HEAD, soon).await;
    assert_eq!(late.unwrap_err(), CallError::Unknown { node: TWO, reason: UnknownOutcome::Deadline });
    // The cancellations precede this request.
    stream(&one, ECHO).await.unwrap();
    two.services.gate.add_permits(2);
    let waits = streaming(&one, WAIT);
    waits.await.unwrap().unwrap();
    assert_eq!(two.services.gate.available_permits(), 1, "the other two have taken none");
    assert_eq!((multiplexed(&one), requests(&one)), (1, 4));
}

#[tokio::test]
async fn a_body_that_is_given_up_is_dropped() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    two.services.source_bytes.store(1 << 30, Ordering::SeqCst);
    drop(stream(&one, SOURCE).await.unwrap());
    two.services.source_bytes.store(1, Ordering::SeqCst);
    until(|| Arc::strong_count(&two.services.produced) == 1).await;
    assert!(two.services.produced.load(Ordering::SeqCst) < 1 << 29);
    read(stream(&one, SOURCE).await.unwrap().body).await.unwrap();
}

#[tokio::test]
async fn further_requests_than_a_connection_takes_use_others() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let waiting: Vec<_> = (0..REQUESTS_MAX + 5).map(|_| streaming(&one, WAIT)).collect();
    for _ in &waiting {
        take(&two.services.started).await;
    }
    assert_eq!(requests(&one) as usize, REQUESTS_MAX);
    two.services.gate.add_permits(waiting.len());
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn long_answers_and_many_requests_do_not_block_each_other() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    two.services.source_bytes.store(NUMBERED_BODY_BYTES_MAX, Ordering::SeqCst);
    // Each head fills the buffers of the sockets a little more, in both directions.
    let head = Bytes::from(vec![7; 40 << 10]);
    let sending = (0..4 * REQUESTS_MAX).map(|_| {
        let (transport, head) = (one.transport.clone(), head.clone());
        tokio::spawn(async move { transport.read(TWO, SOURCE, head, late()).await })
    });
    for answer in sending.collect::<Vec<_>>() {
        let answer = timeout(LONG, answer).await.unwrap().unwrap().unwrap();
        assert_eq!(answer.head.len(), 4 + (40 << 10));
        assert_eq!(read(answer.body).await.unwrap().len(), NUMBERED_BODY_BYTES_MAX);
    }
}

#[tokio::test]
async fn a_peer_that_dies_leaves_requests_unknown() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let waiting = streaming(&one, WAIT);
    take(&two.services.started).await;
    two.crash().await;
    let failed = waiting.await.unwrap().unwrap_err();
    let is_unknown = matches!(&failed, CallError::Unknown { node: TWO, reason: UnknownOutcome::Broken(_) });
    assert!(is_unknown, "{failed}");
    until(|| multiplexed(&one) == 0).await;
}

#[tokio::test]
async fn removal_closes_the_connection() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    one.transport.set_removed([TWO].into());
    until(|| multiplexed(&two) == 0).await;
    let [one, two] = connected(&cluster).await;
    two.transport.set_removed([NodeId(1)].into());
    until(|| multiplexed(&one) == 0).await;
}

#[tokio::test]
async fn a_stop_finishes_requests_in_flight_and_takes_no_others() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let waiting = streaming(&one, WAIT);
    take(&two.services.started).await;
    let transport = two.transport.clone();
    let stop = tokio::spawn(async move { transport.stop().await });
    while stream(&one, ECHO).await.is_ok() {}
    assert!(!stop.is_finished(), "it waits for the request");
    two.services.gate.add_permits(1);
    waiting.await.unwrap().unwrap();
    timeout(LONG, stop).await.unwrap().unwrap();
    let failed = stream(&one, ECHO).await.unwrap_err();
    assert!(matches!(failed, CallError::NotSent { .. } | CallError::PeerRefused { .. }), "{failed}");
    until(|| multiplexed(&one) == 0).await;
}

#[tokio::test]
async fn a_node_that_stops_ends_its_own_requests() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let waiting = streaming(&one, WAIT);
    take(&two.services.started).await;
    let begun = Instant::now();
    one.transport.stop().await;
    let failed = waiting.await.unwrap().unwrap_err();
    assert!(matches!(failed, CallError::Unknown { .. }), "{failed}");
    assert!(begun.elapsed() < LONG / 2, "it does not wait for its deadline");
}

#[tokio::test]
async fn the_rest_of_a_body_is_for_its_peer_once_and_each_peer_has_a_limit() {
    let bodies = RestsOfBodies::default();
    let keep = |peer| bodies.keep(peer, empty_body()).map(|kept| kept.key);
    let key = keep(TWO).unwrap();
    let head = key.to_be_bytes();
    assert!(bodies.take(NodeId(3), &head).is_err(), "it is for node 2");
    assert!(bodies.take(TWO, &head[1..]).is_err() && bodies.take(TWO, &(key + 1).to_be_bytes()).is_err());
    assert!(bodies.take(TWO, &head).is_ok());
    assert!(bodies.take(TWO, &head).is_err(), "it was taken");
    let key = keep(TWO).unwrap();
    bodies.remove(TWO, key);
    assert!(bodies.take(TWO, &key.to_be_bytes()).is_err());
    let kept = (0..2 * PEER_REQUEST_STREAMS_MAX).filter_map(|_| keep(TWO));
    assert_eq!(kept.count(), PEER_REQUEST_STREAMS_MAX);
    assert!(keep(NodeId(3)).is_some());

    let cluster = TestCluster::new();
    let [one, _two] = connected(&cluster).await;
    let failed = stream(&one, REST_OF_BODY).await.unwrap_err();
    assert!(matches!(failed, CallError::Refused { .. }), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_rest_that_is_not_requested_is_dropped() {
    let bodies = RestsOfBodies::default();
    let first = bodies.keep(TWO, empty_body()).unwrap();
    assert!(first.begins_sweep);
    sleep(KEPT_MAX / 2).await;
    let second = bodies.keep(TWO, empty_body()).unwrap();
    assert!(!second.begins_sweep && bodies.sweep());
    sleep(KEPT_MAX / 2).await;
    assert!(bodies.sweep());
    assert!(bodies.take(TWO, &first.key.to_be_bytes()).is_err());
    assert!(bodies.take(TWO, &second.key.to_be_bytes()).is_ok());
    assert!(!bodies.sweep(), "none is left");
    assert!(bodies.keep(TWO, empty_body()).unwrap().begins_sweep);
}

/// A connection to a peer that this test plays, and what closes it.
fn connection(buffer: usize) -> (Arc<MultiplexedConnection>, DuplexStream, CancellationToken) {
    let (near, remote) = duplex(buffer);
    let (facts, cancel) = (StreamFacts::default(), CancellationToken::new());
    let mut io = FramedIo::new(MeteredIo::new(near, facts.clone(), cancel.clone()));
    io.receive(ReceivedFrames::NumberedAnswers);
    let connection = Arc::new(MultiplexedConnection::new(facts, cancel.clone()));
    let running = connection.clone();
    tokio::spawn(async move {
        running.run(io).await;
        running.end();
    });
    (connection, remote, cancel)
}

fn request(head: Bytes) -> NumberedRequest {
    NumberedRequest { number: 0, service: ECHO, wait: LONG, head }
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nothing_arrives_is_closed() {
    let (connection, remote, cancel) = connection(1 << 20);
    let mut peer = FramedIo::new(remote);
    peer.receive(ReceivedFrames::NumberedRequests);
    let (soon, later) = (Duration::from_millis(100), Duration::from_millis(600));
    let given_up = connection.queue(request(HEAD)).unwrap();
    let other = connection.queue(request(HEAD)).unwrap();
    sleep(soon).await;
    drop(given_up);
    assert!(!cancel.is_cancelled(), "it waited for a short time only");
    for number in [1, 2] {
        let frame = peer.frame().await.unwrap();
        assert!(matches!(frame, Some(Frame::NumberedRequest(sent)) if sent.number == number));
    }
    assert_eq!(peer.frame().await.unwrap(), Some(Frame::Cancel(1)));
    let unknown = other.answer(Instant::now() + later).await.unwrap_err();
    assert_eq!(unknown, UnknownOutcome::Deadline);
    cancel.cancelled().await;
    assert!(connection.queue(request(HEAD)).is_none());
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_has_a_limit_while_the_socket_takes_nothing() {
    let (connection, _remote, _cancel) = connection(1 << 10);
    let head = Bytes::from(vec![7; 10_000]);
    let mut queued = 0;
    for _ in 0..100 {
        let Some(request) = connection.queue(request(head.clone())) else { break };
        queued += 1;
        // It is given up at once, and its place is free.
        drop(request);
        tokio::task::yield_now().await;
    }
    assert!((7..30).contains(&queued), "{queued}");
}
