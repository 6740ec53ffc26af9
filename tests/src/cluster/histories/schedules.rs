//! Orders of events that break a promise in a cluster without one of its rules. Each is arranged, not met by
//! chance: a test waits until the condition of the schedule holds, and then goes on. Here something moves:
//!
//! - A group has moved, and a node keeps old rows of the system group, by which it is still in the set of the
//!   group: relays hold its connections to the leader back.
//! - A segment gets another owner, which removes it, while a write whose bytes it has is in progress on the
//!   former one.
//!
//! Nothing moves in the others:
//!
//! - `held_answer`: the answer to a proposal is held back while a newer write goes through;
//! - `power_loss`: a leader loses the end of its log with its power, and starts again at once;
//! - `old_rows`: a node starts on rows from before its newest segments;
//! - `two_runners`: the runner of a saga is paused in the middle of it, and goes on after the next one.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use mlgw_common::time::timeout;

use super::nemesis::between;
use super::round::RelayedCluster;
use crate::cluster::bytes::eager;
use crate::cluster::five::{command, home_nodes, nodes_of_groups, put_in};
use crate::cluster::rows::check_store;
use crate::cluster::segment_files::{MINUTELY_MAX, segment_files};
use crate::cluster::testbed::{
    BUCKET, FIRST, GATEWAY, SPREAD, STORAGE, TestCluster, content_of, node_of, until_served, wait_at_most,
    wait_until,
};
use crate::content::TestContent;
use crate::raw::RawExchange;
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::ServerSetup;

mod held_answer;
mod old_rows;
mod power_loss;
mod two_runners;

/// Longest wait until a group has moved away from a node that the leader of the system group does not reach.
const MOVED_MAX: Duration = Duration::from_secs(240);
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(60);
/// Requests of each kind through each node with an old map.
const TRIES: usize = 3;
/// Keys of a page of a listing, fewer than there are keys.
const PAGE_KEYS: u32 = 3;
/// Objects that are written after the move.
const OBJECTS: usize = 8;
/// Longest wait until another node owns the segments of a drained one and has removed one that is dead.
const RELEASED_MAX: Duration = Duration::from_secs(360);
/// Content of a write that is interrupted: the bytes before its rest are several chunks.
const LATE: TestContent = TestContent { id: 85, length: 3_500_000 };
const LATE_REST: usize = 100_000;
/// Bytes by which a segment grows when it gets a chunk of that write.
const CHUNK_BYTES: u64 = 1 << 20;
/// The node with the write in progress.
const WRITER: usize = 2;
/// The nodes that stay when it is drained.
const STAYING: [usize; 3] = [FIRST, 3, 4];
/// The key whose object is replaced after the move.
const REPLACED: &str = "replaced";
/// The key with the content of the replaced object from then on.
const NEWER: &str = "newer-content";
/// The key whose object is deleted after the move.
const DELETED: &str = "deleted";

/// A group that moves away from a node, which does not receive that.
struct MovedGroup {
    group: u32,
    bucket: &'static str,
    /// The node that is in its set before, and not afterwards.
    former: usize,
}

impl MovedGroup {
    /// Chooses a node outside of the first set, and a group in which it votes. If it leads the group, it
    /// hands the group over when its rows are old.
    fn choose(cluster: &TestCluster) -> Self {
        let mut chosen = None;
        wait_until("a node outside of the first set votes in a group", || {
            let view = cluster.view(FIRST);
            let (of_groups, homes) = (nodes_of_groups(&view), home_nodes(&view));
            // The buckets are made in the order of the groups.
            chosen = (1_u32..).zip(SPREAD).find_map(|(group, bucket)| {
                let former = of_groups.get(&group)?.difference(&homes).next().copied()?;
                Some(Self { group, bucket, former })
            });
            chosen.is_some()
        });
        chosen.expect("it was waited for")
    }

    /// Drains the node and waits until the nodes of the set vote without it.
    fn drain_former(&self, cluster: &TestCluster) {
        let Self { group, former, .. } = *self;
        let (output, status) = command(cluster, FIRST, &["drain", &former.to_string()]);
        assert_eq!(status, Some(0), "{output}");
        wait_at_most(MOVED_MAX, &format!("group {group} has moved away from node {former}"), || {
            let view = cluster.view(FIRST);
            let is_in_set = view.sets.iter().any(|set| set.nodes.contains(&former));
            let found = cluster.group(group);
            let is_member = found.is_none_or(|found| found.members.iter().any(|of| of.node == former));
            !is_in_set && view.moving_groups.is_empty() && !is_member
        });
    }
}

/// What clients wrote after the move: keys that exist, and keys that may exist because a write of them was
/// refused.
#[derive(Default)]
struct WrittenKeys {
    stored: BTreeSet<String>,
    refused: BTreeSet<String>,
}

impl WrittenKeys {
    /// Asserts that a listing has each key once, in order.
    fn assert_listed(&self, keys: &[String], through: usize) {
        assert!(keys.is_sorted_by(|one, next| one < next), "through node {through}: {keys:?}");
        let keys: BTreeSet<String> = keys.iter().cloned().collect();
        let missing: Vec<&String> = self.stored.difference(&keys).collect();
        assert!(missing.is_empty(), "through node {through}: {missing:?} are not in {keys:?}");
        let mut unknown =
            keys.iter().filter(|key| !self.stored.contains(*key) && !self.refused.contains(*key));
        assert_eq!(unknown.next(), None, "through node {through}: {keys:?}");
    }
}

/// Waits for the response to a request. A refusal may only be a 503.
async fn answer_of<T>(what: &str, request: impl Future<Output = Result<T, CallFailure>>) -> Option<T> {
    let answer = timeout(END_MAX, request).await.unwrap_or_else(|_| panic!("{what} hangs"));
    match answer {
        Ok(answer) => Some(answer),
        Err(failure) if failure.status() == Some(503) => None,
        Err(failure) => panic!("{what}: {failure:?}"),
    }
}

/// Sends requests through a node with an old map. Each is refused with a 503, or carried out by another node
/// than the former one, which has everything that was written since.
fn request_through(cluster: &TestCluster, through: usize, moved: &MovedGroup, written: &mut WrittenKeys) {
    let MovedGroup { bucket, former, .. } = *moved;
    let client = cluster.client(through);
    for number in 0..TRIES {
        let key = format!("through-{through}-{number}");
        let what = format!("PUT of {key} through node {through}");
        let (target, body) = (format!("/{bucket}/{key}"), full_body(content_of(&key).bytes()));
        let put = client.call(Method::PUT, &target, &[], body);
        match cluster.block_on(answer_of(&what, put)) {
            Some(answer) => {
                assert_ne!(node_of(&answer), former, "{what}");
                written.stored.insert(key);
            }
            None => {
                written.refused.insert(key);
            }
        }
        let what = format!("GET of {REPLACED} through node {through}");
        if let Some(read) = cluster.block_on(answer_of(&what, client.get(bucket, REPLACED))) {
            assert_eq!(content_of(NEWER).difference(&read.body), None, "{what}");
        }
        let deleted = cluster.block_on(client.get(bucket, DELETED));
        let status = deleted.as_ref().err().and_then(CallFailure::status);
        assert!(matches!(status, Some(404 | 503)), "GET of {DELETED} through node {through}: {deleted:?}");
        let what = format!("LIST through node {through}");
        if let Some(rows) = cluster.block_on(answer_of(&what, client.list(bucket, PAGE_KEYS))) {
            let keys: Vec<String> = rows.into_iter().map(|row| row.key).collect();
            written.assert_listed(&keys, through);
        }
    }
}

/// Writes after the move, through a node with a current map.
async fn write_after_move(client: &S3TestClient, bucket: &str) -> WrittenKeys {
    let replace = async || client.put(bucket, REPLACED, full_body(content_of(NEWER).bytes())).await;
    until_served("an object is replaced", replace).await;
    until_served("an object is deleted", async || client.delete(bucket, DELETED).await).await;
    let mut written = WrittenKeys { stored: [REPLACED.to_owned()].into(), refused: BTreeSet::new() };
    for number in 0..OBJECTS {
        let key = format!("after-the-move-{number}");
        put_in(client, bucket, &key).await;
        written.stored.insert(key);
    }
    written
}

/// Asserts that a node serves the group, by another node than the former one.
fn assert_serves(cluster: &TestCluster, through: usize, moved: &MovedGroup, written: &mut WrittenKeys) {
    let MovedGroup { bucket, former, .. } = *moved;
    let (client, key) = (cluster.client(through), format!("served-through-{through}"));
    let put = async || {
        let body = full_body(content_of(&key).bytes());
        client.call(Method::PUT, &format!("/{bucket}/{key}"), &[], body).await
    };
    let answer = cluster.block_on(until_served(&format!("{key} is stored"), put));
    assert_ne!(node_of(&answer), former, "{key}");
    written.stored.insert(key);
    cluster.block_on(async {
        for key in &written.stored {
            let what = format!("{key} is read through node {through}");
            let read = until_served(&what, async || client.get(bucket, key).await).await;
            let content = if key == REPLACED { NEWER } else { key.as_str() };
            assert_eq!(content_of(content).difference(&read.body), None, "{what}");
        }
        let list = async || client.list(bucket, PAGE_KEYS).await;
        let rows = until_served("the bucket is listed", list).await;
        let keys: Vec<String> = rows.into_iter().map(|row| row.key).collect();
        written.assert_listed(&keys, through);
    });
}

#[test]
fn nodes_with_an_old_map_of_a_group_that_has_moved_store_nothing_and_read_nothing_old() {
    let RelayedCluster { cluster, links, .. } = RelayedCluster::in_sets();
    // It leads the system group then.
    cluster.until_first_has_duty();
    let moved = MovedGroup::choose(&cluster);
    let (bucket, former) = (moved.bucket, moved.former);
    let client = cluster.client(FIRST);
    cluster.block_on(async {
        for key in [REPLACED, DELETED] {
            put_in(&client, bucket, key).await;
        }
        // The former node has the rows before.
        let before = cluster.client(former);
        until_served("an object is read", async || before.get(bucket, REPLACED).await).await;
    });
    for stale in [former, GATEWAY] {
        links.block(between(stale, &[FIRST]));
    }
    for stale in [former, GATEWAY] {
        wait_until(&format!("the first node does not reach node {stale}"), || {
            cluster.view(FIRST).node(stale).is_some_and(|node| node.reachable == Some(false))
        });
    }
    moved.drain_former(&cluster);
    let has_old_map = cluster.view(former).sets.iter().any(|set| set.nodes.contains(&former));
    assert!(has_old_map, "node {former} does not receive the changes of sets");

    let mut written = cluster.block_on(write_after_move(&client, bucket));
    // Objects that exist before the cluster are in the first bucket.
    let list = async || client.list(bucket, PAGE_KEYS).await;
    let listed = cluster.block_on(until_served("the bucket is listed", list));
    written.stored.extend(listed.into_iter().map(|row| row.key));
    for stale in [former, GATEWAY] {
        request_through(&cluster, stale, &moved, &mut written);
    }

    links.open();
    for node in [former, GATEWAY, FIRST] {
        assert_serves(&cluster, node, &moved, &mut written);
    }
}

/// Settings for segments that are compacted soon, and for a body that waits for longer than that takes.
fn eager_with_patience(setup: ServerSetup) -> ServerSetup {
    eager(setup).with("limits.body_timeout", "10m")
}

/// A write that lacks its last bytes.
struct LateWrite {
    exchange: RawExchange,
    /// Files of the segments that have its first chunks.
    segments: Vec<String>,
}

impl LateWrite {
    /// Begins a write through a node, and waits until segments have its first chunks.
    fn begin(cluster: &TestCluster, bucket: &str, key: &str) -> Self {
        let (client, server) = (cluster.client(WRITER), cluster.process(WRITER).s3);
        let before = segment_files(cluster, WRITER);
        let target = format!("/{bucket}/{key}");
        let begun = RawExchange::begin_put(&client, server, &target, LATE, LATE_REST);
        let exchange = cluster.block_on(begun).expect("sent");
        let mut segments = Vec::new();
        wait_until("segments have chunks of the write", || {
            let now = segment_files(cluster, WRITER).into_iter();
            let has_grown = |(name, length): &(String, u64)| {
                *length >= before.get(name).copied().unwrap_or(0) + CHUNK_BYTES
            };
            segments = now.filter(has_grown).map(|(name, _)| name).collect();
            !segments.is_empty()
        });
        Self { exchange, segments }
    }

    /// True if a node that stays has one of the segments.
    fn is_elsewhere(&self, cluster: &TestCluster) -> bool {
        let has = |id: &usize| segment_files(cluster, *id).keys().any(|name| self.segments.contains(name));
        STAYING.iter().any(has)
    }

    /// Sends the last bytes, and returns the status of the response.
    fn finish(mut self, cluster: &TestCluster) -> u16 {
        let answer = cluster.block_on(async {
            self.exchange.send(&LATE.bytes()[LATE.length - LATE_REST..]).await?;
            timeout(END_MAX, self.exchange.answer()).await.expect("the write does not hang")
        });
        answer.expect("a response").status
    }
}

#[test]
fn a_write_in_progress_never_refers_to_a_segment_that_the_next_owner_has_removed() {
    let mut cluster = TestCluster::three_with(eager_with_patience);
    let (bucket, key) = (SPREAD[2], "late");
    cluster.create_spread_buckets();
    // No further file grows by a copy then.
    wait_at_most(MINUTELY_MAX, "every segment has three copies", || {
        let copies = cluster.view(FIRST).copies;
        (copies.wanted, copies.below_segments) == (STORAGE.len(), 0)
    });
    cluster.join("storage");
    cluster.until_active(STAYING[2]);
    let write = LateWrite::begin(&cluster, bucket, key);
    wait_until("another node has a segment of the write", || write.is_elsewhere(&cluster));
    let (output, status) = command(&cluster, FIRST, &["drain", &WRITER.to_string()]);
    assert_eq!(status, Some(0), "{output}");
    // No row refers to its bytes, so the next owner finds that nothing in the segments lives.
    wait_at_most(RELEASED_MAX, "the next owner removes the segments of the write", || {
        !write.is_elsewhere(&cluster)
    });

    let status = write.finish(&cluster);
    eprintln!("the write got {status}");
    assert!(matches!(status, 200 | 503), "{status}");
    for id in STAYING {
        let client = cluster.client(id);
        let is_absent = cluster.block_on(async {
            let read = async || match client.get(bucket, key).await {
                Ok(read) => Ok(Some(read)),
                Err(failure) if failure.is_not_found() => Ok(None),
                Err(failure) => Err(failure),
            };
            let read = until_served("the key is read", read).await;
            read.map(|read| assert_eq!(LATE.difference(&read.body), None, "through node {id}")).is_none()
        });
        assert!(!(is_absent && status == 200), "the write was acknowledged; through node {id}");
        put_and_read(&cluster, id);
    }
    cluster.running().into_iter().for_each(|id| cluster.kill(id));
    for id in STAYING {
        let (output, status) = check_store(cluster.member(id));
        assert_eq!(status, Some(0), "node {id}: {output}");
    }
}

/// Asserts that a node serves.
fn put_and_read(cluster: &TestCluster, id: usize) {
    let (client, key) = (cluster.client(id), format!("served-{id}"));
    cluster.block_on(async {
        put_in(&client, BUCKET, &key).await;
        let read = until_served("an object is read", async || client.get(BUCKET, &key).await).await;
        assert_eq!(content_of(&key).difference(&read.body), None, "{key}");
    });
}
