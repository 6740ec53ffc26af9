//! A node starts on rows from before its newest segments, while no other node runs that has newer ones. By
//! its rows these segments do not exist. Nothing of them is removed or renamed: the node leaves its segments
//! alone until a majority has confirmed its rows.
//!
//! A whole directory that is set back is refused by the peers if they know a later start of the node
//! (`refusals`). This one is accepted: the rows are set back to a moment since the last start of the node, as
//! by a snapshot of a file system, and the segments are on another disk, which is not set back.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cluster::segment_files::{MINUTELY_MAX, names_with, segment_files, until_copied};
use crate::cluster::testbed::{
    BUCKET, FIRST, STORAGE, TestCluster, assert_reads_before, node_of, until_served, wait_at_most, wait_until,
};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::ServerSetup;
use crate::store::copy_directory;

/// The node whose rows are set back.
const NODE: usize = 3;
const OTHERS: [usize; 2] = [FIRST, 2];
/// Length of an object: more than a segment.
const LENGTH: usize = 6 << 20;
/// Objects through each node, before the rows are copied and afterwards.
const OBJECTS: usize = 2;
/// Length of a segment file without records.
const HEADER_BYTES: u64 = 64;
/// Lines in the log of a node that treats segments as unknown or removed.
const GIVES_UP: [&str; 2] = ["set aside a file", "removing the file of a removed or moved segment"];

/// Settings of nodes with many segments.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB")
}

/// An object that was stored.
struct SegmentObject {
    key: String,
    content: TestContent,
}

/// Stores objects through every node.
fn put_objects(cluster: &TestCluster, label: &str, first_id: u64) -> Vec<SegmentObject> {
    let mut stored = Vec::new();
    for (id, node) in (first_id..).zip(STORAGE.into_iter().cycle()).take(STORAGE.len() * OBJECTS) {
        let (client, key) = (cluster.client(node), format!("{label}-{id}"));
        let content = TestContent { id, length: LENGTH };
        let put = async || client.put(BUCKET, &key, full_body(content.bytes())).await;
        cluster.block_on(until_served("an object is stored", put));
        stored.push(SegmentObject { key, content });
    }
    stored
}

/// Files of a node with records of segments.
fn filled_segments(cluster: &TestCluster, node: usize) -> BTreeSet<String> {
    let files = segment_files(cluster, node).into_iter();
    files.filter(|(_, length)| *length > HEADER_BYTES).map(|(name, _)| name).collect()
}

/// Copies everything that a node has, except its segments. It writes nothing meanwhile.
fn copy_rows(cluster: &TestCluster, node: usize, to: &Path) {
    cluster.pause(node);
    copy_directory(&cluster.member(node).setup.data_dir, to);
    cluster.resume(node);
    fs::remove_dir_all(to.join("segments")).expect("removed");
}

/// Puts the copy in the place of everything that a killed node has, except its segments.
fn set_rows_back(cluster: &TestCluster, node: usize, copy: &Path) {
    let dir = &cluster.member(node).setup.data_dir;
    for entry in fs::read_dir(dir).expect("listed") {
        let entry = entry.expect("an entry");
        if entry.file_name() == "segments" {
            continue;
        }
        let removed = match entry.file_type().expect("a type").is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        removed.expect("removed");
    }
    for entry in fs::read_dir(copy).expect("listed") {
        let entry = entry.expect("an entry");
        fs::rename(entry.path(), dir.join(entry.file_name())).expect("moved");
    }
}

/// Lines of a log by which a node gives segments up that have records. Those without records are removed from
/// the cluster at any time.
fn given_up<'a>(log: &'a str, filled: &BTreeSet<String>) -> Vec<&'a str> {
    let is_filled = |line: &str| {
        let number = line.split_once("segment=").and_then(|(_, rest)| rest.split(' ').next());
        let id = number.and_then(|number| number.trim().parse::<u64>().ok());
        id.is_none_or(|id| filled.contains(&format!("{id:016x}.seg")))
    };
    let gives_up = |line: &&str| GIVES_UP.iter().any(|words| line.contains(words)) && is_filled(line);
    log.lines().filter(gives_up).collect()
}

#[test]
fn a_node_that_starts_on_old_rows_removes_and_renames_no_segment() {
    let mut cluster = TestCluster::three_with(small_segments);
    let mut stored = put_objects(&cluster, "before", 6_200);
    // All segments are sealed.
    cluster.restart(&STORAGE);
    cluster.until_settled();
    until_copied(&cluster, &STORAGE);
    // The peers of the node accept a later start than this one.
    let copy = cluster.new_member("rows-of-3").setup.data_dir;
    let known = filled_segments(&cluster, NODE);
    copy_rows(&cluster, NODE, &copy);
    stored.extend(put_objects(&cluster, "afterwards", 6_300));
    wait_at_most(MINUTELY_MAX, "every sealed segment has three copies", || {
        let copies = cluster.view(FIRST).copies;
        (copies.wanted, copies.below_segments, copies.suspect_segments) == (STORAGE.len(), 0, 0)
    });
    cluster.kill(NODE);
    // The others have everything that this node will have forgotten.
    cluster.until_led();
    for node in OTHERS {
        wait_until(&format!("node {node} lacks nothing"), || cluster.is_caught_up(node));
    }
    // Their starts give each group a new leader, which does not expect its entries to be there.
    OTHERS.into_iter().for_each(|node| cluster.kill(node));
    let (names, lengths) = (names_with(&cluster, NODE, ""), segment_files(&cluster, NODE));
    let filled = filled_segments(&cluster, NODE);
    assert!(filled.difference(&known).next().is_some(), "it has segments that its old rows do not know");
    set_rows_back(&cluster, NODE, &copy);

    cluster.spawn(NODE);
    cluster.until_waiting(NODE);
    let sorted = |names: &[String]| names.iter().cloned().collect::<BTreeSet<String>>();
    assert_eq!(sorted(&names_with(&cluster, NODE, "")), sorted(&names), "it waits for a majority");
    assert_eq!(segment_files(&cluster, NODE), lengths, "it waits for a majority");

    OTHERS.into_iter().for_each(|node| cluster.spawn(node));
    STORAGE.into_iter().for_each(|node| cluster.until_ready(node));
    cluster.until_settled();
    until_copied(&cluster, &STORAGE);
    let lost: Vec<String> = filled.difference(&filled_segments(&cluster, NODE)).cloned().collect();
    assert_eq!(lost, Vec::<String>::new(), "segments of the node are gone");
    let log = cluster.process(NODE).log();
    assert_eq!(given_up(&log, &filled), Vec::<&str>::new(), "{log}");
    let client = cluster.client(NODE);
    cluster.block_on(async {
        for SegmentObject { key, content } in &stored {
            let read = async || client.get(BUCKET, key).await;
            let read = until_served("an object is read", read).await;
            assert_eq!((content.difference(&read.body), node_of(&read)), (None, NODE), "{key}");
        }
        assert_reads_before(&client).await;
    });
}
