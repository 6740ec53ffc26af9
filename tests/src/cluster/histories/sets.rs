//! The end of a round on a cluster with sets of nodes: a node has the groups and the segments of its sets
//! only, so less is equal on all nodes than without sets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::recorder::HistoryRecorder;
use super::round::is_done_change;
use crate::cluster::five::{assert_sets, nodes_of_groups};
use crate::cluster::segment_files::{is_equal_on, segment_files};
use crate::cluster::testbed::{FIRST, STORAGE, TestCluster, wait_at_most};

/// Longest wait until all copies are complete and in their sets. Some of the work begins once a minute.
const COPIED_MAX: Duration = Duration::from_secs(360);
/// Longest wait until every node was used.
const USED_MAX: Duration = Duration::from_secs(180);
/// Copies of a segment.
const COPIES: usize = 3;

/// Waits until requests through every node had an effect, and every storage node that votes in a group of
/// objects was the primary of a segment. Clients use the cluster meanwhile.
pub(super) fn until_all_used(cluster: &TestCluster, recorder: &HistoryRecorder) {
    let voters = voters(cluster);
    for voter in voters {
        let what = format!("node {voter} stores bytes of objects");
        wait_at_most(USED_MAX, &what, || recorder.primaries().contains(&voter));
    }
    let running: BTreeSet<usize> = cluster.running().into_iter().collect();
    wait_at_most(USED_MAX, &format!("something is changed through each of the nodes {running:?}"), || {
        let histories = recorder.histories();
        let done = histories.values().flatten().filter(|one| is_done_change(one));
        done.map(|one| one.node).collect::<BTreeSet<usize>>().is_superset(&running)
    });
}

/// Waits until the nodes of each set vote in its groups and one of them leads, and no member lacks a part of
/// the log. Asserts that groups have moved to further nodes.
pub(super) fn until_healed(cluster: &TestCluster) {
    wait_at_most(COPIED_MAX, "no group moves", || {
        let view = cluster.view(FIRST);
        view.moving_groups.is_empty() && view.sets_wait.is_none()
    });
    assert_sets(cluster, cluster.storage());
    let voters = voters(cluster);
    assert!(voters.len() > STORAGE.len(), "only the nodes {voters:?} vote in groups of objects");
    wait_at_most(COPIED_MAX, "no member lacks a part of the log", || {
        cluster.group_ids().into_iter().all(|group| {
            let led = cluster.group(group);
            led.is_some_and(|led| led.members.iter().all(|member| member.lag_bytes == 0))
        })
    });
}

/// Waits until every segment has its copies on the nodes of its set without known damage, the bytes of every
/// group are in segments of its set, and all copies of sealed segments are equal. Those of open ones may
/// differ.
pub(super) fn until_copied(cluster: &TestCluster) {
    wait_at_most(COPIED_MAX, "the bytes of all groups are in their sets, and copied there", || {
        let view = cluster.view(FIRST);
        let copies = view.copies;
        (copies.wanted, copies.below_segments, copies.suspect_segments) == (COPIES, 0, 0)
            && (copies.off_set_segments, copies.off_set_bytes) == (0, Some(0))
            && copies.segments > 0
            && view.sets.iter().all(|set| set.guests.is_empty())
            && segments_that_differ(cluster) <= copies.open_segments
    });
}

/// The nodes that vote in groups of objects.
fn voters(cluster: &TestCluster) -> BTreeSet<usize> {
    nodes_of_groups(&cluster.view(FIRST)).into_values().flatten().collect()
}

/// Number of segments that several storage nodes have with different bytes.
fn segments_that_differ(cluster: &TestCluster) -> usize {
    let mut nodes = BTreeMap::<String, Vec<usize>>::new();
    for id in cluster.storage() {
        for name in segment_files(cluster, *id).into_keys() {
            nodes.entry(name).or_default().push(*id);
        }
    }
    nodes.iter().filter(|(name, on)| !is_equal_on(cluster, on, name)).count()
}
