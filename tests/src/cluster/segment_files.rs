//! Segment files of the nodes of a cluster, compared byte by byte.
//!
//! A node may be running and change its directory meanwhile, so a comparison is a condition to wait for.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use super::testbed::{FIRST, TestCluster, wait_at_most};

/// Longest wait for work that a node begins once a minute: to list its directory, and to search the catalogue
/// for references to bad blocks.
pub(super) const MINUTELY_MAX: Duration = Duration::from_secs(180);

/// Lengths of the segment files of a node by their names.
pub(super) fn segment_files(cluster: &TestCluster, id: usize) -> BTreeMap<String, u64> {
    let Ok(entries) = fs::read_dir(cluster.segments_dir(id)) else { return BTreeMap::new() };
    let files = entries.filter_map(|entry| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        // A file may be removed meanwhile.
        let length = entry.metadata().ok()?.len();
        name.ends_with(".seg").then_some((name, length))
    });
    files.collect()
}

/// Names in the segment directory of a node with this part.
pub(super) fn names_with(cluster: &TestCluster, id: usize, part: &str) -> Vec<String> {
    let entries = fs::read_dir(cluster.segments_dir(id)).expect("listed");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains(part)).collect()
}

/// Waits until these nodes have the same segments and the first node describes no missing and no bad copy.
/// Files of segments that ended without a record are removed from one node later than from another.
pub(super) fn until_copied(cluster: &TestCluster, nodes: &[usize]) {
    let _shown = ShownIfUnequal { cluster, nodes };
    wait_at_most(MINUTELY_MAX, &format!("the segments of the nodes {nodes:?} are copied"), || {
        let copies = cluster.view(FIRST).copies;
        (copies.below_segments, copies.suspect_segments) == (0, 0)
            && have_equal_segments(cluster, nodes)
            && have_bytes(nodes.iter().map(|id| segment_files(cluster, *id)), copies.bytes)
    });
}

/// True if the segments can have this many sealed bytes on each node: the equal bytes of a segment end at the
/// shortest of its files, which is no shorter than the sealed length unless it was truncated. Bytes of open
/// segments count too.
fn have_bytes(on: impl Iterator<Item = BTreeMap<String, u64>>, sealed_bytes: u64) -> bool {
    let mut shortest = BTreeMap::<String, u64>::new();
    for (name, length) in on.flatten() {
        shortest.entry(name).and_modify(|least| *least = length.min(*least)).or_insert(length);
    }
    shortest.values().sum::<u64>() >= sealed_bytes
}

/// True if these nodes have the same segments.
pub(super) fn have_equal_segments(cluster: &TestCluster, nodes: &[usize]) -> bool {
    let names = |id: usize| segment_files(cluster, id).into_keys().collect::<Vec<_>>();
    let all = names(nodes[0]);
    nodes.iter().all(|id| names(*id) == all) && all.iter().all(|name| is_equal_on(cluster, nodes, name))
}

/// True if these nodes have a file of this name with the same bytes up to the end of the shortest one. A
/// segment that was sealed because a node failed may have bytes beyond its end at the nodes that stored them
/// before, and not in later copies.
pub(super) fn is_equal_on(cluster: &TestCluster, nodes: &[usize], name: &str) -> bool {
    // Missing if it is removed meanwhile.
    let read = |id: &usize| fs::read(cluster.segments_dir(*id).join(name)).ok();
    let Some(files) = nodes.iter().map(read).collect::<Option<Vec<_>>>() else { return false };
    let shortest = files.iter().map(Vec::len).min().unwrap_or(0);
    shortest > 0 && files.iter().all(|file| file[..shortest] == files[0][..shortest])
}

/// Prints the segment files of nodes if the test fails meanwhile.
struct ShownIfUnequal<'a> {
    cluster: &'a TestCluster,
    nodes: &'a [usize],
}

impl Drop for ShownIfUnequal<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for id in self.nodes {
                eprintln!("segment files of node {id}: {:?}", segment_files(self.cluster, *id));
            }
        }
    }
}

#[test]
fn a_truncated_copy_is_not_a_complete_one() {
    let files = |last: u64| BTreeMap::from([("a".to_owned(), 100), ("b".to_owned(), last)]);
    let sealed_bytes = 150;
    assert!(have_bytes([files(50), files(50), files(50)].into_iter(), sealed_bytes));
    assert!(have_bytes([files(60), files(60), files(50)].into_iter(), sealed_bytes), "bytes after the end");
    assert!(!have_bytes([files(50), files(49), files(50)].into_iter(), sealed_bytes));
}
