//! Members that fail, move or are busy, and clients that go away.

use super::client::{TestClient, signed};
use super::cluster::{ForwardingCluster, PATIENT, listen, table_of};
use super::network::LinkState;
use crate::edge::S3Edge;
use mlgw_listener::watch::{ClientTimeouts, MinimumTransferRate};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;

#[tokio::test]
async fn a_member_that_cannot_be_reached_is_passed_over() {
    for state in [LinkState::Down, LinkState::LosesVerdicts] {
        let cluster = ForwardingCluster::open(2).await;
        let listener = cluster.listen().await;
        *cluster.link().state.lock() = state;
        let mut client = TestClient::connect(listener.address).await;
        let answer = client.call("PUT", "/data/k", b"hello").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let delete = client.call("DELETE", "/data/k", b"").await;
        assert_eq!(delete.status, 204, "{delete:?}");
        // A member whose verdict was lost has changed nothing.
        cluster.quiet().await;
        assert!(!cluster.member().has("k"));
        assert!(cluster.member().gateway.metrics.totals().is_empty(), "it did not begin");
        assert!(!cluster.members[1].0.has("k"));
    }
}

#[tokio::test]
async fn without_any_member_the_answer_is_503_with_a_reason_and_the_connection_stays_usable() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    *cluster.link().state.lock() = LinkState::Down;
    let mut client = TestClient::connect(listener.address).await;
    let answer = client.call("PUT", "/data/k", b"hello").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
    assert!(answer.text().contains("<Reason>NoMemberReachable</Reason>"), "{answer:?}");
    assert_eq!(answer.header("server"), Some("mlgw"));
    *cluster.link().state.lock() = LinkState::Up;
    assert_eq!(client.call("PUT", "/data/k", b"hello").await.status, 200);
}

#[tokio::test]
async fn a_member_that_dies_after_its_acceptance_is_503_and_the_request_is_not_repeated() {
    let cluster = ForwardingCluster::open(2).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    let body = vec![7; 1 << 20];
    client.send_head(&signed("PUT", "/data/k", &[], &body)).await;
    client.send(&body[..1000]).await;
    while cluster.link().carried[0].load(Relaxed) < 1000 {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
    cluster.link().cut.cancel();
    let answer = client.answer("PUT").await;
    assert!(answer.status == 503 && answer.text().contains("<Reason>MemberLost</Reason>"), "{answer:?}");
    assert_eq!(
        cluster.members[1].1.opened.load(Relaxed),
        0,
        "the body was read, so no other member is tried"
    );
    cluster.quiet().await;
    assert!(!cluster.member().has("k") && !cluster.members[1].0.has("k"));
}

#[tokio::test]
async fn an_answer_that_breaks_off_ends_the_connection() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    let body = vec![7; 30 << 20];
    assert_eq!(client.call("PUT", "/data/long", &body).await.status, 200);
    client.send_head(&signed("GET", "/data/long", &[], b"")).await;
    assert_eq!(client.answer_head().await.unwrap().status, 200);
    cluster.link().cut.cancel();
    let mut got = Vec::new();
    let ended = client.stream.read_to_end(&mut got).await;
    assert!(ended.is_err() || got.len() < body.len(), "an incomplete answer never looks complete");
    cluster.quiet().await;
}

#[tokio::test]
async fn a_request_follows_its_key_to_the_new_owner() {
    let cluster = ForwardingCluster::open(2).await;
    let listener = cluster.listen().await;
    // Members know a newer map than the node that forwards.
    let newer = table_of(5, &[2], Some(2));
    cluster.members.iter().for_each(|(member, _)| drop(member.routes.send_replace(newer.clone())));
    let mut client = TestClient::connect(listener.address).await;
    let body = vec![7; 300 << 10];
    assert_eq!(client.call("PUT", "/data/k", &body).await.status, 200);
    assert!(!cluster.member().has("k") && cluster.members[1].0.has("k"));
    assert_eq!(cluster.link().opened.load(Relaxed), 1);
    assert_eq!(cluster.link().carried[0].load(Relaxed), 0, "its body was read for the owner only");
    assert_eq!(cluster.edge.forwarder.newest_epoch().0, 5);
}

#[tokio::test]
async fn a_member_without_the_map_of_the_request_refuses_it() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    assert_eq!(client.call("GET", "/data", b"").await.status, 200);
    // It may have lost the key meanwhile.
    cluster.edge_routes.send_replace(table_of(3, &[1], None));
    let answer = client.call("GET", "/data", b"").await;
    assert!(answer.status == 503 && answer.text().contains("<Reason>RangeMoving</Reason>"), "{answer:?}");
}

#[tokio::test]
async fn a_forwarded_request_is_never_forwarded_again() {
    let cluster = ForwardingCluster::open(2).await;
    let listener = cluster.listen().await;
    // Each member names the other as the owner.
    let (first, second) = (table_of(5, &[2], Some(2)), table_of(5, &[1], Some(1)));
    cluster.members[0].0.routes.send_replace(first);
    cluster.members[1].0.routes.send_replace(second);
    let mut client = TestClient::connect(listener.address).await;
    let answer = client.call("PUT", "/data/k", b"hello").await;
    assert!(answer.status == 503 && answer.text().contains("<Reason>RangeMoving</Reason>"), "{answer:?}");
    let opened: Vec<usize> = cluster.members.iter().map(|(_, link)| link.opened.load(Relaxed)).collect();
    assert_eq!(opened, [1, 1], "each was asked once, by the first node");
}

#[tokio::test]
async fn a_client_that_disconnects_ends_its_request_at_the_member() {
    let cluster = ForwardingCluster::open(1).await;
    let listener = cluster.listen().await;
    let body = vec![7; 30 << 20];
    let mut client = TestClient::connect(listener.address).await;
    assert_eq!(client.call("PUT", "/data/long", &body).await.status, 200);
    client.send_head(&signed("GET", "/data/long", &[], b"")).await;
    assert_eq!(client.answer_head().await.unwrap().status, 200);
    drop(client);
    cluster.quiet().await;

    let mut client = TestClient::connect(listener.address).await;
    client.send_head(&signed("PUT", "/data/k", &[], &body)).await;
    client.send(&body[..100_000]).await;
    while cluster.member().gateway.metrics.inflight_requests() == 0 {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
    drop(client);
    cluster.quiet().await;
    assert!(!cluster.member().has("k"));
    while cluster.edge.metrics.inflight_requests() > 0 {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_client_that_sends_too_slowly_is_answered_by_its_own_node() {
    let cluster = ForwardingCluster::open(1).await;
    let window = Duration::from_millis(50);
    let slow = ClientTimeouts { min_rate: MinimumTransferRate { window, rate_min: 0 }, ..PATIENT };
    let listener = listen(S3Edge::Forwarding(Arc::clone(&cluster.edge)), slow).await;
    let mut client = TestClient::connect(listener.address).await;
    client.send_head(&signed("PUT", "/data/k", &[], &[7; 1000])).await;
    client.send(&[7; 10]).await;
    let answer = client.answer("PUT").await;
    assert!(answer.status == 400 && answer.text().contains("RequestTimeout"), "{answer:?}");
    cluster.quiet().await;
    assert!(!cluster.member().has("k"));
}
