//! Backups of a cluster through one of its nodes while clients write through all of them. All nodes are
//! destroyed; the restored backup is a server of its own, which becomes the first node of another cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use super::segment_files::{MINUTELY_MAX, until_copied};
use super::testbed::{
    FIRST, GATEWAY, STORAGE, TestCluster, TestMember, assert_reads, assert_reads_before, put, wait_at_most,
    wait_until,
};
use super::writers::{TestWriter, WrittenObject, assert_all_stored};
use crate::server::ServerSetup;

/// The node that makes the backups. It leads neither the system group nor the first group of objects.
const THROUGH: usize = 2;
/// Backups that are made while clients write.
const BACKUPS: usize = 3;

/// Settings with which segments are made, moved and released all the time.
fn busy_segments(setup: ServerSetup) -> ServerSetup {
    let setup = setup.with("hot.segment_bytes", "1MiB").with("hot.compact_dead_percent", "5");
    setup.with("hot.compact_interval", "10ms").with("hot.compact_bytes_per_second", "1GiB")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a test path")
}

/// Runs `mlgw store backup` for the directory of a node.
fn back_up(member: &TestMember, out: &Path) -> (String, Option<i32>) {
    member.setup.store(&["backup", text(&member.setup.data_dir), text(out)])
}

/// Runs `mlgw store restore` for the directory of a node.
fn restore(member: &TestMember, from: &Path) -> (String, Option<i32>) {
    member.setup.store(&["restore", text(from), text(&member.setup.data_dir)])
}

/// Three nodes with a bucket in each group of objects.
fn busy_cluster() -> TestCluster {
    let cluster = TestCluster::three_with(busy_segments);
    cluster.create_spread_buckets();
    cluster
}

fn start_writers(cluster: &TestCluster, label: &str) -> Vec<TestWriter> {
    STORAGE.iter().map(|id| TestWriter::start_spread(cluster, *id, label)).collect()
}

/// Ends writers, and returns the objects that they stored.
fn stored_by(cluster: &TestCluster, writers: Vec<TestWriter>) -> Vec<WrittenObject> {
    let ended = writers.into_iter().map(|writer| writer.end(cluster));
    ended
        .flat_map(|log| {
            log.assert_kept();
            log.stored
        })
        .collect()
}

#[test]
fn a_destroyed_cluster_is_restored_from_a_backup_that_was_made_during_writes() {
    let mut cluster = busy_cluster();
    let room = tempfile::tempdir().expect("a directory");
    let (before, during) = (start_writers(&cluster, "before"), start_writers(&cluster, "during"));
    before.iter().chain(&during).for_each(TestWriter::until_more);
    let stored = stored_by(&cluster, before);
    let copies: Vec<PathBuf> = (0..BACKUPS).map(|number| room.path().join(format!("out-{number}"))).collect();
    for copy in &copies {
        let (output, status) = back_up(cluster.member(THROUGH), copy);
        assert_eq!(status, Some(0), "{output}");
    }
    let (output, status) = back_up(cluster.member(THROUGH), &copies[0]);
    assert_eq!(status, Some(1), "a backup is not overwritten: {output}");
    let (output, status) = restore(cluster.member(FIRST), &copies[0]);
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("is the data directory of a server of cluster"), "{output}");
    during.iter().for_each(TestWriter::until_more);
    stored_by(&cluster, during);
    for id in STORAGE {
        cluster.kill(id);
        fs::remove_dir_all(&cluster.member(id).setup.data_dir).expect("destroyed");
    }

    for (number, copy) in copies.iter().enumerate() {
        let member = cluster.new_member(&format!("restored-{number}"));
        let (output, status) = restore(&member, copy);
        assert_eq!(status, Some(0), "no object lacks bytes: {output}");
        let (output, status) = member.setup.store(&["check", text(&member.setup.data_dir)]);
        assert_eq!(status, Some(0), "{output}");
        let server = member.setup.start();
        let client = server.client();
        cluster.block_on(async {
            assert_reads_before(&client).await;
            for object in &stored {
                object.assert_stored(&client).await;
            }
            put(&client, "after").await.expect("stored");
        });
        server.stop();
        if number == BACKUPS - 1 {
            grow_again(&mut cluster, member, &stored);
        }
    }
}

/// Makes a restored server the first node of another cluster, which two nodes join.
fn grow_again(cluster: &mut TestCluster, first: TestMember, stored: &[WrittenObject]) {
    let dir = text(&first.setup.data_dir);
    let (output, status) = first.setup.cluster_init();
    assert_ne!(status, Some(0), "not before it takes over: {output}");
    let (output, status) = first.setup.cluster(&["recover", "--from", dir, "--take-over"]);
    assert_eq!(status, Some(0), "{output}");
    let (output, status) = first.setup.cluster_init();
    assert_eq!(status, Some(0), "{output}");
    cluster.begin_again(first);
    cluster.start(FIRST);
    cluster.join("storage");
    cluster.join("storage");
    cluster.until_settled();
    until_copied(cluster, &STORAGE);
    for id in STORAGE {
        assert_all_stored(cluster, id, stored);
        cluster.block_on(assert_reads(&cluster.client(id), "after"));
    }
}

#[test]
fn a_backup_that_a_kill_interrupts_is_complete_or_none() {
    let mut cluster = busy_cluster();
    let room = tempfile::tempdir().expect("a directory");
    let steps = ["", "catalogue", "catalogue/log", "segments", "node.json"];
    for (number, step) in steps.iter().enumerate() {
        let out = room.path().join(format!("out-{number}"));
        let setup = cluster.member(THROUGH).setup.clone();
        let (dir, to) = (setup.data_dir.clone(), out.clone());
        let backup = thread::spawn(move || setup.store(&["backup", text(&dir), text(&to)]));
        wait_until(&format!("the backup has {step:?}"), || out.join(step).exists());
        cluster.kill(THROUGH);
        let (output, status) = backup.join().expect("the command ends");
        let is_complete = out.join("contents").exists();
        assert!(is_complete || status != Some(0), "{output}");
        let member = cluster.new_member(&format!("restored-{number}"));
        let (output, status) = restore(&member, &out);
        assert_eq!(status, Some(i32::from(!is_complete)), "{output}");
        assert_eq!(member.setup.data_dir.join("node.json").exists(), is_complete);
        cluster.start(THROUGH);
    }
    let out = room.path().join("last");
    let (output, status) = back_up(cluster.member(THROUGH), &out);
    assert_eq!(status, Some(0), "{output}");
}

#[test]
fn a_gateway_and_a_node_without_a_majority_make_no_backup() {
    let mut cluster = TestCluster::whole();
    let room = tempfile::tempdir().expect("a directory");
    let out = |name: &str| room.path().join(name);
    let (output, status) = back_up(cluster.member(GATEWAY), &out("running"));
    assert_ne!(status, Some(0), "{output}");
    assert!(output.contains("gateway"), "{output}");
    cluster.stop(GATEWAY);
    let (output, status) = back_up(cluster.member(GATEWAY), &out("stopped"));
    assert_eq!(status, Some(4), "{output}");
    assert!(output.contains("gateway") && !out("stopped").exists(), "{output}");
    wait_at_most(MINUTELY_MAX, "every sealed segment has three copies", || {
        cluster.view(FIRST).copies.below_segments == 0
    });
    for id in [FIRST, 3] {
        cluster.kill(id);
    }
    let (output, status) = back_up(cluster.member(THROUGH), &out("alone"));
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("cannot confirm that it has the newest state"), "{output}");
    assert!(!out("alone").join("contents").exists());
    // Without its server the node is backed up with what it has.
    cluster.kill(THROUGH);
    let (output, status) = back_up(cluster.member(THROUGH), &out("killed"));
    assert_eq!(status, Some(0), "{output}");
    let member = cluster.new_member("restored");
    let (output, status) = restore(&member, &out("killed"));
    assert_eq!(status, Some(0), "{output}");
    let server = member.setup.start();
    let client = server.client();
    cluster.block_on(assert_reads_before(&client));
    server.stop();
}
