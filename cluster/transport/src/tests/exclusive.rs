//! Tests of exclusive connections: the errors and ends of requests, and what closes the connections.

use super::nodes::{
    BROKEN, ECHO, LONG, PANIC, REFUSE, SOURCE, TestCluster, TransportNode, WAIT, body_of, empty_body, late,
    read, take, until, zeros,
};
use crate::{CallError, Channel, PeerBodyError, StreamAnswer, StreamClass, UnknownOutcome};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_common::limits::{PEER_EXCLUSIVE_MAX, PEER_EXCLUSIVE_REQUEST_BYTES_MAX};
use mlgw_common::time::{Instant, timeout};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const TWO: NodeId = NodeId(2);

/// Number of exclusive connections of a node to node 2 that wait for a request.
fn idle(one: &TransportNode, channel: Channel) -> usize {
    let peer = one.transport.state.peer(TWO);
    peer.link(channel).opened().map_or(0, |connection| connection.exclusive.idle())
}

fn exclusive(node: &TransportNode, channel: Channel) -> u64 {
    node.transport.counters().get(channel.index()).map_or(0, |counters| counters.exclusive)
}

async fn call(one: &TransportNode, service: u16, body: impl Into<Bytes>) -> Result<Bytes, CallError> {
    one.transport.call(TWO, Channel::Bulk, service, body.into(), late()).await
}

async fn stream(one: &TransportNode, service: u16) -> Result<StreamAnswer, CallError> {
    let head = Bytes::from_static(b"head");
    one.transport.stream(TWO, StreamClass::Request, service, head, empty_body(), late()).await
}

/// Connects node 1 to node 2 by an exclusive connection that no request uses.
async fn connected(cluster: &TestCluster) -> [TransportNode; 2] {
    let [one, two] = cluster.pair().await;
    call(&one, ECHO, "first").await.unwrap();
    take(&two.services.started).await;
    until(|| idle(&one, Channel::Bulk) == 1).await;
    assert_eq!((exclusive(&one, Channel::Bulk), exclusive(&two, Channel::Bulk)), (1, 1));
    [one, two]
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another_whatever_their_ends() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    two.services.source_bytes.store(3 << 20, Ordering::SeqCst);
    for bytes in [0, 1, PEER_EXCLUSIVE_REQUEST_BYTES_MAX] {
        assert_eq!(call(&one, ECHO, vec![7; bytes]).await.unwrap().len(), bytes);
        assert_eq!(call(&one, SOURCE, "").await.unwrap().len(), 3 << 20);
        let CallError::Refused { refusal, .. } = call(&one, REFUSE, "").await.unwrap_err() else { panic!() };
        assert_eq!(refusal.message, "not today; come again");
        let failed = UnknownOutcome::BadAnswer("its service failed".to_owned());
        let failed = CallError::Unknown { node: TWO, reason: failed };
        assert_eq!(call(&one, PANIC, "").await, Err(failed));
        let answer = stream(&one, SOURCE).await.unwrap();
        assert_eq!(&answer.head[..], b"re: head");
        assert_eq!(read(answer.body).await.unwrap().len(), 3 << 20);
        let CallError::Refused { refusal, .. } = stream(&one, REFUSE).await.unwrap_err() else { panic!() };
        assert_eq!(refusal.code, 7);
        let answer = stream(&one, ECHO).await.unwrap();
        assert_eq!(read(answer.body).await.unwrap().len(), 0);
    }
    assert_eq!((idle(&one, Channel::Bulk), exclusive(&one, Channel::Bulk)), (1, 1));
    let counters = one.transport.counters()[Channel::Bulk.index()];
    assert_eq!((counters.dialed, counters.calls_in_flight, counters.streams_in_flight), (1, 0, 0));
}

#[tokio::test]
async fn requests_at_the_same_time_get_further_connections_up_to_a_limit() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let mut waiting = Vec::new();
    for at in 0..PEER_EXCLUSIVE_MAX + 5 {
        let transport = one.transport.clone();
        let call = async move { transport.call(TWO, Channel::Bulk, WAIT, Bytes::new(), late()).await };
        waiting.push(tokio::spawn(call));
        take(&two.services.started).await;
        // A request that finds no idle connection goes over the shared one, and another one is made.
        until(|| idle(&one, Channel::Bulk) == usize::from(at % 2 == 1) || at >= PEER_EXCLUSIVE_MAX).await;
    }
    assert!(exclusive(&one, Channel::Bulk) <= PEER_EXCLUSIVE_MAX as u64);
    two.services.gate.add_permits(PEER_EXCLUSIVE_MAX + 5);
    for call in waiting {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn large_calls_and_requests_with_bodies_share_a_connection() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let transport = one.transport.clone();
    let body = Bytes::from(vec![7; PEER_EXCLUSIVE_REQUEST_BYTES_MAX + 1]);
    let large = tokio::spawn(async move { transport.call(TWO, Channel::Bulk, WAIT, body, late()).await });
    take(&two.services.started).await;
    let body = body_of("body");
    let opened = one.transport.stream(TWO, StreamClass::Request, ECHO, Bytes::new(), body, late()).await;
    assert_eq!(idle(&one, Channel::Bulk), 1, "neither uses it");
    assert_eq!(read(opened.unwrap().body).await.unwrap(), b"body");
    two.services.gate.add_permits(1);
    assert_eq!(large.await.unwrap().unwrap().len(), PEER_EXCLUSIVE_REQUEST_BYTES_MAX + 1);
}

#[tokio::test]
async fn a_call_without_an_answer_is_unknown_is_carried_out_and_ends_its_connection() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let soon = Instant::now() + Duration::from_millis(100);
    let unknown = one.transport.call(TWO, Channel::Bulk, WAIT, Bytes::new(), soon).await;
    assert_eq!(unknown, Err(CallError::Unknown { node: TWO, reason: UnknownOutcome::Deadline }));
    take(&two.services.started).await;
    until(|| exclusive(&one, Channel::Bulk) == 0).await;
    two.services.gate.add_permits(1);
    take(&two.services.finished).await;
    until(|| exclusive(&two, Channel::Bulk) == 0).await;
}

#[tokio::test]
async fn a_body_that_fails_is_cut_and_one_that_is_given_up_ends_the_request() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let mut answer = stream(&one, BROKEN).await.unwrap();
    assert_eq!(idle(&one, Channel::Bulk), 0);
    let piece = answer.body.frame().await.unwrap().unwrap();
    assert_eq!(&piece.data_ref().unwrap()[..], b"piece");
    two.services.gate.add_permits(1);
    let cut = read(answer.body).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");

    let [one, two] = connected(&cluster).await;
    two.services.source_bytes.store(1 << 30, Ordering::SeqCst);
    let answer = stream(&one, SOURCE).await.unwrap();
    drop(answer);
    until(|| exclusive(&two, Channel::Bulk) == 0).await;
    assert!(two.services.produced.load(Ordering::SeqCst) < 1 << 29);
    // The service of a request that is given up before its answer is dropped: it takes no permit.
    let [one, two] = connected(&cluster).await;
    let head = Bytes::from_static(b"head");
    let soon = Instant::now() + Duration::from_millis(100);
    let late = one.transport.stream(TWO, StreamClass::Request, WAIT, head, empty_body(), soon).await;
    let unknown = CallError::Unknown { node: TWO, reason: UnknownOutcome::Deadline };
    assert_eq!(late.unwrap_err(), unknown);
    until(|| exclusive(&two, Channel::Bulk) == 0).await;
    two.services.gate.add_permits(1);
    assert_eq!(two.services.gate.available_permits(), 1);
}

#[tokio::test]
async fn a_peer_that_dies_leaves_a_request_unknown_and_cuts_bodies() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let transport = one.transport.clone();
    let waiting = tokio::spawn(async move {
        transport.call(TWO, Channel::Bulk, WAIT, Bytes::from_static(b"x"), late()).await
    });
    take(&two.services.started).await;
    assert_eq!(idle(&one, Channel::Bulk), 0);
    two.crash().await;
    let failed = waiting.await.unwrap().unwrap_err();
    let is_unknown = matches!(&failed, CallError::Unknown { node: TWO, reason: UnknownOutcome::Broken(_) });
    assert!(is_unknown, "{failed}");

    let [one, two] = connected(&cluster).await;
    two.services.source_bytes.store(64 << 20, Ordering::SeqCst);
    let mut answer = stream(&one, SOURCE).await.unwrap();
    answer.body.frame().await.unwrap().unwrap();
    two.crash().await;
    let cut = read(answer.body).await.unwrap_err();
    assert!(matches!(cut, PeerBodyError::Cut(_)), "{cut}");
}

#[tokio::test]
async fn removal_closes_the_connections() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    one.transport.set_removed([TWO].into());
    until(|| exclusive(&two, Channel::Bulk) == 0).await;
    let [one, two] = connected(&cluster).await;
    two.transport.set_removed([NodeId(1)].into());
    until(|| exclusive(&one, Channel::Bulk) == 0).await;
}

#[tokio::test]
async fn a_stop_finishes_the_request_in_flight_and_the_connection_is_not_used_again() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let transport = one.transport.clone();
    let waiting =
        tokio::spawn(async move { transport.call(TWO, Channel::Bulk, WAIT, Bytes::new(), late()).await });
    take(&two.services.started).await;
    let transport = two.transport.clone();
    let stop = tokio::spawn(async move { transport.stop().await });
    while call(&one, ECHO, "").await.is_ok() {}
    assert!(!stop.is_finished(), "it waits for the call");
    two.services.gate.add_permits(1);
    waiting.await.unwrap().unwrap();
    timeout(LONG, stop).await.unwrap().unwrap();
    let failed = call(&one, ECHO, "").await.unwrap_err();
    assert!(matches!(failed, CallError::NotSent { .. } | CallError::PeerRefused { .. }), "{failed}");
    assert_eq!(idle(&one, Channel::Bulk), 0);
}

#[tokio::test]
async fn an_answer_that_is_not_read_stops_its_service() {
    let cluster = TestCluster::new();
    let [one, two] = connected(&cluster).await;
    let bytes = 256 << 20;
    two.services.source_bytes.store(bytes, Ordering::SeqCst);
    let answer = stream(&one, SOURCE).await.unwrap();
    let echo = one.transport.stream(
        TWO,
        StreamClass::Request,
        ECHO,
        Bytes::new(),
        zeros(16 << 20, Arc::default()),
        late(),
    );
    assert_eq!(read(echo.await.unwrap().body).await.unwrap().len(), 16 << 20);
    let produced = two.services.produced.load(Ordering::SeqCst);
    assert!(produced > 0 && produced < bytes / 2, "{produced} bytes");
    assert_eq!(read(answer.body).await.unwrap().len(), bytes);
}
