//! What the nodes have on their disks after a round, examined by `mlgw store check` while no storage node
//! runs: nothing is damaged, and all members of a group have the same rows.

use serde_json::Value;

use super::links::NodeLinks;
use crate::cluster::testbed::{TestCluster, wait_until};

/// Comparisons of the rows. A command of a background task may have reached one node and not another one when
/// they were killed, and that is repeated.
const COMPARISONS_MAX: usize = 5;

/// Kills all storage nodes at once, examines their disks, and starts them again.
pub(super) fn assert_sound(cluster: &mut TestCluster, links: &NodeLinks) {
    let storage = cluster.storage().to_vec();
    let mut found = Vec::new();
    for _ in 0..COMPARISONS_MAX {
        wait_until("every node lacks nothing", || storage.iter().all(|id| cluster.is_caught_up(*id)));
        // None may change anything while the others end.
        storage.iter().for_each(|id| cluster.pause(*id));
        storage.iter().for_each(|id| cluster.kill(*id));
        found = storage.iter().map(|id| rows_of(cluster, *id)).collect();
        storage.iter().for_each(|id| links.spawn(cluster, *id));
        storage.iter().for_each(|id| cluster.until_ready(*id));
        cluster.until_settled();
        if found.iter().all(|rows| *rows == found[0]) {
            return;
        }
    }
    panic!("the nodes {storage:?} have different rows: {found:#?}");
}

/// Number and digest of the rows of each group on a node that does not run. Panics if anything is damaged.
fn rows_of(cluster: &TestCluster, node: usize) -> Value {
    let setup = &cluster.member(node).setup;
    let data_dir = setup.data_dir.to_str().expect("a test path");
    let (output, status) = setup.store(&["check", data_dir, "--output", "json"]);
    assert_eq!(status, Some(0), "node {node}: {output}");
    let mut documents = serde_json::Deserializer::from_str(&output).into_iter::<Value>();
    let document = documents.next().and_then(Result::ok).unwrap_or_else(|| panic!("{output}"));
    let groups = document["groups"].clone();
    assert!(groups.as_array().is_some_and(|groups| groups.len() >= 4), "node {node}: {output}");
    groups
}
