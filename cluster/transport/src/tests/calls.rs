//! Tests of calls: answers, refusals, limits, and the difference between not sent and unknown.

use super::nodes::{ECHO, PANIC, REFUSE, SOURCE, TestCluster, WAIT, late, take, until};
use crate::{CallError, Channel, NotSent, ServiceRefusal, UnknownOutcome};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::limits::{PEER_CALL_BYTES_MAX, PEER_CALLS_MAX};
use mlgw_common::time::Instant;
use std::sync::atomic::Ordering;
use std::time::Duration;

const TWO: NodeId = NodeId(2);

#[tokio::test]
async fn calls_go_both_ways_on_each_channel() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    for channel in Channel::ALL {
        for body in [Bytes::new(), Bytes::from_static(b"hello"), Bytes::from(vec![7; 1 << 20])] {
            let answer = one.transport.call(TWO, channel, ECHO, body.clone(), late()).await;
            assert_eq!(answer, Ok(body), "{channel}");
        }
    }
    assert_eq!(two.services.calls.lock().as_slice(), [NodeId(1); 9]);
    // The second node has no address of the first but the one that it stated.
    assert_eq!(two.services.stated.lock().as_slice(), [(NodeId(1), one.address.clone())]);
    assert_eq!(two.echo(NodeId(1)).await, Ok(Bytes::from_static(b"hello")));
    assert_eq!(one.services.calls.lock().as_slice(), [TWO]);

    for counters in one.transport.counters() {
        assert_eq!((counters.node, counters.dialed, counters.calls_in_flight), (TWO, 1, 0));
        let accepted = u64::from(counters.channel == Channel::Control);
        assert_eq!((counters.accepted, counters.dials_failed, counters.open), (accepted, 0, 1 + accepted));
        assert!(counters.bytes_in > 1 << 20 && counters.bytes_out > 1 << 20, "{counters:?}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_service_has_its_code_and_text() {
    let cluster = TestCluster::new();
    let [one, _two] = cluster.pair().await;
    let refused = one.transport.call(TWO, Channel::Log, REFUSE, Bytes::new(), late()).await;
    let refusal = ServiceRefusal { code: 7, message: "not today; come again".to_owned() };
    assert_eq!(refused, Err(CallError::Refused { node: TWO, refusal }));
}

#[tokio::test]
async fn a_service_that_panics_leaves_the_outcome_unknown_and_the_connection_open() {
    let cluster = TestCluster::new();
    let [one, _two] = cluster.pair().await;
    let failed = one.transport.call(TWO, Channel::Control, PANIC, Bytes::new(), late()).await;
    let reason = UnknownOutcome::BadAnswer("its service failed".to_owned());
    assert_eq!(failed, Err(CallError::Unknown { node: TWO, reason }));
    one.echo(TWO).await.unwrap();
    assert_eq!(one.transport.counters()[0].dialed, 1);
}

#[tokio::test]
async fn requests_and_answers_are_bounded() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let call = |service, bytes: usize| {
        one.transport.call(TWO, Channel::Log, service, Bytes::from(vec![1; bytes]), late())
    };
    assert_eq!(call(ECHO, PEER_CALL_BYTES_MAX).await.unwrap().len(), PEER_CALL_BYTES_MAX);
    let (bytes, limit) = (PEER_CALL_BYTES_MAX + 1, PEER_CALL_BYTES_MAX);
    let too_large = CallError::NotSent { node: TWO, reason: NotSent::TooLarge { bytes, limit } };
    assert_eq!(call(ECHO, bytes).await, Err(too_large));
    assert_eq!(two.services.calls.lock().len(), 1);
    two.services.source_bytes.store(bytes, Ordering::SeqCst);
    let failed = UnknownOutcome::BadAnswer("its service failed".to_owned());
    assert_eq!(call(SOURCE, 0).await, Err(CallError::Unknown { node: TWO, reason: failed }));
}

#[tokio::test]
async fn large_calls_at_once_all_succeed() {
    // Eight times what the peer reads at once: those that wait do not stop those that are read.
    let cluster = TestCluster::new();
    let [one, _two] = cluster.pair().await;
    let body = Bytes::from(vec![1; PEER_CALL_BYTES_MAX]);
    let calls = (0..16).map(|_| one.transport.call(TWO, Channel::Log, ECHO, body.clone(), late()));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.unwrap().len(), PEER_CALL_BYTES_MAX);
    }
}

#[tokio::test]
async fn calls_beyond_the_limit_wait_and_are_not_sent() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let waiting: Vec<_> = (0..PEER_CALLS_MAX)
        .map(|_| {
            let transport = one.transport.clone();
            let call = async move { transport.call(TWO, Channel::Log, WAIT, Bytes::new(), late()).await };
            tokio::spawn(call)
        })
        .collect();
    until(|| two.services.calls.lock().len() == PEER_CALLS_MAX).await;
    let soon = Instant::now() + Duration::from_millis(50);
    let busy = one.transport.call(TWO, Channel::Log, ECHO, Bytes::new(), soon).await;
    assert_eq!(busy, Err(CallError::NotSent { node: TWO, reason: NotSent::Busy(Channel::Log) }));
    // Another channel has its own limit.
    one.echo(TWO).await.unwrap();
    two.services.gate.add_permits(PEER_CALLS_MAX);
    for call in waiting {
        call.await.unwrap().unwrap();
    }
    one.transport.call(TWO, Channel::Log, ECHO, Bytes::new(), late()).await.unwrap();
}

#[tokio::test]
async fn a_call_without_an_answer_is_unknown_and_is_carried_out() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    one.echo(TWO).await.unwrap();
    take(&two.services.started).await;
    let soon = Instant::now() + Duration::from_millis(200);
    let unknown = one.transport.call(TWO, Channel::Control, WAIT, Bytes::new(), soon).await;
    assert_eq!(unknown, Err(CallError::Unknown { node: TWO, reason: UnknownOutcome::Deadline }));
    take(&two.services.started).await;
    two.services.gate.add_permits(1);
    take(&two.services.finished).await;
}

#[tokio::test]
async fn a_peer_that_dies_before_a_request_leaves_it_not_sent() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    one.echo(TWO).await.unwrap();
    two.transport.stop().await;
    until(|| one.transport.counters()[0].open == 0).await;
    let failed = one.echo(TWO).await.unwrap_err();
    let CallError::NotSent { node: TWO, reason: NotSent::Unreachable { address, .. } } = &failed else {
        panic!("{failed}")
    };
    assert_eq!(*address, two.address);
}

#[tokio::test]
async fn a_peer_that_dies_after_a_request_leaves_it_unknown() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let transport = one.transport.clone();
    let call = tokio::spawn(async move {
        transport.call(TWO, Channel::Control, WAIT, Bytes::from_static(b"x"), late()).await
    });
    take(&two.services.started).await;
    two.crash().await;
    let failed = call.await.unwrap().unwrap_err();
    let is_unknown = matches!(&failed, CallError::Unknown { node: TWO, reason: UnknownOutcome::Broken(_) });
    assert!(is_unknown, "{failed}");
}

#[tokio::test]
async fn a_node_without_an_address_the_own_one_and_a_stopped_transport_get_nothing() {
    let cluster = TestCluster::new();
    let one = cluster.node(1).await;
    let not_sent = |node, reason| Err(CallError::NotSent { node, reason });
    assert_eq!(one.echo(TWO).await, not_sent(TWO, NotSent::NoAddress));
    assert_eq!(one.echo(NodeId(1)).await, not_sent(NodeId(1), NotSent::OwnNode));
    one.transport.stop().await;
    assert_eq!(one.echo(TWO).await, not_sent(TWO, NotSent::Stopping));
}
