//! Tests of multiplexed connections: many requests at a time, long bodies, and the ends of requests and
//! connections.

use super::nodes::{
    BROKEN, ECHO, LONG, PANIC, REFUSE, SOURCE, TestCluster, TransportNode, WAIT, empty_body, late, read,
    take, until,
};
use crate::continuations::{Continuations, REST_OF_BODY};
use crate::frames::NUMBERED_BODY_BYTES_MAX;
use crate::multiplexed::{REQUESTS_MAX, TOGETHER_MIN};
use crate::{CallError, Channel, PeerBodyError, StreamAnswer, StreamClass, UnknownOutcome};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_common::limits::PEER_REQUEST_STREAMS_MAX;
use mlgw_common::time::{Instant, timeout};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinHandle;

const TWO: NodeId = NodeId(2);

fn multiplexed(node: &TransportNode) -> u64 {
    node.transport.counters().get(Channel::Bulk.index()).map_or(0, |counters| counters.multiplexed)
}

fn exclusive(node: &TransportNode) -> u64 {
    node.transport.counters().get(Channel::Bulk.index()).map_or(0, |counters| counters.exclusive)
}

async fn stream(one: &TransportNode, service: u16) -> Result<StreamAnswer, CallError> {
    let head = Bytes::from_static(b"head");
    one.transport.stream(TWO, StreamClass::Request, service, head, empty_body(), late()).await
}

/// The same in a task.
fn streaming(one: &TransportNode, service: u16) -> JoinHandle<Result<StreamAnswer, CallError>> {
    let (transport, head) = (one.transport.clone(), Bytes::from_static(b"head"));
    tokio::spawn(async move {
        transport.stream(TWO, StreamClass::Request, service, head, empty_body(), late()).await
    })
}

/// Connects node 1 to node 2 by a multiplexed connection, and by no exclusive one.
async fn connected(cluster: &TestCluster) -> [TransportNode; 2] {
    let [one, two] = cluster.pair().await;
    one.transport.call(TWO, Channel::Bulk, ECHO, Bytes::new(), late()).await.unwrap();
    let peer = one.transport.state.peer(TWO);
    peer.link(Channel::Bulk).opened().unwrap().exclusive.pause_dials();
    stream(&one, ECHO).await.unwrap();
    assert_eq!(multiplexed(&one), 0, "few streams are in flight");
    peer.meter(Channel::Bulk).streams_in_flight.fetch_add(TOGETHER_MIN - 1, Ordering::Relaxed);
    stream(&one, ECHO).await.unwrap();
    until(|| multiplexed(&one) == 1 && multiplexed(&two) == 1).await;
    for _ in 0..3 {
        take(&two.services.started).await;
    }
    [one, two]
}

#[tokio::test]
async fn requests_at_the_same_time_share_a_connection_and_are_answered_in_any_order() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let before = exclusive(&one);
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
    assert_eq!((multiplexed(&one), exclusive(&one)), (1, before));
    assert_eq!(one.transport.counters()[Channel::Bulk.index()].streams_in_flight, TOGETHER_MIN - 1);
}

#[tokio::test]
async fn bodies_of_any_length_are_complete() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let most = NUMBERED_BODY_BYTES_MAX;
    // The rest comes on the shared connection at first, then on exclusive ones.
    for _ in 0..2 {
        for bytes in [0, 1, 5000, most - 1, most, most + 1, 2 * most, 3 << 20] {
            two.services.source_bytes.store(bytes, Ordering::SeqCst);
            for answer in [(); 8].map(|()| streaming(&one, SOURCE)) {
                let answer = answer.await.unwrap().unwrap();
                assert_eq!(&answer.head[..], b"re: head");
                assert_eq!(read(answer.body).await.unwrap().len(), bytes);
            }
        }
        one.transport.state.peer(TWO).link(Channel::Bulk).opened().unwrap().exclusive.end_dial();
    }
    assert_eq!(multiplexed(&one), 1);
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
    assert_eq!(multiplexed(&one), 1);
}

#[tokio::test]
async fn a_request_that_is_given_up_is_dropped_and_one_without_an_answer_in_time_is_unknown() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let given_up = streaming(&one, WAIT);
    take(&two.services.started).await;
    given_up.abort();
    let (head, soon) = (Bytes::from_static(b"head"), Instant::now() + Duration::from_millis(100));
    let late = one.transport.stream(TWO, StreamClass::Request, WAIT, head, empty_body(), soon).await;
    assert_eq!(late.unwrap_err(), CallError::Unknown { node: TWO, reason: UnknownOutcome::Deadline });
    // The cancellations precede this request.
    stream(&one, ECHO).await.unwrap();
    two.services.gate.add_permits(2);
    let waits = streaming(&one, WAIT);
    waits.await.unwrap().unwrap();
    assert_eq!(two.services.gate.available_permits(), 1, "the other two have taken none");
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
        tokio::spawn(async move {
            transport.stream(TWO, StreamClass::Request, SOURCE, head, empty_body(), late()).await
        })
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
async fn the_rest_of_a_body_is_for_its_peer_once_and_has_a_limit() {
    let bodies = Continuations::default();
    let key = bodies.keep(TWO, empty_body()).unwrap();
    let head = key.to_be_bytes();
    assert!(bodies.take(NodeId(3), &head).is_err(), "it is for node 2");
    assert!(bodies.take(TWO, &head[1..]).is_err() && bodies.take(TWO, &(key + 1).to_be_bytes()).is_err());
    assert!(bodies.take(TWO, &head).is_ok());
    assert!(bodies.take(TWO, &head).is_err(), "it was taken");
    let key = bodies.keep(TWO, empty_body()).unwrap();
    bodies.expire(key);
    assert!(bodies.take(TWO, &key.to_be_bytes()).is_err());
    let kept = (0..2 * PEER_REQUEST_STREAMS_MAX).filter_map(|_| bodies.keep(TWO, empty_body()));
    assert_eq!(kept.count(), PEER_REQUEST_STREAMS_MAX);

    let cluster = TestCluster::new();
    let [one, _two] = connected(&cluster).await;
    let failed = stream(&one, REST_OF_BODY).await.unwrap_err();
    assert!(matches!(failed, CallError::Refused { .. }), "{failed}");
}
