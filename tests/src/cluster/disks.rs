//! The disk of the segments of a node is lost while the node runs: the node refuses the directory that is in
//! its place and forwards writes, the other nodes serve, and an empty directory takes its place by one
//! command. The other nodes have copies of everything, so nothing is lost and the node is not stopped.

use std::fs;
use std::path::PathBuf;

use super::segment_files::{MINUTELY_MAX, until_copied};
use super::testbed::{
    BUCKET, FIRST, STORAGE, TestCluster, assert_reads, assert_reads_before, put, until_served, wait_at_most,
    wait_until,
};
use super::writers::{TestWriter, assert_all_stored};
use crate::observability::scrape::Scrape;
use crate::server::ServerSetup;

/// The node whose disk is lost.
const LOST: usize = 3;

/// Settings for many segments.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB").with("hot.compact_interval", "100ms")
}

/// Runs a command against the node with the disk.
fn command(cluster: &TestCluster, words: &[&str]) -> (String, Option<i32>) {
    cluster.member(LOST).setup.command(words)
}

fn replace(cluster: &TestCluster) -> (String, Option<i32>) {
    let dir = cluster.segments_dir(LOST);
    command(cluster, &["disk", "replace", dir.to_str().expect("a test path")])
}

/// Puts an empty directory in the place of the segments of a running node, as if their disk had failed.
/// Returns the path of the old one.
fn exchange_disk(cluster: &TestCluster) -> PathBuf {
    let dir = cluster.segments_dir(LOST);
    let gone = dir.with_file_name("segments-of-the-lost-disk");
    fs::rename(&dir, &gone).expect("renamed");
    fs::create_dir(&dir).expect("made");
    gone
}

fn until_refused(cluster: &TestCluster) {
    wait_until("the node does not use the other directory", || {
        command(cluster, &["status"]).0.contains("is not used: it has no mark of this server")
    });
}

fn is_empty(cluster: &TestCluster) -> bool {
    fs::read_dir(cluster.segments_dir(LOST)).expect("read").next().is_none()
}

#[test]
fn the_segments_of_a_lost_disk_are_copied_to_an_empty_one_while_the_node_runs() {
    let mut cluster = TestCluster::three_with(small_segments);
    let start = |id: &usize| TestWriter::start(&cluster, *id, "disk");
    let writers: Vec<TestWriter> = STORAGE.iter().map(start).collect();
    writers.iter().for_each(TestWriter::until_more);
    let gone = exchange_disk(&cluster);
    until_refused(&cluster);
    for id in STORAGE {
        wait_until(&format!("the status at node {id} has the critical finding of node {LOST}"), || {
            let (output, _) = cluster.member(id).setup.command(&["status"]);
            let is_critical = output.lines().next().is_some_and(|head| head.ends_with("critical"));
            is_critical && output.contains(&format!("node {LOST}: The segment directory "))
        });
        let refused = Scrape::of(cluster.process(id)).sum("mlgw_segment_dirs_refused", &[]);
        assert_eq!(refused > 0.5, id == LOST, "at node {id}");
    }
    assert!(is_empty(&cluster), "nothing is written to a directory that may be another one");
    let mut stored = Vec::new();
    for writer in writers {
        // The node itself forwards writes.
        writer.until_more();
        let log = writer.end(&cluster);
        log.assert_kept();
        stored.extend(log.stored);
    }
    // It answers reads, from the replicas of other nodes.
    assert_all_stored(&cluster, LOST, &stored);
    assert!(is_empty(&cluster));

    let (output, status) = replace(&cluster);
    assert_eq!(status, Some(0), "{output}");
    assert!(output.contains("is used from now on"), "{output}");
    let client = cluster.client(LOST);
    cluster.block_on(until_served("a write through the node", async || put(&client, "after").await));
    wait_at_most(MINUTELY_MAX, "every segment has three good copies", || {
        let copies = cluster.view(FIRST).copies;
        (copies.below_segments, copies.suspect_segments) == (0, 0)
    });
    fs::remove_dir_all(gone).expect("the old disk is not needed");
    // A stop seals the open segments of a node. The start accepts the directory.
    cluster.restart(&STORAGE);
    until_copied(&cluster, &STORAGE);
    for id in STORAGE {
        assert_all_stored(&cluster, id, &stored);
        let client = cluster.client(id);
        cluster.block_on(async {
            assert_reads(&client, "after").await;
            assert_reads_before(&client).await;
        });
    }
}

#[test]
fn a_directory_with_files_is_not_replaced_and_the_right_one_is_used_again() {
    let cluster = TestCluster::three_with(small_segments);
    let (output, status) = command(&cluster, &["disk", "replace", "/nowhere"]);
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("is not a segment directory of this node"), "{output}");
    let (output, status) = replace(&cluster);
    assert_eq!(status, Some(4), "{output}");
    assert!(output.contains("is not empty"), "{output}");

    let gone = exchange_disk(&cluster);
    until_refused(&cluster);
    let dir = cluster.segments_dir(LOST);
    fs::remove_dir(&dir).expect("it is empty");
    fs::rename(gone, &dir).expect("renamed");
    wait_until("the node uses the directory again", || {
        !command(&cluster, &["status"]).0.contains("is not used")
    });
    let client = cluster.client(LOST);
    cluster.block_on(async {
        until_served("a write through the node", async || put(&client, "again").await).await;
        let read = client.get(BUCKET, "again").await.expect("read");
        assert!(!read.body.is_empty());
    });
    let copies = cluster.view(FIRST).copies;
    assert_eq!(copies.suspect_segments, 0, "nothing was lost");
}
