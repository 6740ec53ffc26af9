//! Status and metrics of every node of a cluster: each shows its own part, and what is counted once is that
//! of the duty node.

use serde_json::{Deserializer, Value};

use super::testbed::{FIRST, GATEWAY, STORAGE, TestCluster, put, wait_until};
use crate::observability::scrape::Scrape;

/// Metrics that every node has counted after a request.
const OF_ALL: [&str; 5] = [
    "mlgw_cluster_bytes_total",
    "mlgw_cluster_connections",
    "mlgw_raft_applied_entries_total",
    "mlgw_raft_log_limit_bytes",
    "mlgw_sync_total",
];

/// Metrics that every storage node has counted after writes through it.
const OF_STORAGE: [&str; 4] = [
    "mlgw_flash_written_bytes_total",
    "mlgw_tier_limit_bytes",
    "mlgw_tier_used_bytes",
    "mlgw_tier_written_bytes_total",
];

/// Returns the document that a command prints on a node.
pub(super) fn document(cluster: &TestCluster, id: usize, command: &[&str]) -> Value {
    let words = [command, &["--output", "json"]].concat();
    // The number of findings may follow, and is the exit status.
    let (output, _) = cluster.member(id).setup.command(&words);
    let first = Deserializer::from_str(&output).into_iter::<Value>().next();
    first.and_then(Result::ok).unwrap_or_else(|| panic!("node {id} prints no document: {output}"))
}

#[test]
fn every_node_has_its_own_status_and_its_own_metrics() {
    let cluster = TestCluster::whole();
    for id in cluster.ids() {
        let (client, key) = (cluster.client(id), format!("through-{id}"));
        cluster.block_on(put(&client, &key)).expect("stored");
    }
    wait_until("every node answers every other one", || {
        let answering = |id: usize| {
            Scrape::of(cluster.process(id)).sum("mlgw_cluster_nodes", &[("answers", "yes")]) > 2.5
        };
        cluster.ids().into_iter().all(answering)
    });
    for id in cluster.ids() {
        let scrape = Scrape::of(cluster.process(id));
        let storage = if STORAGE.contains(&id) { &OF_STORAGE[..] } else { &[] };
        for metric in OF_ALL.iter().chain(storage) {
            assert!(scrape.sum(metric, &[]) > 0.5, "node {id} has no {metric}");
        }
        let objects = scrape.sum("mlgw_bucket_objects", &[]);
        assert_eq!(objects > 0.5, id == FIRST, "node {id} has {objects} objects");

        assert_eq!(scrape.sum("mlgw_duty", &[]) > 0.5, id == FIRST, "node {id}");

        let status = document(&cluster, id, &["status"]);
        let tiers = status["tiers"].as_array().expect("tiers");
        assert_eq!(tiers.is_empty(), id == GATEWAY, "node {id}: {status:#}");
        assert_eq!(status["policy"].is_null(), id != FIRST, "node {id}: {status:#}");
        let first = status["duty_node"].as_str().unwrap_or_default();
        assert_eq!(first.starts_with("node 1 ("), id != FIRST, "node {id}: {status:#}");
    }
}

#[test]
fn every_node_states_its_space_to_the_others() {
    let cluster = TestCluster::whole();
    for id in cluster.ids() {
        wait_until(&format!("node {id} has the load of all nodes"), || {
            let cluster_status = document(&cluster, id, &["cluster", "status"]);
            let nodes = cluster_status["nodes"].as_array().expect("nodes").clone();
            nodes.iter().all(|node| {
                let is_storage = node["role"] == "storage";
                let has_space = node["free_bytes"].as_u64() > Some(0) && node["used_bytes"].is_u64();
                let applied = node["applied"].as_u64();
                (has_space, node["serves"] == true) == (is_storage, is_storage) && applied > Some(0)
            })
        });
    }
}
