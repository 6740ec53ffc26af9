//! Two nodes run the saga that deletes a bucket. The leader of the system group is paused in the middle of
//! it, the next leader completes it, and then the former one goes on. A bucket that is kept is writable in
//! each of its groups then; one that is deleted is gone, and no group has a mirror of it.
//!
//! The saga is in the middle while the leader of one of the groups is not able to answer: a relay holds its
//! bytes back.

use http::Method;
use mlgw_common::time::timeout;
use tokio::task::JoinHandle;

use super::END_MAX;
use crate::cluster::five::put_in;
use crate::cluster::histories::links::{LinkDirection, NodeLinks};
use crate::cluster::histories::round::RelayedCluster;
use crate::cluster::testbed::{FIRST, GATEWAY, STORAGE, TestCluster, content_of, until_served, wait_until};
use crate::s3::{CallFailure, S3TestClient, full_body};

/// The bucket, with a range in each group of objects.
const NAME: &str = "cluster-tests-two-runners";
const SPLIT_KEYS: &str = "g,p";
/// A key of each range.
const KEYS: [&str; 3] = ["a", "h", "q"];
/// The leader of one of the groups, which does not answer the former runner.
const SLOW: usize = 2;
/// The node through which the bucket is deleted. It or the slow one is the next runner.
const THROUGH: usize = 3;

async fn create_bucket(client: &S3TestClient) {
    let splits = [("x-mlgw-split-keys", SPLIT_KEYS.to_owned())];
    let path = format!("/{NAME}");
    let create = async || client.call(Method::PUT, &path, &splits, full_body("")).await;
    until_served("the bucket is created", create).await;
}

/// True if a node serves the bucket; `None` if the node refuses that with a 503.
fn serves_bucket(cluster: &TestCluster, node: usize) -> Option<bool> {
    let client = cluster.client(node);
    match cluster.block_on(client.call(Method::HEAD, &format!("/{NAME}"), &[], full_body(""))) {
        Ok(_) => Some(true),
        Err(failure) if failure.status() == Some(404) => Some(false),
        Err(failure) if failure.status() == Some(503) => None,
        Err(failure) => panic!("through node {node}: {failure:?}"),
    }
}

/// True if the bucket is listed, as one that is being deleted is, or if the node refuses to list buckets.
fn may_list_bucket(cluster: &TestCluster, node: usize) -> bool {
    let client = cluster.client(node);
    let listed = cluster.block_on(client.call(Method::GET, "/", &[], full_body("")));
    let has_name = |body: &[u8]| String::from_utf8_lossy(body).contains(&format!("<Name>{NAME}</Name>"));
    listed.map_or(true, |answer| has_name(&answer.body))
}

/// Number of times that another node than the former runner went on with the deletion.
fn resumptions(cluster: &TestCluster) -> usize {
    let logs = [SLOW, THROUGH].map(|node| cluster.process(node).log());
    let is_one = |line: &&str| line.contains("resuming") && line.contains(NAME) && line.contains("Deleting");
    logs.iter().flat_map(|log| log.lines()).filter(is_one).count()
}

/// A deletion whose first runner is paused.
struct InterruptedDeletion {
    request: JoinHandle<Result<(), CallFailure>>,
}

impl InterruptedDeletion {
    /// Begins the deletion, pauses the runner in the middle, and waits for the next one.
    fn begin(cluster: &TestCluster, links: &NodeLinks) -> Self {
        assert!(cluster.groups_led_by(SLOW).iter().any(|group| *group > 0), "it leads a group of objects");
        let before = resumptions(cluster);
        links.block([LinkDirection { from: SLOW, to: FIRST }]);
        let client = cluster.client(THROUGH);
        let request = cluster.runtime().spawn(async move {
            client.call(Method::DELETE, &format!("/{NAME}"), &[], full_body("")).await.map(drop)
        });
        wait_until("the bucket is being deleted", || serves_bucket(cluster, THROUGH) == Some(false));
        cluster.pause(FIRST);
        links.open();
        wait_until("another node goes on with the deletion", || resumptions(cluster) > before);
        Self { request }
    }

    /// Continues the former runner, and waits until it has ended. Returns the response.
    fn end(self, cluster: &TestCluster) -> Result<(), CallFailure> {
        cluster.resume(FIRST);
        let answer = cluster.block_on(async { timeout(END_MAX, self.request).await });
        let answer = answer.expect("the deletion does not hang").expect("the task does not panic");
        eprintln!("the deletion got {answer:?}");
        wait_until("the former runner catches up", || cluster.is_caught_up(FIRST));
        cluster.until_settled();
        cluster.until_first_has_duty();
        // A node runs one saga at a time, so the former one has ended.
        let (client, other) = (cluster.client(FIRST), format!("{NAME}-{}", resumptions(cluster)));
        let create = async || client.create_bucket(&other).await;
        cluster.block_on(until_served("another bucket is created", create));
        answer
    }
}

/// Asserts that each range of the bucket is writable through each node. Returns the keys.
fn assert_writable(cluster: &TestCluster) -> Vec<String> {
    let mut keys = Vec::new();
    for node in STORAGE.into_iter().chain([GATEWAY]) {
        let client = cluster.client(node);
        for range in KEYS {
            let key = format!("{range}-through-{node}");
            cluster.block_on(async {
                put_in(&client, NAME, &key).await;
                let read = async || client.get(NAME, &key).await;
                let read = until_served("an object is read", read).await;
                assert_eq!(content_of(&key).difference(&read.body), None, "{key}");
            });
            keys.push(key);
        }
    }
    keys
}

/// Asserts that no node has the bucket, and that no group has a mirror of it: a backup of one would fail.
fn assert_gone(cluster: &TestCluster) {
    for node in STORAGE.into_iter().chain([GATEWAY]) {
        wait_until(&format!("node {node} does not have the bucket"), || {
            let served = serves_bucket(cluster, node);
            assert_ne!(served, Some(true), "through node {node}");
            served == Some(false)
        });
    }
    let room = tempfile::tempdir().expect("a directory");
    for node in STORAGE {
        let (setup, out) = (&cluster.member(node).setup, room.path().join(format!("of-{node}")));
        let dirs = [&setup.data_dir, &out].map(|path| path.to_str().expect("a test path"));
        let (output, status) = setup.store(&["backup", dirs[0], dirs[1]]);
        assert_eq!(status, Some(0), "node {node}: {output}");
    }
}

#[test]
fn a_deletion_with_two_runners_keeps_a_bucket_writable_or_removes_it_everywhere() {
    let RelayedCluster { cluster, links, .. } = RelayedCluster::new();
    // It leads the system group then.
    cluster.until_first_has_duty();
    let client = cluster.client(THROUGH);
    cluster.block_on(async {
        create_bucket(&client).await;
        put_in(&client, NAME, KEYS[2]).await;
    });

    let interrupted = InterruptedDeletion::begin(&cluster, &links);
    wait_until("the next runner keeps the bucket", || serves_bucket(&cluster, THROUGH) == Some(true));
    let refused = interrupted.end(&cluster).err().and_then(|failure| failure.status());
    assert!(matches!(refused, Some(409 | 503)), "the bucket has an object: {refused:?}");
    let mut keys = assert_writable(&cluster);

    keys.push(KEYS[2].to_owned());
    cluster.block_on(async {
        for key in &keys {
            until_served("an object is deleted", async || client.delete(NAME, key).await).await;
        }
    });
    let interrupted = InterruptedDeletion::begin(&cluster, &links);
    wait_until("the next runner removes the bucket", || !may_list_bucket(&cluster, THROUGH));
    let answer = interrupted.end(&cluster).err().and_then(|failure| failure.status());
    assert!(matches!(answer, None | Some(404 | 503)), "the bucket is empty: {answer:?}");
    assert_gone(&cluster);
    cluster.block_on(create_bucket(&client));
    assert_writable(&cluster);
}
