//! Tests of stops: what is in flight is finished, nothing new begins, idle nodes do not wait.

use super::nodes::{ECHO, LONG, SOURCE, TestCluster, WAIT, empty_body, late, read, take};
use crate::state::STOP_LIMIT;
use crate::{CallError, Channel, StreamClass};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, timeout};
use std::sync::atomic::Ordering;
use tokio::net::TcpStream;

const TWO: NodeId = NodeId(2);

#[tokio::test]
async fn a_stop_finishes_calls_and_streams_in_flight_and_refuses_new_ones() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let bytes = 4 << 20;
    two.services.source_bytes.store(bytes, Ordering::SeqCst);
    let head = Bytes::new();
    let opened = one.transport.stream(TWO, StreamClass::Request, SOURCE, head, empty_body(), late()).await;
    let transport = one.transport.clone();
    let body = Bytes::from_static(b"x");
    let call = tokio::spawn(async move { transport.call(TWO, Channel::Bulk, WAIT, body, late()).await });
    take(&two.services.started).await;
    take(&two.services.started).await;
    let transport = two.transport.clone();
    let stop = tokio::spawn(async move { transport.stop().await });
    // Calls on the connection of both. They succeed until the peer has announced its stop, and the outcome of
    // one that crosses the announcement is unknown.
    let refused = loop {
        match one.transport.call(TWO, Channel::Bulk, ECHO, Bytes::new(), late()).await {
            Ok(_) | Err(CallError::Unknown { .. }) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, CallError::NotSent { .. }), "{refused}");
    while TcpStream::connect(two.address.as_str()).await.is_ok() {}
    assert!(!stop.is_finished(), "it waits for the call");
    two.services.gate.add_permits(1);
    assert_eq!(call.await.unwrap(), Ok(Bytes::from_static(b"x")));
    assert!(!stop.is_finished(), "it waits for the stream");
    assert_eq!(read(opened.unwrap().body).await.unwrap().len(), bytes);
    timeout(LONG, stop).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_node_that_stops_sends_calls_until_those_of_its_peers_have_ended() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let transport = one.transport.clone();
    let call = async move { transport.call(TWO, Channel::Log, WAIT, Bytes::new(), late()).await };
    let call = tokio::spawn(call);
    take(&two.services.started).await;
    let transport = two.transport.clone();
    let stop = tokio::spawn(async move { transport.stop().await });
    while TcpStream::connect(two.address.as_str()).await.is_ok() {}
    // The answer to the call may need it.
    two.echo(NodeId(1)).await.unwrap();
    two.services.gate.add_permits(1);
    call.await.unwrap().unwrap();
    timeout(LONG, stop).await.unwrap().unwrap();
    let stopped = two.echo(NodeId(1)).await.unwrap_err();
    assert!(matches!(stopped, CallError::NotSent { .. }), "{stopped}");
}

#[tokio::test]
async fn idle_nodes_that_stop_together_do_not_wait_for_each_other() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    one.echo(TWO).await.unwrap();
    two.echo(NodeId(1)).await.unwrap();
    // A stranger without a request is not waited for.
    let _silent = TcpStream::connect(two.address.as_str()).await.unwrap();
    let begin = Instant::now();
    tokio::join!(one.transport.stop(), two.transport.stop());
    assert!(begin.elapsed() < STOP_LIMIT, "{:?}", begin.elapsed());
}
