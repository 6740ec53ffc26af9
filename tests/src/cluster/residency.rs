//! The bytes of a dataset by node: every node of the cluster answers alike, copies count on each node that
//! has them, and copies in which damage was found do not.

use std::collections::BTreeMap;

use serde_json::Value;

use super::replicas::{damage_all_but, put_large, seal_open_segments, small_segments};
use super::segment_files::{MINUTELY_MAX, until_copied};
use super::testbed::{BUCKET, FIRST, STORAGE, TestCluster, wait_at_most, wait_until};
use crate::observability::scrape::Scrape;

const DATASET: &str = "all";
/// The node whose copies stay intact.
const GOOD: usize = 3;

/// Bytes of the dataset, and those in the hot tier of each node, as a node answers; `None` while no node has
/// the duty.
fn residency(cluster: &TestCluster, id: usize) -> Option<(u64, BTreeMap<usize, u64>)> {
    let words = ["dataset", "show", DATASET, "--output", "json"];
    let (output, status) = cluster.member(id).setup.command(&words);
    if status != Some(0) {
        return None;
    }
    let shown: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    let rows = shown["residency"].as_array().unwrap_or_else(|| panic!("{output}"));
    let hot = rows.iter().filter(|row| row["tier"] == "hot").filter_map(|row| {
        let node = usize::try_from(row["node"].as_u64()?).ok()?;
        Some((node, row["bytes"].as_u64()?))
    });
    Some((shown["bytes"].as_u64()?, hot.collect()))
}

/// Waits until a node lists these nodes alone with the whole dataset; others have a part of it or nothing.
fn until_whole_on(cluster: &TestCluster, id: usize, nodes: &[usize]) {
    wait_at_most(MINUTELY_MAX, &format!("node {id} lists the whole dataset on the nodes {nodes:?}"), || {
        residency(cluster, id).is_some_and(|(bytes, on)| {
            let whole = on.into_iter().filter(|(_, here)| *here == bytes).map(|(node, _)| node);
            bytes > 0 && whole.eq(nodes.iter().copied())
        })
    });
}

/// Waits until the metrics of the duty node list these nodes alone with the whole dataset.
fn until_exposed(cluster: &TestCluster, nodes: &[usize]) {
    let is_whole = |scrape: &Scrape, id: usize| {
        let node = id.to_string();
        let labels = [("dataset", DATASET), ("node", &*node)];
        let here = scrape.sum("mlgw_dataset_resident_bytes", &[&labels[..], &[("tier", "hot")]].concat());
        let bytes = scrape.sum("mlgw_dataset_bytes", &[("dataset", DATASET)]);
        let is_ready = scrape.sum("mlgw_dataset_ready", &labels) > 0.5;
        bytes > 0.5 && is_ready && (here - bytes).abs() < 0.5
    };
    wait_at_most(MINUTELY_MAX, &format!("the metrics list the whole dataset on the nodes {nodes:?}"), || {
        let scrape = Scrape::of(cluster.process(cluster.duty()));
        STORAGE.into_iter().all(|id| is_whole(&scrape, id) == nodes.contains(&id))
    });
}

#[test]
fn a_dataset_is_listed_on_each_node_with_intact_copies_by_every_node() {
    let mut cluster = TestCluster::three_with(small_segments);
    cluster.join("gateway");
    put_large(&cluster);
    seal_open_segments(&mut cluster);
    until_copied(&cluster, &STORAGE);
    cluster.until_first_has_duty();
    let (output, status) =
        cluster.member(FIRST).setup.command(&["dataset", "create", DATASET, "--bucket", BUCKET]);
    assert_eq!(status, Some(0), "{output}");
    for id in cluster.ids() {
        until_whole_on(&cluster, id, &STORAGE);
    }
    until_exposed(&cluster, &STORAGE);

    // The node that does not answer has its copies when it returns.
    damage_all_but(&mut cluster, GOOD);
    for id in cluster.running() {
        until_whole_on(&cluster, id, &[GOOD]);
    }
    until_exposed(&cluster, &[GOOD]);
    cluster.start(GOOD);
    until_copied(&cluster, &STORAGE);
    wait_until("a node has the duty", || cluster.duty_at(GOOD).is_some());
    for id in cluster.ids() {
        until_whole_on(&cluster, id, &STORAGE);
    }
    until_exposed(&cluster, &STORAGE);
}
