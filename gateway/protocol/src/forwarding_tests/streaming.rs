//! Long bodies, `100 Continue`, and back-pressure.

use super::client::{TestClient, signed};
use super::cluster::ForwardingCluster;
use super::network::WINDOW_BYTES;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Length of a long body: more than all buffers of the system and all windows.
const LONG_BYTES: usize = 30 << 20;
/// Bytes that may be on their way: the buffers of two sockets, and windows.
const ON_THE_WAY_BYTES: usize = 20 << 20;

fn long_body() -> Vec<u8> {
    (0..LONG_BYTES).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[tokio::test]
async fn a_long_body_passes_in_both_directions_within_few_windows() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    let body = long_body();
    assert_eq!(client.call("PUT", "/data/long", &body).await.status, 200);
    let got = client.call("GET", "/data/long", b"").await;
    assert!(got.status == 200 && got.body == body, "the bytes are those that were sent");
    let head = signed("GET", "/data/long", &[("range", "bytes=9000000-29999999")], b"");
    let range = client.request(&head, b"").await;
    assert!(range.status == 206 && range.body == body[9_000_000..30_000_000]);
    let peak = cluster.link().peak.load(Relaxed);
    assert!(peak <= 2 * WINDOW_BYTES, "{peak} bytes were in flight");
}

/// Sends as much of `body` as the connection takes within a second without progress.
async fn send_until_stuck(client: &mut TestClient, body: &[u8]) -> usize {
    let (mut sent, patience) = (0, Duration::from_millis(300));
    while sent < body.len() {
        let writing = client.stream.get_mut().write(&body[sent..]);
        match mlgw_common::time::timeout(patience, writing).await {
            Ok(written) => sent += written.unwrap(),
            Err(_) => break,
        }
    }
    sent
}

#[tokio::test]
async fn a_member_that_does_not_read_stops_the_client() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    let body = long_body();
    cluster.link().is_paused.send_replace(true);
    client.send_head(&signed("PUT", "/data/long", &[], &body)).await;
    let sent = send_until_stuck(&mut client, &body).await;
    assert!(sent < ON_THE_WAY_BYTES, "{sent} bytes were taken");
    assert_eq!(cluster.link().carried[0].load(Relaxed), 0);
    cluster.link().is_paused.send_replace(false);
    client.send(&body[sent..]).await;
    assert_eq!(client.answer("PUT").await.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_member() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    let body = long_body();
    assert_eq!(client.call("PUT", "/data/long", &body).await.status, 200);
    client.send_head(&signed("GET", "/data/long", &[], b"")).await;
    let head = client.answer_head().await.unwrap();
    assert_eq!(head.header("content-length"), Some(&*LONG_BYTES.to_string()));
    let carried = || cluster.link().carried[1].load(Relaxed);
    let mut before = 0;
    while carried() > before {
        before = carried();
        mlgw_common::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(before < ON_THE_WAY_BYTES, "{before} bytes were read ahead");
    let mut got = vec![0; LONG_BYTES];
    client.stream.read_exact(&mut got).await.unwrap();
    assert!(got == body);
}

#[tokio::test]
async fn the_interim_answer_is_sent_when_the_member_reads_the_body() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    let head = signed("PUT", "/data/k", &[("expect", "100-continue")], b"hello");
    cluster.link().is_paused.send_replace(true);
    client.send_head(&head).await;
    let early = mlgw_common::time::timeout(Duration::from_millis(100), client.stream.read_u8()).await;
    assert!(early.is_err(), "the request was not released yet");
    cluster.link().is_paused.send_replace(false);
    let mut interim = [0; 25];
    client.stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(b"hello").await;
    assert_eq!(client.answer("PUT").await.status, 200);
    // The connection stays usable.
    assert_eq!(client.call("GET", "/data/k", b"").await.body, b"hello");
}

#[tokio::test]
async fn a_request_that_is_refused_by_its_head_gets_no_interim_answer() {
    let cluster = ForwardingCluster::open(1).await;
    let (direct, forwarding) = (cluster.listen_directly().await, cluster.listen().await);
    for address in [direct.address, forwarding.address] {
        let mut client = TestClient::connect(address).await;
        let head = signed("PUT", "/missing/k", &[("expect", "100-continue")], b"hello");
        client.send_head(&head).await;
        let answer = client.answer("PUT").await;
        assert_eq!((answer.status, answer.interim), (404, 0), "{answer:?}");
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.has_ended().await);
    }
}

#[tokio::test]
async fn a_connection_stays_usable_after_a_small_body_that_was_not_read() {
    let cluster = ForwardingCluster::open(1).await;
    let (direct, forwarding) = (cluster.listen_directly().await, cluster.listen().await);
    for address in [direct.address, forwarding.address] {
        let mut client = TestClient::connect(address).await;
        let body = vec![7; 100 << 10];
        let answer = client.call("PUT", "/missing/k", &body).await;
        assert_eq!((answer.status, answer.header("connection")), (404, None), "{answer:?}");
        assert_eq!(client.call("GET", "/data", b"").await.status, 200);
    }
}
