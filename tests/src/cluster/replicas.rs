//! Copies of sealed segments: every storage node gets them while clients write, also after a kill; damaged
//! and lost ones are made again, and those of deleted objects are removed.
//!
//! Files of segments are compared byte by byte. Those that are still appended to may differ for a moment; the
//! stop of their owner seals them. Objects are stored through several nodes, so segments have several owners.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mlgw_common::time::sleep;

use super::rows::check_store;
use super::segment_files::{
    MINUTELY_MAX, have_equal_segments, is_equal_on, names_with, segment_files, until_copied,
};
use super::testbed::{
    BUCKET, FIRST, GATEWAY, STORAGE, TestCluster, TestMember, assert_reads, keys_before, put, wait_at_most,
    wait_until,
};
use super::view::CopiesView;
use crate::content::TestContent;
use crate::observability::scrape::Scrape;
use crate::s3::full_body;
use crate::server::{ServerSetup, get_text};

const MIB: usize = 1 << 20;
/// Objects of many chunks, by key. The second one has segments of its own.
const LARGE: [(&str, TestContent); 2] = [
    ("shared", TestContent { id: 80, length: 8 * MIB + 5 }),
    ("own", TestContent { id: 81, length: 70 * MIB + 5 }),
];
/// Pause of a writer. Without it gigabytes would be written until the nodes have joined.
const WRITE_PAUSE: Duration = Duration::from_millis(20);

/// Settings for many segments. Segments without references are soon removed.
pub(super) fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup
        .with("hot.segment_bytes", "4MiB")
        .with("hot.compact_interval", "100ms")
        .with("hot.scrub_bytes_per_second", "1GiB")
}

#[test]
fn sealed_segments_reach_every_storage_node_while_a_client_writes() {
    let mut cluster = TestCluster::first_with(small_segments);
    put_large(&cluster);
    let (client, is_over) = (cluster.client(FIRST), Arc::new(AtomicBool::new(false)));
    let writer = cluster.runtime().spawn({
        let is_over = Arc::clone(&is_over);
        async move {
            let mut written = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let key = format!("meanwhile-{}", written.len());
                put(&client, &key).await.expect("stored");
                written.push(key);
                sleep(WRITE_PAUSE).await;
            }
            written
        }
    });
    for role in ["storage", "storage", "gateway"] {
        cluster.join(role);
    }
    cluster.until_settled();
    wait_until("some segments have three copies", || {
        let copies = copies(&cluster, FIRST);
        copies.wanted == 3 && copies.below_segments < copies.segments
    });
    is_over.store(true, Ordering::Relaxed);
    let mut written = cluster.block_on(writer).expect("the writer does not panic");
    for id in cluster.ids() {
        let (client, key) = (cluster.client(id), format!("through-{id}"));
        cluster.block_on(put(&client, &key)).expect("stored");
        written.push(key);
    }
    wait_until("every sealed segment is on three nodes", || is_copied_but_for_open_segments(&cluster));
    the_copies_are_reported(&cluster);
    seal_open_segments(&mut cluster);
    until_copied(&cluster, &STORAGE);

    for id in cluster.ids() {
        wait_until(&format!("node {id} describes three copies of each segment"), || {
            let copies = copies(&cluster, id);
            (copies.wanted, copies.below_segments, copies.suspect_segments) == (3, 0, 0)
        });
    }
    assert_eq!(segment_files(&cluster, GATEWAY), BTreeMap::new(), "a gateway stores nothing");
    let client = cluster.client(GATEWAY);
    cluster.block_on(async {
        for key in keys_before().chain(written) {
            assert_reads(&client, &key).await;
        }
        for (key, content) in LARGE {
            let read = client.get(BUCKET, key).await.expect("read");
            assert_eq!(content.difference(&read.body), None, "{key}");
        }
    });
}

/// Asserts that the command and the metrics report that each segment has three copies.
fn the_copies_are_reported(cluster: &TestCluster) {
    let (output, status) = cluster.member(FIRST).setup.command(&["cluster", "status"]);
    assert_eq!(status, Some(0), "{output}");
    assert!(output.contains("copies       3 of each of "), "{output}");
    let first = Scrape::of(cluster.process(FIRST));
    for metric in ["mlgw_segments_below_copies", "mlgw_segments_suspect"] {
        assert!(first.sum(metric, &[]).abs() < 0.5, "{metric} is not 0");
    }
    for id in [2, 3] {
        let copied = Scrape::of(cluster.process(id)).sum("mlgw_replica_copied_segments_total", &[]);
        assert!(copied > 0.5, "node {id} has copied nothing");
    }
    for id in STORAGE {
        let exposed = get_text(cluster.process(id).admin, "/metrics").expect("answered");
        assert!(exposed.contains("\nmlgw_replica_read_bytes_total "), "node {id}: {exposed}");
    }
}

#[test]
fn a_damaged_copy_on_any_node_is_repaired_from_another_one() {
    let mut cluster = TestCluster::three_with(small_segments);
    put_large(&cluster);
    seal_open_segments(&mut cluster);
    until_copied(&cluster, &STORAGE);
    for id in [2, FIRST] {
        cluster.stop(id);
        flip_byte_of_longest(&cluster, id);
        assert!(!have_equal_segments(&cluster, &STORAGE), "a byte differs");
        make_scrub_due(&cluster, id);
        cluster.start(id);
        until_copied(&cluster, &STORAGE);
    }
    cluster.until_settled();
    cluster.assert_all_serve();
    wait_at_most(MINUTELY_MAX, "no node lists a bad block", || {
        let bad = |id: &usize| Scrape::of(cluster.process(*id)).sum("mlgw_quarantined_blocks", &[]);
        STORAGE.iter().all(|id| bad(id) < 0.5)
    });
    let client = cluster.client(3);
    cluster.block_on(async {
        for (key, content) in LARGE {
            let read = client.get(BUCKET, key).await.expect("read");
            assert_eq!(content.difference(&read.body), None, "{key}");
        }
    });
}

#[test]
fn a_segment_that_is_damaged_on_all_nodes_that_answer_is_suspect_until_another_one_returns() {
    const GOOD: usize = 3;
    let mut cluster = TestCluster::three_with(small_segments);
    put_large(&cluster);
    seal_open_segments(&mut cluster);
    until_copied(&cluster, &STORAGE);
    damage_all_but(&mut cluster, GOOD);
    // The node with the duty alone exposes the number.
    let suspects = |cluster: &TestCluster| -> f64 {
        let running = cluster.running().into_iter();
        running.map(|id| Scrape::of(cluster.process(id)).sum("mlgw_segments_suspect", &[])).sum()
    };
    wait_at_most(MINUTELY_MAX, "a segment is suspect", || suspects(&cluster) > 0.5);
    let (output, _) = cluster.member(FIRST).setup.command(&["cluster", "status"]);
    assert!(output.contains(" with a suspect copy\n"), "{output}");
    cluster.kill(2);
    let (output, status) = check_store(cluster.member(2));
    assert_eq!(status, Some(0), "{output}");
    assert!(output.contains("are marked as suspect on this node"), "{output}");
    cluster.start(2);
    cluster.start(GOOD);
    until_copied(&cluster, &STORAGE);
    wait_until("no segment is suspect", || suspects(&cluster) < 0.5);
}

#[test]
fn a_node_that_lost_its_segments_gets_them_again() {
    const LOST: usize = 3;
    let mut cluster = TestCluster::three_with(small_segments);
    put_large(&cluster);
    seal_open_segments(&mut cluster);
    until_copied(&cluster, &STORAGE);
    cluster.stop(LOST);
    let dir = cluster.segments_dir(LOST);
    let lost = segment_files(&cluster, LOST);
    assert!(lost.len() > 10, "{lost:?}");
    for name in lost.keys() {
        fs::remove_file(dir.join(name)).expect("removed");
    }
    assert_replicas_are_reported(cluster.member(LOST));
    cluster.adopt_segments(LOST);
    cluster.start(LOST);
    until_copied(&cluster, &STORAGE);
}

/// Asserts that a check of a node that lacks segments points to the replicas of other nodes.
fn assert_replicas_are_reported(member: &TestMember) {
    let (output, status) = check_store(member);
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("\"kind\": \"replica\""), "{output}");
    assert!(output.contains("other nodes have replicas of the segments above"), "{output}");
    assert!(!output.contains("data of the objects above is lost"), "{output}");
}

#[test]
fn files_of_deleted_objects_are_removed_from_every_node() {
    let mut cluster = TestCluster::three_with(small_segments);
    put_large(&cluster);
    seal_open_segments(&mut cluster);
    until_copied(&cluster, &STORAGE);
    let before = segment_files(&cluster, FIRST);
    assert!(before.len() > 10, "{before:?}");
    let client = cluster.client(FIRST);
    cluster.block_on(async {
        for key in keys_before().chain(LARGE.map(|(key, _)| key.to_owned())) {
            client.delete(BUCKET, &key).await.expect("deleted");
        }
    });
    // The restarts have moved the duty for a while.
    cluster.until_first_has_duty();
    let words = ["tier", "compact", "--dead-percent", "1", "--wait"];
    let (output, status) = cluster.member(FIRST).setup.command(&words);
    assert_eq!(status, Some(0), "{output}");
    for id in STORAGE {
        wait_at_most(MINUTELY_MAX, &format!("node {id} has removed all files"), || {
            segment_files(&cluster, id).keys().all(|name| !before.contains_key(name))
        });
        assert_eq!(names_with(&cluster, id, ".aside-"), Vec::<String>::new(), "node {id} keeps a file");
    }
}

#[test]
fn a_node_that_is_killed_while_it_copies_continues() {
    const KILLED: usize = 2;
    let mut cluster = TestCluster::first_with(small_segments);
    put_large(&cluster);
    seal_open_segments(&mut cluster);
    let mut member = cluster.new_member("node-2");
    // Slow enough that the copies take over a minute.
    member.setup = member.setup.with("cluster.repair_bytes_per_second", "1MiB");
    let (output, status) = cluster.run_join(&member, &cluster.token(), "storage");
    assert_eq!(status, Some(0), "{output}");
    cluster.add(member);
    cluster.start(KILLED);
    wait_until("the first copy is complete", || !segment_files(&cluster, KILLED).is_empty());
    cluster.kill(KILLED);
    let (whole, copied) = (segment_files(&cluster, FIRST), segment_files(&cluster, KILLED));
    assert!(copied.len() < whole.len(), "all {} segments were copied before the kill", whole.len());

    cluster.set(KILLED, "cluster.repair_bytes_per_second", "0");
    cluster.start(KILLED);
    until_copied(&cluster, &[FIRST, KILLED]);
    assert_eq!(names_with(&cluster, KILLED, ".copying"), Vec::<String>::new(), "unfinished copies");
}

/// Kills all storage nodes, damages the same bytes on all but one of them, and starts these.
pub(super) fn damage_all_but(cluster: &mut TestCluster, good: usize) {
    STORAGE.into_iter().for_each(|id| cluster.kill(id));
    let bad = || STORAGE.into_iter().filter(|id| *id != good);
    // The same one everywhere. A segment that is open still may lack a copy on one of the nodes.
    let mut common = segment_files(cluster, good);
    common.retain(|name, _| bad().all(|id| segment_files(cluster, id).contains_key(name)));
    let (name, length) = longest(common);
    for id in bad() {
        flip_byte(cluster, id, &name, length / 2);
        make_scrub_due(cluster, id);
    }
    bad().for_each(|id| cluster.spawn(id));
    bad().for_each(|id| cluster.until_ready(id));
}

/// Stores the large objects, through the running nodes in turn.
pub(super) fn put_large(cluster: &TestCluster) {
    let clients = cluster.clients();
    cluster.block_on(async {
        for ((key, content), client) in LARGE.into_iter().zip(clients.iter().cycle()) {
            client.put(BUCKET, key, full_body(content.bytes())).await.expect("stored");
        }
    });
}

/// Stops and starts all storage nodes in turn. The stop of a node seals its segments, and nothing is written
/// afterwards.
pub(super) fn seal_open_segments(cluster: &mut TestCluster) {
    let mut ids = cluster.running();
    ids.retain(|id| STORAGE.contains(id));
    cluster.restart(&ids);
    if ids == STORAGE {
        cluster.until_settled();
    }
}

/// Makes the daily scrub of a stopped node due at its start: without a readable state it is.
fn make_scrub_due(cluster: &TestCluster, id: usize) {
    fs::write(cluster.member(id).setup.data_dir.join("scrub.json"), "{").expect("written");
}

fn copies(cluster: &TestCluster, id: usize) -> CopiesView {
    cluster.view(id).copies
}

/// True if no sealed segment lacks a copy, and all files but those of open segments are equal on the storage
/// nodes.
fn is_copied_but_for_open_segments(cluster: &TestCluster) -> bool {
    let copies = copies(cluster, FIRST);
    let files: BTreeMap<_, _> = STORAGE.iter().flat_map(|id| segment_files(cluster, *id)).collect();
    let different = files.keys().filter(|name| !is_equal_on(cluster, &STORAGE, name)).count();
    copies.below_segments == 0 && different <= copies.open_segments
}

/// The longest of these files, and its length.
fn longest(files: BTreeMap<String, u64>) -> (String, u64) {
    files.into_iter().max_by_key(|(_, length)| *length).expect("a segment")
}

/// Flips a bit in the middle of the longest segment file of a stopped node.
fn flip_byte_of_longest(cluster: &TestCluster, id: usize) {
    let (name, length) = longest(segment_files(cluster, id));
    flip_byte(cluster, id, &name, length / 2);
}

/// Flips a bit in a segment file of a stopped node.
fn flip_byte(cluster: &TestCluster, id: usize, name: &str, at: u64) {
    let path = cluster.segments_dir(id).join(name);
    let mut bytes = fs::read(&path).expect("read");
    bytes[usize::try_from(at).expect("a position in memory")] ^= 1;
    fs::write(&path, bytes).expect("written");
}
