//! Comparisons of rows in the background: a row that is changed on the disk of one node is found, the finding
//! names the node on every node, and it ends when the node was replaced.
//!
//! The row is removed as RocksDB itself would remove it: a record is appended to the write-ahead log of the
//! state, which the next start replays.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use mlgw_common::checksum::crc32c;
use serde_json::Value;

use super::five::{command, metric};
use super::rows::{check_store, checked_groups};
use super::segment_files::MINUTELY_MAX;
use super::testbed::{FIRST, OBJECT_GROUP, STORAGE, TestCluster, keys_before, wait_at_most, wait_until};
use super::view::RowsView;
use crate::observability::scrape::Scrape;
use crate::server::ServerSetup;

/// The node whose row is changed.
const ODD: usize = 3;
/// The node that takes its place.
const NEXT: usize = 4;

/// Family of the rows of objects.
const OBJECT_FAMILY: u8 = 0x11;
/// Id of the bucket that exists before the cluster.
const BUCKET_ID: u64 = 1;

fn compared_often(setup: ServerSetup) -> ServerSetup {
    setup.with("cluster.compare_interval", "1s")
}

/// Comparisons of groups as a node describes them.
fn rows_at(cluster: &TestCluster, id: usize) -> Vec<RowsView> {
    cluster.view(id).rows
}

/// Waits until a node knows a comparison of every group, with all members and without a difference.
fn until_equal(cluster: &TestCluster, id: usize) {
    wait_at_most(MINUTELY_MAX, &format!("node {id} knows that the rows of every group are equal"), || {
        let (view, groups) = (cluster.view(id), cluster.group_ids());
        let equal = view.rows.iter().filter(|rows| rows.differing.is_empty() && rows.without.is_empty());
        equal.map(|rows| rows.group).eq(groups)
    });
}

/// Number and digest of the rows of each group on a node that does not run.
fn stored_rows(cluster: &TestCluster) -> Vec<Value> {
    checked_groups(&check_store(cluster.member(ODD)).0)
}

/// Directory of the state of a group.
fn state_dir(data_dir: &Path, group: u32) -> PathBuf {
    let entries = |dir: &Path| -> Vec<PathBuf> {
        fs::read_dir(dir).into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect()
    };
    let group = format!("group-{group}");
    let catalogues = entries(data_dir).into_iter().map(|dir| dir.join(&group)).filter(|dir| dir.is_dir());
    let is_state = |dir: &PathBuf| {
        dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("state-"))
    };
    let states: Vec<PathBuf> = catalogues.flat_map(|dir| entries(&dir)).filter(is_state).collect();
    let [state] = &states[..] else { panic!("one state: {states:?}") };
    state.clone()
}

/// Key of the row of an object.
fn object_row(key: &str) -> Vec<u8> {
    [&[OBJECT_FAMILY][..], &BUCKET_ID.to_be_bytes(), key.as_bytes(), &[0, 1]].concat()
}

/// Removes a row from the state in a directory that no process has open.
fn remove_row(state: &Path, row: &[u8]) {
    const DELETION: u8 = 0;
    const FULL_FRAME: u8 = 1;
    // Above that of each write before, so that this one counts.
    let sequence: u64 = 1 << 40;
    let length = u8::try_from(row.len()).ok().filter(|length| *length < 0x80).expect("one byte of a varint");
    let batch = [&sequence.to_le_bytes()[..], &1_u32.to_le_bytes(), &[DELETION, length], row].concat();
    let covered = [&[FULL_FRAME][..], &batch].concat();
    let masked = crc32c(&covered).rotate_right(15).wrapping_add(0xa282_ead8);
    let bytes = u16::try_from(batch.len()).expect("short").to_le_bytes();
    let frame = [&masked.to_le_bytes()[..], &bytes, &covered].concat();
    let number = |path: &PathBuf| -> Option<u64> { path.file_stem()?.to_str()?.parse().ok() };
    let logs = fs::read_dir(state).expect("a directory").map(|entry| entry.expect("an entry").path());
    let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let newest = logs.max_by_key(number).expect("a write-ahead log");
    assert_eq!(fs::metadata(&newest).expect("it is there").len(), 0, "states are written without it");
    fs::OpenOptions::new().append(true).open(newest).expect("opened").write_all(&frame).expect("written");
}

/// Asserts that a node describes the difference in its status, and that it stays ready.
fn assert_reported(cluster: &mut TestCluster, id: usize) {
    let expected = format!("rows of group {OBJECT_GROUP} of the catalogue on node {ODD} differ");
    let view = cluster.view(id);
    assert!(view.findings.iter().any(|finding| finding.what.contains(&expected)), "{:?}", view.findings);
    let (output, status) = command(cluster, id, &["status"]);
    let expected = format!("those of group {OBJECT_GROUP} differ on node {ODD} from most nodes\n");
    assert!(status != Some(0) && output.contains(&expected), "{status:?}: {output}");
    let differing = Scrape::of(cluster.process(id)).sum("mlgw_cluster_differing_groups", &[]);
    assert!((differing - 1.0).abs() < 0.5, "node {id}: {differing}");
    cluster.until_ready(id);
}

#[test]
fn a_row_that_differs_on_one_node_is_found_until_the_node_is_replaced() {
    let mut cluster = TestCluster::three_with(compared_often);
    wait_until("the cluster has the newest version", || cluster.view(FIRST).upgrade.is_none());
    STORAGE.iter().for_each(|id| until_equal(&cluster, *id));
    let (output, status) = command(&cluster, FIRST, &["status"]);
    let equal = format!("rows         equal in {} groups", cluster.group_ids().len());
    assert!(status == Some(0) && output.contains(&equal), "{output}");
    assert!(metric(&cluster, "mlgw_cluster_differing_groups") < 0.5);

    cluster.stop(ODD);
    let before = stored_rows(&cluster);
    let key = keys_before().next().expect("a key");
    remove_row(&state_dir(&cluster.member(ODD).setup.data_dir, OBJECT_GROUP), &object_row(&key));
    let after = stored_rows(&cluster);
    let is_of_group = |rows: &Value| rows["group"] == OBJECT_GROUP;
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after);
    let changed: Vec<_> = changed.map(|(before, after)| (is_of_group(before), after)).collect();
    assert!(matches!(changed[..], [(true, _)]), "one row of one group is removed: {before:?}, {after:?}");
    cluster.start(ODD);

    for id in STORAGE {
        wait_at_most(MINUTELY_MAX, &format!("node {id} knows that node {ODD} differs"), || {
            let rows = rows_at(&cluster, id);
            let differing: Vec<_> = rows.iter().filter(|rows| !rows.differing.is_empty()).collect();
            let is_found = |rows: &RowsView| rows.group == OBJECT_GROUP && rows.differing == [ODD];
            matches!(differing[..], [rows] if is_found(rows) && !rows.undecided)
        });
        assert_reported(&mut cluster, id);
    }
    let found = STORAGE.iter().map(|id| {
        let different = [("result", "different")];
        Scrape::of(cluster.process(*id)).sum("mlgw_cluster_rows_compared_total", &different)
    });
    assert!(found.fold(0.0, f64::max) > 0.5, "the leader of the group counts the comparison");

    // As the operations page describes it.
    cluster.join("storage");
    cluster.until_active(NEXT);
    cluster.stop(ODD);
    wait_until("the node is not reached", || {
        cluster.view(FIRST).node(ODD).is_some_and(|node| node.reachable == Some(false))
    });
    let words = ["replace", "3", "--with", "4", "--lost", "--yes"];
    let (output, status) = command(&cluster, FIRST, &words);
    assert_eq!(status, Some(0), "{output}");
    until_equal(&cluster, FIRST);
    until_equal(&cluster, NEXT);
    assert!(metric(&cluster, "mlgw_cluster_differing_groups") < 0.5);
}
