//! Tests of time limits in virtual time, over connections in memory.

use super::nodes::{TestCluster, TestServices, WAIT, take};
use crate::accept::{JOIN_LIMIT, serve};
use crate::body::SentBody;
use crate::channel::Channel;
use crate::dial::http_client;
use crate::exclusive_serve;
use crate::framed_io::FramedIo;
use crate::frames::{FrameKind, put_frame};
use crate::handshake::HANDSHAKE_LIMIT;
use crate::inbound::InboundConnection;
use crate::metered::{MeteredIo, StreamFacts};
use crate::state::{STOP_LIMIT, TransportState};
use crate::wire::{ANSWERED, PeerTarget};
use bytes::Bytes;
use hyper::client::conn::http2::SendRequest;
use mlgw_common::NodeId;
use mlgw_common::limits::{PEER_PING_MS, PEER_PING_TIMEOUT_MS, PEER_STRANGERS_MAX};
use mlgw_common::time::{Instant, sleep};
use mlgw_trust::CertifiedNode;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::duplex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_hello_is_closed_and_gives_its_permit_back() {
    let cluster = TestCluster::new();
    let state = cluster.state(2);
    let peer = CertifiedNode { cluster: cluster.cluster, node: NodeId(1) };
    for (certified, limit) in [(Some(peer), HANDSHAKE_LIMIT), (None, JOIN_LIMIT)] {
        let (near, _silent) = duplex(1 << 16);
        let (facts, cancel) = (StreamFacts::default(), CancellationToken::new());
        let permit = state.strangers.clone().try_acquire_owned().unwrap();
        let io = MeteredIo::new(near, facts.clone(), cancel.clone());
        let from = "127.0.0.1:1".parse().unwrap();
        let inbound = InboundConnection::new(state.clone(), from, certified, facts, cancel, permit);
        let begin = Instant::now();
        assert_eq!(state.strangers.available_permits(), PEER_STRANGERS_MAX - 1);
        serve(io, Arc::new(inbound)).await;
        assert_eq!(begin.elapsed(), limit);
        assert_eq!(state.strangers.available_permits(), PEER_STRANGERS_MAX);
    }
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_connection_that_sends_no_hello_or_reads_no_answer_is_closed() {
    let cluster = TestCluster::new();
    let hello = cluster.state(1).hello(Channel::Control).encode();
    for sends_hello in [false, true] {
        let (state, dir) = (cluster.state(2), tempfile::tempdir().unwrap());
        let state = if sends_hello { cluster.state_in(2, dir.path()) } else { state };
        // An answer does not fit in between.
        let (near, remote) = duplex(16);
        let (facts, cancel) = (StreamFacts::default(), CancellationToken::new());
        let permit = state.strangers.clone().try_acquire_owned().unwrap();
        let from = "127.0.0.1:1".parse().unwrap();
        let inbound = InboundConnection::new(state.clone(), from, None, facts, cancel, permit);
        let mut peer = FramedIo::new(remote);
        if sends_hello {
            put_frame(&mut peer.outbox, FrameKind::Hello, &[&hello]);
        }
        let begin = Instant::now();
        tokio::join!(exclusive_serve::serve(near, Arc::new(inbound)), async { peer.send().await.unwrap() });
        assert_eq!(begin.elapsed(), HANDSHAKE_LIMIT, "{sends_hello}");
        assert_eq!(state.strangers.available_permits(), PEER_STRANGERS_MAX);
    }
}

/// A connection of node 1 whose handshake passed: both of its tasks, and its sender of requests.
struct AcceptedPeer {
    serving: JoinHandle<()>,
    connection: JoinHandle<hyper::Result<()>>,
    sender: SendRequest<SentBody>,
}

/// Connects node 1 to a node and passes the handshake.
async fn accepted_peer(cluster: &TestCluster, state: &Arc<TransportState>) -> AcceptedPeer {
    let peer = CertifiedNode { cluster: cluster.cluster, node: NodeId(1) };
    let (near, remote) = duplex(1 << 16);
    let (facts, cancel) = (StreamFacts::default(), CancellationToken::new());
    let permit = state.strangers.clone().try_acquire_owned().unwrap();
    let io = MeteredIo::new(near, facts.clone(), cancel.clone());
    let from = "127.0.0.1:1".parse().unwrap();
    let inbound = InboundConnection::new(state.clone(), from, Some(peer), facts, cancel, permit);
    let inbound = Arc::new(inbound);
    let serving = state.inbound.spawn(serve(io, inbound.clone()));
    let mut client = http_client(&"memory:1".parse().unwrap(), remote).await.unwrap();
    let connection = tokio::spawn(client.connection);
    let hello = cluster.state(1).hello(Channel::Control).encode();
    let deadline = Instant::now() + HANDSHAKE_LIMIT;
    let request = PeerTarget::Handshake.request(SentBody::whole(hello.into()), deadline);
    assert_eq!(client.sender.send_request(request).await.unwrap().status(), ANSWERED);
    assert!(inbound.is_accepted());
    AcceptedPeer { serving, connection, sender: client.sender }
}

#[tokio::test(start_paused = true)]
async fn an_accepted_connection_outlives_the_limit_of_its_handshake() {
    let (cluster, dir) = (TestCluster::new(), tempfile::tempdir().unwrap());
    let state = cluster.state_in(2, dir.path());
    let peer = accepted_peer(&cluster, &state).await;
    sleep(HANDSHAKE_LIMIT * 10).await;
    assert!(!peer.serving.is_finished() && !peer.connection.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_call_until_its_limit() {
    for is_answered in [true, false] {
        let (cluster, dir) = (TestCluster::new(), tempfile::tempdir().unwrap());
        let services = Arc::<TestServices>::default();
        let state = cluster.state_with(2, dir.path(), services.clone());
        let mut peer = accepted_peer(&cluster, &state).await;
        let deadline = Instant::now() + STOP_LIMIT * 10;
        let request = PeerTarget::Call { service: WAIT }.request(SentBody::whole(Bytes::new()), deadline);
        let call = tokio::spawn(peer.sender.send_request(request));
        take(&services.started).await;
        let (begin, stopping) = (Instant::now(), state.clone());
        let stop = tokio::spawn(async move { stopping.stop().await });
        tokio::task::yield_now().await;
        services.gate.add_permits(usize::from(is_answered));
        stop.await.unwrap();
        if is_answered {
            assert_eq!(call.await.unwrap().unwrap().status(), ANSWERED);
            assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        } else {
            assert_eq!(begin.elapsed(), STOP_LIMIT);
            assert!(call.await.unwrap().is_err());
        }
        assert!(peer.serving.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_pings_loses_its_connection() {
    let (near, _silent) = duplex(1 << 16);
    let address = "silent:1".parse().unwrap();
    let client = http_client(&address, near).await.unwrap();
    let begin = Instant::now();
    assert!(client.connection.await.is_err());
    let limit = Duration::from_millis(PEER_PING_MS + PEER_PING_TIMEOUT_MS);
    assert!(begin.elapsed() <= limit, "{:?}", begin.elapsed());
    assert!(begin.elapsed() >= limit - Duration::from_secs(1), "{:?}", begin.elapsed());
}
