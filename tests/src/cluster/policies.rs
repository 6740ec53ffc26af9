//! The policy is changed on the first node. When a command has returned, every storage node runs the new
//! version.

use super::serving::text;
use super::testbed::{BUCKET, FIRST, STORAGE, TestCluster, wait_until};
use crate::s3::full_body;

/// Compresses texts as they are stored.
const POLICY: &str = "
version: 1
rules:
  - id: text
    conditions: [{type: file_pattern, property: key, operator: matches, value: 'text-**'}]
    actions: [{type: compress, parameters: {level: 3, min_ratio: 1.5}}]
";

/// Times that the policy is applied and rolled back.
const ROUNDS: usize = 3;

/// Runs a command for the policy on the first node.
fn run(cluster: &TestCluster, words: &[&str]) {
    let (output, status) = cluster.member(FIRST).setup.command(&[&["--yes", "policy"], words].concat());
    assert_eq!(status, Some(0), "{words:?}: {output}");
}

/// True if an object is compressed. Waits until the first node has its row.
fn is_compressed(cluster: &TestCluster, key: &str) -> bool {
    let object = format!("s3://{BUCKET}/{key}");
    let mut shown = String::new();
    wait_until(&format!("the first node has {key}"), || {
        let words = ["--output", "json", "object", "show", &object];
        let (output, status) = cluster.member(FIRST).setup.command(&words);
        shown = output;
        status == Some(0)
    });
    shown.contains("\"zstd\"")
}

/// Stores a text through each storage node, the first one last, and asserts if it is compressed.
fn assert_compressing(cluster: &TestCluster, name: &str, is_expected: bool) {
    for id in STORAGE.into_iter().rev() {
        let key = format!("text-{name}-{id}");
        cluster.block_on(cluster.client(id).put(BUCKET, &key, full_body(text(id)))).expect("stored");
        assert_eq!(is_compressed(cluster, &key), is_expected, "{key}");
    }
}

#[test]
fn every_node_runs_a_policy_as_soon_as_a_command_has_returned() {
    let cluster = TestCluster::three();
    let file = cluster.file("compress.yaml", POLICY);
    for round in 0..ROUNDS {
        run(&cluster, &["apply", &file]);
        assert_compressing(&cluster, &format!("applied-{round}"), true);
        run(&cluster, &["rollback"]);
        assert_compressing(&cluster, &format!("rolled-back-{round}"), false);
    }
}
