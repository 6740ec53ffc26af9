//! Refusals that protect a cluster: of a copy of a node, of settings that contradict the cluster, and of
//! rules that delete.

use super::testbed::{FIRST, TestCluster, assert_reads, assert_reads_before, put, wait_until};
use crate::server::ServerSetup;
use crate::store::copy_directory;

/// Node whose directory is copied.
const COPIED: usize = 3;

/// A policy whose rule deletes old checkpoints.
const DELETING: &str = "
version: 1
rules:
  - id: few
    conditions:
      - {type: file_pattern, property: name, operator: matches, value: '*.pt'}
    actions: [{type: retain, stance: act, parameters: {keep_last: 1, delete: true, grace: 1d}}]
";

#[test]
fn a_copied_directory_is_refused_by_its_peers_and_the_cluster_goes_on() {
    let mut cluster = TestCluster::three();
    cluster.stop(COPIED);
    let [copy, old_copy] = ["copy", "old-copy"].map(|name| cluster.new_member(name));
    for copy in [&copy, &old_copy] {
        copy_directory(&cluster.member(COPIED).setup.data_dir, &copy.setup.data_dir);
    }
    start_copied(&mut cluster);
    // Its start has the number of the running node's.
    assert_stops(&copy.setup, "two copies of its disk run");
    goes_on(&cluster);
    cluster.stop(COPIED);
    start_copied(&mut cluster);
    // Its start has a lower number.
    assert_stops(&old_copy.setup, "it runs on an old copy of its disk");
    goes_on(&cluster);
    for reason in ["two copies of its disk run", "old copy of its disk"] {
        assert!(!cluster.process(COPIED).log().contains(reason), "{}", cluster.process(COPIED).log());
    }
}

/// Starts the node whose directory is copied, and waits until its peers know this start.
fn start_copied(cluster: &mut TestCluster) {
    cluster.start(COPIED);
    for other in [FIRST, 2] {
        wait_until(&format!("node {other} reaches the node after its restart"), || {
            cluster.view(other).node(COPIED).is_some_and(|node| node.reachable == Some(true))
        });
    }
}

/// Starts a copy, and asserts that it stops with an error that names the refusal of its peers.
fn assert_stops(copy: &ServerSetup, reason: &str) {
    let mut running = copy.spawn();
    let status = running.wait_exit();
    let log = running.log();
    assert!(!status.success(), "{status:?}\n{log}");
    assert!(log.contains(reason) && log.contains("a peer has recorded a later start of this node"), "{log}");
}

/// Asserts that every node serves, and that the node with the copy is still the one that peers reach.
fn goes_on(cluster: &TestCluster) {
    let clients = cluster.clients();
    cluster.block_on(async {
        for (number, client) in clients.iter().enumerate() {
            let key = format!("written-{number}");
            put(client, &key).await.expect("stored");
            for reader in &clients {
                assert_reads(reader, &key).await;
            }
            assert_reads_before(client).await;
        }
    });
    cluster.until_settled();
    let addresses = [FIRST, 2].map(|id| cluster.view(id).node(COPIED).map(|node| node.address.clone()));
    let expected = cluster.member(COPIED).address.to_string();
    assert_eq!(addresses, [Some(expected.clone()), Some(expected)]);
}

/// Asserts that a server does not start with this configuration, and names the reason.
pub(super) fn assert_refused(setup: &ServerSetup, reason: &str) {
    let failure = setup.try_start().err().expect("refused");
    assert!(failure.status.is_some_and(|status| !status.success()), "{:?}\n{}", failure.status, failure.log);
    assert!(failure.log.contains(reason), "{}", failure.log);
}

#[test]
fn a_node_refuses_settings_that_contradict_its_cluster() {
    let mut cluster = TestCluster::first();
    let joined = cluster.new_member("node-2");
    let (output, status) = cluster.run_join(&joined, &cluster.token(), "storage");
    assert_eq!(status, Some(0), "{output}");
    let in_memory = |setup: &ServerSetup| setup.clone().with("durability", "os");
    assert_refused(&in_memory(&joined.setup), "durability is \"os\"");

    cluster.stop(FIRST);
    let first = cluster.member(FIRST).setup.clone();
    assert_refused(&in_memory(&first), "durability is \"os\"");
    let other_secret = first.clone().with("root_secret_access_key", "another-secret-0123456789abcdefghijkl");
    let other_key = first.with("root_access_key_id", "MLGWTESTROOTKEY00002");
    for other_root in [other_secret, other_key] {
        assert_refused(&other_root, "are not the root credentials of the cluster");
    }

    // The refusals have changed nothing.
    cluster.start(FIRST);
    cluster.add(joined);
    cluster.start(2);
    let client = cluster.client(2);
    cluster.block_on(assert_reads_before(&client));
}

#[test]
fn a_cluster_refuses_a_policy_that_deletes_and_names_its_rule() {
    let cluster = TestCluster::first();
    let file = cluster.file("deleting.yaml", DELETING);
    let (output, status) = cluster.member(FIRST).setup.command(&["policy", "apply", &file]);
    assert_eq!(status, Some(4), "{output}");
    assert!(output.contains("(rules: few)") && output.contains("(DeletesInCluster)"), "{output}");
    let (output, status) = cluster.member(FIRST).setup.command(&["policy", "show"]);
    assert!(status == Some(0) && output.contains("No policy was applied"), "{output}");
}
