//! Nodes leave a cluster of four storage nodes: one is drained and removed while clients write, another one
//! is lost and removed. Nothing that was acknowledged is lost, and the other nodes have three copies of
//! everything afterwards. What would leave too few nodes is refused.

use http::Method;

use super::segment_files::{MINUTELY_MAX, until_copied};
use super::testbed::{
    BUCKET, FIRST, GATEWAY, STORAGE, TestCluster, assert_reads, assert_reads_before, keys_before, node_of,
    put, until_served, wait_at_most, wait_until,
};
use super::view::ClusterView;
use super::writers::{TestWriter, assert_all_stored};
use crate::s3::full_body;
use crate::server::ServerSetup;

/// The node that leaves.
const LEAVING: usize = 2;
/// The nodes that stay.
const STAYING: [usize; 3] = [FIRST, 3, 4];

/// Settings for many segments.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB").with("hot.compact_interval", "100ms")
}

/// Makes a cluster of four storage nodes.
fn four() -> TestCluster {
    let mut cluster = TestCluster::three_with(small_segments);
    cluster.join("storage");
    cluster.until_active(4);
    cluster
}

/// Runs `mlgw cluster …` against a node, and returns its output and its exit status.
fn command(cluster: &TestCluster, node: usize, words: &[&str]) -> (String, Option<i32>) {
    let words: Vec<&str> = std::iter::once("cluster").chain(words.iter().copied()).collect();
    cluster.member(node).setup.command(&words)
}

/// Runs a command that succeeds.
fn run(cluster: &TestCluster, node: usize, words: &[&str]) {
    let (output, status) = command(cluster, node, words);
    assert_eq!(status, Some(0), "{words:?}: {output}");
}

/// Asserts that a command is refused for a reason.
fn assert_refused(cluster: &TestCluster, words: &[&str], reason: &str) {
    let (output, status) = command(cluster, FIRST, words);
    assert_eq!(status, Some(4), "{words:?}: {output}");
    assert!(output.contains(reason), "{words:?}: {output}");
}

fn state_of(cluster: &TestCluster, node: usize) -> String {
    cluster.view(FIRST).node(node).map_or_else(String::new, |node| node.state.clone())
}

fn until_state(cluster: &TestCluster, node: usize, state: &str) {
    wait_until(&format!("node {node} is {state}"), || state_of(cluster, node) == state);
}

/// True if no segment needs the node that is drained.
fn is_drained(view: &ClusterView) -> bool {
    view.leaving.iter().any(|left| (left.node, left.done) == (LEAVING, true))
}

/// Waits until the nodes that stay have the same segments, and vote in every group.
fn until_staying_have_all(cluster: &mut TestCluster) {
    wait_at_most(MINUTELY_MAX, "every segment has three copies on the other nodes", || {
        let copies = cluster.view(FIRST).copies;
        (copies.wanted, copies.below_segments) == (3, 0)
    });
    wait_until("the other nodes vote in every group", || {
        cluster.view(FIRST).groups.iter().all(|group| {
            let found = cluster.group(group.id);
            found.is_some_and(|found| found.with_part("voter") == STAYING.into())
        })
    });
    // A stop seals the open segments of a node.
    cluster.restart(&STAYING);
    until_copied(cluster, &STAYING);
}

#[test]
fn a_node_is_drained_and_removed_while_clients_write_through_it() {
    let mut cluster = four();
    let start = |id: &usize| TestWriter::start(&cluster, *id, "drain");
    let writers: Vec<TestWriter> = STORAGE.iter().map(start).collect();
    writers.iter().for_each(TestWriter::until_more);
    run(&cluster, 3, &["drain", "2"]);
    // Its segments are not copied within the time of a command.
    assert_refused(&cluster, &["remove", "2", "--yes"], "are still on node 2");
    writers.iter().for_each(TestWriter::until_more);
    wait_at_most(MINUTELY_MAX, "no segment needs the node", || is_drained(&cluster.view(FIRST)));
    let (output, _) = command(&cluster, FIRST, &["status"]);
    assert!(output.contains("node 2 is drained: run `mlgw cluster remove 2`"), "{output}");
    writers.iter().for_each(TestWriter::until_more);

    let client = cluster.client(LEAVING);
    let key = keys_before().next().expect("a key");
    let read = cluster.block_on(client.get(BUCKET, &key)).expect("read");
    assert_eq!(node_of(&read), LEAVING, "it still answers reads, from the replicas of other nodes");
    let target = format!("/{BUCKET}/handed-over");
    let written = cluster.block_on(until_served("a write", async || {
        client.call(Method::PUT, &target, &[], full_body("")).await
    }));
    assert_ne!(node_of(&written), LEAVING, "another node stores what its clients write");
    let mut stored = Vec::new();
    for writer in writers {
        let log = writer.end(&cluster);
        log.assert_kept();
        stored.extend(log.stored);
    }
    for id in cluster.running() {
        assert_all_stored(&cluster, id, &stored);
    }

    run(&cluster, FIRST, &["remove", "2", "--yes"]);
    until_state(&cluster, LEAVING, "removed");
    cluster.until_refused(LEAVING);
    until_staying_have_all(&mut cluster);
    for id in STAYING {
        assert_all_stored(&cluster, id, &stored);
    }
}

#[test]
fn a_lost_node_is_removed_and_the_others_make_the_copies_that_it_had() {
    let mut cluster = four();
    let start = |id: &usize| TestWriter::start(&cluster, *id, "loss");
    let writers: Vec<TestWriter> = STORAGE.iter().map(start).collect();
    writers.iter().for_each(TestWriter::until_more);
    assert_refused(&cluster, &["remove", "2", "--lost", "--yes"], "Node 2 answers");
    cluster.kill(LEAVING);
    let mut stored = Vec::new();
    for (writer, id) in writers.into_iter().zip(STORAGE) {
        if id != LEAVING {
            writer.until_more();
        }
        let log = writer.end(&cluster);
        log.assert_kept_but_for_unanswered();
        stored.extend(log.stored);
    }
    wait_until("the first node does not reach the lost one", || {
        cluster.view(FIRST).node(LEAVING).is_some_and(|node| node.reachable == Some(false))
    });
    assert_refused(&cluster, &["remove", "2", "--yes"], "is not drained");
    run(&cluster, FIRST, &["remove", "2", "--lost", "--yes"]);
    until_state(&cluster, LEAVING, "removed");
    until_staying_have_all(&mut cluster);
    for id in STAYING {
        assert_all_stored(&cluster, id, &stored);
        let client = cluster.client(id);
        cluster.block_on(assert_reads_before(&client));
    }
    // A removed node that comes back is refused, and stops.
    cluster.spawn(LEAVING);
    cluster.until_refused(LEAVING);
}

#[test]
fn a_node_takes_the_place_of_another_one_which_is_removed_by_itself() {
    let mut cluster = TestCluster::three_with(small_segments);
    assert_refused(&cluster, &["replace", "2", "--with", "4"], "is no other active storage node");
    cluster.join("storage");
    cluster.until_active(4);
    assert_refused(&cluster, &["replace", "2", "--with", "2"], "is no other active storage node");
    let start = |id: &usize| TestWriter::start(&cluster, *id, "replacement");
    let writers: Vec<TestWriter> = STORAGE.iter().map(start).collect();
    writers.iter().for_each(TestWriter::until_more);
    run(&cluster, 3, &["replace", "2", "--with", "4"]);
    let mut stored = Vec::new();
    for writer in writers {
        writer.until_more();
        let log = writer.end(&cluster);
        log.assert_kept_but_for_unanswered();
        stored.extend(log.stored);
    }
    wait_at_most(MINUTELY_MAX, "the node is removed by itself", || state_of(&cluster, LEAVING) == "removed");
    cluster.until_refused(LEAVING);
    until_staying_have_all(&mut cluster);
    for id in STAYING {
        assert_all_stored(&cluster, id, &stored);
    }
}

#[test]
fn the_first_node_leaves_like_any_other_one_and_its_duty_moves_before() {
    const ASKED: usize = 2;
    let mut cluster = four();
    let (writer, key) = (cluster.client(ASKED), "before-the-drain");
    cluster.block_on(put(&writer, key)).expect("stored");
    run(&cluster, ASKED, &["drain", "1"]);
    wait_until("another node has the duty", || {
        let view = cluster.view(ASKED);
        view.duty_acts() && view.duty.is_some_and(|duty| duty != FIRST)
    });
    wait_at_most(MINUTELY_MAX, "no segment needs the node", || {
        cluster.view(ASKED).leaving.iter().any(|left| (left.node, left.done) == (FIRST, true))
    });
    run(&cluster, ASKED, &["remove", "1", "--yes"]);
    wait_until("the first node is removed", || {
        cluster.view(ASKED).node(FIRST).is_some_and(|node| node.state == "removed")
    });
    cluster.until_refused(FIRST);
    let duty = cluster.duty_at(ASKED).expect("a duty node is known");
    let (output, status) = cluster.member(duty).setup.command(&["bucket", "list"]);
    assert_eq!(status, Some(0), "{output}");
    for id in cluster.running() {
        let client = cluster.client(id);
        cluster.block_on(async {
            for key in keys_before().chain([key.to_owned()]) {
                assert_reads(&client, &key).await;
            }
        });
    }
}

#[test]
fn what_would_leave_too_few_nodes_is_refused_and_a_drain_can_be_ended() {
    let mut cluster = TestCluster::three_with(small_segments);
    let client = cluster.client(LEAVING);
    cluster.block_on(put(&client, "kept")).expect("stored");
    assert_refused(&cluster, &["drain", "2"], "--to-copies 2");
    let (output, status) = command(&cluster, FIRST, &["drain", "9"]);
    assert!(status == Some(1) && output.contains("Node 9 is not in the cluster"), "{output}");
    assert_refused(&cluster, &["remove", "2", "--yes"], "is not drained");
    assert_eq!(state_of(&cluster, LEAVING), "active");

    run(&cluster, 3, &["drain", "2", "--to-copies", "2"]);
    until_state(&cluster, LEAVING, "draining");
    assert_refused(&cluster, &["drain", "3", "--to-copies", "2"], "1 active storage nodes are left");
    wait_at_most(MINUTELY_MAX, "every segment is on the two other nodes alone", || {
        let view = cluster.view(FIRST);
        view.copies.wanted == 2 && is_drained(&view)
    });
    run(&cluster, LEAVING, &["undrain", "2"]);
    cluster.until_active(LEAVING);
    wait_at_most(MINUTELY_MAX, "every segment has three copies again", || {
        let copies = cluster.view(FIRST).copies;
        (copies.wanted, copies.below_segments) == (3, 0)
    });
    cluster.until_settled();
    cluster.block_on(assert_reads(&client, "kept"));

    cluster.join("gateway");
    cluster.until_active(GATEWAY);
    // It has no segments, so it needs no drain.
    run(&cluster, FIRST, &["remove", "4", "--yes"]);
    until_state(&cluster, GATEWAY, "removed");
    cluster.until_refused(GATEWAY);
}
