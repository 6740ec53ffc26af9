//! The bytes of groups follow the groups to the nodes of their sets, when a cluster grows from three storage
//! nodes to five and then to six.

use std::collections::BTreeSet;

use serde_json::Value;

use super::five::{
    assert_returns, command, grow, metric, nodes_of_groups, put_in, rebalance, small_segments,
};
use super::segment_files::{MINUTELY_MAX, segment_files};
use super::testbed::{FIRST, SPREAD, STORAGE, TestCluster, assert_reads_before, wait_at_most, wait_until};
use crate::server::ServerSetup;

/// Objects in each bucket, and so in each group: many more bytes than open segments have.
const OBJECTS: usize = 150;
/// Distance of the objects that are read through each node.
const READ_STEP: usize = 3;
/// Distance of the objects whose nodes are examined.
const SHOWN_STEP: usize = 15;

/// Settings for many segments that are compacted soon.
pub(super) fn eager(setup: ServerSetup) -> ServerSetup {
    small_segments(setup).with("hot.compact_patience", "0s").with("hot.compact_dead_percent", "10")
}

/// Makes a cluster of three storage nodes with objects in each group.
fn three() -> TestCluster {
    let cluster = TestCluster::three_with(eager);
    wait_until("the cluster has the newest version", || cluster.view(FIRST).upgrade.is_none());
    cluster.create_spread_buckets();
    let client = cluster.client(FIRST);
    cluster.block_on(async {
        for bucket in SPREAD {
            for number in 0..OBJECTS {
                put_in(&client, bucket, &key(number)).await;
            }
        }
    });
    cluster
}

fn key(number: usize) -> String {
    format!("follows-{number:02}")
}

/// Bytes of the segment files of nodes.
fn disk_bytes(cluster: &TestCluster, nodes: &[usize]) -> u64 {
    nodes.iter().map(|id| segment_files(cluster, *id).values().sum::<u64>()).sum()
}

/// Waits until no group has bytes in segments of other sets, and all copies are on nodes of their sets.
fn until_followed(cluster: &TestCluster) {
    let what = "the bytes of all groups are in segments of their sets, and no group is a guest";
    wait_at_most(MINUTELY_MAX, what, || {
        let view = cluster.view(FIRST);
        view.copies.off_set_bytes == Some(0) && view.sets.iter().all(|set| set.guests.is_empty())
    });
    wait_at_most(MINUTELY_MAX, "every segment has its copies on the nodes of its set", || {
        let copies = cluster.view(FIRST).copies;
        (copies.below_segments, copies.off_set_segments) == (0, 0)
    });
    for name in ["mlgw_off_set_bytes", "mlgw_segments_off_set"] {
        wait_until(&format!("{name} is 0"), || metric(cluster, name) < 0.5);
    }
    let (output, status) = command(cluster, FIRST, &["rebalance", "--status"]);
    assert!(status == Some(0) && !output.contains("to move to the nodes"), "{output}");
}

/// The nodes that have bytes of an object.
fn nodes_with(cluster: &TestCluster, bucket: &str, key: &str) -> BTreeSet<usize> {
    let object = format!("s3://{bucket}/{key}");
    let setup = &cluster.member(FIRST).setup;
    let (output, status) = setup.command(&["--output", "json", "object", "show", &object]);
    assert_eq!(status, Some(0), "{output}");
    let shown: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    let extents = shown["extents"].as_array().unwrap_or_else(|| panic!("{output}"));
    let nodes = extents.iter().filter_map(|extent| extent["nodes"].as_array()).flatten();
    nodes.filter_map(|node| usize::try_from(node.as_u64()?).ok()).collect()
}

/// Asserts that the objects of each bucket are on the nodes of one set, and returns all these nodes.
fn assert_on_nodes_of_sets(cluster: &TestCluster) -> BTreeSet<usize> {
    let of_groups = nodes_of_groups(&cluster.view(FIRST));
    let mut all = BTreeSet::new();
    for bucket in SPREAD {
        let shown = (0..OBJECTS).step_by(SHOWN_STEP);
        let nodes: BTreeSet<usize> =
            shown.flat_map(|number| nodes_with(cluster, bucket, &key(number))).collect();
        let is_of_set = of_groups.values().any(|of_set| nodes.is_subset(of_set));
        assert!(is_of_set, "{bucket}: on the nodes {nodes:?}, of groups on {of_groups:?}");
        all.extend(nodes);
    }
    all
}

/// Asserts that every node returns the objects.
fn assert_all_read(cluster: &TestCluster, nodes: usize) {
    for id in 1..=nodes {
        let client = cluster.client(id);
        cluster.block_on(async {
            for bucket in SPREAD {
                for number in (0..OBJECTS).step_by(READ_STEP) {
                    assert_returns(&client, bucket, &key(number), &key(number)).await;
                }
            }
            assert_reads_before(&client).await;
        });
    }
}

#[test]
fn bytes_follow_their_groups_to_new_nodes_and_the_former_nodes_get_space() {
    let mut cluster = three();
    let before = disk_bytes(&cluster, &STORAGE);
    grow(&mut cluster);
    until_followed(&cluster);
    let nodes = assert_on_nodes_of_sets(&cluster);
    assert!(nodes.contains(&4) || nodes.contains(&5), "a new node has bytes: {nodes:?}");
    assert_all_read(&cluster, 5);
    wait_at_most(MINUTELY_MAX, "the first nodes have less than before", || {
        disk_bytes(&cluster, &STORAGE) < before / 100 * 95
    });
    assert_all_read(&cluster, 5);

    // Groups may move from a set that is not the first one: then they are its guests for a while.
    cluster.join("storage");
    cluster.until_active(6);
    rebalance(&cluster, 2);
    until_followed(&cluster);
    assert_on_nodes_of_sets(&cluster);
    assert_all_read(&cluster, 6);
}
