//! Tests of addresses that change, of seeds, and of several addresses.

use super::nodes::{NodeOptions, TestCluster, TransportNode, late, start, until};
use crate::{CallError, DialError, NotSent, PeerAddress};
use mlgw_common::NodeId;
use std::collections::BTreeMap;
use tokio::net::TcpListener;

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// An address on which no process listens.
async fn silent_address() -> PeerAddress {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string().parse().unwrap()
}

/// Starts node 2 again, on another port.
async fn restarted(cluster: &TestCluster, node: &TransportNode, counter: u64) -> TransportNode {
    let options =
        NodeOptions { start: start(counter), dir: Some(node.dir.clone()), ..NodeOptions::default() };
    cluster.node_with(node.node.0, options).await
}

#[tokio::test]
async fn the_address_that_a_restarted_node_states_is_used_at_once() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    one.echo(TWO).await.unwrap();
    two.transport.stop().await;
    until(|| one.transport.counters()[0].open == 0).await;
    assert!(one.echo(TWO).await.is_err());
    let again = restarted(&cluster, &two, 2).await;
    assert_ne!(again.address, two.address);
    again.knows(&one);
    again.echo(ONE).await.unwrap();
    // Neither a new row nor a wait is needed: the peer connected, so it runs.
    one.echo(TWO).await.unwrap();
    assert_eq!(again.services.calls.lock().as_slice(), [ONE]);
    let stated = [(TWO, two.address.clone()), (TWO, again.address.clone())];
    assert_eq!(one.services.stated.lock().as_slice(), stated);
}

#[tokio::test]
async fn all_nodes_may_restart_with_new_addresses() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    one.echo(TWO).await.unwrap();
    one.transport.stop().await;
    two.transport.stop().await;
    let (one, two) = (restarted(&cluster, &one, 2).await, restarted(&cluster, &two, 2).await);
    // Rows have the old addresses; a seed has the new one, but not whose it is.
    one.transport.book().set_rows(BTreeMap::from([(TWO, silent_address().await)]));
    assert!(one.echo(TWO).await.is_err());
    assert_eq!(one.transport.probe(&two.address, late()).await, Ok(TWO));
    one.echo(TWO).await.unwrap();
    two.echo(ONE).await.unwrap();
    let unused = silent_address().await;
    let failed = one.transport.probe(&unused, late()).await.unwrap_err();
    assert!(matches!(&failed, DialError::Unreachable { address, .. } if *address == unused), "{failed}");
}

#[tokio::test]
async fn each_address_of_a_node_is_tried() {
    let cluster = TestCluster::new();
    let (one, two, three) = (cluster.node(1).await, cluster.node(2).await, cluster.node(3).await);
    one.knows(&two);
    one.transport.book().set_overrides(BTreeMap::from([(TWO, silent_address().await)]));
    one.echo(TWO).await.unwrap();
    // A refusal has precedence over an address that does not answer.
    let addresses = |address: &PeerAddress| BTreeMap::from([(NodeId(4), address.clone())]);
    one.transport.book().set_overrides(addresses(&three.address));
    one.transport.book().set_rows(addresses(&silent_address().await));
    let failed = one.echo(NodeId(4)).await.unwrap_err();
    assert!(matches!(failed, CallError::PeerRefused { .. }), "{failed}");
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_an_error_of_that_address() {
    let cluster = TestCluster::new();
    let one = cluster.node(1).await;
    let name: PeerAddress = "node-2.invalid:7000".parse().unwrap();
    one.transport.book().set_rows(BTreeMap::from([(TWO, name.clone())]));
    let failed = one.echo(TWO).await.unwrap_err();
    let CallError::NotSent { reason: NotSent::Unreachable { address, .. }, .. } = &failed else {
        panic!("{failed}")
    };
    assert_eq!(*address, name);
}

#[tokio::test]
async fn many_callers_share_one_dial() {
    let cluster = TestCluster::new();
    let [one, _two] = cluster.pair().await;
    let calls = (0..50).map(|_| one.echo(TWO));
    for answer in futures_util::future::join_all(calls).await {
        answer.unwrap();
    }
    assert_eq!(one.transport.counters()[0].dialed, 1);
}
