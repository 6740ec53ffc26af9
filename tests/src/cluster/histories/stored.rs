//! What the nodes have on their disks after a round, examined by `mlgw store check` while no storage node
//! runs: nothing is damaged, and all members of a group have the same rows.

use serde_json::Value;

use super::links::NodeLinks;
use crate::cluster::rows::{assert_same_rows, check_store, checked_rows};
use crate::cluster::testbed::{TestCluster, TestMember};

/// Kills all storage nodes at once, examines their disks, and starts them again.
pub(super) fn assert_sound(cluster: &mut TestCluster, links: &NodeLinks) {
    assert_same_rows(cluster, sound_rows, |cluster, id| links.spawn(cluster, id));
}

/// Returns the rows of a node that does not run. Panics if anything is damaged.
fn sound_rows(member: &TestMember) -> Value {
    let (output, status) = check_store(member);
    assert_eq!(status, Some(0), "{}: {output}", member.setup.data_dir.display());
    checked_rows(&output)
}
