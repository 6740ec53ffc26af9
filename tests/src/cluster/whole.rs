//! Answers of the whole cluster: every node gives the same ones, also a gateway. A node that does not answer
//! is listed as such, and delays no answer for long.

use std::collections::BTreeSet;
use std::time::Duration;

use mlgw_common::time::Instant;
use serde_json::Value;

use super::figures::document;
use super::testbed::{BUCKET, FIRST, GATEWAY, STORAGE, TestCluster, keys_before, wait_at_most, wait_until};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::ServerSetup;

/// Longest time of a command while a node is paused. A part has two seconds; the rest is for a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Longest time until segments without references are removed.
const RELEASED_MAX: Duration = Duration::from_secs(120);
/// Length of an object. Four of them fill more than two segments.
const BODY: usize = 3 << 20;

/// Settings for many segments.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB").with("hot.compact_interval", "100ms")
}

/// Runs a command at a node, which succeeds.
fn run(cluster: &TestCluster, id: usize, words: &[&str]) -> String {
    let (output, status) = cluster.member(id).setup.command(words);
    assert_eq!(status, Some(0), "{words:?} at node {id}: {output}");
    output
}

/// Returns the reports of all nodes in the status that a node prints.
fn reports(cluster: &TestCluster, id: usize) -> Vec<Value> {
    document(cluster, id, &["status"])["nodes"].as_array().expect("a list").clone()
}

fn node_of(row: &Value) -> usize {
    usize::try_from(row["node"].as_u64().expect("an id")).expect("a small id")
}

/// Returns the nodes of the rows that meet a condition.
fn nodes_with(rows: &[Value], is_so: impl Fn(&Value) -> bool) -> BTreeSet<usize> {
    rows.iter().filter(|row| is_so(row)).map(node_of).collect()
}

#[test]
fn every_node_lists_all_nodes_the_jobs_and_the_datasets() {
    let cluster = TestCluster::whole();
    cluster.until_first_has_duty();
    let all: BTreeSet<usize> = cluster.ids().into_iter().collect();
    // Commands at a gateway and at a member are carried out by the duty node, which writes the audit log.
    run(&cluster, GATEWAY, &["dataset", "create", "all", "--bucket", BUCKET]);
    run(&cluster, STORAGE[1], &["dataset", "warm", "all", "--wait"]);
    let audit = cluster.member(FIRST).setup.data_dir.join("audit/audit.log");
    let audit = std::fs::read_to_string(audit).expect("the audit log");
    assert!(audit.contains(&format!("through node {GATEWAY}\"")), "{audit}");

    let key = keys_before().next().expect("a key");
    let object = format!("s3://{BUCKET}/{key}");
    let jobs = document(&cluster, FIRST, &["job", "list"]);
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(1), "{jobs:#}");
    for id in cluster.ids() {
        let mut found = Vec::new();
        wait_until(&format!("node {id} has an answer of every node"), || {
            found = reports(&cluster, id);
            nodes_with(&found, |report| report["silent"].is_null()) == all
        });
        assert_eq!(nodes_with(&found, |report| report["own"] == true), BTreeSet::from([id]));
        let has_tiers = |report: &Value| report["figures"]["tiers"].as_array().is_some_and(|t| !t.is_empty());
        assert_eq!(nodes_with(&found, has_tiers), STORAGE.into(), "at node {id}");

        assert_eq!(document(&cluster, id, &["job", "list"]), jobs, "at node {id}");
        let datasets = document(&cluster, id, &["dataset", "list"]);
        assert_eq!(datasets["datasets"][0]["name"], "all", "at node {id}: {datasets:#}");
        wait_until(&format!("node {id} names three nodes with the object"), || {
            let shown = document(&cluster, id, &["object", "show", &object]);
            nodes_with(shown["nodes"].as_array().expect("a list"), |on| on["suspect_bytes"] == 0)
                == STORAGE.into()
        });
        wait_until(&format!("`mlgw top` at node {id} has an answer of every node"), || {
            let text = run(&cluster, id, &["top", "--count", "1"]);
            text.ends_with(&format!(" nodes={0}/{0}\n", all.len()))
        });
    }
}

#[test]
fn every_storage_node_has_its_own_tiers() {
    let cluster = TestCluster::whole();
    cluster.until_first_has_duty();
    for id in STORAGE {
        wait_until(&format!("node {id} shows the segments in its own hot tier"), || {
            document(&cluster, id, &["tier", "show", "hot"])["segments"].as_u64() > Some(0)
        });
        run(&cluster, id, &["tier", "scrub", "hot", "--wait"]);
        run(&cluster, id, &["tier", "compact", "--wait"]);
        let audit = cluster.member(id).setup.data_dir.join("audit/audit.log");
        let audit = std::fs::read_to_string(audit).expect("the audit log");
        assert!(audit.contains("tier.scrub") && audit.contains("tier.compact"), "node {id}: {audit}");
    }
    for (id, words) in [(STORAGE[1], ["tier", "drain", "hot"]), (GATEWAY, ["tier", "show", "hot"])] {
        let (output, status) = cluster.member(id).setup.command(&words);
        assert!(status != Some(0) && output.contains("(OtherNode)"), "{words:?} at node {id}: {output}");
    }
}

#[test]
fn decisions_of_all_nodes_are_listed_at_every_node() {
    let mut cluster = TestCluster::three_with(small_segments);
    cluster.join("gateway");
    for id in STORAGE {
        let client = cluster.client(id);
        cluster.block_on(async {
            let keys = || (0..4).map(|number| format!("node-{id}-{number}"));
            for (key, number) in keys().zip(700_u64..) {
                let content = TestContent { id: number, length: BODY };
                client.put(BUCKET, &key, full_body(content.bytes())).await.expect("stored");
            }
            for key in keys() {
                client.delete(BUCKET, &key).await.expect("deleted");
            }
        });
    }
    for id in cluster.ids() {
        wait_at_most(RELEASED_MAX, &format!("node {id} lists decisions of every storage node"), || {
            let listed = document(&cluster, id, &["policy", "decisions", "--limit", "4096"]);
            let nodes_of = |list: &str| nodes_with(listed[list].as_array().expect("a list"), |_| true);
            nodes_of("silent").is_empty() && nodes_of("decisions") == STORAGE.into()
        });
        let few = document(&cluster, id, &["policy", "decisions", "--limit", "2"]);
        assert_eq!(few["decisions"].as_array().map(Vec::len), Some(2), "the limit is that of all nodes");
    }
}

#[test]
fn a_node_that_does_not_answer_is_listed_and_delays_no_command() {
    let cluster = TestCluster::whole();
    let (paused, asked) = (STORAGE[2], [FIRST, GATEWAY]);
    cluster.pause(paused);
    for id in asked {
        // The first answers precede the failure of a probe.
        let begun = Instant::now();
        let report = reports(&cluster, id).into_iter().find(|report| node_of(report) == paused);
        let report = report.expect("every node is listed");
        assert!(report["silent"].is_string() && report["figures"].is_null(), "{report:#}");
        assert!(begun.elapsed() < ANSWER_MAX, "after {:?}", begun.elapsed());
        wait_until("the paused node alone gives no decisions", || {
            let listed = document(&cluster, id, &["policy", "decisions"]);
            nodes_with(listed["silent"].as_array().expect("a list"), |_| true) == [paused].into()
        });
        wait_until("the health is that of the cluster", || {
            let status = document(&cluster, id, &["status"]);
            status["health"] == "warning" && status["findings"].to_string().contains("does not answer")
        });
    }
    cluster.resume(paused);
    for id in asked {
        wait_until("the node answers again", || {
            nodes_with(&reports(&cluster, id), |report| !report["silent"].is_null()).is_empty()
        });
    }
}

#[test]
fn the_requests_for_the_duty_node_are_refused_while_it_does_not_answer() {
    let cluster = TestCluster::whole();
    cluster.until_first_has_duty();
    cluster.pause(FIRST);
    wait_until("the gateway finds that the duty node does not answer", || {
        let begun = Instant::now();
        let (output, status) = cluster.member(GATEWAY).setup.command(&["dataset", "list"]);
        assert!(begun.elapsed() < ANSWER_MAX, "after {:?}: {output}", begun.elapsed());
        // Another node may have taken over already.
        status == Some(0) || output.contains("(DutyNodeSilent)") || output.contains("(NoDutyNode)")
    });
    wait_at_most(RELEASED_MAX, "another node has the duty, and every node finds it", || {
        [2, 3, GATEWAY]
            .into_iter()
            .all(|id| cluster.member(id).setup.command(&["dataset", "list"]).1 == Some(0))
    });
    cluster.resume(FIRST);
}
