//! Power cuts under a node that joins. After a cut at any sync of `mlgw cluster join` the directory is that
//! of no node, or that of the node; the same command with the same token then ends the join, under the same
//! id. After a cut during its first start a node starts again and gets everything.
//!
//! The disk is recorded or in memory (`power_cut`).

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mlgw_common::time::block_for;
use serde_json::Value;

use super::faulty_disk::FaultyDisk;
use crate::cluster::testbed::{
    FIRST, TestCluster, TestMember, assert_reads, assert_reads_before, put, until_served, unused_address,
    wait_until,
};
use crate::mount::Mount;
use crate::power_cut::{CutStyle, NO_SYNCS_IGNORED, PowerCut, crash_state};
use crate::recording::Recording;
use crate::seed::{Rng, seeded_rng};

/// The node that joins.
const JOINING: usize = 2;
/// Name of its directory on each disk.
const DIRECTORY: &str = "node-2";
/// Pause before a join is repeated that was refused because of too many requests.
const LIMITED: Duration = Duration::from_secs(1);
/// Cuts during the first start of a node.
const CUTS_OF_START: u64 = 3;
/// Longest time of a start before the power fails, in milliseconds.
const START_MS: u64 = 1_500;

/// The recorded disk of a node that joined.
struct RecordedJoin {
    recording: Recording,
    /// Position before the request: everything before prepares the directory.
    requested: usize,
    /// Address that the node has stated.
    address: SocketAddr,
}

impl RecordedJoin {
    /// Joins with a directory on a disk that is recorded.
    fn record(cluster: &TestCluster, token: &str) -> Self {
        let mount = Mount::new();
        let member = cluster.member_at(mount.path(), DIRECTORY);
        // No member answers at this address, so the directory is prepared and no request is sent.
        let (output, status) = member.join(unused_address(), token, "storage");
        assert!(status.is_some_and(|status| status != 0) && !is_described(&member), "{output}");
        let requested = mount.disk().recording().position();
        assert_joined(cluster.run_join(&member, token, "storage"), "the recorded join");
        assert!(is_described(&member), "it has joined");
        let recording = mount.disk().recording().clone();
        Self { recording, requested, address: member.address }
    }

    /// Cuts at each sync, and after the end.
    fn cuts(&self, rng: &mut Rng) -> Vec<PowerCut> {
        let end = self.recording.position();
        let at = self.recording.syncs(|_, _| true).into_iter().chain([self.requested, end]);
        let styles = [CutStyle::DropAll, CutStyle::KeepAll, CutStyle::Mixed];
        let cuts = at.flat_map(|at| styles.map(|style| (at, style)));
        cuts.map(|(at, style)| PowerCut { at, style, seed: rng.next() }).collect()
    }

    /// Writes the state that a cut leaves below `root`, and returns the node there.
    fn state(&self, cluster: &TestCluster, cut: PowerCut, root: &Path) -> TestMember {
        crash_state(&self.recording, cut, NO_SYNCS_IGNORED).write_to(root).expect("the state is written");
        let mut member = cluster.member_at(root, DIRECTORY);
        member.address = self.address;
        member.setup = member.setup.with("cluster.listen", self.address);
        member
    }
}

fn is_described(member: &TestMember) -> bool {
    member.setup.data_dir.join("node.json").exists()
}

/// Asserts that `mlgw cluster join` succeeded.
fn assert_joined(joined: (String, Option<i32>), what: &str) {
    let (output, status) = joined;
    assert_eq!(status, Some(0), "{what}: {output}");
}

/// Joins again. Repeats that while the cluster refuses it because of too many requests.
fn join_again(cluster: &TestCluster, member: &TestMember, token: &str, what: &str) {
    let mut joined = cluster.run_join(member, token, "storage");
    while joined.0.contains("too many requests to join") {
        block_for(LIMITED);
        joined = cluster.run_join(member, token, "storage");
    }
    assert_joined(joined, what);
}

/// Asserts that a directory is that of the node which has joined.
fn assert_node(member: &TestMember, what: &str) {
    let text = fs::read_to_string(member.setup.data_dir.join("node.json")).expect("read");
    let node: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{what}: {error}: {text:?}"));
    assert_eq!(node["id"], JOINING, "{what}: {text}");
}

fn node_ids(cluster: &TestCluster) -> Vec<usize> {
    cluster.view(FIRST).nodes.iter().map(|node| node.id).collect()
}

#[test]
fn a_power_cut_at_any_sync_of_a_join_leaves_no_node_or_the_node_and_a_repeated_join_ends_it() {
    let mut cluster = TestCluster::first();
    let token = cluster.token();
    let recorded = RecordedJoin::record(&cluster, &token);
    let end = recorded.recording.position();
    let (mut old, mut new) = (0, 0);
    for cut in recorded.cuts(&mut seeded_rng("joining", 9)) {
        let room = tempfile::tempdir().expect("a directory");
        let member = recorded.state(&cluster, cut, room.path());
        let was_node = is_described(&member);
        assert!(was_node || cut.at < end, "{cut:?}: the join had succeeded");
        if was_node {
            assert_node(&member, &format!("{cut:?}"));
            new += 1;
        } else {
            old += 1;
        }
        // Before the request the cluster does not know the key, which may be lost then.
        if cut.at >= recorded.requested {
            join_again(&cluster, &member, &token, &format!("{cut:?}"));
            assert_node(&member, &format!("{cut:?}"));
        }
        assert_eq!(node_ids(&cluster), [FIRST, JOINING], "{cut:?}: no other node has joined");
    }
    assert!(old > 0 && new > 0, "both sides of the end were tried: {old} and {new}");

    // Only one of these directories may become the node: each start is known to the others.
    let room = tempfile::tempdir().expect("a directory");
    let cut = PowerCut { at: end, style: CutStyle::DropAll, seed: 1 };
    let member = recorded.state(&cluster, cut, room.path());
    cluster.add(member);
    cluster.start(JOINING);
    cluster.until_active(JOINING);
    let client = cluster.client(JOINING);
    cluster.block_on(assert_reads_before(&client));
    cluster.stop(JOINING);
}

#[test]
fn a_node_whose_power_fails_during_its_first_start_starts_again_and_gets_everything() {
    let mut rng = seeded_rng("first start", 10);
    // It is unmounted after the processes have ended.
    let mut disk = FaultyDisk::new(JOINING);
    let mut cluster = TestCluster::first();
    let (member, token) = (cluster.member_at(disk.path(), DIRECTORY), cluster.token());
    assert_joined(cluster.run_join(&member, &token, "storage"), "the join");
    cluster.add(member);
    for _ in 0..CUTS_OF_START {
        cluster.spawn(JOINING);
        block_for(Duration::from_millis(rng.below(START_MS)));
        cluster.kill(JOINING);
        let cut = disk.cut_power(rng.next());
        assert_joined(cluster.run_join(cluster.member(JOINING), &token, "storage"), &cut);
    }
    cluster.start(JOINING);
    cluster.until_active(JOINING);
    assert_eq!(node_ids(&cluster), [FIRST, JOINING]);
    wait_until("the node lacks nothing", || cluster.is_caught_up(JOINING));
    let (client, key) = (cluster.client(JOINING), "after-the-power-cuts");
    cluster.block_on(async {
        until_served("an object is stored", async || put(&client, key).await).await;
        assert_reads(&client, key).await;
        assert_reads_before(&client).await;
    });
    cluster.stop(JOINING);
}
