//! A forwarded request is served by the node that receives it, or refused: that node does not forward it
//! again.

use super::client::{TestClient, signed};
use super::cluster::{ForwardingCluster, table_of};
use super::network::NetworkOfNode;
use http::request::Parts;
use mlgw_common::NodeId;
use mlgw_forwarding::route::RouteTarget;
use mlgw_forwarding::streams::empty_body;
use mlgw_forwarding::{
    DeclaredBody, ForwardedContext, ForwardedTarget, MapEpoch, MemberStreams as _, RoutingVerdict,
    encode_head,
};
use mlgw_testing::signer::NOW;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Sends a request without a body to the second member, as a node does that forwards it. Returns the verdict.
async fn forward_to_second(cluster: &ForwardingCluster, head: &Parts, bucket: &str) -> RoutingVerdict {
    let context = ForwardedContext {
        client: SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000)),
        is_secure: false,
        received: NOW,
        request_id: "18ac".to_owned(),
        epoch: MapEpoch(1),
        target: ForwardedTarget::of(RouteTarget { bucket: Some(bucket), key: Some("k") }),
        body: DeclaredBody::Empty,
    };
    let head = encode_head(head, &context).unwrap();
    let network = NetworkOfNode { network: Arc::clone(&cluster.network), from: NodeId(9) };
    let opened = network.open(NodeId(2), head, empty_body()).await.unwrap();
    RoutingVerdict::decode(&opened.head).unwrap()
}

/// Number of requests that were forwarded to a member.
fn forwarded_to(cluster: &ForwardingCluster, node: usize) -> usize {
    cluster.members[node - 1].1.opened.load(Relaxed)
}

const fn not_mine(leader: u64) -> RoutingVerdict {
    RoutingVerdict::NotMine { leader: Some(NodeId(leader)), epoch: MapEpoch(1) }
}

#[tokio::test]
async fn a_forwarded_request_for_a_key_of_another_node_is_refused_and_no_third_node_receives_it() {
    let cluster = ForwardingCluster::open(3).await;
    let second = &cluster.members[1].0;
    second.routes.send_replace(table_of(1, &[3], Some(3)));
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        let verdict = forward_to_second(&cluster, &signed(method, "/data/k", &[], b""), "data").await;
        assert_eq!(verdict, not_mine(3), "{method}");
    }
    assert_eq!((forwarded_to(&cluster, 2), forwarded_to(&cluster, 3)), (4, 0));
    assert!(cluster.members.iter().all(|(member, _)| !member.has("k")));

    // It forwards the same request of a client.
    let listener = cluster.listen_as_member(1).await;
    let put = TestClient::connect(listener.address).await.call("PUT", "/data/k", b"").await;
    assert_eq!((put.status, put.header("x-mlgw-node")), (200, Some("3")));
    assert_eq!((forwarded_to(&cluster, 2), forwarded_to(&cluster, 3)), (4, 1));
}

#[tokio::test]
async fn a_forwarded_request_for_a_remote_backed_bucket_of_another_node_is_refused() {
    let cluster = ForwardingCluster::open(2).await;
    cluster.bind_bucket("bound").await;
    for method in ["GET", "PUT"] {
        let verdict = forward_to_second(&cluster, &signed(method, "/bound/k", &[], b""), "bound").await;
        assert_eq!(verdict, not_mine(1), "{method}");
    }
    assert_eq!(forwarded_to(&cluster, 1), 0);

    // It forwards the same request of a client.
    let listener = cluster.listen_as_member(1).await;
    let got = TestClient::connect(listener.address).await.call("GET", "/bound/k", b"").await;
    assert_eq!(got.header("x-mlgw-node"), Some("1"), "{got:?}");
    assert_eq!(forwarded_to(&cluster, 1), 1);
}

#[tokio::test]
async fn a_client_gets_503_if_the_only_known_member_does_not_own_the_key() {
    let cluster = ForwardingCluster::open(3).await;
    cluster.members[1].0.routes.send_replace(table_of(1, &[3], None));
    cluster.edge_routes.send_replace(table_of(1, &[2], None));
    let listener = cluster.listen().await;
    let mut client = TestClient::connect(listener.address).await;
    for method in ["GET", "PUT"] {
        let refused = client.call(method, "/data/k", b"").await;
        assert_eq!((refused.status, refused.header("x-mlgw-node")), (503, None), "{refused:?}");
    }
    assert_eq!((forwarded_to(&cluster, 2), forwarded_to(&cluster, 3)), (2, 0));
    assert!(cluster.members.iter().all(|(member, _)| !member.has("k")));
}
