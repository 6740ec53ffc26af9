//! Histories of concurrent clients of a cluster, while a nemesis makes its nodes fail: each is checked for
//! linearizability.
//!
//! Clients send every kind of request to a few keys in three buckets, one in each object group, through all
//! storage nodes and a gateway. The time of each request and its outcome are recorded. Meanwhile nodes are
//! killed, paused and restarted, the connections between them are held back in one direction or both, disks
//! fail, are lost or copied, clocks jump, nodes join and leave, and groups move between sets of nodes. Then
//! everything is healed, and every node returns every key once more. The history of each key must be that of
//! one register: no acknowledged write is lost, no delete is undone, of conditional writes one wins, and GET,
//! HEAD and LIST agree.
//!
//! - `register`: the model of a key, and the operations on it;
//! - `linearize`: decides if a history is linearizable;
//! - `recorder`: keys, values and histories of a round;
//! - `requests`: sends requests, and records their outcomes;
//! - `load`: the clients;
//! - `due_work`: what is due by time while clocks jump;
//! - `links`: relays between the nodes, which hold back bytes;
//! - `faults`: the schedule of faults;
//! - `faulty_disk`: the disk below a node, in memory;
//! - `nemesis`: carries out the faults;
//! - `round`: one round with its checks;
//! - `sets`: the checks that differ in a cluster with sets of nodes;
//! - `schedules`: orders of events that break a promise in a cluster without one of its rules;
//! - `power_cuts`: power cuts under a node that joins;
//! - `stored`: what the nodes have on their disks afterwards.
//!
//! In half of the rounds leaders read by lease. The seed determines requests and faults, but not the times at
//! which they meet, so a failure may need several tries. `make nemesis` runs further seeds: `MLGW_ROUNDS`
//! rounds from `MLGW_SEED` on.

use std::time::Duration;

use self::faults::{CLOCKS_AND_COPIES, DISKS, FaultMix, KILLS, MEMBERS, MIXES, PARTITIONS, PAUSES, SETS};
use self::round::{RelayedCluster, RoundPlan};
use crate::seed::setting;

mod due_work;
mod faults;
mod faulty_disk;
mod linearize;
mod links;
mod load;
mod nemesis;
mod power_cuts;
mod recorder;
mod register;
mod requests;
mod round;
mod schedules;
mod sets;
mod stored;

/// Time of the load of a round.
const LOAD: Duration = Duration::from_secs(30);
/// Rounds of `make nemesis`.
const ROUNDS: u64 = 300;
/// Rounds of a cluster before another one is made.
const ROUNDS_OF_CLUSTER: u64 = 6;

/// Runs one round on a cluster of its own.
fn one_round(cluster: fn() -> RelayedCluster, mix: FaultMix, default_seed: u64) {
    let seed = setting("MLGW_SEED", default_seed);
    eprintln!("a round with {}: seed {seed} (repeat with MLGW_SEED={seed})", mix.name);
    let summary = cluster().run(&RoundPlan { seed, mix, load: LOAD });
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
fn histories_are_linearizable_while_a_disk_is_slow_full_or_fails_and_loses_its_power() {
    one_round(RelayedCluster::with_disk, DISKS, 4);
}

#[test]
fn histories_are_linearizable_while_clocks_jump_and_disks_are_copied_and_lost() {
    one_round(RelayedCluster::with_clocks, CLOCKS_AND_COPIES, 5);
}

#[test]
fn histories_are_linearizable_while_nodes_join_and_leave() {
    one_round(RelayedCluster::new, MEMBERS, 6);
}

#[test]
fn histories_are_linearizable_while_groups_move_between_sets_of_nodes() {
    one_round(RelayedCluster::new, SETS, 7);
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
        let plan = RoundPlan { seed, mix, load: LOAD };
        let summary = if mix.has_sets() {
            drop(cluster.take());
            RelayedCluster::for_sets(seed / MIXES.len() as u64).run(&plan)
        } else {
            cluster.get_or_insert_with(|| RelayedCluster::for_all_faults(seed / ROUNDS_OF_CLUSTER)).run(&plan)
        };
        eprintln!("round {} of {rounds}: {summary}", round + 1);
    }
}
