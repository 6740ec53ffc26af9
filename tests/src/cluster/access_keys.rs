//! Access keys are changed on the first node and used through all nodes. When a command has returned, every
//! storage node honors what it changed.

use http::Method;
use serde_json::Value;

use super::testbed::{BUCKET, FIRST, STORAGE, TestCluster, assert_reads, keys_before, put, until_served};
use crate::s3::{CallFailure, S3TestClient, full_body};

/// Rounds, each with a new key.
const ROUNDS: usize = 5;

/// An access key of a cluster.
pub(super) struct TestKey {
    pub(super) id: String,
    secret: String,
}

/// Runs a command for access keys on the first node.
pub(super) fn run(cluster: &TestCluster, words: &[&str]) -> Value {
    let words = [&["--output", "json", "--yes", "access", "key"], words].concat();
    let (output, status) = cluster.member(FIRST).setup.command(&words);
    assert_eq!(status, Some(0), "{words:?}: {output}");
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{words:?}: {error}: {output}"))
}

impl TestKey {
    /// Creates a key that may read.
    fn create(cluster: &TestCluster) -> Self {
        Self::with_role(cluster, "read")
    }

    /// Creates a key with a role.
    pub(super) fn with_role(cluster: &TestCluster, role: &str) -> Self {
        let made = run(cluster, &["create", "--role", role]);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        Self { id: text(&made["key"]["access_key"]), secret: text(&made["secret_access_key"]) }
    }

    /// A client of a node with this key.
    pub(super) fn client(&self, cluster: &TestCluster, id: usize) -> S3TestClient {
        S3TestClient::new(cluster.process(id).s3, &self.id, &self.secret)
    }

    /// A client of the admin API of a node with this key.
    pub(super) fn admin_client(&self, cluster: &TestCluster, id: usize) -> S3TestClient {
        S3TestClient::admin(cluster.process(id).admin, &self.id, &self.secret)
    }

    /// Asserts that every storage node refuses such a request for an object with this code.
    fn assert_refused(&self, cluster: &TestCluster, method: &Method, code: &str) {
        let target = format!("/{BUCKET}/refused");
        for id in STORAGE {
            let client = self.client(cluster, id);
            let refused = cluster.block_on(client.call(method.clone(), &target, &[], full_body("")));
            let Err(CallFailure::Refused { status, body }) = refused else { panic!("{id}: {refused:?}") };
            assert!(status == 403 && body.contains(code), "through node {id}: {status} {body}");
        }
    }
}

#[test]
fn every_node_honors_a_key_and_its_rights_as_soon_as_a_command_has_returned() {
    let cluster = TestCluster::three();
    let there = keys_before().next().expect("a key");
    for round in 0..ROUNDS {
        let key = TestKey::create(&cluster);
        for id in STORAGE.into_iter().rev() {
            cluster.block_on(assert_reads(&key.client(&cluster, id), &there));
        }
        key.assert_refused(&cluster, &Method::PUT, "<Code>AccessDenied</Code>");
        run(&cluster, &["update", &key.id, "--role", "write"]);
        for id in STORAGE.into_iter().rev() {
            let stored = cluster.block_on(put(&key.client(&cluster, id), &format!("round-{round}")));
            assert!(stored.is_ok(), "through node {id}: {stored:?}");
        }
        run(&cluster, &["delete", &key.id]);
        key.assert_refused(&cluster, &Method::GET, "<Code>InvalidAccessKeyId</Code>");
    }
}

#[test]
fn a_node_that_missed_the_creation_of_a_key_accepts_it_at_once() {
    const BEHIND: usize = 3;
    let cluster = TestCluster::three();
    let there = keys_before().next().expect("a key");
    cluster.pause(BEHIND);
    let key = TestKey::create(&cluster);
    cluster.resume(BEHIND);
    let client = key.client(&cluster, BEHIND);
    // The node may begin an election after the pause, during which requests are refused.
    cluster.block_on(until_served("a read", async || client.get(BUCKET, &there).await));
}
