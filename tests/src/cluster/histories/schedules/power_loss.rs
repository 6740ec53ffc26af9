//! The power of a node fails that leads a group. A write was acknowledged because the other nodes have it in
//! their logs, and the leader itself had not synced it yet. The node starts again at once, before another one
//! is elected, or after another one has led. In either case it does not lead again without an election: it
//! would return what was there before the write, and give its place in the log away.
//!
//! The disk of the node is in memory and loses everything that was not synced (`power_cut`).

use std::time::Duration;

use crate::cluster::histories::faulty_disk::FaultyDisk;
use crate::cluster::rows::{assert_same_rows, check_store, checked_rows};
use crate::cluster::testbed::{FIRST, SPREAD, TestCluster, TestMember, until_served};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::ServerSetup;

/// The node whose power fails, the group that it leads, and the bucket in that group.
const LEADER: usize = 2;
const GROUP: u32 = 2;
const OF_GROUP: &str = SPREAD[1];
/// The node through which the key is written.
const WRITER: usize = FIRST;
/// Duration of a sync of the leader while the write is acknowledged: less than that of a disk that counts as
/// slow, whose node leads nothing.
const SLOW_SYNC: Duration = Duration::from_millis(600);
/// Tries until a write is acknowledged before the leader has synced it. On a busy machine it may be slower.
const TRIES: usize = 10;
/// Part of the path of the files in which RocksDB writes the log first.
const LOG_FILES: &str = "/log/";
const KEY: &str = "acknowledged";
/// Repetitions of each order of events.
const ROUNDS: usize = 2;

/// What happens between the power cut and the start of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhileDown {
    /// Nothing: it starts at once.
    Nothing,
    /// Another node is elected, and the key is written again.
    Overwritten,
}

/// Settings of nodes with a group for each bucket, and leaders that read by lease.
fn settings(setup: ServerSetup) -> ServerSetup {
    setup.with("catalogue.object_groups", 3).with("cluster.lease_reads", true)
}

/// Three storage nodes with a bucket in each of three groups. The second node is on this disk.
fn three_with(disk: &FaultyDisk) -> TestCluster {
    let mut cluster = TestCluster::first_with(settings);
    cluster.join_at(disk.path());
    cluster.join("storage");
    cluster.until_settled();
    cluster.until_first_has_duty();
    cluster.create_spread_buckets();
    cluster
}

/// The content of the write with this number.
fn content(number: u64) -> TestContent {
    TestContent { id: 6_100 + number, length: 5_000 }
}

fn write(cluster: &TestCluster, number: u64) {
    let client = cluster.client(WRITER);
    let put = async || client.put(OF_GROUP, KEY, full_body(content(number).bytes())).await;
    cluster.block_on(until_served("the key is written", put));
}

/// Asserts that a node returns the write with this number.
fn assert_newest(cluster: &TestCluster, node: usize, number: u64) {
    let client = cluster.client(node);
    let read = async || client.get(OF_GROUP, KEY).await;
    let read = cluster.block_on(until_served("the key is read", read));
    assert_eq!(content(number).difference(&read.body), None, "write {number} through node {node}");
}

/// Writes until a write is acknowledged that the leader has not synced. The leader neither writes nor sends
/// anything from then on. Returns that moment of its disk.
fn write_unsynced(cluster: &TestCluster, disk: &FaultyDisk, number: &mut u64) -> usize {
    for _ in 0..TRIES {
        *number += 1;
        disk.slow_syncs(SLOW_SYNC);
        write(cluster, *number);
        cluster.pause(LEADER);
        let at = disk.position();
        disk.slow_syncs(Duration::ZERO);
        if disk.has_unsynced(LOG_FILES, at) {
            return at;
        }
        eprintln!("the leader has synced write {number} already");
        cluster.resume(LEADER);
        cluster.until_settled();
    }
    panic!("no write was acknowledged before the leader had synced it");
}

#[test]
fn a_leader_that_lost_acknowledged_writes_with_its_power_returns_nothing_older() {
    // It is unmounted after the processes have ended.
    let mut disk = FaultyDisk::new(LEADER);
    let mut cluster = three_with(&disk);
    let mut number = 0;
    for event in [WhileDown::Nothing, WhileDown::Overwritten].repeat(ROUNDS) {
        eprintln!("while the node is down: {event:?}");
        assert!(cluster.groups_led_by(LEADER).contains(&GROUP), "node {LEADER} leads the group of the key");
        number += 1;
        write(&cluster, number);
        assert_newest(&cluster, LEADER, number);
        let at = write_unsynced(&cluster, &disk, &mut number);
        cluster.kill(LEADER);
        disk.drop_unsynced(at);
        if event == WhileDown::Overwritten {
            assert_newest(&cluster, WRITER, number);
            number += 1;
            write(&cluster, number);
        }
        cluster.start(LEADER);
        for node in [LEADER, FIRST, 3] {
            assert_newest(&cluster, node, number);
        }
        number += 1;
        write(&cluster, number);
        assert_newest(&cluster, LEADER, number);
        cluster.until_settled();
    }
    // The copies of the last writes may be incomplete, so the exit status is not examined.
    let rows_of = |member: &TestMember| checked_rows(&check_store(member).0);
    assert_same_rows(&mut cluster, rows_of, TestCluster::spawn);
}
