//! Two of three nodes are destroyed, and the third one is recovered as a server without peers: it returns the
//! objects whose bytes it has, lists the others, and becomes the first node of a new cluster later. It runs
//! no job, sends no queued write and owns no prefix of an upstream before it takes over.

use std::fs;
use std::time::Duration;

use mlgw_common::time::block_for;
use serde_json::Value;

use super::duty::{OLD, QUEUED, TestOrigin, bind_buckets, put_until_served, until_sent};
use super::segment_files::MINUTELY_MAX;
use super::testbed::{
    BUCKET, FIRST, STORAGE, TestCluster, assert_reads, assert_reads_before, content_of, put, wait_at_most,
    wait_until,
};
use super::writers::TestWriter;
use crate::s3::full_body;
use crate::server::ServerSetup;

/// The node that is left.
const LEFT: usize = 2;

/// Time in which a schedule of every second would create a job.
const SCHEDULE_ROUNDS: Duration = Duration::from_secs(3);

/// Settings for many segments.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB").with("hot.compact_interval", "100ms")
}

/// Runs `mlgw cluster recover` for the node that is left.
fn recover(cluster: &TestCluster, options: &[&str]) -> (String, Option<i32>) {
    recover_node(cluster, LEFT, options)
}

fn recover_node(cluster: &TestCluster, node: usize, options: &[&str]) -> (String, Option<i32>) {
    let setup = &cluster.member(node).setup;
    let dir = setup.data_dir.to_str().expect("a test path");
    let words = [&["recover", "--from", dir][..], options].concat();
    setup.cluster(&words)
}

/// Runs a command at a running server, and returns the document that it prints.
fn command(setup: &ServerSetup, words: &[&str]) -> Value {
    let (output, status) = setup.command(&[words, &["--output", "json"]].concat());
    assert_eq!(status, Some(0), "{output}");
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// True if a server has a job.
fn has_jobs(setup: &ServerSetup) -> bool {
    let list = command(setup, &["job", "list"]);
    !list["jobs"].as_array().expect("jobs").is_empty()
}

#[test]
fn the_last_node_is_recovered_with_everything_that_it_has() {
    let mut cluster = TestCluster::three_with(small_segments);
    wait_at_most(MINUTELY_MAX, "every sealed segment has three copies", || {
        cluster.view(FIRST).copies.below_segments == 0
    });
    let writers: Vec<TestWriter> =
        STORAGE.iter().map(|id| TestWriter::start(&cluster, *id, "recovery")).collect();
    writers.iter().for_each(TestWriter::until_more);
    let (output, status) = recover(&cluster, &["--yes"]);
    assert_ne!(status, Some(0), "it runs: {output}");
    let mut stored = Vec::new();
    for writer in writers {
        let log = writer.end(&cluster);
        stored.extend(log.stored);
    }
    wait_until("the log of the node has every acknowledged change", || cluster.is_caught_up(LEFT));
    for id in STORAGE {
        cluster.kill(id);
    }
    for id in [FIRST, 3] {
        fs::remove_dir_all(&cluster.member(id).setup.data_dir).expect("destroyed");
    }
    let (output, status) = recover(&cluster, &[]);
    assert_eq!(status, Some(2), "{output}");
    assert!(output.contains("--yes"), "a confirmation is needed: {output}");
    let (output, status) = recover(&cluster, &["--yes"]);
    assert!(status == Some(0) || output.contains("lack bytes"), "{output}");
    let (again, status) = recover(&cluster, &["--yes"]);
    assert_eq!(status, Some(4), "{again}");
    assert!(again.contains("was recovered before"), "{again}");

    let setup = cluster.member(LEFT).setup.clone();
    let server = setup.start();
    let client = server.client();
    cluster.block_on(async {
        assert_reads_before(&client).await;
        // What two nodes had synced may be on the other two alone, and is listed then.
        for object in &stored {
            object.assert_stored_or_listed(&client, &output).await;
        }
        put(&client, "after").await.expect("stored");
    });
    command(&setup, &["dataset", "create", "all", "--bucket", BUCKET]);
    command(&setup, &["dataset", "warm", "all", "--schedule", "* * * * * *"]);
    block_for(SCHEDULE_ROUNDS);
    assert!(!has_jobs(&setup), "it has not taken over");
    server.stop();
    let (output, status) = recover(&cluster, &["--take-over"]);
    assert_eq!(status, Some(0), "{output}");
    let dir = setup.data_dir.to_str().expect("a test path");
    let (output, status) = setup.cluster(&["init", dir]);
    assert_eq!(status, Some(0), "{output}");
    let server = setup.start();
    let client = server.client();
    cluster.block_on(async {
        assert_reads(&client, "after").await;
        let body = full_body(content_of("again").bytes());
        client.put(BUCKET, "again", body).await.expect("stored");
    });
    wait_until("it serves as the first node of another cluster", || {
        setup.command(&["cluster", "status"]).0.contains("this node    1")
    });
    wait_until("the schedule creates jobs again", || has_jobs(&setup));
    server.stop();
}

#[test]
fn a_recovered_server_changes_nothing_at_upstreams_before_it_takes_over() {
    let mut cluster = TestCluster::three();
    let origin = TestOrigin::start(&cluster);
    bind_buckets(&mut cluster, &origin);
    origin.pause();
    let client = cluster.client(FIRST);
    cluster.block_on(put_until_served(&client, QUEUED, "a", OLD));
    for id in STORAGE {
        cluster.kill(id);
    }
    for id in [2, 3] {
        fs::remove_dir_all(&cluster.member(id).setup.data_dir).expect("destroyed");
    }
    let (output, status) = recover_node(&cluster, FIRST, &["--yes"]);
    assert!(status == Some(0) || output.contains("lack bytes"), "{output}");
    origin.resume();

    let setup = cluster.member(FIRST).setup.clone();
    let server = setup.start();
    let (output, status) = setup.command(&["upstream", "adopt", "far"]);
    assert_eq!(status, Some(4), "{output}");
    assert!(output.contains("--take-over"), "{output}");
    block_for(SCHEDULE_ROUNDS);
    assert!(!cluster.block_on(origin.has(QUEUED, "a", OLD)), "the write stays in the queue");
    server.stop();
    let (output, status) = recover_node(&cluster, FIRST, &["--take-over"]);
    assert_eq!(status, Some(0), "{output}");
    let server = setup.start();
    until_sent(&cluster, &origin, QUEUED, "a", OLD);
    server.stop();
}
