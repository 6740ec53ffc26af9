//! The duty goes to a node that has the upstreams of all remote-backed buckets, and past one that lacks them.
//! The node that lacks them has the lowest id of those that are left, so the duty would return to it.

use std::time::Duration;

use mlgw_common::time::{Instant, block_for};

use super::duty::put_until_served;
use super::testbed::{FIRST, TestCluster, wait_at_most};
use crate::content::TestContent;
use crate::server::ServerSetup;

/// Bucket of the origin.
const LAKE: &str = "lake";
/// The remote-backed bucket.
const THROUGH: &str = "through";
/// A node that lacks the upstream, and one that has it.
const UNFIT: usize = 2;
const FIT: usize = 3;
const CONTENT: TestContent = TestContent { id: 91, length: 100_000 };
/// Longest time until another node has the duty.
const TAKE_OVER_MAX: Duration = Duration::from_secs(45);
/// Time after which the duty would have returned to the node with the lowest id: twice the time for which
/// that must have answered.
const RETURN: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[test]
fn a_node_without_the_upstream_of_a_bucket_leaves_the_duty_to_another_one() {
    let mut cluster = TestCluster::three();
    let room = tempfile::tempdir().expect("a directory");
    let origin = ServerSetup::new(room.path().join("origin")).start();
    cluster.block_on(origin.client().create_bucket(LAKE)).expect("made");
    for id in [FIRST, FIT] {
        cluster.add_upstream(id, "far", &origin, LAKE);
    }
    cluster.restart(&[FIRST, FIT]);
    cluster.until_settled();
    cluster.until_first_has_duty();
    let bind = ["bucket", "bind", THROUGH, "--upstream", "far", "--prefix", "", "--mode", "write-through"];
    let (output, status) = cluster.member(FIRST).setup.command(&bind);
    assert_eq!(status, Some(0), "{output}");

    cluster.stop(FIRST);
    wait_at_most(TAKE_OVER_MAX, "the node with the upstream has the duty", || {
        cluster.duty() == FIT && cluster.has_whole_api(FIT)
    });
    assert_stays(&cluster, FIT);
    cluster.block_on(put_until_served(&cluster.client(UNFIT), THROUGH, "a", CONTENT));
    let read = cluster.block_on(origin.client().get(LAKE, "a")).expect("it was acknowledged");
    assert_eq!(CONTENT.difference(&read.body), None);
}

/// Asserts that a node keeps the duty although another one has a lower id. On a busy machine it may miss
/// heartbeats, and lose the duty for a moment.
fn assert_stays(cluster: &TestCluster, node: usize) {
    let (begun, mut polls, mut elsewhere) = (Instant::now(), 0, 0);
    while begun.elapsed() < RETURN {
        polls += 1;
        elsewhere += usize::from(cluster.duty_at(UNFIT) != Some(node));
        block_for(POLL_INTERVAL);
    }
    assert!(2 * elsewhere < polls, "the duty was elsewhere at {elsewhere} of {polls} times");
    wait_at_most(TAKE_OVER_MAX, "the fit node has the duty", || cluster.duty_at(UNFIT) == Some(node));
}
