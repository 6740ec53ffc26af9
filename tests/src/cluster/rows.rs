//! Compares the rows of members of a cluster: members that applied the same log differently would have other
//! ones.

use std::collections::BTreeMap;

use serde_json::Value;

use super::testbed::{TestCluster, TestMember, wait_until};

/// Comparisons of the rows. A command of a background task may have reached one node and not another one when
/// they were killed, so the comparison is repeated.
pub(super) const COMPARISONS_MAX: usize = 5;

/// Kills all storage nodes at once, reads their rows by `rows_of`, and starts them again by `spawn`. Asserts
/// that the rows are equal.
pub(super) fn assert_same_rows(
    cluster: &mut TestCluster,
    rows_of: impl Fn(&TestMember) -> Value,
    spawn: impl Fn(&mut TestCluster, usize),
) {
    let storage = cluster.storage().to_vec();
    let mut found = BTreeMap::new();
    for _ in 0..COMPARISONS_MAX {
        wait_until("every node lacks nothing", || storage.iter().all(|id| cluster.is_caught_up(*id)));
        found = rows_of_killed(cluster, &storage, &rows_of, &spawn);
        cluster.until_settled();
        if found.values().all(|rows| *rows == found[&storage[0]]) {
            return;
        }
    }
    panic!("the nodes have different rows: {found:#?}");
}

/// Kills these nodes at once, reads their rows by `rows_of`, and starts them again by `spawn`. Returns the
/// rows by node.
pub(super) fn rows_of_killed(
    cluster: &mut TestCluster,
    nodes: &[usize],
    rows_of: impl Fn(&TestMember) -> Value,
    spawn: impl Fn(&mut TestCluster, usize),
) -> BTreeMap<usize, Value> {
    // None may change anything while the others end.
    nodes.iter().for_each(|id| cluster.pause(*id));
    nodes.iter().for_each(|id| cluster.kill(*id));
    let rows = nodes.iter().map(|id| (*id, rows_of(cluster.member(*id)))).collect();
    nodes.iter().for_each(|id| spawn(cluster, *id));
    nodes.iter().for_each(|id| cluster.until_ready(*id));
    rows
}

/// Runs `mlgw store check` for the directory of a node that does not run. Returns its output and its exit
/// status.
pub(super) fn check_store(member: &TestMember) -> (String, Option<i32>) {
    let data_dir = member.setup.data_dir.to_str().expect("a test path");
    member.setup.store(&["check", data_dir, "--output", "json"])
}

/// Returns number and digest of the rows of each group from the output of [`check_store`]. Panics if there
/// are fewer groups than any cluster has.
pub(super) fn checked_rows(output: &str) -> Value {
    let groups = checked_groups(output);
    assert!(groups.len() >= 4, "{output}");
    Value::from(groups)
}

/// Returns number and digest of the rows of each group on the node, from the output of [`check_store`].
pub(super) fn checked_groups(output: &str) -> Vec<Value> {
    // The document may be followed by a message.
    let mut documents = serde_json::Deserializer::from_str(output).into_iter::<Value>();
    let document = documents.next().and_then(Result::ok).unwrap_or_else(|| panic!("{output}"));
    document["groups"].as_array().unwrap_or_else(|| panic!("{output}")).clone()
}
