//! The duty node is lost, and another storage node does what runs once per cluster: it runs jobs, has the
//! whole admin API, serves remote-backed buckets and sends the queued writes. The one before returns as a
//! member.

use std::time::Duration;

use mlgw_common::time::Instant;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::testbed::{BUCKET, FIRST, STORAGE, TestCluster, node_of, until_served, wait_at_most, wait_until};
use crate::content::TestContent;
use crate::raw::RawExchange;
use crate::s3::{S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};

/// Bucket of the origin.
const LAKE: &str = "lake";
/// Remote-backed buckets, each with its own prefix at the origin.
const THROUGH: &str = "through";
pub(super) const QUEUED: &str = "queued";
/// Contents by age.
pub(super) const OLD: TestContent = TestContent { id: 81, length: 300_000 };
const NEW: TestContent = TestContent { id: 82, length: 200_000 };
const NEWEST: TestContent = TestContent { id: 83, length: 100_000 };
/// Content of a write that is interrupted. It is passed on while it arrives.
const LATE: TestContent = TestContent { id: 84, length: 3_000_000 };
/// Its last bytes, which the kernel takes for a process that is stopped.
const LATE_REST: usize = 100_000;
/// Longest time until another node has the duty. The aim is 10 s; the rest is for a busy machine.
const TAKE_OVER_MAX: Duration = Duration::from_secs(45);
/// Longest time until a node that took over from a lost one writes at origins: about 45 s, and the rest for a
/// busy machine.
const ACTS_MAX: Duration = Duration::from_secs(120);

/// Settings of a server that waits for a body for longer than a take-over takes.
fn with_patience(setup: ServerSetup) -> ServerSetup {
    setup.with("limits.body_timeout", "10m")
}

/// A server with the bucket behind the remote-backed ones.
pub(super) struct TestOrigin {
    setup: ServerSetup,
    server: ServerProcess,
    _room: TempDir,
}

impl TestOrigin {
    pub(super) fn start(cluster: &TestCluster) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let setup = with_patience(ServerSetup::new(room.path().join("origin")));
        let server = setup.start();
        cluster.block_on(server.client().create_bucket(LAKE)).expect("made");
        Self { setup, server, _room: room }
    }

    /// True if the object of a remote-backed bucket has this content at the origin.
    pub(super) async fn has(&self, bucket: &str, key: &str, content: TestContent) -> bool {
        let read = self.server.client().get(LAKE, &format!("{bucket}/{key}")).await;
        read.is_ok_and(|read| content.difference(&read.body).is_none())
    }

    /// Number of S3 requests that it has not answered.
    fn requests_in_flight(&self) -> u64 {
        let (output, status) = self.setup.command(&["status", "--metrics"]);
        assert_eq!(status, Some(0), "{output}");
        let line = output.lines().find_map(|line| line.strip_prefix("mlgw_inflight_requests "));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no number in {output}"))
    }

    /// It answers nothing until [`TestOrigin::resume`].
    pub(super) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.server.pid()).expect("a pid");
        kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("our child");
    }
}

/// Runs a command at a node, which succeeds.
fn run(cluster: &TestCluster, id: usize, words: &[&str]) -> String {
    let (output, status) = cluster.member(id).setup.command(words);
    assert_eq!(status, Some(0), "{words:?} at node {id}: {output}");
    output
}

/// Gives every storage node the upstream, and binds the buckets.
pub(super) fn bind_buckets(cluster: &mut TestCluster, origin: &TestOrigin) {
    for id in STORAGE {
        cluster.add_upstream(id, "far", &origin.server, LAKE);
    }
    cluster.restart(&STORAGE);
    cluster.until_settled();
    // It returns to the first node after the restarts, and stays there.
    cluster.until_first_has_duty();
    for (bucket, mode) in [(THROUGH, "write-through"), (QUEUED, "write-back")] {
        let prefix = format!("{bucket}/");
        let bind = ["bucket", "bind", bucket, "--upstream", "far", "--prefix", &prefix, "--mode", mode];
        run(cluster, FIRST, &bind);
    }
    run(cluster, FIRST, &["dataset", "create", "all", "--bucket", BUCKET]);
}

pub(super) async fn put_until_served(client: &S3TestClient, bucket: &str, key: &str, content: TestContent) {
    until_served(&format!("{bucket}/{key} is stored"), async || {
        client.put(bucket, key, full_body(content.bytes())).await
    })
    .await;
}

/// Reads an object of a remote-backed bucket through every running node: the duty node serves it.
fn assert_served_by(cluster: &TestCluster, duty: usize, bucket: &str, key: &str, content: TestContent) {
    for id in cluster.running() {
        let client = cluster.client(id);
        let read = cluster.block_on(until_served(&format!("{key} is read through node {id}"), async || {
            client.get(bucket, key).await
        }));
        assert_eq!(content.difference(&read.body), None, "through node {id}");
        assert_eq!(node_of(&read), duty, "through node {id}");
    }
}

/// Waits until another running node has the duty, and has the whole admin API.
fn until_taken_over(cluster: &TestCluster, from: usize) -> usize {
    let begun = Instant::now();
    wait_at_most(TAKE_OVER_MAX, "another node has the duty", || {
        let duty = cluster.duty();
        duty != from && cluster.running().contains(&duty) && cluster.has_whole_api(duty)
    });
    eprintln!("taken over after {:?}", begun.elapsed());
    cluster.duty()
}

/// Waits until the origin has an object.
pub(super) fn until_sent(
    cluster: &TestCluster,
    origin: &TestOrigin,
    bucket: &str,
    key: &str,
    content: TestContent,
) {
    wait_at_most(ACTS_MAX, &format!("{bucket}/{key} is at the origin"), || {
        cluster.block_on(origin.has(bucket, key, content))
    });
}

#[test]
fn another_node_takes_the_duty_over_when_its_node_is_killed() {
    let mut cluster = TestCluster::three();
    let origin = TestOrigin::start(&cluster);
    bind_buckets(&mut cluster, &origin);
    let (lost, other) = (FIRST, 2);
    let client = cluster.client(other);
    let before = cluster.view(other).duty_term;
    cluster.block_on(put_until_served(&client, THROUGH, "a", OLD));
    cluster.block_on(put_until_served(&client, QUEUED, "b", OLD));
    until_sent(&cluster, &origin, QUEUED, "b", OLD);

    // The sender of the duty node gets no answer any more, so the write is pending.
    origin.pause();
    cluster.block_on(put_until_served(&client, QUEUED, "pending", NEW));
    cluster.kill(lost);
    origin.resume();
    let duty = until_taken_over(&cluster, lost);
    assert!(cluster.view(duty).duty_term > before);
    run(&cluster, duty, &["dataset", "warm", "all", "--wait"]);
    assert_served_by(&cluster, duty, THROUGH, "a", OLD);
    assert_served_by(&cluster, duty, QUEUED, "pending", NEW);

    // A write through the gateway of the duty node waits until it may reach the origin.
    cluster.block_on(put_until_served(&client, THROUGH, "a", NEW));
    assert!(cluster.block_on(origin.has(THROUGH, "a", NEW)), "it was acknowledged");
    cluster.block_on(put_until_served(&client, QUEUED, "b", NEWEST));
    until_sent(&cluster, &origin, QUEUED, "pending", NEW);
    until_sent(&cluster, &origin, QUEUED, "b", NEWEST);

    cluster.start(lost);
    wait_until("the former duty node catches up", || cluster.is_caught_up(lost));
    cluster.until_settled();
    for (bucket, key, content) in [(THROUGH, "a", NEW), (QUEUED, "pending", NEW), (QUEUED, "b", NEWEST)] {
        assert!(cluster.block_on(origin.has(bucket, key, content)), "{bucket}/{key} was overwritten");
    }
    cluster.until_first_has_duty();
    assert_served_by(&cluster, FIRST, THROUGH, "a", NEW);
}

/// Begins a write of the object `a` through a node, and returns it before its last bytes are sent.
fn begin_late_write(cluster: &TestCluster, origin: &TestOrigin, through: usize) -> RawExchange {
    let (client, server) = (cluster.client(through), cluster.process(through).s3);
    let target = format!("/{THROUGH}/a");
    let begun = RawExchange::begin_put(&client, server, &target, LATE, LATE_REST);
    let exchange = cluster.block_on(begun).expect("sent");
    wait_until("the origin receives the write", || origin.requests_in_flight() == 1);
    exchange
}

#[test]
fn a_duty_node_that_was_paused_in_a_write_does_not_finish_it_after_a_newer_one() {
    // The write is paused for longer than a body may be.
    let mut cluster = TestCluster::three_with(with_patience);
    let origin = TestOrigin::start(&cluster);
    bind_buckets(&mut cluster, &origin);
    let (paused, other) = (FIRST, 2);
    let client = cluster.client(other);
    cluster.block_on(put_until_served(&client, THROUGH, "a", OLD));
    let mut late = begin_late_write(&cluster, &origin, paused);
    cluster.pause(paused);
    wait_at_most(TAKE_OVER_MAX, "another node has the duty", || {
        cluster.duty_at(other).is_some_and(|duty| duty != paused)
    });
    cluster.block_on(put_until_served(&client, THROUGH, "a", NEW));

    // The rest of the body is there when the process goes on.
    cluster.block_on(late.send(&LATE.bytes()[LATE.length - LATE_REST..])).expect("the kernel takes it");
    cluster.resume(paused);
    let answer = cluster.block_on(late.answer());
    assert!(!answer.is_ok_and(|answer| answer.status == 200), "the late write is not acknowledged");
    wait_until("the late write has ended at the origin", || origin.requests_in_flight() == 0);
    assert!(cluster.block_on(origin.has(THROUGH, "a", NEW)), "the late write replaced a newer one");
    cluster.until_first_has_duty();
    assert_served_by(&cluster, FIRST, THROUGH, "a", NEW);
}

#[test]
fn a_restart_of_the_duty_node_hands_over_without_a_wait() {
    let mut cluster = TestCluster::three();
    let origin = TestOrigin::start(&cluster);
    bind_buckets(&mut cluster, &origin);
    let (former, other) = (FIRST, 2);
    cluster.block_on(put_until_served(&cluster.client(other), THROUGH, "a", OLD));
    cluster.stop(former);
    let duty = until_taken_over(&cluster, former);
    assert!(
        cluster.view(duty).duty_acts(),
        "the one before has stopped, so it may write at the origin at once"
    );
    cluster.block_on(put_until_served(&cluster.client(other), THROUGH, "a", NEW));
    cluster.start(former);
    // The duty returns to the first node when that has answered for a while.
    cluster.until_first_has_duty();
    assert_served_by(&cluster, FIRST, THROUGH, "a", NEW);
}
