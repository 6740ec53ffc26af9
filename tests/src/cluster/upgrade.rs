//! A cluster is upgraded node by node while clients write. A test switch has one build stand for two: with it
//! a node knows the cluster version before only, and stops at everything later.
//!
//! The nodes use nothing of the later version until all of them know it, also those that are down. Then the
//! version rises by itself, a node of the version before does not start any more, and commands of the later
//! version enter the logs: nodes tag the batches that they send to leaders on other nodes. The leaders of
//! groups compare the rows of their members, a fourth node joins, and a rebalance makes sets of nodes.
//! Members that apply the same log differently would have other rows, so the rows of all nodes are compared
//! in the end.

use std::collections::BTreeSet;

use super::five::{assert_same_rows, group_rows, metric, nodes_of_groups, put_in, rebalance};
use super::refusals::assert_refused;
use super::rows::check_store;
use super::testbed::{FIRST, SPREAD, STORAGE, TestCluster, TestMember, put, wait_until};
use super::writers::{TestWriter, WrittenObject, assert_all_stored};
use crate::server::ServerSetup;

/// The test switch, as a setting of a test server.
const SWITCH: &str = "test_previous_version";
/// The node that is upgraded last, and down before.
const LAST: usize = 3;
/// The node that joins after the upgrade, and all of them then.
const JOINING: usize = 4;
const FOUR: [usize; 4] = [FIRST, 2, LAST, JOINING];

/// Metric of the use of the newest command.
const TAGGED: &str = "mlgw_raft_tagged_batches_total";

/// Settings of a node of the version before.
fn previous(setup: ServerSetup) -> ServerSetup {
    compared_often(setup).with(SWITCH, 1)
}

/// Settings with which rows are compared all the time.
fn compared_often(setup: ServerSetup) -> ServerSetup {
    setup.with("cluster.compare_interval", "1s")
}

/// Restarts a node as one of the newest version, while clients write through the others. At most a 503 asks
/// them to try again.
fn upgrade_under_load(cluster: &mut TestCluster, node: usize) -> Vec<WrittenObject> {
    let others = STORAGE.into_iter().filter(|other| *other != node);
    let label = format!("upgrade-of-{node}");
    let writers: Vec<TestWriter> = others.map(|other| TestWriter::start(cluster, other, &label)).collect();
    writers.iter().for_each(TestWriter::until_more);
    cluster.stop(node);
    writers.iter().for_each(TestWriter::until_more);
    cluster.set(node, SWITCH, "0");
    cluster.start(node);
    cluster.until_settled();
    writers.iter().for_each(TestWriter::until_more);
    let logs = writers.into_iter().map(|writer| writer.end(cluster));
    logs.flat_map(|log| {
        log.assert_kept();
        log.stored
    })
    .collect()
}

/// Waits until a node describes the upgrade to `version` as one that these nodes lack.
fn until_lacking(cluster: &TestCluster, at: usize, version: u32, nodes: &[usize]) {
    wait_until(&format!("node {at} describes the upgrade that waits for {nodes:?}"), || {
        let upgrade = cluster.view(at).upgrade;
        upgrade.is_some_and(|upgrade| upgrade.version == version && upgrade.without == nodes)
    });
}

/// Waits until every node describes the cluster as one of this version.
fn until_raised(cluster: &TestCluster, version: u32) {
    wait_until(&format!("the cluster has version {version}"), || {
        cluster.running().into_iter().all(|id| {
            let view = cluster.view(id);
            view.cluster_version == version && view.upgrade.is_none()
        })
    });
}

/// Asserts that the cluster has this version, and that no node has used a command of the next one.
fn assert_not_raised(cluster: &TestCluster, at: usize, version: u32) {
    assert_eq!(cluster.view(at).cluster_version, version);
    assert!(metric(cluster, TAGGED) < 0.5, "batches are tagged by commands of the next version");
    let (output, _) = cluster.member(at).setup.command(&["cluster", "status"]);
    let waits = format!("version      {version}; {} when ", version + 1);
    assert!(output.contains(&waits), "{output}");
}

/// Commands of the newest version, and others that few clusters use: the rows of every group are compared.
/// Then a further node joins, and groups move to sets with it. Objects are stored in segments of these sets.
fn use_newest_commands(cluster: &mut TestCluster) {
    for node in STORAGE {
        let client = cluster.client(node);
        cluster.block_on(async { put(&client, &format!("tagged-{node}")).await.expect("stored") });
    }
    assert!(metric(cluster, TAGGED) >= 1.0, "not every node leads the group");
    wait_until("the rows of every group are compared, and equal", || {
        let (groups, rows) = (cluster.group_ids(), cluster.view(FIRST).rows);
        rows.iter().all(|rows| rows.differing.is_empty()) && rows.iter().map(|rows| rows.group).eq(groups)
    });
    cluster.create_spread_buckets();
    cluster.set_settings(compared_often);
    cluster.join("storage");
    cluster.until_active(JOINING);
    rebalance(cluster, 2);
    let of_groups = nodes_of_groups(&cluster.view(FIRST));
    assert!(of_groups.values().any(|nodes| nodes.contains(&JOINING)), "{of_groups:?}");
    for node in FOUR {
        let client = cluster.client(node);
        cluster.block_on(async {
            for bucket in SPREAD {
                put_in(&client, bucket, &format!("in-sets-{node}")).await;
            }
        });
    }
}

#[test]
fn a_cluster_is_upgraded_node_by_node_while_clients_write() {
    let mut cluster = TestCluster::three_with(previous);
    let old = cluster.view(FIRST).cluster_version;
    let new = old + 1;
    assert_eq!(cluster.view(FIRST).upgrade, None, "no node knows a later version");

    let mut stored = upgrade_under_load(&mut cluster, FIRST);
    until_lacking(&cluster, FIRST, new, &[2, LAST]);
    assert_not_raised(&cluster, FIRST, old);
    stored.extend(upgrade_under_load(&mut cluster, 2));
    for at in [FIRST, 2] {
        until_lacking(&cluster, at, new, &[LAST]);
        assert_not_raised(&cluster, at, old);
    }
    // The node that would apply a later command differently is down, and counts.
    cluster.kill(LAST);
    wait_until("the others do not reach the last node", || {
        cluster.view(FIRST).node(LAST).is_some_and(|node| node.reachable == Some(false))
    });
    cluster.until_led();
    assert_not_raised(&cluster, FIRST, old);
    cluster.start(LAST);
    cluster.until_settled();
    stored.extend(upgrade_under_load(&mut cluster, LAST));
    until_raised(&cluster, new);

    use_newest_commands(&mut cluster);
    for node in FOUR {
        assert_all_stored(&cluster, node, &stored);
    }
    // The copies of the last writes may be incomplete, so the exit status is not examined.
    let rows_of = |member: &TestMember| group_rows(&check_store(member).0);
    assert_same_rows(&mut cluster, &FOUR, rows_of, TestCluster::spawn);
}

#[test]
fn a_node_of_the_version_before_does_not_return_after_the_version_has_risen() {
    const RETURNS: usize = 2;
    let mut cluster = TestCluster::three();
    let version = cluster.view(FIRST).cluster_version;
    cluster.stop(RETURNS);
    let older = previous(cluster.member(RETURNS).setup.clone());
    assert_refused(&older, &format!("this mlgw knows version {} at most", version - 1));
    // Neither does a new one join.
    let joining = cluster.new_member("older");
    let data_dir = joining.setup.data_dir.to_str().expect("a test path");
    let (token, seed) = (cluster.token(), cluster.member(FIRST).address.to_string());
    let words = ["join", data_dir, "--token", &token, "--seed", &seed];
    let (output, status) = previous(joining.setup.clone()).cluster(&words);
    assert_ne!(status, Some(0), "{output}");
    assert!(output.contains(&format!("version {version}")), "{output}");

    // The refusals have changed nothing.
    cluster.start(RETURNS);
    cluster.until_settled();
    let client = cluster.client(RETURNS);
    cluster.block_on(async { put(&client, "afterwards").await.expect("stored") });
    assert_eq!(cluster.view(RETURNS).cluster_version, version);
    let known: BTreeSet<usize> = cluster.view(FIRST).nodes.iter().map(|node| node.id).collect();
    assert_eq!(known, STORAGE.into());
}
