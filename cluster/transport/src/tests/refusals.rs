//! Tests of handshakes that one side refuses. In each, no service is reached.

use super::nodes::{NodeOptions, TestCluster, TransportNode, WAIT, late, start, take};
use crate::{
    CallError, Channel, DialError, HandshakeRefusal, NotSent, TransportError, UnknownOutcome, WireVersions,
};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_trust::{NodeStart, StartRefusal};
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::JoinHandle;

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// The refusal of a call from `one` to `two`.
async fn refusal(one: &TransportNode, two: &TransportNode) -> HandshakeRefusal {
    one.knows(two);
    let failed = one.echo(two.node).await.unwrap_err();
    let CallError::PeerRefused { node, address, refusal } = failed else { panic!("{failed}") };
    assert_eq!((node, address), (two.node, two.address.clone()));
    assert_eq!(two.services.calls.lock().len(), 0);
    refusal
}

/// The code and the text of a refusal by the peer.
fn by_peer(refusal: HandshakeRefusal) -> (u32, String) {
    let HandshakeRefusal::ByPeer { code, message } = refusal else { panic!("{refusal}") };
    (code, message)
}

#[tokio::test]
async fn a_node_of_another_authority_is_refused_on_both_sides() {
    let (own, other) = (TestCluster::new(), TestCluster::new());
    let (one, two) = (own.node(1).await, other.node(2).await);
    let refused = refusal(&one, &two).await;
    let HandshakeRefusal::Tls(cause) = &refused else { panic!("{refused}") };
    assert!(cause.contains("not signed by an authority of this cluster"), "{cause}");
    let known = [one.starts.known(TWO), two.starts.known(ONE)];
    assert_eq!(known, [None, None]);
}

#[tokio::test]
async fn a_certificate_that_only_the_server_refuses_is_a_refusal_too() {
    let (own, other) = (TestCluster::new(), TestCluster::new());
    let (one, two) = (own.node(1).await, own.node(2).await);
    // Node 1 still accepts the authority of node 2, but has a certificate of another one.
    let mut credentials = other.credentials(1);
    credentials = mlgw_trust::NodeCredentials::new(
        credentials.key().clone(),
        credentials.certificate().clone(),
        credentials.validity(),
        vec![other.authority.certificate().clone(), own.authority.certificate().clone()],
    )
    .unwrap();
    one.transport.set_credentials(&credentials).unwrap();
    let refused = refusal(&one, &two).await;
    assert!(matches!(&refused, HandshakeRefusal::Tls(_)), "{refused}");
    // With a certificate of the right authority it is accepted again.
    one.transport.set_credentials(&own.credentials(1)).unwrap();
    until_accepted(&one).await;
}

/// Calls until the wait between two dials is over.
async fn until_accepted(one: &TransportNode) {
    while one.echo(TWO).await.is_err() {
        mlgw_common::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn another_node_at_the_address_is_refused() {
    let cluster = TestCluster::new();
    let (one, two) = (cluster.node(1).await, cluster.node(2).await);
    one.transport.book().set_rows(BTreeMap::from([(NodeId(3), two.address.clone())]));
    let failed = one.echo(NodeId(3)).await.unwrap_err();
    let refusal = HandshakeRefusal::WrongNode { dialed: NodeId(3), found: TWO };
    let address = two.address.clone();
    assert_eq!(failed, CallError::PeerRefused { node: NodeId(3), address, refusal });
    assert_eq!(two.starts.known(ONE), None, "the other node got no hello");
}

#[tokio::test]
async fn a_second_node_with_the_own_id_is_refused() {
    let cluster = TestCluster::new();
    let (one, copy) = (cluster.node(1).await, cluster.node(1).await);
    let failed = one.transport.probe(&copy.address, late()).await.unwrap_err();
    let DialError::Refused { refusal, .. } = failed else { panic!("{failed}") };
    let (code, message) = by_peer(refusal);
    assert_eq!(code, HandshakeRefusal::OwnNode(ONE).code());
    assert!(message.contains("both sides are node 1"), "{message}");
}

#[tokio::test]
async fn a_removed_node_is_refused_by_others_and_refuses_itself() {
    let cluster = TestCluster::new();
    let removed = BTreeSet::from([ONE]);
    let one = cluster.node(1).await;
    let two = cluster.node_with(2, NodeOptions { removed, ..NodeOptions::default() }).await;
    let (code, message) = by_peer(refusal(&one, &two).await);
    assert_eq!((code, message), (6, HandshakeRefusal::Removed(ONE).to_string()));
    assert_eq!(two.starts.known(ONE), None);
    two.knows(&one);
    assert_eq!(two.echo(ONE).await, Err(CallError::NotSent { node: ONE, reason: NotSent::Removed }));
}

#[tokio::test]
async fn a_node_without_a_record_is_refused_on_both_sides_before_its_start_is_stored() {
    let cluster = TestCluster::new();
    let (one, two) = (cluster.node(1).await, cluster.node(2).await);
    two.services.not_members.lock().insert(ONE);
    let (code, message) = by_peer(refusal(&one, &two).await);
    let text = "node 1 is not a member of the cluster: remove its data and let it join";
    assert_eq!((code, message.as_str()), (11, text));
    assert_eq!([one.starts.known(TWO), two.starts.known(ONE)], [None, None]);
    two.services.not_members.lock().clear();

    let three = cluster.node(3).await;
    three.services.not_members.lock().insert(TWO);
    assert_eq!(refusal(&three, &two).await, HandshakeRefusal::NotMember(TWO));
    assert_eq!(three.starts.known(TWO), None);
    // With a record it is accepted.
    until_accepted(&one).await;
}

/// Begins a call to node 2 that does not end by itself.
async fn waiting_call(one: &TransportNode, two: &TransportNode) -> JoinHandle<Result<Bytes, CallError>> {
    let transport = one.transport.clone();
    let call = async move { transport.call(TWO, Channel::Log, WAIT, Bytes::new(), late()).await };
    let call = tokio::spawn(call);
    take(&two.services.started).await;
    call
}

async fn assert_broken(call: JoinHandle<Result<Bytes, CallError>>) {
    let failed = call.await.unwrap().unwrap_err();
    assert!(matches!(&failed, CallError::Unknown { reason: UnknownOutcome::Broken(_), .. }), "{failed}");
}

#[tokio::test]
async fn removal_closes_the_open_connections() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let call = waiting_call(&one, &two).await;
    two.transport.set_removed(BTreeSet::from([ONE]));
    assert_broken(call).await;
    let calls = two.services.calls.lock().len();
    let failed = one.echo(TWO).await.unwrap_err();
    let CallError::PeerRefused { refusal, .. } = failed else { panic!("{failed}") };
    assert_eq!(by_peer(refusal).0, 6);
    assert_eq!(two.services.calls.lock().len(), calls);
}

#[tokio::test]
async fn an_older_start_is_refused_by_name() {
    let cluster = TestCluster::new();
    let two = cluster.node(2).await;
    two.starts.admit(ONE, start(5)).unwrap();
    let one = cluster.node_with(1, NodeOptions { start: start(4), ..NodeOptions::default() }).await;
    let (code, message) = by_peer(refusal(&one, &two).await);
    assert_eq!(code, 7);
    assert_eq!(message, StartRefusal::Older { node: ONE, stated: 4, known: 5 }.to_string());
    assert_eq!(two.starts.known(ONE), Some(start(5)));
}

#[tokio::test]
async fn an_older_start_of_the_dialed_node_is_refused_too() {
    let cluster = TestCluster::new();
    let (one, two) = (cluster.node(1).await, cluster.node(2).await);
    one.starts.admit(TWO, start(5)).unwrap();
    let refused = refusal(&one, &two).await;
    let older = StartRefusal::Older { node: TWO, stated: 1, known: 5 };
    assert_eq!(refused, HandshakeRefusal::Start(older));
}

#[tokio::test]
async fn a_copy_and_another_timeline_are_refused() {
    let cluster = TestCluster::new();
    let two = cluster.node(2).await;
    let known = NodeStart { nonce: 9, ..start(1) };
    two.starts.admit(ONE, known).unwrap();
    let one = cluster.node(1).await;
    let (code, message) = by_peer(refusal(&one, &two).await);
    assert_eq!((code, message), (7, StartRefusal::Copied { node: ONE, counter: 1 }.to_string()));

    let restored = NodeStart { incarnation: mlgw_common::Incarnation(2), ..start(8) };
    let one = cluster.node_with(1, NodeOptions { start: restored, ..NodeOptions::default() }).await;
    let (code, message) = by_peer(refusal(&one, &two).await);
    assert!(code == 7 && message.contains("restored or rebuilt"), "{message}");
    assert_eq!(two.starts.known(ONE), Some(known));
}

#[tokio::test]
async fn an_accepted_start_is_on_disk_before_the_answer() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    one.echo(TWO).await.unwrap();
    for (of, known) in [(&two, ONE), (&one, TWO)] {
        let on_disk = mlgw_trust::PeerStarts::open(of.dir.path(), cluster.cluster).unwrap();
        assert_eq!(on_disk.known(known), Some(start(1)));
    }
}

#[tokio::test]
async fn a_start_that_cannot_be_stored_is_not_answered() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let path = two.dir.path().join("starts.json");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir_all(path.join("in the way")).unwrap();
    assert_eq!(by_peer(refusal(&one, &two).await).0, 8);
    std::fs::remove_dir_all(&path).unwrap();
    until_accepted(&one).await;
}

#[tokio::test]
async fn a_newer_start_closes_the_connections_of_the_older_one() {
    let cluster = TestCluster::new();
    let [one, two] = cluster.pair().await;
    let call = waiting_call(&one, &two).await;
    let newer = cluster.node_with(1, NodeOptions { start: start(2), ..NodeOptions::default() }).await;
    newer.knows(&two);
    newer.echo(TWO).await.unwrap();
    assert_broken(call).await;
    let failed = one.echo(TWO).await.unwrap_err();
    let CallError::PeerRefused { refusal, .. } = failed else { panic!("{failed}") };
    let older = StartRefusal::Older { node: ONE, stated: 1, known: 2 };
    assert_eq!(by_peer(refusal), (7, older.to_string()));
}

#[tokio::test]
async fn nodes_without_a_common_wire_version_refuse_each_other() {
    let cluster = TestCluster::new();
    let two = cluster.node(2).await;
    let versions = WireVersions { min: 2, max: 3 };
    let one = cluster.node_with(1, NodeOptions { versions, ..NodeOptions::default() }).await;
    let (code, message) = by_peer(refusal(&one, &two).await);
    let refused = HandshakeRefusal::WireVersion { own: WireVersions::OWN, other: versions };
    assert_eq!((code, message), (1, refused.to_string()));
    let versions = WireVersions { min: 1, max: 3 };
    let three = cluster.node_with(3, NodeOptions { versions, ..NodeOptions::default() }).await;
    three.knows(&two);
    three.echo(TWO).await.unwrap();
}

#[tokio::test]
async fn a_transport_does_not_start_with_the_certificate_of_another_node() {
    let cluster = TestCluster::new();
    let one = cluster.node(1).await;
    let refused = one.transport.set_credentials(&cluster.credentials(2)).unwrap_err();
    assert!(matches!(&refused, TransportError::Certificate { certified: TWO, .. }), "{refused}");
}
