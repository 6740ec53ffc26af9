//! Nodes, tokens and authorities through the catalogue: cached, stored, and read again after a restart.

use super::testing::options;
use super::{Catalogue, NewJoinToken, NodeReport, ProposeError};
use mlgw_common::NodeId;
use mlgw_common::limits::JOIN_TOKEN_MS_MAX;
use mlgw_formats::cluster_version::{MEMBERSHIP_CLUSTER_VERSION, ROTATION_CLUSTER_VERSION};
use mlgw_formats::command::{AdmitNode, Reject};
use mlgw_formats::schema::{AuthorityRecord, Node, NodeRole, NodeState, RecordedStart};

fn new_token(token: u64) -> NewJoinToken {
    NewJoinToken { token, secret_hash: vec![5; 32], life_ms: JOIN_TOKEN_MS_MAX, created_by: "AK".into() }
}

fn admission(token: u64, key: u8) -> AdmitNode {
    AdmitNode {
        token,
        secret_hash: vec![5; 32],
        key_hash: vec![key; 32],
        address: "a:1".into(),
        cluster_version: MEMBERSHIP_CLUSTER_VERSION,
        ..AdmitNode::default()
    }
}

fn report(node: u64) -> NodeReport {
    NodeReport {
        node: NodeId(node),
        address: "b:2".into(),
        cluster_version: MEMBERSHIP_CLUSTER_VERSION,
        build: "mlgw 1".into(),
        start: RecordedStart { incarnation: 1, counter: 1, nonce: 1 },
        key_hash: Vec::new(),
        is_serving: true,
        authority: 0,
        trusted_authority: 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_membership_wait_for_their_cluster_version() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let refused = catalogue.create_join_token(new_token(1)).await;
    let needs = MEMBERSHIP_CLUSTER_VERSION;
    assert_eq!(refused, Err(ProposeError::NotFinalized { needs, has: 1 }));
    assert_eq!(catalogue.nodes().len(), 1, "the server itself");
    catalogue.raise_cluster_version(needs).await.unwrap();
    catalogue.create_join_token(new_token(1)).await.unwrap();
    assert_eq!(catalogue.join_tokens().unwrap().len(), 1);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_tokens_and_authorities_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    catalogue.raise_cluster_version(MEMBERSHIP_CLUSTER_VERSION).await.unwrap();
    let authority =
        AuthorityRecord { certificate: vec![1], sealed_key: vec![2], ..AuthorityRecord::default() };
    assert_eq!(catalogue.authority().unwrap(), None);
    assert_eq!(catalogue.put_authority(authority.clone(), 0).await, Ok(1));
    for token in 1..=3 {
        catalogue.create_join_token(new_token(token)).await.unwrap();
    }
    catalogue.remove_join_token(3).await.unwrap();
    let changed = catalogue.node_changed();
    let second = catalogue.admit_node(admission(1, 2)).await.unwrap();
    changed.await;
    assert_eq!((second.id, second.state()), (2, NodeState::Joining));
    assert_eq!(catalogue.node_record(NodeId(2)).as_deref(), Some(&second), "the cache has it at once");
    let third = catalogue.admit_node(admission(2, 3)).await.unwrap();
    catalogue.report_node(report(2)).await.unwrap();
    let removed = catalogue.remove_node(third.node_id()).await.unwrap();
    assert!(removed.is_removed() && catalogue.is_removed_node(NodeId(3)));
    let nodes = catalogue.nodes();
    catalogue.shutdown().await;

    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    assert_eq!(catalogue.nodes(), nodes);
    let removed: Vec<u64> = (0..6).filter(|id| catalogue.is_removed_node(NodeId(*id))).collect();
    assert_eq!(removed, [3]);
    assert_eq!(catalogue.authority().unwrap(), Some(AuthorityRecord { number: 1, ..authority }));
    let tokens: Vec<(u64, u64)> =
        catalogue.join_tokens().unwrap().iter().map(|token| (token.id, token.node)).collect();
    assert_eq!(tokens, [(1, 2), (2, 3)]);
    assert_eq!(catalogue.join_token(1).unwrap().unwrap().key_hash, vec![2; 32]);
    let gone = catalogue.report_node(report(3)).await;
    assert_eq!(gone.err(), Some(ProposeError::Rejected(Reject::NodeRemoved { node: 3 })));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_changes_nothing_is_not_proposed() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    catalogue.raise_cluster_version(MEMBERSHIP_CLUSTER_VERSION).await.unwrap();
    let reported = catalogue.report_node(report(1)).await.unwrap();
    let commands = catalogue.metrics().commands_applied;
    assert_eq!(catalogue.report_node(report(1)).await.unwrap(), reported);
    assert_eq!(catalogue.metrics().commands_applied, commands);
    let changes = [
        NodeReport { address: "c:3".into(), ..report(1) },
        NodeReport { build: "mlgw 2".into(), ..report(1) },
        NodeReport { key_hash: vec![9; 32], ..report(1) },
        NodeReport { cluster_version: MEMBERSHIP_CLUSTER_VERSION + 1, ..report(1) },
        NodeReport { start: RecordedStart { incarnation: 1, counter: 2, nonce: 1 }, ..report(1) },
    ];
    for (done, change) in changes.into_iter().enumerate() {
        catalogue.report_node(change).await.unwrap();
        assert_eq!(catalogue.metrics().commands_applied, commands + 1 + done as u64);
    }
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_change_their_state_and_role() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    catalogue.raise_cluster_version(MEMBERSHIP_CLUSTER_VERSION).await.unwrap();
    catalogue.create_join_token(new_token(1)).await.unwrap();
    catalogue.admit_node(admission(1, 2)).await.unwrap();
    let id = NodeId(2);
    let recorded = |state: NodeState, role: NodeRole| {
        let node = catalogue.node_record(id).unwrap();
        assert_eq!((node.state(), node.role()), (state, role));
    };
    catalogue.report_node(report(2)).await.unwrap();
    recorded(NodeState::Active, NodeRole::Storage);
    catalogue.drain_node(id, None).await.unwrap();
    recorded(NodeState::Draining, NodeRole::Storage);
    catalogue.set_node_role(id, NodeRole::Gateway).await.unwrap();
    recorded(NodeState::Draining, NodeRole::Gateway);
    catalogue.undrain_node(id).await.unwrap();
    recorded(NodeState::Active, NodeRole::Gateway);
    let refused = catalogue.remove_node(NodeId(1)).await;
    assert_eq!(refused, Err(ProposeError::Rejected(Reject::LastStorageNode { node: 1 })));
    let refused = catalogue.remove_authority(1).await;
    assert_eq!(refused, Err(ProposeError::Rejected(Reject::AuthorityInUse { number: 1 })));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_waits_for_the_reports_of_all_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let later = MEMBERSHIP_CLUSTER_VERSION + 1;
    let options = super::CatalogueOptions { cluster_version: later, ..options(dir.path()) };
    let catalogue = Catalogue::open(options).await.unwrap();
    catalogue.raise_cluster_version(MEMBERSHIP_CLUSTER_VERSION).await.unwrap();
    catalogue.create_join_token(new_token(1)).await.unwrap();
    let node: Node = catalogue.admit_node(admission(1, 2)).await.unwrap();
    catalogue.report_node(NodeReport { cluster_version: later, ..report(1) }).await.unwrap();
    let refused = catalogue.raise_cluster_version(later).await;
    let why = Reject::VersionNotReported { node: 2, knows: node.cluster_version, needs: later };
    assert_eq!(refused, Err(ProposeError::Rejected(why)));
    catalogue.report_node(NodeReport { cluster_version: later, ..report(2) }).await.unwrap();
    catalogue.raise_cluster_version(later).await.unwrap();
    assert_eq!(catalogue.cluster_version(), later);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorities_are_reported_once_every_node_knows_them() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    catalogue.raise_cluster_version(MEMBERSHIP_CLUSTER_VERSION).await.unwrap();
    let report = || NodeReport {
        cluster_version: ROTATION_CLUSTER_VERSION,
        authority: 1,
        trusted_authority: 2,
        ..report(1)
    };
    let node = catalogue.report_node(report()).await.unwrap();
    assert_eq!((node.authority, node.trusted_authority), (0, 0), "an older build would not read them");
    catalogue.raise_cluster_version(ROTATION_CLUSTER_VERSION).await.unwrap();
    catalogue.report_node(report()).await.unwrap();
    catalogue.report_node(NodeReport { authority: 0, trusted_authority: 0, ..report() }).await.unwrap();
    let node = catalogue.node_record(NodeId(1)).unwrap();
    assert_eq!((node.authority, node.trusted_authority), (1, 2), "a report without them leaves them");
    catalogue.shutdown().await;
}
