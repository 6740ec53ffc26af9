//! Quotas that count in several object groups: those of an access key, and of a bucket with split keys. Each
//! group has a slice. Writes to all groups through all nodes use the whole quota together, and nothing more,
//! also while they are concurrent, after a change of the quota, and after the loss of the duty node.

use futures_util::future::join_all;
use http::Method;
use serde_json::Value;

use super::access_keys::{self, TestKey};
use super::testbed::{FIRST, SPREAD, STORAGE, TestCluster, until_served, wait_until};
use crate::s3::{CallFailure, S3TestClient, full_body};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Writes that are sent at once to each bucket through each node: three times what fits.
const BURST: usize = 12;
/// Length of these objects.
const BURST_BYTES: usize = MIB;
/// Quota of the access key.
const QUOTA: usize = 36 * MIB;
/// Length of the objects that use up the rest.
const REST_BYTES: usize = 64 * KIB;

/// Objects that the quota of the split bucket allows, and those that are written at once through each node.
const OBJECTS: usize = 20;
const OBJECTS_EACH: usize = 24;
const SPLIT: &str = "quota-split";

/// Writes an object of this length. Returns false if the quota refuses it. A 503 is repeated.
async fn is_stored(client: &S3TestClient, bucket: &str, key: &str, length: usize) -> bool {
    let stored = async || match client.put(bucket, key, full_body(vec![7; length])).await {
        Err(CallFailure::Refused { status, body }) if status == 403 => {
            assert!(body.contains("<Code>QuotaExceeded</Code>"), "{body}");
            Ok(false)
        }
        outcome => outcome.map(|_| true),
    };
    until_served(&format!("{bucket}/{key} is stored or refused"), stored).await
}

/// Bytes and objects that count for an access key.
fn used_by(cluster: &TestCluster, key: &TestKey) -> (usize, usize) {
    used_in(&access_keys::run(cluster, &["show", &key.id]))
}

fn used_in(output: &Value) -> (usize, usize) {
    let figure = |name: &str| output["used"][name].as_u64().unwrap_or_else(|| panic!("{name} in {output}"));
    let figure = |name: &str| usize::try_from(figure(name)).expect("small");
    (figure("bytes"), figure("objects"))
}

/// Objects that an access key writes to all buckets through some nodes.
struct QuotaWriter<'c> {
    cluster: &'c TestCluster,
    key: TestKey,
    number: usize,
    /// Bytes of acknowledged objects.
    stored: usize,
}

impl<'c> QuotaWriter<'c> {
    /// An access key with a quota of bytes.
    fn new(cluster: &'c TestCluster, quota: usize) -> Self {
        let key = TestKey::with_role(cluster, "write");
        access_keys::run(cluster, &["update", &key.id, "--quota-bytes", &quota.to_string()]);
        Self { cluster, key, number: 0, stored: 0 }
    }

    fn set_quota(&self, quota: usize) {
        access_keys::run(self.cluster, &["update", &self.key.id, "--quota-bytes", &quota.to_string()]);
    }

    /// Writes to all buckets through all of these nodes at once.
    fn burst(&mut self, nodes: &[usize]) {
        let clients: Vec<S3TestClient> = nodes.iter().map(|id| self.key.client(self.cluster, *id)).collect();
        let mut writes = Vec::new();
        for number in 0..BURST {
            for bucket in SPREAD {
                for (node, client) in clients.iter().enumerate() {
                    let key = format!("burst-{}-{node}-{number}", self.key.id);
                    writes.push(async move { is_stored(client, bucket, &key, BURST_BYTES).await });
                }
            }
        }
        let stored = self.cluster.block_on(join_all(writes));
        self.stored += stored.into_iter().filter(|is_stored| *is_stored).count() * BURST_BYTES;
    }

    /// Writes objects to one bucket after the other, through one node after the other, until the quota
    /// refuses one in each bucket.
    fn use_rest(&mut self, nodes: &[usize]) {
        let clients: Vec<S3TestClient> = nodes.iter().map(|id| self.key.client(self.cluster, *id)).collect();
        let mut refused = 0;
        while refused < SPREAD.len() {
            self.number += 1;
            let bucket = SPREAD[self.number % SPREAD.len()];
            let client = &clients[self.number / SPREAD.len() % clients.len()];
            let key = format!("rest-{}-{}", self.key.id, self.number);
            if self.cluster.block_on(is_stored(client, bucket, &key, REST_BYTES)) {
                (refused, self.stored) = (0, self.stored + REST_BYTES);
            } else {
                refused += 1;
            }
        }
    }

    /// Asserts that all of the quota is used, except for less than an object.
    fn assert_used_up(&self, quota: usize) {
        let bytes = self.stored;
        wait_until("what was acknowledged is counted", || used_by(self.cluster, &self.key).0 == bytes);
        assert!(bytes <= quota && bytes + REST_BYTES > quota, "{bytes} of {quota}");
    }
}

#[test]
fn the_quota_of_an_access_key_can_be_used_in_any_groups_and_is_never_exceeded() {
    let mut cluster = TestCluster::spread();
    wait_until("the cluster has the newest version", || cluster.view(FIRST).upgrade.is_none());
    let mut writer = QuotaWriter::new(&cluster, QUOTA);
    writer.burst(&STORAGE);
    assert!(writer.stored <= QUOTA, "{} bytes were stored", writer.stored);
    writer.use_rest(&STORAGE);
    writer.assert_used_up(QUOTA);

    // A larger quota can be used at once, and a smaller one refuses at once.
    let larger = QUOTA + 3 * MIB;
    writer.set_quota(larger);
    writer.use_rest(&STORAGE);
    writer.assert_used_up(larger);
    writer.set_quota(MIB);
    let clients = STORAGE.map(|id| writer.key.client(&cluster, id));
    cluster.block_on(async {
        for (client, bucket) in clients.iter().zip(SPREAD) {
            assert!(!is_stored(client, bucket, "over", 1).await, "{bucket}");
        }
    });

    // Another node divides after the loss of the duty node.
    let second = QuotaWriter::new(&cluster, QUOTA);
    let (key, duty) = (second.key, cluster.duty());
    cluster.kill(duty);
    let others: Vec<usize> = STORAGE.into_iter().filter(|id| *id != duty).collect();
    wait_until("another node has the duty", || {
        others.iter().any(|id| cluster.duty_at(*id).is_some_and(|node| node != duty))
    });
    let mut second = QuotaWriter { cluster: &cluster, key, number: 0, stored: 0 };
    second.burst(&others);
    assert!(second.stored <= QUOTA, "{} bytes were stored", second.stored);
    second.use_rest(&others);
    assert!(second.stored <= QUOTA && second.stored + REST_BYTES > QUOTA, "{} of {QUOTA}", second.stored);
}

#[test]
fn the_quota_of_a_split_bucket_is_exact() {
    let cluster = TestCluster::spread();
    wait_until("the cluster has the newest version", || cluster.view(FIRST).upgrade.is_none());
    let clients = STORAGE.map(|id| cluster.client(id));
    cluster.block_on(async {
        let splits = [("x-mlgw-split-keys", "h,p".to_owned())];
        clients[0].call(Method::PUT, &format!("/{SPLIT}"), &splits, full_body("")).await.expect("made");
    });
    let objects = OBJECTS.to_string();
    let words = ["--output", "json", "--yes", "bucket", "quota", SPLIT, "--objects", &objects];
    let (output, status) = cluster.member(FIRST).setup.command(&words);
    assert_eq!(status, Some(0), "{output}");
    let stored = cluster.block_on(async {
        let mut writes = Vec::new();
        for (node, client) in clients.iter().enumerate() {
            for number in 0..OBJECTS_EACH {
                let key = format!("{}-{node}-{number}", ["a", "k", "z"][number % 3]);
                writes.push(async move { is_stored(client, SPLIT, &key, 10).await });
            }
        }
        join_all(writes).await
    });
    assert_eq!(stored.into_iter().filter(|is_stored| *is_stored).count(), OBJECTS);
    wait_until("all objects are counted", || {
        let words = ["--output", "json", "bucket", "show", SPLIT];
        let (output, status) = cluster.member(FIRST).setup.command(&words);
        assert_eq!(status, Some(0), "{output}");
        used_in(&serde_json::from_str(&output).expect("JSON")) == (10 * OBJECTS, OBJECTS)
    });
}
