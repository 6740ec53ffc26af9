//! Tests of owners that leave or were removed: another node takes over their segments at upstreams, and
//! drops their replicas from the records.

use super::super::placing::run_order;
use super::super::read_all;
use super::super::remote_tier::with_upstream;
use super::testbed::{OBJECT_BYTES, TestNodes};
use crate::hot::PlacingOrder;
use mlgw_common::SegmentTier;
use mlgw_common::ids::NodeId;
use mlgw_formats::cluster_version::REPLICATION_CLUSTER_VERSION;
use mlgw_formats::command::AdmitNode;
use mlgw_formats::schema::SegmentRecord;
use mlgw_metadata::Catalogue;
use mlgw_metadata::catalogue::NewJoinToken;
use mlgw_remote::upstream::fake::FakeStore;

/// Adds the rows of the nodes 2 to `count`.
async fn admit(catalogue: &Catalogue, count: u64) {
    for token in 2..=count {
        let (secret_hash, created_by) = (vec![5; 32], "AK".to_owned());
        let new = NewJoinToken { token, secret_hash: secret_hash.clone(), life_ms: 60_000, created_by };
        catalogue.create_join_token(new).await.unwrap();
        let key_hash = vec![u8::try_from(token).unwrap(); 32];
        let (address, cluster_version) = ("a:1".to_owned(), REPLICATION_CLUSTER_VERSION);
        let admission =
            AdmitNode { token, secret_hash, key_hash, address, cluster_version, ..AdmitNode::default() };
        assert_eq!(catalogue.admit_node(admission).await.unwrap().id, token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_at_an_upstream_get_another_owner_that_removes_their_objects() {
    let store = FakeStore::default();
    let nodes = TestNodes::tuned(with_upstream(&store, true)).await;
    nodes.start().await;
    run_order(&nodes.bench, PlacingOrder::DrainHot).await;
    let second = nodes.open_with_upstream(2).await;
    let (stored, is_there) = (store.names(), |record: &SegmentRecord| record.is_at_upstream());
    assert!(!stored.is_empty() && nodes.segments().iter().all(is_there));
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.pass(2).await;
    assert!(nodes.segments().iter().all(|record| record.is_owned_by(NodeId(1))), "it stays");
    nodes.cluster.set_leaving(1);
    nodes.cluster.until(|| nodes.segments().iter().all(|record| record.is_owned_by(NodeId(2)))).await;
    for record in nodes.segments() {
        let tiers: Vec<_> = record.replicas.iter().map(|of| (of.node, of.tier())).collect();
        assert_eq!(tiers, [(2, Ok(SegmentTier::Upstream))]);
    }
    assert_eq!(store.names(), stored, "no object is moved");
    for tier in [&nodes.bench.tier, &second] {
        for (object, body) in &nodes.objects {
            let mut bytes = Vec::new();
            for extent in nodes.bench.extents(object) {
                bytes.extend(read_all(tier, &extent, body.0).await);
            }
            assert_eq!(bytes.len(), OBJECT_BYTES);
        }
    }
    for (object, _) in &nodes.objects {
        nodes.bench.delete(object).await;
    }
    nodes.cluster.until(|| second.compact(1) > 0 && store.names().is_empty()).await;
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_spills_nothing_to_an_upstream() {
    let store = FakeStore::default();
    let nodes = TestNodes::tuned(with_upstream(&store, true)).await;
    nodes.start().await;
    let second = nodes.open_with_upstream(2).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.set_leaving(1);
    run_order(&nodes.bench, PlacingOrder::DrainHot).await;
    assert_eq!(store.names(), [""; 0]);
    assert!(nodes.segments().iter().all(|record| !record.is_at_upstream()));
    drop(second);
    nodes.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_node_are_forgotten_once_it_is_removed() {
    let nodes = TestNodes::new().await;
    for node in [2, 3] {
        nodes.open(node).await;
    }
    nodes.cluster.set_nodes([1, 2, 3]);
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2, 3])).await;
    admit(&nodes.bench.catalogue, 3).await;
    nodes.cluster.set_nodes([1, 2]);
    nodes.cluster.pass(1).await;
    assert!(nodes.are_all_on(&[1, 2, 3]), "the rows of this node may be old");
    nodes.bench.catalogue.remove_node(NodeId(3)).await.unwrap();
    nodes.cluster.until(|| nodes.are_all_on(&[1, 2])).await;
    assert!(nodes.segments().iter().all(|record| record.is_owned_by(NodeId(1))));
    nodes.close().await;
}
