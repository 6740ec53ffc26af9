//! Tests of the start of a node.

use super::{NodeError, NodeOptions, PreparedNode, address_of};
use crate::admission::tests::{TestJoiner, TestMember};
use mlgw_common::NodeId;
use mlgw_transport::PeerAddress;
use std::sync::Arc;
use std::time::Duration;

fn options(member: &TestMember) -> NodeOptions {
    NodeOptions {
        dir: member.dir.path().to_owned(),
        listen: "127.0.0.1:0".to_owned(),
        address: None,
        seeds: Vec::<PeerAddress>::new(),
        description: member.description.clone(),
        sealer: member.sealer.clone(),
        clock: Arc::clone(&member.clock) as _,
        build: "0.1.0".to_owned(),
        compare_interval: Duration::ZERO,
    }
}

/// Starts the member as a node, and stops it again.
async fn start(member: &TestMember) -> Result<(), NodeError> {
    let prepared = PreparedNode::prepare(options(member)).await?;
    prepared.start(member.catalogue.clone()).await?.stop().await;
    Ok(())
}

#[test]
fn a_listener_on_all_interfaces_needs_an_address() {
    assert_eq!(address_of("127.0.0.1:0", 7000).unwrap().as_str(), "127.0.0.1:7000");
    assert_eq!(address_of("[::1]:7000", 7000).unwrap().as_str(), "[::1]:7000");
    for listen in ["0.0.0.0:7000", "[::]:7000"] {
        let error = address_of(listen, 7000).unwrap_err().to_string();
        assert!(error.contains("set cluster.address"), "{error}");
    }
}

#[tokio::test]
async fn the_first_node_makes_its_certificate_once() {
    let member = TestMember::new().await;
    start(&member).await.unwrap();
    let first = member.files().credentials().unwrap().unwrap();
    assert_eq!(first.node().node, NodeId(1));
    start(&member).await.unwrap();
    let second = member.files().credentials().unwrap().unwrap();
    assert_eq!(first.certificate(), second.certificate());
    // Without another node, a lost certificate is signed again.
    std::fs::remove_dir_all(member.files().dir()).unwrap();
    start(&member).await.unwrap();
    assert_ne!(member.files().credentials().unwrap().unwrap().certificate(), first.certificate());
    member.stop().await;
}

#[tokio::test]
async fn a_first_node_that_lost_its_certificate_after_a_join_does_not_start() {
    let member = TestMember::new().await;
    start(&member).await.unwrap();
    let token = member.token().await;
    member.answer(TestJoiner::new(&token).request()).await.unwrap();
    std::fs::remove_dir_all(member.files().dir()).unwrap();
    let refused = start(&member).await.unwrap_err();
    assert!(matches!(refused, NodeError::LostCertificate(_)), "{refused}");
    assert!(member.files().credentials().unwrap().is_none());
    member.stop().await;
}

#[tokio::test]
async fn a_node_with_a_certificate_needs_the_starts_of_its_peers() {
    let member = TestMember::new().await;
    start(&member).await.unwrap();
    std::fs::remove_file(member.files().dir().join("starts.json")).unwrap();
    let refused = start(&member).await.unwrap_err();
    assert!(matches!(refused, NodeError::Starts(_)), "{refused}");
    member.stop().await;
}
