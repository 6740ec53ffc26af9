//! A full node is reported, gets no new segments and leads nothing, while the others go on. When all nodes
//! are full, writes are refused and deletes are not, and the space that they free is written again. A node
//! whose disk has no free byte goes on with its reserve. A node whose syncs take longer than a second leads
//! nothing and is not ready.

use std::time::Duration;

use mlgw_common::time::{Instant, timeout};

use super::segment_files::MINUTELY_MAX;
use super::testbed::{BUCKET, FIRST, STORAGE, TestCluster, put, until_served, wait_at_most, wait_until};
use crate::content::TestContent;
use crate::disk::DiskTrouble;
use crate::mount::Mount;
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::{ServerSetup, get_text};

const MIB: usize = 1 << 20;
/// The node with less space than the others.
const SMALL: usize = 2;
/// Objects that are stored after the small node is full.
const AFTERWARDS: u64 = 16;
/// Refusals in a row after which a node counts as full.
const REFUSALS: usize = 3;
/// Objects that fill any of these nodes.
const OBJECTS_MAX: u64 = 400;
/// Longest time until a request ends. It is reached only if something is broken.
const END_MAX: Duration = Duration::from_secs(60);
/// The node whose disk is a mount of the test.
const MOUNTED: usize = 3;
/// Duration of each sync of a slow disk.
const SLOW_SYNC: Duration = Duration::from_millis(1_500);

/// Settings of nodes that free space soon.
fn small_segments(setup: ServerSetup) -> ServerSetup {
    setup.with("hot.segment_bytes", "4MiB").with("hot.compact_interval", "50ms")
}

/// The same, with little space on one node.
fn one_small_node(setup: ServerSetup) -> ServerSetup {
    let is_small = setup.data_dir.ends_with(format!("node-{SMALL}"));
    let setup = small_segments(setup);
    if is_small { setup.with("hot.capacity", "64MiB") } else { setup }
}

/// The same, with little space on every node.
fn small_nodes(setup: ServerSetup) -> ServerSetup {
    small_segments(setup).with("hot.capacity", "64MiB")
}

/// Makes a cluster of three storage nodes. The last one has its directory on the mount, and leads a group.
fn three_with_mount(mount: &Mount) -> TestCluster {
    let mut cluster = TestCluster::first();
    cluster.join("storage");
    cluster.join_at(mount.path());
    cluster.until_settled();
    assert!(!cluster.groups_led_by(MOUNTED).is_empty(), "it leads before");
    cluster
}

fn content(id: u64) -> TestContent {
    TestContent { id: 10_000 + id, length: MIB }
}

async fn put_content(client: &S3TestClient, id: u64) -> Result<String, CallFailure> {
    let key = format!("large-{id:03}");
    let request = client.put(BUCKET, &key, full_body(content(id).bytes()));
    timeout(END_MAX, request).await.unwrap_or_else(|_| panic!("the PUT of object {id} hangs"))
}

async fn assert_stored(client: &S3TestClient, ids: impl Iterator<Item = u64>) {
    for id in ids {
        let read = client.get(BUCKET, &format!("large-{id:03}")).await;
        let read = read.unwrap_or_else(|failure| panic!("object {id}: {failure:?}"));
        assert_eq!(content(id).difference(&read.body), None, "object {id}");
    }
}

async fn delete(client: &S3TestClient, id: u64) {
    let key = format!("large-{id:03}");
    until_served("a delete", async || client.delete(BUCKET, &key).await).await;
}

/// True if a node describes another one as full.
fn is_full(cluster: &TestCluster, by: usize, node: usize) -> bool {
    let begin = format!("Node {node} ");
    let findings = cluster.view(by).findings;
    findings.iter().any(|finding| finding.what.starts_with(&begin) && finding.what.contains(" is full: "))
}

/// True if the first node has another leader than this one for each group.
fn leads_nothing(cluster: &TestCluster, node: usize) -> bool {
    let is_other = |leader: Option<usize>| leader.is_some_and(|leader| leader != node);
    cluster.view(FIRST).groups.into_iter().all(|group| is_other(group.leader))
}

#[test]
fn a_full_node_leads_nothing_while_the_others_store_and_recovers_after_deletes() {
    let cluster = TestCluster::three_with(one_small_node);
    let (first, small) = (cluster.client(FIRST), cluster.client(SMALL));
    let mut stored = 0;
    while !is_full(&cluster, FIRST, SMALL) {
        assert!(stored < OBJECTS_MAX, "node {SMALL} is never full");
        cluster.block_on(until_served("a write", async || put_content(&first, stored).await));
        stored += 1;
    }
    wait_until("the full node leads nothing", || leads_nothing(&cluster, SMALL));
    cluster.block_on(async {
        for id in stored..stored + AFTERWARDS {
            until_served("a write beside a full node", async || put_content(&first, id).await).await;
        }
    });
    stored += AFTERWARDS;
    wait_until("the third node names the full one too", || is_full(&cluster, 3, SMALL));
    // It answers for all objects, and deletes.
    cluster.block_on(async {
        assert_stored(&small, 0..stored).await;
        for id in 0..stored - 4 {
            delete(&small, id).await;
        }
    });
    wait_at_most(MINUTELY_MAX, "the node has space again", || !is_full(&cluster, FIRST, SMALL));
    cluster.until_settled();
    cluster.block_on(async {
        until_served("a write", async || put_content(&small, stored).await).await;
        assert_stored(&first, stored - 4..=stored).await;
    });
}

#[test]
fn when_all_nodes_are_full_deletes_go_on_and_free_space() {
    let cluster = TestCluster::three_with(small_nodes);
    let clients = STORAGE.map(|id| cluster.client(id));
    let (mut stored, mut id) = (Vec::new(), 0);
    cluster.block_on(async {
        for client in &clients {
            let mut refusals = 0;
            while refusals < REFUSALS {
                assert!(id < OBJECTS_MAX, "a node is never full");
                match put_content(client, id).await {
                    Ok(_) => stored.push(id),
                    Err(failure) => {
                        let status = failure.status();
                        assert!(status == Some(503) || status == Some(507), "{failure:?}");
                        refusals += 1;
                    }
                }
                id += 1;
            }
        }
        assert!(stored.len() > 30, "{} objects", stored.len());
        for client in &clients {
            assert_stored(client, stored.iter().copied()).await;
        }
        let kept = stored.split_off(stored.len() - 8);
        for (id, client) in stored.iter().zip(clients.iter().cycle()) {
            delete(client, *id).await;
        }
        for client in &clients {
            assert_stored(client, kept.iter().copied()).await;
        }
        stored = kept;
    });
    // Each node removes its copies within minutes, and stores again.
    for client in &clients {
        wait_at_most(MINUTELY_MAX, "freed space is written again", || {
            id += 1;
            cluster.block_on(put_content(client, id)).is_ok()
        });
        stored.push(id);
    }
    for client in &clients {
        cluster.block_on(assert_stored(client, stored.iter().copied()));
    }
}

#[test]
fn a_node_whose_disk_has_no_free_byte_goes_on_and_stores_again_later() {
    let mount = Mount::new();
    let mut cluster = three_with_mount(&mount);
    let (first, full) = (cluster.client(FIRST), cluster.client(MOUNTED));
    let put_some = |ids: std::ops::Range<u64>| {
        cluster.block_on(async {
            for id in ids {
                until_served("a write", async || put_content(&first, id).await).await;
            }
        });
    };
    put_some(0..4);

    mount.disk().set_trouble(DiskTrouble::Full { free_bytes: 0 });
    put_some(4..12);
    wait_until("the full node is named", || is_full(&cluster, FIRST, MOUNTED));
    wait_until("the full node leads nothing", || leads_nothing(&cluster, MOUNTED));
    put_some(12..20);
    cluster.block_on(async {
        assert_stored(&full, 0..20).await;
        match put_content(&full, 100).await {
            Err(failure) => assert!(matches!(failure.status(), Some(503 | 507)), "{failure:?}"),
            // Another node may have stored it.
            Ok(_) => assert_stored(&first, 100..101).await,
        }
        delete(&full, 0).await;
    });
    mount.disk().set_trouble(DiskTrouble::None);
    wait_at_most(MINUTELY_MAX, "the node has space again", || !is_full(&cluster, FIRST, MOUNTED));
    cluster.until_settled();
    cluster.block_on(async {
        until_served("a write", async || put_content(&full, 20).await).await;
        assert_stored(&full, 1..21).await;
    });
    assert_eq!(cluster.take_ended(MOUNTED), None, "the process goes on");
    // The processes end before the disk is unmounted.
    cluster.stop(MOUNTED);
    drop(cluster);
    drop(mount);
}

#[test]
fn a_node_with_slow_syncs_leads_nothing_and_is_not_ready() {
    let mount = Mount::new();
    let mut cluster = three_with_mount(&mount);

    mount.disk().slow_down(SLOW_SYNC);
    let client = cluster.client(FIRST);
    let begun = Instant::now();
    wait_at_most(MINUTELY_MAX, "the slow node leads nothing, is not ready, and is named", || {
        // Its log is synced as long as there are changes.
        let key = format!("slow-{}", begun.elapsed().as_millis());
        cluster.block_on(until_served("a write", async || put(&client, &key).await));
        let findings = cluster.view(FIRST).findings;
        let is_named = findings.iter().any(|finding| finding.what.starts_with("Syncs of node 3 "));
        let ready = get_text(cluster.process(MOUNTED).admin, "/readyz").expect("an answer");
        let is_unready = ready.starts_with("HTTP/1.1 503") && ready.contains("syncs");
        leads_nothing(&cluster, MOUNTED) && is_named && is_unready
    });

    mount.disk().slow_down(Duration::ZERO);
    wait_until("the node is ready again", || {
        let ready = get_text(cluster.process(MOUNTED).admin, "/readyz");
        ready.is_ok_and(|ready| ready.starts_with("HTTP/1.1 200"))
    });
    cluster.until_settled();
    // The processes end before the disk is unmounted.
    cluster.stop(MOUNTED);
    drop(cluster);
    drop(mount);
}
