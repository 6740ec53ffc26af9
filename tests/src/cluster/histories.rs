//! Histories of concurrent clients of a cluster, while a nemesis makes its nodes fail: each is checked for
//! linearizability.
//!
//! Clients send every kind of request to a few keys in three buckets, one in each object group, through all
//! storage nodes and a gateway. The time of each request and its outcome are recorded. Meanwhile nodes are
//! killed, paused and restarted, the connections between them are held back in one direction or both, and a
//! file of a segment is removed. Then everything is healed, and every node returns every key once more. The
//! history of each key must be that of one register: no acknowledged write is lost, no delete is undone, of
//! conditional writes one wins, and GET, HEAD and LIST agree.
//!
//! - `register`: the model of a key, and the operations on it;
//! - `linearize`: decides if a history is linearizable;
//! - `recorder`: keys, values and histories of a round;
//! - `requests`: sends requests, and records their outcomes;
//! - `load`: the clients;
//! - `links`: relays between the nodes, which hold back bytes;
//! - `faults`: the schedule of faults;
//! - `nemesis`: carries out the faults;
//! - `round`: one round with its checks.
//!
//! In half of the rounds leaders read by lease. The seed determines requests and faults, but not the times at
//! which they meet, so a failure may need several tries. `make nemesis` runs further seeds: `MLGW_ROUNDS`
//! rounds from `MLGW_SEED` on.

use std::time::Duration;

use self::faults::{ALL, FLAPPING, FaultMix, KILLS, MIXES, ONE_WAY, PARTITIONS, PAUSES};
use self::round::{RelayedCluster, RoundPlan};
use crate::seed::setting;

mod faults;
mod linearize;
mod links;
mod load;
mod nemesis;
mod recorder;
mod register;
mod requests;
mod round;

/// Time of the load of a round in each run of the tests.
const SHORT_LOAD: Duration = Duration::from_secs(16);
/// Time of the load of a round of `make nemesis`.
const LONG_LOAD: Duration = Duration::from_secs(30);
/// Rounds of `make nemesis`.
const ROUNDS: u64 = 300;
/// Rounds of a cluster before another one is made.
const ROUNDS_OF_CLUSTER: u64 = 6;

/// Runs one round on a cluster of its own.
fn one_round(cluster: fn() -> RelayedCluster, mix: FaultMix, default_seed: u64) {
    let seed = setting("MLGW_SEED", default_seed);
    eprintln!("a round with {}: seed {seed} (repeat with MLGW_SEED={seed})", mix.name);
    let summary = cluster().run(&RoundPlan { seed, mix, load: SHORT_LOAD });
    eprintln!("{summary}");
}

#[test]
fn histories_are_linearizable_while_nodes_are_killed() {
    one_round(RelayedCluster::new, KILLS, 1);
}

#[test]
fn histories_are_linearizable_while_nodes_hang_and_restart() {
    one_round(RelayedCluster::with_lease_reads, PAUSES, 2);
}

#[test]
fn histories_are_linearizable_while_the_network_is_partitioned() {
    one_round(RelayedCluster::with_lease_reads, PARTITIONS, 3);
}

#[test]
fn histories_are_linearizable_while_bytes_pass_in_one_direction_only() {
    one_round(RelayedCluster::new, ONE_WAY, 4);
}

#[test]
fn histories_are_linearizable_while_connections_flap_and_a_segment_is_removed() {
    one_round(RelayedCluster::new, FLAPPING, 5);
}

#[test]
fn histories_are_linearizable_under_faults_of_every_kind() {
    one_round(RelayedCluster::with_lease_reads, ALL, 6);
}

/// Makes the cluster for a round of `make nemesis`. In every other one leaders read by lease.
fn cluster_of(seed: u64) -> RelayedCluster {
    match seed / ROUNDS_OF_CLUSTER % 2 {
        0 => RelayedCluster::new(),
        _ => RelayedCluster::with_lease_reads(),
    }
}

#[test]
#[ignore = "takes hours; make nemesis runs it"]
fn rounds_of_further_seeds_are_linearizable() {
    let (first, rounds) = (setting("MLGW_SEED", 1_000), setting("MLGW_ROUNDS", ROUNDS));
    let mut cluster = None;
    for round in 0..rounds {
        let seed = first + round;
        if seed % ROUNDS_OF_CLUSTER == 0 {
            // The one before is stopped first.
            drop(cluster.take());
        }
        let mix = MIXES[usize::try_from(seed % MIXES.len() as u64).expect("small")];
        eprintln!("seed {seed} (repeat with MLGW_SEED={seed} MLGW_ROUNDS=1 make nemesis)");
        let plan = RoundPlan { seed, mix, load: LONG_LOAD };
        let summary = cluster.get_or_insert_with(|| cluster_of(seed)).run(&plan);
        eprintln!("round {} of {rounds}: {summary}", round + 1);
    }
}
