//! A cluster grows from three storage nodes to five and shrinks to four, while clients write through every
//! node: sets of nodes are made, groups move between them, and nothing that was acknowledged is lost.
//!
//! Each node serves all keys: it has their group, or forwards the request to a node that has it. A request
//! that needs several groups, such as a listing of a split bucket, is served as well.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::rows::{COMPARISONS_MAX, check_store, checked_groups, rows_of_killed};
use super::segment_files::MINUTELY_MAX;
use super::testbed::{
    FIRST, SPREAD, STORAGE, SYSTEM_GROUP, TestCluster, TestMember, assert_reads_before, content_of, node_of,
    until_served, wait_at_most, wait_until,
};
use super::view::ClusterView;
use super::writers::{TestWriter, WrittenObject, assert_all_stored};
use crate::observability::scrape::Scrape;
use crate::s3::{S3TestClient, full_body};
use crate::server::ServerSetup;

/// A bucket with ranges in several groups.
const SPLIT: &str = "cluster-tests-split";
/// First keys of its ranges, but for the first one.
const SPLIT_KEYS: &str = "g,p";
/// A key of each range.
const RANGE_KEYS: [&str; 3] = ["a-first", "k-second", "x-third"];
/// Keys of the split bucket in the beginning.
const SPLIT_OBJECTS: usize = 26;

/// All storage nodes.
const FIVE: [usize; 5] = [FIRST, 2, 3, 4, 5];
/// The node that leaves: it is not in the first set.
const LEAVING: usize = 4;
/// The node of the first set that is lost.
const LOST: usize = 3;
/// Nodes of a set.
const SET_NODES: usize = 3;

/// Longest wait until the sets are as they should be: each move of a group waits until nodes have answered
/// for a while.
const MOVES_MAX: Duration = Duration::from_secs(240);

/// Settings for many segments.
pub(super) fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB").with("hot.compact_interval", "100ms")
}

/// Makes a cluster of three storage nodes with a bucket in each group and a split one.
fn three() -> TestCluster {
    let cluster = TestCluster::three_with(small_segments);
    wait_until("the cluster has the newest version", || cluster.view(FIRST).upgrade.is_none());
    cluster.create_spread_buckets();
    let client = cluster.client(FIRST);
    cluster.block_on(async {
        let splits = [("x-mlgw-split-keys", SPLIT_KEYS.to_owned())];
        client.call(Method::PUT, &format!("/{SPLIT}"), &splits, full_body("")).await.expect("made");
        for key in split_keys() {
            put_in(&client, SPLIT, &key).await;
        }
    });
    cluster
}

/// Keys of the split bucket in the beginning, in order: one for each letter.
fn split_keys() -> impl Iterator<Item = String> {
    (b'a'..).take(SPLIT_OBJECTS).map(|letter| format!("{}-key", char::from(letter)))
}

/// Adds two storage nodes, and makes sets of all five.
pub(super) fn grow(cluster: &mut TestCluster) {
    for id in [4, 5] {
        cluster.join("storage");
        cluster.until_active(id);
    }
    rebalance(cluster, 2);
    wait_until("the metrics describe the sets, and no group that moves", || {
        let sets = metric(cluster, "mlgw_cluster_sets");
        (sets - 5.0).abs() < 0.5 && metric(cluster, "mlgw_cluster_moving_groups") < 0.5
    });
}

/// Returns the largest value of a metric on the running nodes; 0 if none of them exposes it.
pub(super) fn metric(cluster: &TestCluster, name: &str) -> f64 {
    let values = cluster.running().into_iter().map(|id| Scrape::of(cluster.process(id)).sum(name, &[]));
    values.fold(0.0, f64::max)
}

/// Rebalances through a node, and waits for the end.
pub(super) fn rebalance(cluster: &TestCluster, node: usize) {
    let (output, status) = command(cluster, node, &["rebalance"]);
    assert_eq!(status, Some(0), "{output}");
    assert!(output.contains("The rebalance has begun"), "{output}");
    let (output, status) = command(cluster, FIRST, &["rebalance"]);
    let has_ended = output.contains("othing to move");
    assert!(has_ended || status == Some(0) && output.contains("is running already"), "{output}");
    until_moved(cluster, "the rebalance ends", |view| view.rebalance.is_none());
}

/// Waits until no group moves, and a condition holds.
fn until_moved(cluster: &TestCluster, what: &str, is_so: impl Fn(&ClusterView) -> bool) {
    let _shown = ShownIfStuck { cluster };
    wait_at_most(MOVES_MAX, what, || {
        let view = cluster.view(FIRST);
        is_so(&view) && view.moving_groups.is_empty() && view.sets_wait.is_none()
    });
}

/// Prints the sets of a cluster if the test fails meanwhile.
struct ShownIfStuck<'a> {
    cluster: &'a TestCluster,
}

impl Drop for ShownIfStuck<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", command(self.cluster, FIRST, &["status"]).0);
        }
    }
}

/// Runs `mlgw cluster …` against a node, and returns its output and its exit status.
pub(super) fn command(cluster: &TestCluster, node: usize, words: &[&str]) -> (String, Option<i32>) {
    let words: Vec<&str> = std::iter::once("cluster").chain(words.iter().copied()).collect();
    cluster.member(node).setup.command(&words)
}

/// Runs a command that succeeds.
fn run(cluster: &TestCluster, words: &[&str]) {
    let (output, status) = command(cluster, FIRST, words);
    assert_eq!(status, Some(0), "{words:?}: {output}");
}

/// The nodes of each group of objects, from the sets.
pub(super) fn nodes_of_groups(view: &ClusterView) -> BTreeMap<u32, BTreeSet<usize>> {
    let of_set = |set: &super::view::SetView| {
        let nodes: BTreeSet<usize> = set.nodes.iter().copied().collect();
        set.groups.iter().map(move |group| (*group, nodes.clone())).collect::<Vec<_>>()
    };
    view.sets.iter().flat_map(of_set).collect()
}

/// The nodes of the first set.
pub(super) fn home_nodes(view: &ClusterView) -> BTreeSet<usize> {
    view.sets.first().map(|set| set.nodes.iter().copied().collect()).unwrap_or_default()
}

/// Asserts that the nodes of each set are three of these, and vote in the groups of the set.
pub(super) fn assert_sets(cluster: &TestCluster, nodes: &[usize]) {
    let view = cluster.view(FIRST);
    for set in &view.sets {
        let distinct: BTreeSet<usize> = set.nodes.iter().copied().collect();
        assert_eq!(distinct.len(), SET_NODES, "{set:?}");
        assert!(distinct.iter().all(|node| nodes.contains(node)), "{set:?}");
    }
    assert!(view.sets.len() >= nodes.len(), "{:?}", view.sets);
    let of_groups = nodes_of_groups(&view);
    assert!(of_groups.len() >= SPREAD.len(), "{of_groups:?}");
    for (group, nodes) in &of_groups {
        let what = format!("the nodes {nodes:?} of its set vote in group {group}, and one of them leads it");
        wait_until(&what, || {
            let found = cluster.group(*group);
            found.is_some_and(|found| {
                found.with_part("voter") == *nodes && found.leader.is_some_and(|id| nodes.contains(&id))
            })
        });
    }
}

/// Asserts that nodes of the first set, which have the rows of all keys, forward changes of a key to the
/// nodes of its group's set, which store the bytes.
fn assert_stored_in_sets(cluster: &TestCluster) {
    let view = cluster.view(FIRST);
    let (of_groups, homes) = (nodes_of_groups(&view), home_nodes(&view));
    let mut forwarded = 0;
    // The buckets are made in the order of the groups.
    for (group, bucket) in (1_u32..).zip(SPREAD) {
        let of_set = &of_groups[&group];
        for id in homes.difference(of_set) {
            let (client, target) = (cluster.client(*id), format!("/{bucket}/in-its-set-{id}"));
            wait_until(&format!("{target} is stored by one of the nodes {of_set:?}"), || {
                let put = cluster.block_on(client.call(Method::PUT, &target, &[], full_body("")));
                put.is_ok_and(|answer| of_set.contains(&node_of(&answer)))
            });
            forwarded += 1;
        }
    }
    assert!(forwarded > 0, "a home node is not in the set of a group: {:?}", view.sets);
}

pub(super) async fn put_in(client: &S3TestClient, bucket: &str, key: &str) {
    let stored = async || client.put(bucket, key, full_body(content_of(key).bytes())).await;
    until_served(&format!("{bucket}/{key} is stored"), stored).await;
}

/// Asserts that a node returns an object with the content of a key, and returns the node that served it.
pub(super) async fn assert_returns(client: &S3TestClient, bucket: &str, key: &str, content: &str) -> usize {
    let read = async || client.get(bucket, key).await;
    let read = until_served(&format!("{bucket}/{key} is read"), read).await;
    assert_eq!(content_of(content).difference(&read.body), None, "{bucket}/{key}");
    node_of(&read)
}

/// Asserts that these nodes serve all keys: each reads what every other one has just stored, lists the split
/// bucket, and copies between its groups. Returns true if one of them forwarded a read to another one.
fn assert_all_serve(cluster: &TestCluster, nodes: &[usize], label: &str) -> bool {
    let clients: Vec<(usize, S3TestClient)> = nodes.iter().map(|id| (*id, cluster.client(*id))).collect();
    cluster.block_on(async {
        let mut is_forwarded = false;
        let mut listed: BTreeSet<String> = split_keys().collect();
        for (writer, client) in &clients {
            assert_reads_before(client).await;
            let key = format!("{label}-{writer}");
            for bucket in SPREAD {
                put_in(client, bucket, &key).await;
            }
            for (id, reader) in &clients {
                for bucket in SPREAD {
                    let server = assert_returns(reader, bucket, &key, &key).await;
                    assert!(nodes.contains(&server), "{bucket} through node {id}: node {server}");
                    is_forwarded |= server != *id;
                }
            }
            for range in RANGE_KEYS {
                let key = format!("{range}-{label}-{writer}");
                put_in(client, SPLIT, &key).await;
                listed.insert(key);
            }
        }
        for (copier, client) in &clients {
            for (from, to) in RANGE_KEYS.iter().zip(RANGE_KEYS.iter().cycle().skip(1)) {
                let (from, to) = (format!("{from}-{label}-{copier}"), format!("{to}-{label}-copy-{copier}"));
                until_served(&format!("{to} is copied"), async || client.copy(SPLIT, &from, &to).await).await;
                for (_, reader) in &clients {
                    assert_returns(reader, SPLIT, &to, &from).await;
                }
                listed.insert(to);
            }
        }
        for (id, client) in &clients {
            let rows = until_served("the bucket is listed", async || client.list(SPLIT, 7).await).await;
            let keys: Vec<&String> = rows.iter().map(|row| &row.key).collect();
            let is_earlier = |key: &&String| !key.contains(label) && !key.ends_with("-key");
            assert!(keys.is_sorted(), "through node {id}: {keys:?}");
            let keys: BTreeSet<&String> = keys.into_iter().filter(|key| !is_earlier(key)).collect();
            assert!(keys.into_iter().eq(&listed), "through node {id}");
        }
        is_forwarded
    })
}

/// Asserts that the nodes of the set of each group, and those of the first set, have the same rows of it. All
/// of them are killed, their rows are read by `rows_of`, and they are started again by `spawn`.
pub(super) fn assert_same_rows(
    cluster: &mut TestCluster,
    nodes: &[usize],
    rows_of: impl Fn(&TestMember) -> Value,
    spawn: impl Fn(&mut TestCluster, usize),
) {
    let mut found = BTreeMap::new();
    for _ in 0..COMPARISONS_MAX {
        let view = cluster.view(FIRST);
        let (of_groups, homes) = (nodes_of_groups(&view), home_nodes(&view));
        let groups: Vec<u32> = of_groups.keys().copied().chain([SYSTEM_GROUP]).collect();
        wait_until("no member lacks a part of the log", || {
            groups.iter().all(|group| {
                let led = cluster.group(*group);
                led.is_some_and(|led| led.members.iter().all(|member| member.lag_bytes == 0))
            })
        });
        let rows = rows_of_killed(cluster, nodes, &rows_of, &spawn);
        cluster.until_led();
        let all = BTreeSet::from_iter(nodes.iter().copied());
        let of_group = |group: &u32| {
            let members = of_groups.get(group).map_or_else(|| all.clone(), |of_set| of_set | &homes);
            (*group, members.iter().map(|id| rows[id][group.to_string()].clone()).collect::<Vec<_>>())
        };
        found = groups.iter().map(of_group).collect();
        if found.values().all(|rows| !rows[0].is_null() && rows.iter().all(|of| *of == rows[0])) {
            return;
        }
    }
    panic!("the members of a group have different rows: {found:#?}");
}

/// Number and digest of the rows of each group, by its id, from the output of `mlgw store check`.
pub(super) fn group_rows(output: &str) -> Value {
    checked_groups(output).into_iter().map(|rows| (rows["group"].to_string(), rows)).collect()
}

/// Starts a writer through each node that reads through the others.
fn start_writers(cluster: &TestCluster, nodes: &[usize], label: &str) -> Vec<(usize, TestWriter)> {
    nodes.iter().map(|id| (*id, TestWriter::start_spread(cluster, *id, label))).collect()
}

/// Ends writers whose node runs; nothing but a 503 may have been refused.
fn end_writers(
    cluster: &TestCluster,
    writers: impl IntoIterator<Item = (usize, TestWriter)>,
) -> Vec<WrittenObject> {
    let ended = writers.into_iter().flat_map(|(_, writer)| {
        let log = writer.end(cluster);
        log.assert_kept();
        log.stored
    });
    ended.collect()
}

#[test]
fn three_nodes_become_five_and_then_four_while_clients_write_through_each_of_them() {
    let mut cluster = three();
    let (output, status) = command(&cluster, 2, &["rebalance"]);
    assert!(status != Some(0) && output.contains("othing to move: the cluster has 3 active"), "{output}");
    let mut writers = start_writers(&cluster, &STORAGE, "grow");
    writers.iter().for_each(|(_, writer)| writer.until_more());
    for id in [4, 5] {
        cluster.join("storage");
        cluster.until_active(id);
        writers.extend(start_writers(&cluster, &[id], "grow"));
    }
    assert!(cluster.view(FIRST).sets.is_empty(), "sets begin with a request");
    rebalance(&cluster, 2);
    let view = cluster.view(FIRST);
    assert_eq!(view.sets.len(), FIVE.len(), "{:?}", view.sets);
    assert_sets(&cluster, &FIVE);
    let voting: BTreeSet<usize> = nodes_of_groups(&view).into_values().flatten().collect();
    assert_eq!(voting, FIVE.into(), "every node votes in a group of objects");
    let (output, status) = command(&cluster, FIRST, &["rebalance"]);
    assert!(status != Some(0) && output.contains("othing to move: the sets of nodes (5)"), "{output}");
    let (output, status) = command(&cluster, FIRST, &["rebalance", "--status"]);
    assert!(status == Some(0) && output.contains("5 sets; no group is moving"), "{output}");
    writers.iter().for_each(|(_, writer)| writer.until_more());
    assert!(assert_all_serve(&cluster, &FIVE, "five"), "no node has the groups of all keys, but for set 0");
    assert_stored_in_sets(&cluster);

    run(&cluster, &["drain", "4"]);
    until_moved(&cluster, "node 4 is in no set", |view| {
        view.sets.iter().all(|set| !set.nodes.contains(&LEAVING))
    });
    wait_at_most(MINUTELY_MAX, "no segment and no set needs node 4", || {
        cluster.view(FIRST).leaving.iter().any(|left| (left.node, left.done) == (LEAVING, true))
    });
    writers.iter().for_each(|(_, writer)| writer.until_more());
    let (of_leaving, writers): (Vec<_>, Vec<_>) = writers.into_iter().partition(|(id, _)| *id == LEAVING);
    let mut stored = end_writers(&cluster, of_leaving);
    run(&cluster, &["remove", "4", "--yes"]);
    wait_until("node 4 is removed", || {
        cluster.view(FIRST).node(LEAVING).is_some_and(|node| node.state == "removed")
    });
    cluster.until_refused(LEAVING);
    writers.iter().for_each(|(_, writer)| writer.until_more());
    stored.extend(end_writers(&cluster, writers));

    let four: Vec<usize> = FIVE.into_iter().filter(|id| *id != LEAVING).collect();
    assert_sets(&cluster, &four);
    assert_all_serve(&cluster, &four, "four");
    for id in &four {
        assert_all_stored(&cluster, *id, &stored);
    }
    wait_at_most(MINUTELY_MAX, "every segment has three copies, and all bytes are in their sets", || {
        let copies = cluster.view(FIRST).copies;
        (copies.wanted, copies.below_segments, copies.off_set_bytes) == (SET_NODES, 0, Some(0))
    });
    let rows_of = |member: &TestMember| group_rows(&check_store(member).0);
    assert_same_rows(&mut cluster, &four, rows_of, TestCluster::spawn);
    for id in &four {
        assert_all_stored(&cluster, *id, &stored);
    }
}

#[test]
fn a_lost_node_of_the_first_set_is_replaced_without_a_request() {
    let mut cluster = three();
    grow(&mut cluster);
    let four: Vec<usize> = FIVE.into_iter().filter(|id| *id != LOST).collect();
    let writers = start_writers(&cluster, &four, "loss");
    writers.iter().for_each(|(_, writer)| writer.until_more());
    cluster.kill(LOST);
    wait_until("the first node does not reach the lost one", || {
        cluster.view(FIRST).node(LOST).is_some_and(|node| node.reachable == Some(false))
    });
    writers.iter().for_each(|(_, writer)| writer.until_more());
    run(&cluster, &["remove", "3", "--lost", "--yes"]);
    until_moved(&cluster, "the lost node is in no set", |view| {
        view.sets.iter().all(|set| !set.nodes.contains(&LOST))
    });
    wait_until("the lost node is removed", || {
        cluster.view(FIRST).node(LOST).is_some_and(|node| node.state == "removed")
    });
    writers.iter().for_each(|(_, writer)| writer.until_more());
    let mut stored = Vec::new();
    for (_, writer) in writers {
        let log = writer.end(&cluster);
        log.assert_kept_but_for_unanswered();
        stored.extend(log.stored);
    }
    assert_sets(&cluster, &four);
    assert_all_serve(&cluster, &four, "lost");
    for id in four {
        assert_all_stored(&cluster, id, &stored);
    }
    cluster.spawn(LOST);
    cluster.until_refused(LOST);
    // What exists before the cluster has bytes in segments that the lost node had too.
    let client = cluster.client(FIRST);
    cluster.block_on(assert_reads_before(&client));
}
