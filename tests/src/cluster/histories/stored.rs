//! What the nodes have on their disks after a round, examined by `mlgw store check` while no storage node
//! runs: nothing is damaged, and all members of a group have the same rows. Nodes that left a group have old
//! rows of it, which are not compared.

use serde_json::Value;

use super::links::NodeLinks;
use crate::cluster::five;
use crate::cluster::rows::{assert_same_rows, check_store, checked_rows};
use crate::cluster::testbed::{TestCluster, TestMember};

/// Kills all storage nodes at once, examines their disks, and starts them again.
pub(super) fn assert_sound(cluster: &mut TestCluster, links: &NodeLinks) {
    assert_same_rows(cluster, sound_rows, |cluster, id| links.spawn(cluster, id));
}

/// The same for a cluster with sets of nodes, in which a node has the groups of its sets.
pub(super) fn assert_sound_in_sets(cluster: &mut TestCluster, links: &NodeLinks) {
    let storage = cluster.storage().to_vec();
    let rows_of = |member: &TestMember| five::group_rows(&sound_output(member));
    five::assert_same_rows(cluster, &storage, rows_of, |cluster, id| links.spawn(cluster, id));
}

/// Returns the rows of a node that does not run. Panics if anything is damaged.
fn sound_rows(member: &TestMember) -> Value {
    checked_rows(&sound_output(member))
}

/// Returns the result of a check of a node that does not run. Panics if anything is damaged.
fn sound_output(member: &TestMember) -> String {
    let (output, status) = check_store(member);
    assert_eq!(status, Some(0), "{}: {output}", member.setup.data_dir.display());
    output
}
