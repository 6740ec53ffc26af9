//! Schedule 7: the duty node is paused inside the creation of a bucket whose ranges are in several groups.
//! The next duty node finishes the creation, or deletes the bucket afterwards. Then the former one goes on,
//! and a command of it that was held back arrives. The bucket is writable in all of its groups, or does not
//! exist.

use std::time::Duration;

use http::Method;
use mlgw_common::time::timeout;

use crate::cluster::histories::links::LinkDirection;
use crate::cluster::histories::round::RelayedCluster;
use crate::cluster::rows::{assert_same_rows, check_store, checked_rows};
use crate::cluster::testbed::{
    FIRST, GATEWAY, OBJECT_GROUP, STORAGE, TestCluster, TestMember, content_of, until_served, wait_at_most,
    wait_until,
};
use crate::s3::{CallFailure, S3TestClient, full_body};

/// The node that leads the last group of the bucket. Commands of the duty node to it are held back.
const HELD: usize = 3;
/// The node through which the bucket is used meanwhile.
const OTHER: usize = 2;
/// The bucket, and the first keys of its ranges but for the first one.
const SPLIT: &str = "created-twice";
const SPLIT_KEYS: &str = "g,p";
/// A key of each range.
const RANGE_KEYS: [&str; 3] = ["a", "k", "x"];
/// Longest time until another node has the duty. The aim is 10 s; the rest is for a busy machine.
const TAKE_OVER_MAX: Duration = Duration::from_secs(60);
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(60);

async fn create(client: &S3TestClient) -> Result<(), CallFailure> {
    let splits = [("x-mlgw-split-keys", SPLIT_KEYS.to_owned())];
    client.call(Method::PUT, &format!("/{SPLIT}"), &splits, full_body("")).await.map(drop)
}

/// Status of HeadBucket through a node.
fn status(cluster: &TestCluster, node: usize) -> Option<u16> {
    let (client, target) = (cluster.client(node), format!("/{SPLIT}"));
    match cluster.block_on(client.call(Method::HEAD, &target, &[], full_body(""))) {
        Ok(_) => Some(200),
        Err(failure) => failure.status(),
    }
}

/// True if the leader of a group has entries in its log that a node lacks.
fn lags(cluster: &TestCluster, group: u32, node: usize) -> bool {
    let found = cluster.group(group);
    found.is_some_and(|found| found.members.iter().any(|of| of.node == node && of.lag_bytes > 0))
}

/// Writes a key of each range through a node, and reads them all.
fn assert_writable(cluster: &TestCluster, node: usize) {
    let client = cluster.client(node);
    cluster.block_on(async {
        for range in RANGE_KEYS {
            let key = format!("{range}-{node}");
            let put = async || client.put(SPLIT, &key, full_body(content_of(&key).bytes())).await;
            until_served(&format!("{key} is stored through node {node}"), put).await;
            let read = async || client.get(SPLIT, &key).await;
            let read = until_served(&format!("{key} is read through node {node}"), read).await;
            assert_eq!(content_of(&key).difference(&read.body), None, "{key} through node {node}");
        }
    });
}

/// The duty node is paused inside the creation of a bucket whose last group does not receive its commands.
/// When another node has finished the creation, `meanwhile` runs. Then the former duty node goes on, and what
/// it has sent arrives.
fn pause_in_creation(meanwhile: fn(&TestCluster)) -> RelayedCluster {
    let relayed = RelayedCluster::new();
    let RelayedCluster { cluster, links, .. } = &relayed;
    // It leads the system group then, and each storage node leads a group of the bucket.
    cluster.until_first_has_duty();
    assert!(!cluster.groups_led_by(HELD).is_empty(), "node {HELD} leads a group of the bucket");
    wait_until("the node lacks nothing", || cluster.is_caught_up(HELD));
    links.block([LinkDirection { from: FIRST, to: HELD }]);
    let client = cluster.client(FIRST);
    let creation = cluster.runtime().spawn(async move { create(&client).await });
    // Groups are visited in their order, and the first node leads the first one.
    wait_until("the first group has its mirror", || lags(cluster, OBJECT_GROUP, HELD));
    cluster.pause(FIRST);
    assert!(!creation.is_finished(), "the creation waits for the last group");

    wait_at_most(TAKE_OVER_MAX, "another node has the duty", || {
        cluster.duty_at(OTHER).is_some_and(|duty| duty != FIRST)
    });
    wait_until("the next duty node finishes the creation", || status(cluster, OTHER) == Some(200));
    meanwhile(cluster);

    cluster.resume(FIRST);
    links.open();
    let ended = cluster.block_on(async { timeout(END_MAX, creation).await });
    let ended = ended.expect("the creation does not hang").expect("the task does not panic");
    eprintln!("the creation ended with {ended:?}");
    let status = ended.err().and_then(|failure| failure.status());
    assert!(matches!(status, None | Some(500..)), "{status:?}");
    wait_until("the former duty node catches up", || cluster.is_caught_up(FIRST));
    cluster.until_settled();
    cluster.until_first_has_duty();
    relayed
}

#[test]
fn a_bucket_in_whose_creation_the_duty_node_was_paused_is_writable_in_all_of_its_groups() {
    let RelayedCluster { mut cluster, links, .. } = pause_in_creation(|cluster| {
        for node in [OTHER, HELD] {
            assert_writable(cluster, node);
        }
    });
    for node in STORAGE.into_iter().chain([GATEWAY]) {
        assert_writable(&cluster, node);
    }
    // The copies of the last writes may be incomplete, so the exit status is not examined.
    let rows_of = |member: &TestMember| checked_rows(&check_store(member).0);
    assert_same_rows(&mut cluster, rows_of, |cluster, id| links.spawn(cluster, id));
}

#[test]
fn a_bucket_that_the_next_duty_node_deleted_stays_deleted_when_the_former_one_goes_on() {
    let RelayedCluster { cluster, .. } = pause_in_creation(|cluster| {
        let client = cluster.client(OTHER);
        cluster.block_on(until_served("the bucket is deleted", async || {
            client.call(Method::DELETE, &format!("/{SPLIT}"), &[], full_body("")).await
        }));
    });
    for node in STORAGE.into_iter().chain([GATEWAY]) {
        let client = cluster.client(node);
        let listed = cluster.block_on(client.list(SPLIT, 10));
        assert!(listed.as_ref().is_err_and(CallFailure::is_not_found), "through node {node}: {listed:?}");
    }
    let client = cluster.client(OTHER);
    cluster.block_on(until_served("the bucket is created again", async || create(&client).await));
    for node in STORAGE.into_iter().chain([GATEWAY]) {
        assert_writable(&cluster, node);
    }
}
