//! The leader carries a write out, and its answer does not arrive. A newer write of the key goes through
//! another node meanwhile. The older one, whose outcome is not known, is never proposed again: it would undo
//! the newer one.

use std::time::Duration;

use mlgw_common::time::timeout;

use crate::cluster::histories::links::LinkDirection;
use crate::cluster::histories::round::RelayedCluster;
use crate::cluster::segment_files::{MINUTELY_MAX, segment_files};
use crate::cluster::testbed::{
    BUCKET, FIRST, GATEWAY, OBJECT_GROUP, STORAGE, TestCluster, until_served, wait_at_most, wait_until,
};
use crate::content::TestContent;
use crate::raw::RawExchange;
use crate::s3::full_body;

/// The node of the older write, which does not lead the group of the key.
const THROUGH: usize = 2;
/// The node of the newer write.
const OTHER: usize = 3;
/// Content of the older write: a chunk of it is stored before its last bytes are sent.
const OLDER: TestContent = TestContent { id: 6_001, length: 1_500_000 };
const OLDER_REST: usize = 100_000;
const NEWER: TestContent = TestContent { id: 6_002, length: 5_000 };
/// Length of a chunk.
const CHUNK_BYTES: u64 = 1 << 20;
/// Key of both writes.
const KEY: &str = "written-twice";
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(60);

/// Begins the older write, and returns it before its last bytes are sent. Its barriers are over then: the
/// first chunk of it is stored.
fn begin_older(cluster: &TestCluster) -> RawExchange {
    // No file of a copy grows from here on.
    wait_at_most(MINUTELY_MAX, "every segment has three copies", || {
        let copies = cluster.view(FIRST).copies;
        (copies.wanted, copies.below_segments) == (STORAGE.len(), 0)
    });
    let stored_bytes = || segment_files(cluster, THROUGH).values().sum::<u64>();
    let before = stored_bytes();
    let (client, server) = (cluster.client(THROUGH), cluster.process(THROUGH).s3);
    let target = format!("/{BUCKET}/{KEY}");
    let begun = RawExchange::begin_put(&client, server, &target, OLDER, OLDER_REST);
    let begun = cluster.block_on(begun).expect("sent");
    wait_until("a chunk of the older write is stored", || stored_bytes() >= before + CHUNK_BYTES);
    begun
}

/// Reads the key through a node, and returns true if it has this content.
fn has(cluster: &TestCluster, node: usize, content: TestContent) -> bool {
    let read = cluster.block_on(cluster.client(node).get(BUCKET, KEY));
    read.is_ok_and(|read| content.difference(&read.body).is_none())
}

#[test]
fn a_write_whose_answer_is_held_back_does_not_undo_a_newer_one() {
    let RelayedCluster { cluster, links, .. } = RelayedCluster::new();
    // It leads the system group then.
    cluster.until_first_has_duty();
    assert!(cluster.groups_led_by(FIRST).contains(&OBJECT_GROUP), "it leads the group of the key");
    let mut older = begin_older(&cluster);
    links.block([LinkDirection { from: FIRST, to: THROUGH }]);
    cluster.block_on(older.send(&OLDER.bytes()[OLDER.length - OLDER_REST..])).expect("sent");
    wait_until("the older write is carried out", || has(&cluster, OTHER, OLDER));
    let answer = cluster.runtime().spawn(async move { older.answer().await });

    let client = cluster.client(OTHER);
    cluster.block_on(client.put(BUCKET, KEY, full_body(NEWER.bytes()))).expect("stored");
    assert!(!answer.is_finished(), "the older write has no answer before the newer one has");
    // The links stay as they are until the node has given up: its requests still arrive at the leader.
    let answer = cluster.block_on(async { timeout(END_MAX, answer).await });
    let answer = answer.expect("the older write does not hang").expect("the task does not panic");
    let status = answer.expect("a response").status;
    eprintln!("the older write got {status}");
    assert!(matches!(status, 200 | 503), "{status}");
    links.open();
    wait_until("the node of the older write catches up", || cluster.is_caught_up(THROUGH));
    cluster.until_settled();
    for node in STORAGE.into_iter().chain([GATEWAY]) {
        let client = cluster.client(node);
        let read = async || client.get(BUCKET, KEY).await;
        let read = cluster.block_on(until_served("the key is read", read));
        assert_eq!(NEWER.difference(&read.body), None, "through node {node}");
    }
}
