//! All nodes stop, or are killed, and start again: in any order, and with new addresses, which the
//! configuration of one start names, all of them or one, and which are recorded then. Afterwards every
//! storage node serves requests itself again.

use super::testbed::{FIRST, TestCluster, assert_reads, keys_before, put, until_served, wait_until};
use crate::seed::{Rng, seeded_rng};

/// End of the process of a node.
#[derive(Clone, Copy, Debug)]
enum NodeEnd {
    /// SIGTERM, after which the exit status is 0.
    Stop,
    /// `kill -9`.
    Kill,
}

#[test]
fn nodes_that_all_ended_start_in_any_order_and_at_new_addresses() {
    let mut rng = seeded_rng("restarts of a cluster", 9);
    let mut cluster = TestCluster::whole();
    let mut written: Vec<String> = keys_before().collect();
    let (ids, reverse) = (cluster.ids(), cluster.ids().into_iter().rev().collect::<Vec<_>>());

    end_all(&mut cluster, NodeEnd::Stop, &ids);
    start_all(&mut cluster, &reverse);
    everything_is_there(&cluster, &mut written, "stopped");

    let order = shuffled(&ids, &mut rng);
    end_all(&mut cluster, NodeEnd::Kill, &order);
    start_all(&mut cluster, &ids);
    everything_is_there(&cluster, &mut written, "killed");

    end_all(&mut cluster, NodeEnd::Stop, &reverse);
    cluster.change_addresses();
    let order = shuffled(&ids, &mut rng);
    start_all(&mut cluster, &order);
    everything_is_there(&cluster, &mut written, "moved");
    every_node_knows_the_addresses(&cluster);

    let order = shuffled(&ids, &mut rng);
    end_all(&mut cluster, NodeEnd::Kill, &order);
    cluster.remove_seeds();
    let order = shuffled(&ids, &mut rng);
    start_all(&mut cluster, &order);
    everything_is_there(&cluster, &mut written, "without-seeds");
}

/// The named node lacks the newest changes, so it cannot lead: the others must find each other through it.
#[test]
fn one_right_seed_is_enough_when_all_nodes_have_new_addresses() {
    const NAMED: usize = 2;
    let mut cluster = TestCluster::whole();
    let mut written: Vec<String> = keys_before().collect();
    cluster.kill(NAMED);
    let client = cluster.client(FIRST);
    cluster.block_on(until_served("a write without one node", async || put(&client, "missed").await));
    written.push("missed".to_owned());
    let ids = cluster.running();
    end_all(&mut cluster, NodeEnd::Kill, &ids);

    cluster.change_addresses_and_name(NAMED);
    let ids = cluster.ids();
    start_all(&mut cluster, &ids);
    everything_is_there(&cluster, &mut written, "one-seed");
    every_node_knows_the_addresses(&cluster);

    end_all(&mut cluster, NodeEnd::Stop, &ids);
    cluster.remove_seeds();
    start_all(&mut cluster, &ids);
    everything_is_there(&cluster, &mut written, "recorded");
}

/// Returns the nodes in an order that the seed determines.
fn shuffled(ids: &[usize], rng: &mut Rng) -> Vec<usize> {
    let mut ids = ids.to_vec();
    for at in (1..ids.len()).rev() {
        ids.swap(at, rng.index(at + 1));
    }
    ids
}

fn end_all(cluster: &mut TestCluster, end: NodeEnd, order: &[usize]) {
    eprintln!("{end:?} in the order {order:?}");
    for id in order {
        match end {
            NodeEnd::Stop => cluster.stop(*id),
            NodeEnd::Kill => cluster.kill(*id),
        }
    }
}

/// Starts all nodes. None can become ready before enough of the others run.
fn start_all(cluster: &mut TestCluster, order: &[usize]) {
    eprintln!("start in the order {order:?}");
    for id in order {
        cluster.spawn(*id);
    }
    for id in order {
        cluster.until_ready(*id);
    }
    cluster.until_settled();
}

/// Writes an object through every node, and reads everything written so far through each.
fn everything_is_there(cluster: &TestCluster, written: &mut Vec<String>, label: &str) {
    cluster.assert_all_serve();
    let clients = cluster.clients();
    cluster.block_on(async {
        for (number, client) in clients.iter().enumerate() {
            let key = format!("after-{label}-{number}");
            put(client, &key).await.expect("stored");
            written.push(key);
        }
        for client in &clients {
            for key in &*written {
                assert_reads(client, key).await;
            }
        }
    });
}

fn every_node_knows_the_addresses(cluster: &TestCluster) {
    for id in cluster.ids() {
        wait_until(&format!("node {id} knows the addresses of all nodes"), || {
            let view = cluster.view(id);
            let is_current = |id: usize| {
                view.node(id).is_some_and(|node| node.address == cluster.member(id).address.to_string())
            };
            cluster.ids().into_iter().all(is_current)
        });
    }
}
