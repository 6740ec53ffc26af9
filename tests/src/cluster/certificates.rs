//! The authority of the cluster is replaced while the cluster serves: every node gets a certificate of the
//! new one, and then the old one is not trusted any more. A node that is down delays the replacement and
//! nothing else: nodes join meanwhile, all nodes may restart in between, and the node that was down connects
//! when it returns.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::testbed::{FIRST, STORAGE, TestCluster, assert_reads, assert_reads_before, put, wait_until};
use super::writers::{TestWriter, assert_all_stored};
use crate::observability::scrape::Scrape;

/// The node that is down.
const DOWN: usize = 3;
/// Seconds of a day. A certificate lasts 365 of them.
const DAY: f64 = 86_400.0;

/// Runs `mlgw cluster …` against a node, and returns its output.
fn run(cluster: &TestCluster, node: usize, words: &[&str]) -> String {
    let words: Vec<&str> = std::iter::once("cluster").chain(words.iter().copied()).collect();
    cluster.member(node).setup.command(&words).0
}

/// Certificates of the authorities that a node has stored, the one that signed its own first.
fn authorities(cluster: &TestCluster, node: usize) -> Vec<String> {
    let path = cluster.member(node).setup.data_dir.join("cluster/certificate.json");
    let file: Value = serde_json::from_slice(&fs::read(path).expect("read")).expect("a document");
    let authorities = file["authorities"].as_array().expect("a list");
    authorities.iter().map(|one| one.as_str().expect("a certificate").to_owned()).collect()
}

/// Waits until these nodes trust one authority, which is not `old`, and no replacement is under way.
fn until_replaced(cluster: &TestCluster, nodes: &[usize], old: &str) {
    wait_until("every node trusts the new authority alone", || {
        let trusted: BTreeSet<Vec<String>> = nodes.iter().map(|node| authorities(cluster, *node)).collect();
        let is_one = trusted.len() == 1 && trusted.iter().all(|of| of.len() == 1 && of[0] != old);
        is_one && nodes.iter().all(|node| cluster.view(*node).authority_change.is_none())
    });
}

/// Asserts that a node returns all objects that existed before the cluster.
fn assert_reads_all(cluster: &TestCluster, node: usize) {
    let client = cluster.client(node);
    cluster.block_on(assert_reads_before(&client));
}

/// Asserts that a node exposes the remaining time of a certificate that was signed today.
fn assert_lasts_a_year(cluster: &TestCluster, node: usize) {
    let scrape = Scrape::of(cluster.process(node));
    let days = scrape.sum("mlgw_cluster_certificate_remaining_seconds", &[]) / DAY;
    assert!((364.0..=365.0).contains(&days), "node {node}: {days} days");
}

#[test]
fn the_authority_is_replaced_while_clients_write() {
    let mut cluster = TestCluster::whole();
    let nodes = cluster.ids();
    nodes.iter().for_each(|node| assert_lasts_a_year(&cluster, *node));
    let old = authorities(&cluster, FIRST).remove(0);
    let writers: Vec<TestWriter> =
        STORAGE.iter().map(|node| TestWriter::start(&cluster, *node, "rotation")).collect();
    writers.iter().for_each(TestWriter::until_more);
    let output = run(&cluster, 2, &["rotate-ca"]);
    assert!(output.contains("automatically"), "{output}");
    until_replaced(&cluster, &nodes, &old);
    writers.iter().for_each(TestWriter::until_more);
    let mut stored = Vec::new();
    for writer in writers {
        let log = writer.end(&cluster);
        log.assert_kept();
        stored.extend(log.stored);
    }
    // New connections, with the new certificates alone.
    cluster.restart(&nodes);
    for node in nodes {
        assert_lasts_a_year(&cluster, node);
        assert_all_stored(&cluster, node, &stored);
        assert_eq!(cluster.view(node).authority_change.map(|change| change.authority), None);
    }
}

#[test]
fn a_replacement_waits_for_a_node_that_is_down_and_continues_after_restarts() {
    let mut cluster = TestCluster::three();
    let old = authorities(&cluster, FIRST).remove(0);
    cluster.kill(DOWN);
    wait_until("the first node does not reach the one that is down", || {
        cluster.view(FIRST).node(DOWN).is_some_and(|node| node.reachable == Some(false))
    });
    run(&cluster, FIRST, &["rotate-ca"]);
    let waiting = || cluster.view(FIRST).authority_change.expect("a replacement");
    wait_until("the other nodes trust the new authority", || waiting().without_trust == [DOWN]);
    assert!(authorities(&cluster, FIRST)[0] == old, "nothing is signed by an authority that a node refuses");
    let output = run(&cluster, FIRST, &["status"]);
    assert!(output.contains("waits until node 3 (it does not answer) trusts the new one"), "{output}");
    let authority = waiting().authority;
    run(&cluster, 2, &["rotate-ca"]);
    assert_eq!(waiting().authority, authority, "no other replacement begins");

    cluster.join("gateway");
    assert_reads_all(&cluster, 4);
    for node in [FIRST, 2] {
        cluster.kill(node);
    }
    for node in [FIRST, 2] {
        cluster.spawn(node);
    }
    for node in [FIRST, 2] {
        cluster.until_ready(node);
    }
    let client = cluster.client(2);
    cluster.block_on(put(&client, "meanwhile")).expect("stored");

    cluster.start(DOWN);
    until_replaced(&cluster, &cluster.ids(), &old);
    cluster.restart(&cluster.ids());
    for node in cluster.ids() {
        assert_reads_all(&cluster, node);
        let client = cluster.client(node);
        cluster.block_on(assert_reads(&client, "meanwhile"));
    }
    cluster.join("gateway");
    assert_reads_all(&cluster, 5);
}
