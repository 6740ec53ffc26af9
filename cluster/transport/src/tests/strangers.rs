//! Tests of connections that have not passed the handshake: what they reach, and how many there may be.

use super::nodes::{ECHO, TestCluster, TransportNode, late};
use crate::body::SentBody;
use crate::dial::{HttpClient, http_client, secure};
use crate::framed_io::FramedIo;
use crate::frames::{
    Frame, FrameKind, NumberedRequest, ReceivedFrames, RequestFrame, RequestTarget, put_cancel, put_frame,
    put_numbered_request, put_request,
};
use crate::wire::{ANSWERED, JOIN_PATH, NOT_UNDERSTOOD, PeerTarget};
use crate::{Channel, HandshakeRefusal, Hello, StreamClass, WireVersions, decode_answer};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_common::limits::{HANDSHAKE_BYTES_MAX, JOIN_BYTES_MAX, PEER_STRANGERS_MAX};
use mlgw_common::time::timeout;
use mlgw_trust::{EXCLUSIVE_PROTOCOL, MULTIPLEXED_PROTOCOL, join_client_config};
use rustls::ClientConfig;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// Connection of a stranger.
async fn connect(to: &TransportNode, config: ClientConfig) -> HttpClient {
    let tls = secure(&to.address, Arc::new(config)).await.unwrap();
    http_client(&to.address, tls).await.unwrap()
}

/// Status and body of the answer to a request.
async fn ask(client: HttpClient, target: PeerTarget, body: Bytes) -> (http::StatusCode, Bytes) {
    let HttpClient { mut sender, connection, facts: _facts, cancel: _cancel } = client;
    let driver = tokio::spawn(connection);
    let request = target.request(SentBody::whole(body), late());
    let response = sender.send_request(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    drop(driver);
    (status, bytes)
}

#[tokio::test]
async fn a_request_to_join_holds_its_permit_until_the_connection_ends() {
    let cluster = TestCluster::new();
    let two = cluster.node(2).await;
    let client = connect(&two, join_client_config(cluster.authority.hash()).unwrap()).await;
    let answer = tokio::spawn(ask(client, PeerTarget::Join, Bytes::from_static(b"wait")));
    super::nodes::until(|| two.services.joins.load(Ordering::SeqCst) == 1).await;
    let strangers = two.transport.state.strangers.clone();
    assert_eq!(strangers.available_permits(), PEER_STRANGERS_MAX - 1);
    two.services.gate.add_permits(1);
    assert_eq!(answer.await.unwrap().0, ANSWERED);
    super::nodes::until(|| strangers.available_permits() == PEER_STRANGERS_MAX).await;
}

const SERVICES: [PeerTarget; 2] =
    [PeerTarget::Call { service: ECHO }, PeerTarget::Stream { class: StreamClass::Request, service: ECHO }];

#[tokio::test]
async fn a_peer_reaches_no_service_before_its_hello() {
    let cluster = TestCluster::new();
    let two = cluster.node(2).await;
    for target in SERVICES {
        let client = connect(&two, cluster.credentials(1).client_config().unwrap()).await;
        assert_eq!(ask(client, target, Bytes::new()).await.0, NOT_UNDERSTOOD);
    }
    // With a certificate there is nothing to join.
    let client = connect(&two, cluster.credentials(1).client_config().unwrap()).await;
    assert_eq!(ask(client, PeerTarget::Join, Bytes::new()).await.0, NOT_UNDERSTOOD);
    assert_eq!(two.services.calls.lock().len(), 0);
    assert_eq!(two.services.joins.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_node_without_a_certificate_reaches_nothing_but_join() {
    let cluster = TestCluster::new();
    let two = cluster.node(2).await;
    let config = || join_client_config(cluster.authority.hash()).unwrap();
    for target in SERVICES.into_iter().chain([PeerTarget::Handshake]) {
        let client = connect(&two, config()).await;
        assert_eq!(ask(client, target, Bytes::new()).await.0, NOT_UNDERSTOOD, "{target:?}");
    }
    let long = Bytes::from(vec![0; JOIN_BYTES_MAX + 1]);
    let (status, _) = ask(connect(&two, config()).await, PeerTarget::Join, long).await;
    assert_eq!(status, http::StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(two.services.joins.load(Ordering::SeqCst), 0, "{JOIN_PATH}");
    assert_eq!(two.services.calls.lock().len(), 0);
}

/// The first frame that a node sends to a stranger on a connection with this protocol; `None` if it closes
/// it.
async fn first_frame(
    to: &TransportNode,
    protocol: &[u8],
    config: ClientConfig,
    sent: &[u8],
) -> Option<Frame> {
    let mut io = framed(to, protocol, config, sent).await;
    timeout(super::nodes::LONG, io.frame()).await.unwrap().ok().flatten()
}

/// A connection with this protocol on which these bytes were sent.
async fn framed(to: &TransportNode, protocol: &[u8], mut config: ClientConfig, sent: &[u8]) -> FramedIo {
    config.alpn_protocols = vec![protocol.to_vec()];
    let mut io = FramedIo::new(secure(&to.address, Arc::new(config)).await.unwrap());
    io.outbox.extend_from_slice(sent);
    io.send().await.unwrap();
    io
}

#[tokio::test]
async fn a_stranger_reaches_nothing_on_a_connection_with_frames_and_only_a_hello_is_read() {
    let cluster = TestCluster::new();
    let two = cluster.node(2).await;
    let peer = || cluster.credentials(1).client_config().unwrap();
    let joining = || join_client_config(cluster.authority.hash()).unwrap();
    let (mut request, wait) = (BytesMut::new(), Duration::from_secs(60));
    let target = RequestTarget::Call;
    put_request(&mut request, &RequestFrame { target, service: ECHO, wait, bytes: Bytes::new() });
    // The beginnings of a hello and of an answer that are too long: the rest is not waited for.
    let long_hello = [&[1][..], &u32::try_from(HANDSHAKE_BYTES_MAX + 1).unwrap().to_be_bytes()].concat();
    let long_answer = [&[3][..], &(16_u32 << 20).to_be_bytes()].concat();
    let (mut numbered, head) = (BytesMut::new(), Bytes::new());
    put_numbered_request(&mut numbered, &NumberedRequest { number: 1, service: ECHO, wait, head });
    let mut cancel = BytesMut::new();
    put_cancel(&mut cancel, 1);
    for protocol in [EXCLUSIVE_PROTOCOL, MULTIPLEXED_PROTOCOL] {
        for sent in [&request[..], &long_hello, &long_answer, &numbered, &cancel] {
            assert_eq!(first_frame(&two, protocol, peer(), sent).await, None);
            assert_eq!(first_frame(&two, protocol, joining(), sent).await, None);
        }
    }
    let hello = Hello {
        versions: WireVersions::OWN,
        cluster: cluster.cluster,
        node: NodeId(1),
        start: super::nodes::start(1),
        channel: Channel::Control,
        address: two.address.clone(),
    };
    let mut sent = BytesMut::new();
    put_frame(&mut sent, FrameKind::Hello, &[&hello.encode()]);
    for (protocol, request) in [(EXCLUSIVE_PROTOCOL, &request), (MULTIPLEXED_PROTOCOL, &numbered)] {
        let sent = [&sent[..], request].concat();
        let answer = first_frame(&two, protocol, joining(), &sent).await;
        let Some(Frame::Hello(answer)) = answer else { panic!("{answer:?}") };
        assert!(decode_answer(&answer).is_err(), "it has no certificate");
    }
    assert_eq!(two.starts.known(NodeId(1)), None);
    // A peer sends requests of clients on another channel.
    let sent = [&sent[..], &numbered].concat();
    let mut io = framed(&two, MULTIPLEXED_PROTOCOL, peer(), &sent).await;
    let Some(Frame::Hello(answer)) = io.frame().await.unwrap() else { panic!() };
    assert!(decode_answer(&answer).is_ok());
    io.receive(ReceivedFrames::NumberedAnswers);
    assert_eq!(timeout(super::nodes::LONG, io.frame()).await.unwrap().ok().flatten(), None);
    assert_eq!(two.services.calls.lock().len(), 0);
}

#[tokio::test]
async fn a_hello_of_another_node_or_of_no_encoding_is_refused() {
    let cluster = TestCluster::new();
    let two = cluster.node(2).await;
    let hello = Hello {
        versions: WireVersions::OWN,
        cluster: cluster.cluster,
        node: NodeId(3),
        start: super::nodes::start(1),
        channel: Channel::Control,
        address: two.address.clone(),
    };
    let long = vec![0; HANDSHAKE_BYTES_MAX + 1];
    for (bytes, code) in [(hello.encode(), 3), (vec![0xff], 9), (long, 9)] {
        let client = connect(&two, cluster.credentials(1).client_config().unwrap()).await;
        let (_, answer) = ask(client, PeerTarget::Handshake, bytes.into()).await;
        let refused = decode_answer(&answer).unwrap_err();
        assert!(matches!(refused, HandshakeRefusal::ByPeer { code: of, .. } if of == code), "{refused}");
    }
    assert_eq!(two.starts.known(NodeId(3)), None);
    assert_eq!(two.starts.known(NodeId(1)), None);
}

#[tokio::test]
async fn half_open_connections_are_bounded_and_peers_go_on() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    one.echo(NodeId(2)).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..PEER_STRANGERS_MAX {
        silent.push(TcpStream::connect(two.address.as_str()).await.unwrap());
    }
    // Connections are accepted in order, so all before this one have permits.
    let mut further = TcpStream::connect(two.address.as_str()).await.unwrap();
    let closed = timeout(super::nodes::LONG, further.read(&mut [0])).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    one.echo(NodeId(2)).await.unwrap();
    // A connection that passed its handshake holds no permit.
    drop(silent);
    let strangers = two.transport.state.strangers.clone();
    super::nodes::until(|| strangers.available_permits() == PEER_STRANGERS_MAX).await;
    one.echo(NodeId(2)).await.unwrap();
}
