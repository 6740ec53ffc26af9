//! Tests of requests to join, of nodes without a certificate.

use super::nodes::{TestCluster, late};
use crate::backoff::JoinRate;
use crate::{DialError, HandshakeRefusal, JoinError, join};
use bytes::Bytes;
use mlgw_common::limits::JOIN_BYTES_MAX;
use mlgw_common::time::Instant;
use mlgw_trust::JoinToken;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;

#[tokio::test]
async fn a_node_without_a_certificate_may_join() {
    let cluster = TestCluster::new();
    let one = cluster.node(1).await;
    let token = JoinToken::create(cluster.authority.hash()).unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = unused.local_addr().unwrap().to_string().parse().unwrap();
    drop(unused);
    let addresses = [silent, one.address.clone()];
    for body in [Bytes::from_static(b"request"), Bytes::from(vec![1; JOIN_BYTES_MAX]), Bytes::new()] {
        assert_eq!(join(&addresses, &token, body.clone(), late()).await, Ok(body));
    }
    let refused = join(&addresses, &token, Bytes::from_static(b"refuse"), late()).await.unwrap_err();
    assert!(matches!(&refused, JoinError::Refused(refusal) if refusal.code == 7), "{refused}");
    assert_eq!(one.services.joins.load(Ordering::SeqCst), 4);
    assert_eq!(one.services.calls.lock().len(), 0);
}

#[tokio::test]
async fn a_member_of_another_authority_gets_no_request() {
    let (cluster, other) = (TestCluster::new(), TestCluster::new());
    let one = other.node(1).await;
    let token = JoinToken::create(cluster.authority.hash()).unwrap();
    let addresses = [one.address.clone()];
    let refused = join(&addresses, &token, Bytes::from_static(b"secret"), late()).await.unwrap_err();
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
    let too_large = join(&addresses, &token, Bytes::from(vec![1; bytes]), late()).await;
    assert_eq!(too_large, Err(JoinError::TooLarge { bytes, limit }));
    // A bucket that is full again only in an hour admits no request.
    *one.transport.state.joins.lock() = JoinRate::new(Instant::now() + Duration::from_hours(1));
    let busy = join(&addresses, &token, Bytes::new(), late()).await;
    assert_eq!(busy, Err(JoinError::Busy { address: one.address.clone() }));
    assert_eq!(join(&[], &token, Bytes::new(), late()).await, Err(JoinError::NoAddress));
    assert_eq!(one.services.joins.load(Ordering::SeqCst), 0);
}
