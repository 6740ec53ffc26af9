//! Settings that all nodes of a cluster should share: `mlgw cluster status` names those that differ, on every
//! node, without their values. What contradicts the cluster refuses the start, with the line of the file.

use std::collections::BTreeMap;

use super::refusals::assert_refused;
use super::testbed::{FIRST, STORAGE, TestCluster, wait_until};

/// The node with other settings.
const OTHER: usize = 3;
/// Secret of an upstream of that node.
const SECRET: &str = "mlgw-tests-another-secret-0123456789abcd";

/// Waits until every node names the same nodes with other settings than most, and these settings.
fn until_differing(cluster: &TestCluster, expected: &[(usize, &[&str])]) {
    let owned = |(node, names): &(usize, &[&str])| {
        (*node, names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    };
    let expected: BTreeMap<usize, Vec<String>> = expected.iter().map(owned).collect();
    for id in cluster.running() {
        wait_until(&format!("node {id} finds {expected:?}"), || {
            let nodes = cluster.view(id).nodes.into_iter();
            let differing = nodes.filter(|node| !node.differing_settings.is_empty());
            differing.map(|node| (node.id, node.differing_settings)).collect::<BTreeMap<_, _>>() == expected
        });
    }
}

/// Gives a node an upstream with this secret, at its next start. Nothing uses it.
fn set_upstream(cluster: &mut TestCluster, id: usize, secret: &str) {
    for (key, value) in [
        ("endpoint", "http://127.0.0.1:9"),
        ("bucket", "lake"),
        ("credentials", "static"),
        ("access_key", "MLGWTESTKEY000000001"),
        ("secret_key", secret),
    ] {
        cluster.set(id, &format!("upstream.far.{key}"), value);
    }
}

#[test]
fn settings_that_differ_are_named_on_every_node_without_their_values() {
    let mut cluster = TestCluster::three();
    cluster.join("gateway");
    until_differing(&cluster, &[]);
    let (output, _) = cluster.member(FIRST).setup.command(&["cluster", "status"]);
    assert!(output.contains("settings     equal where they should be\n"), "{output}");

    for id in STORAGE {
        let secret = if id == OTHER { SECRET } else { "mlgw-tests-a-secret" };
        set_upstream(&mut cluster, id, secret);
    }
    cluster.set(OTHER, "bound.ttl", "1m");
    // The same value in another form, on the nodes that do not differ.
    cluster.set(FIRST, "bound.stale_max", "48h");
    cluster.set(2, "bound.stale_max", "2d");
    cluster.set(OTHER, "bound.stale_max", "2d");
    cluster.restart(&STORAGE);
    // A gateway does not use them.
    until_differing(&cluster, &[(OTHER, &["bound.ttl", "upstream.far"])]);
    for id in cluster.running() {
        let (output, status) = cluster.member(id).setup.command(&["cluster", "status"]);
        assert_ne!(status, Some(0), "{output}");
        assert!(output.contains("settings     other ones on node 3\n"), "{output}");
        assert!(output.contains("differ from those of most nodes: bound.ttl, upstream.far."), "{output}");
        let log = cluster.process(id).log();
        assert!(!output.contains(SECRET) && !log.contains(SECRET), "{output}\n{log}");
    }

    set_upstream(&mut cluster, OTHER, "mlgw-tests-a-secret");
    cluster.set(OTHER, "bound.ttl", "30s");
    cluster.restart(&[OTHER]);
    until_differing(&cluster, &[]);
}

#[test]
fn a_setting_that_contradicts_the_cluster_is_refused_with_its_line() {
    let mut cluster = TestCluster::first();
    let file = cluster.file("node.toml", "# A node.\n\ndurability = \"os\"\n");
    cluster.stop(FIRST);
    let refused = cluster.member(FIRST).setup.clone().with("config", &file);
    assert_refused(&refused, &format!("{file}:3: durability is \"os\""));
    cluster.start(FIRST);
}
