//! A node whose clock is wrong refuses writes and does nothing that is due by time. The other nodes go on,
//! and every node names it. Of two clocks that differ neither is known to be right, so both nodes accept
//! writes.
//!
//! The clock of each process is that of libfaketime, which `MLGW_FAKETIME` names. The monotonic clock stays
//! that of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use mlgw_common::Timestamp;
use mlgw_common::time::block_for;
use serde_json::Value;

use super::testbed::{FIRST, STORAGE, TestCluster, assert_reads, keys_before, put, until_served, wait_until};
use crate::observability::scrape::Scrape;
use crate::s3::CallFailure;
use crate::server::{ServerSetup, get_text};

/// Deviation of a wrong clock in seconds: certificates and signatures are still valid under it.
const WRONG_SECS: i64 = 60;
/// Largest deviation of equal clocks that a loaded machine measures.
const EQUAL_MS: i64 = 500;
/// The same in seconds, which is what the alert `MlgwClockSkew` begins at.
const EQUAL_SECS: f64 = 0.5;
/// Time in which several jobs are created that are due each second.
const SCHEDULE_ROUNDS: Duration = Duration::from_secs(4);

/// Settings of a node with a clock of its own.
pub(super) fn with_own_clock(setup: ServerSetup) -> ServerSetup {
    let library = std::env::var("MLGW_FAKETIME").unwrap_or_else(|_| {
        panic!("MLGW_FAKETIME does not name libfaketime; tests/steps/rust-tests system installs it")
    });
    let file = clock_file(&setup.data_dir);
    fs::write(&file, "+0\n").expect("written");
    // The file is read again each second. Times of files stay those of the machine.
    setup.with_preparation(&format!(
        "export LD_PRELOAD='{library}' FAKETIME_TIMESTAMP_FILE='{}' FAKETIME_CACHE_DURATION=1 \
         FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1",
        file.display()
    ))
}

fn clock_file(data_dir: &Path) -> PathBuf {
    data_dir.with_extension("clock")
}

/// Shifts the clock of a node, also while it runs.
pub(super) fn shift_clock(cluster: &TestCluster, id: usize, secs: i64) {
    let file = clock_file(&cluster.member(id).setup.data_dir);
    fs::write(file, format!("{secs:+}\n")).expect("written");
}

#[test]
fn a_node_with_a_wrong_clock_refuses_writes_until_it_is_right_again() {
    const WRONG: usize = 2;
    let mut cluster = TestCluster::three_with(with_own_clock);
    for id in STORAGE {
        until_skew(&cluster, id, WRONG, 0);
        write_through(&cluster, id, "equal");
    }

    shift_clock(&cluster, WRONG, WRONG_SECS);
    until_writes_are_refused(&cluster, WRONG);
    everything_else_goes_on(&cluster, WRONG);

    shift_clock(&cluster, WRONG, 0);
    cluster.until_ready(WRONG);
    wait_until("no node exposes a deviation", || {
        STORAGE.iter().all(|id| skew_metric(&cluster, *id).abs() <= EQUAL_SECS)
    });
    write_through(&cluster, WRONG, "right-again");

    // A node that starts with a wrong clock is not ready.
    cluster.stop(WRONG);
    shift_clock(&cluster, WRONG, -WRONG_SECS);
    cluster.spawn(WRONG);
    cluster.until_listening(WRONG);
    until_writes_are_refused(&cluster, WRONG);
    shift_clock(&cluster, WRONG, 0);
    cluster.until_ready(WRONG);
    write_through(&cluster, WRONG, "restarted");
}

/// Reads through a node with a wrong clock, and asserts that every node names it.
fn everything_else_goes_on(cluster: &TestCluster, wrong: usize) {
    let client = cluster.client(wrong);
    let key = keys_before().next().expect("a key");
    cluster.block_on(assert_reads(&client, &key));
    wait_until("the node is not ready because of its clock", || {
        let ready = get_text(cluster.process(wrong).admin, "/readyz").expect("an answer");
        ready.starts_with("HTTP/1.1 503") && ready.contains("clock")
    });
    let (output, status) = cluster.member(wrong).setup.command(&["cluster", "token"]);
    assert!(status != Some(0) && output.contains("(ClockSkew)"), "{output}");
    for id in STORAGE {
        until_skew(cluster, id, wrong, WRONG_SECS * 1000);
        let findings = cluster.view(id).findings;
        let named = format!("The clock of node {wrong} ");
        assert!(findings.iter().any(|finding| finding.what.starts_with(&named)), "{findings:?}");
        if id != wrong {
            write_through(cluster, id, "others");
        }
    }
    for id in STORAGE {
        assert_eq!(skew_metric(cluster, id) > 59.0, id == wrong, "node {id}: {}", skew_metric(cluster, id));
    }
}

/// The deviation of its own clock that a node exposes, in seconds.
fn skew_metric(cluster: &TestCluster, id: usize) -> f64 {
    Scrape::of(cluster.process(id)).sum("mlgw_cluster_clock_skew_seconds", &[])
}

#[test]
fn two_clocks_that_differ_stop_no_writes() {
    let mut cluster = TestCluster::three_with(with_own_clock);
    cluster.kill(3);
    shift_clock(&cluster, 2, WRONG_SECS);
    for id in [FIRST, 2] {
        wait_until(&format!("node {id} finds that the clocks differ"), || {
            let findings = cluster.view(id).findings;
            findings
                .iter()
                .any(|finding| finding.what.starts_with("The clocks of the nodes that answer differ"))
        });
        write_through(&cluster, id, "two-clocks");
    }
    // The third clock decides.
    cluster.start(3);
    until_writes_are_refused(&cluster, 2);
    write_through(&cluster, FIRST, "three-clocks");
}

#[test]
fn a_schedule_is_due_by_a_clock_that_other_nodes_confirm() {
    let mut cluster = TestCluster::three_with(with_own_clock);
    command(&cluster, &["dataset", "create", "all", "--bucket", super::testbed::BUCKET]);
    command(&cluster, &["dataset", "warm", "all", "--schedule", "* * * * * *"]);
    let first = until_job_after(&cluster, 0);
    shift_clock(&cluster, FIRST, WRONG_SECS);
    until_writes_are_refused(&cluster, FIRST);
    block_for(SCHEDULE_ROUNDS);
    shift_clock(&cluster, FIRST, 0);
    cluster.until_ready(FIRST);
    let created_meanwhile = jobs(&cluster);
    let now = UNIX_EPOCH.elapsed().expect("later than 1970").as_millis();
    let latest = i64::try_from(now).expect("small") + WRONG_SECS * 1000 / 2;
    for (id, created) in &created_meanwhile {
        assert!(created.as_millis() < latest, "job {id} was created at {created}");
    }
    let last = created_meanwhile.into_iter().map(|(id, _)| id).max().unwrap_or(first);
    until_job_after(&cluster, last);
}

/// Waits until a node knows the deviation of the clock of another one, in milliseconds.
fn until_skew(cluster: &TestCluster, id: usize, of: usize, skew_ms: i64) {
    wait_until(&format!("node {id} measures {skew_ms} ms at node {of}"), || {
        let measured = cluster.view(id).node(of).and_then(|node| node.clock_skew_ms);
        measured.is_some_and(|measured| (measured - skew_ms).abs() <= EQUAL_MS)
    });
}

fn until_writes_are_refused(cluster: &TestCluster, id: usize) {
    let client = cluster.client(id);
    wait_until(&format!("node {id} refuses writes because of its clock"), || {
        let Err(CallFailure::Refused { status, body }) = cluster.block_on(put(&client, "refused")) else {
            return false;
        };
        status == 503 && body.contains("<Reason>ClockSkew</Reason>")
    });
}

/// Writes through a node; others may be elected before.
fn write_through(cluster: &TestCluster, id: usize, label: &str) {
    let (client, key) = (cluster.client(id), format!("{label}-{id}"));
    cluster.block_on(until_served("a write", async || put(&client, &key).await));
    cluster.block_on(assert_reads(&client, &key));
}

/// Runs a command on the first node, and returns the document that it prints.
fn command(cluster: &TestCluster, words: &[&str]) -> Value {
    let words = [words, &["--output", "json"]].concat();
    let (output, status) = cluster.member(FIRST).setup.command(&words);
    assert_eq!(status, Some(0), "{output}");
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Ids and times of all jobs.
fn jobs(cluster: &TestCluster) -> Vec<(u64, Timestamp)> {
    let list = command(cluster, &["job", "list"]);
    let jobs = list["jobs"].as_array().expect("jobs").iter().map(|job| {
        let created = Timestamp::parse_rfc3339(job["created"].as_str().expect("a time"));
        (job["id"].as_u64().expect("an id"), created.expect("a time"))
    });
    jobs.collect()
}

/// Waits until there is a later job than this one, and returns its id.
fn until_job_after(cluster: &TestCluster, id: u64) -> u64 {
    let mut found = 0;
    wait_until("the schedule is due", || {
        found = jobs(cluster).into_iter().map(|(id, _)| id).max().unwrap_or(0);
        found > id
    });
    found
}
