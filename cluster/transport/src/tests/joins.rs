//! Tests of requests to join, of nodes without a certificate.

use super::nodes::{TestCluster, late};
use crate::backoff::JoinRate;
use crate::{DialError, HandshakeRefusal, JoinError, PeerAddress, ServiceRefusal, join};
use bytes::Bytes;
use mlgw_common::limits::JOIN_BYTES_MAX;
use mlgw_common::time::Instant;
use mlgw_trust::JoinToken;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;

/// Ends a join at the first refusal.
fn stops(_refusal: &ServiceRefusal) -> bool {
    false
}

/// An address on which no process listens.
async fn silent_address() -> PeerAddress {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    unused.local_addr().unwrap().to_string().parse().unwrap()
}

#[tokio::test]
async fn a_node_without_a_certificate_may_join() {
    let cluster = TestCluster::new();
    let one = cluster.node(1).await;
    let token = JoinToken::create(cluster.authority.hash()).unwrap();
    let addresses = [silent_address().await, one.address.clone()];
    for body in [Bytes::from_static(b"request"), Bytes::from(vec![1; JOIN_BYTES_MAX]), Bytes::new()] {
        assert_eq!(join(&addresses, &token, body.clone(), late(), stops).await, Ok(body));
    }
    let refused = join(&addresses, &token, Bytes::from_static(b"refuse"), late(), stops).await.unwrap_err();
    assert!(matches!(&refused, JoinError::Refused(refusal) if refusal.code == 7), "{refused}");
    assert_eq!(one.services.joins.load(Ordering::SeqCst), 4);
    assert_eq!(one.services.calls.lock().len(), 0);
}

#[tokio::test]
async fn another_member_is_tried_after_a_refusal_that_is_not_final() {
    let cluster = TestCluster::new();
    let (one, two) = (cluster.node(1).await, cluster.node(2).await);
    one.services.refuses_joins.store(true, Ordering::SeqCst);
    let token = JoinToken::create(cluster.authority.hash()).unwrap();
    let (body, addresses) = (Bytes::from_static(b"request"), [one.address.clone(), two.address.clone()]);
    let goes_on = |refusal: &ServiceRefusal| refusal.code == 7;
    assert_eq!(join(&addresses, &token, body.clone(), late(), goes_on).await, Ok(body.clone()));
    let joins = || [&one, &two].map(|node| node.services.joins.load(Ordering::SeqCst));
    assert_eq!(joins(), [1, 1]);
    let refused = join(&addresses, &token, body.clone(), late(), stops).await.unwrap_err();
    assert!(matches!(refused, JoinError::Refused(_)), "{refused}");
    assert_eq!(joins(), [2, 1]);
    // The refusal is the error, also if a later address does not answer.
    let addresses = [one.address.clone(), silent_address().await];
    let refused = join(&addresses, &token, body, late(), goes_on).await.unwrap_err();
    assert!(matches!(refused, JoinError::Refused(_)), "{refused}");
}

#[tokio::test]
async fn a_member_of_another_authority_gets_no_request() {
    let (cluster, other) = (TestCluster::new(), TestCluster::new());
    let one = other.node(1).await;
    let token = JoinToken::create(cluster.authority.hash()).unwrap();
    let addresses = [one.address.clone()];
    let refused = join(&addresses, &token, Bytes::from_static(b"secret"), late(), stops).await.unwrap_err();
    let JoinError::Dial(DialError::Refused { refusal: HandshakeRefusal::Tls(cause), .. }) = &refused else {
        panic!("{refused}")
    };
    assert!(cause.contains("hash of the join token"), "{cause}");
    assert_eq!(one.services.joins.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn requests_are_bounded_in_size_and_rate() {
    let cluster = TestCluster::new();
    let one = cluster.node(1).await;
    let token = JoinToken::create(cluster.authority.hash()).unwrap();
    let addresses = [one.address.clone()];
    let (bytes, limit) = (JOIN_BYTES_MAX + 1, JOIN_BYTES_MAX);
    let too_large = join(&addresses, &token, Bytes::from(vec![1; bytes]), late(), stops).await;
    assert_eq!(too_large, Err(JoinError::TooLarge { bytes, limit }));
    // A bucket that is full again only in an hour admits no request.
    *one.transport.state.joins.lock() = JoinRate::new(Instant::now() + Duration::from_hours(1));
    let busy = join(&addresses, &token, Bytes::new(), late(), stops).await;
    assert_eq!(busy, Err(JoinError::Busy { address: one.address.clone() }));
    assert_eq!(join(&[], &token, Bytes::new(), late(), stops).await, Err(JoinError::NoAddress));
    assert_eq!(one.services.joins.load(Ordering::SeqCst), 0);
}
