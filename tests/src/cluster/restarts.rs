//! All nodes stop, or are killed, and start again: in any order, and with new addresses, which the nodes learn
//! from the configuration of one start and keep.

use super::testbed::{TestCluster, assert_reads, keys_before, put, wait_until};
use crate::seed::{Rng, seeded_rng};

const ROUNDS: usize = 2;

/// How the nodes end.
#[derive(Clone, Copy)]
enum NodeEnd {
    /// SIGTERM, which must end with the exit status 0.
    Stop,
    /// `kill -9`.
    Kill,
}

#[test]
fn nodes_that_all_ended_start_in_any_order_and_at_new_addresses() {
    let mut rng = seeded_rng("restarts of a cluster", 9);
    let mut cluster = TestCluster::whole();
    let mut written: Vec<String> = keys_before().collect();
    for round in 0..ROUNDS {
        for end in [NodeEnd::Stop, NodeEnd::Kill] {
            end_all(&mut cluster, end, &mut rng);
            start_all(&mut cluster, &mut rng);
            everything_is_there(&cluster, &mut written, &format!("{round}-{}", end as usize));
        }
    }
    end_all(&mut cluster, NodeEnd::Stop, &mut rng);
    cluster.change_addresses();
    start_all(&mut cluster, &mut rng);
    everything_is_there(&cluster, &mut written, "new-addresses");
    every_node_knows_the_addresses(&cluster);

    end_all(&mut cluster, NodeEnd::Kill, &mut rng);
    cluster.remove_seeds();
    start_all(&mut cluster, &mut rng);
    everything_is_there(&cluster, &mut written, "recorded-addresses");
}

/// All nodes in an order that the seed determines.
fn shuffled(cluster: &TestCluster, rng: &mut Rng) -> Vec<usize> {
    let mut ids = cluster.ids();
    for at in (1..ids.len()).rev() {
        ids.swap(at, rng.index(at + 1));
    }
    ids
}

fn end_all(cluster: &mut TestCluster, end: NodeEnd, rng: &mut Rng) {
    let order = shuffled(cluster, rng);
    eprintln!("the nodes end in the order {order:?}");
    for id in order {
        match end {
            NodeEnd::Stop => cluster.stop(id),
            NodeEnd::Kill => cluster.kill(id),
        }
    }
}

/// Starts all nodes. None can become ready before enough of the others run.
fn start_all(cluster: &mut TestCluster, rng: &mut Rng) {
    let order = shuffled(cluster, rng);
    eprintln!("the nodes start in the order {order:?}");
    for id in &order {
        cluster.spawn(*id);
    }
    for id in order {
        cluster.until_ready(id);
    }
}

/// Writes an object through every node, and reads everything written so far through each.
fn everything_is_there(cluster: &TestCluster, written: &mut Vec<String>, label: &str) {
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
    cluster.until_settled();
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
