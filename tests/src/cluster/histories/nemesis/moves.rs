//! Groups of objects move between sets of nodes while clients use the cluster: it grows from three storage
//! nodes to five, and later one of them is replaced. Meanwhile nodes are killed, hang, or are cut off.
//!
//! The first node is never drained. So it stays in the first set, whose nodes have all groups, and its view
//! names those that move.

use std::time::Duration;

use mlgw_common::time::{Instant, block_for};

use super::{Nemesis, POLL_INTERVAL};
use crate::cluster::five::{command, home_nodes};
use crate::cluster::histories::faults::{FaultKind, FaultTarget, PlannedFault};
use crate::cluster::testbed::{FIRST, STORAGE, wait_at_most, wait_until};
use crate::seed::Rng;

/// Longest wait until no group moves. It is reached only if something is broken: a move waits until nodes
/// have answered for a while, and there are several.
const MOVES_MAX: Duration = Duration::from_secs(360);
/// Longest wait until the bytes of a node are on others and another one has its places.
const DRAIN_MAX: Duration = Duration::from_secs(420);
/// Longest wait for the moment at which a group moves. Then the next fault comes without one.
const MOVING_MAX: Duration = Duration::from_secs(30);
/// Faults of nodes while groups move. The first one is that of a node of the first set.
const DURING_MOVES: [FaultKind; 3] = [FaultKind::Kill, FaultKind::Pause, FaultKind::Isolate];
/// Time of such a fault. The longer ones outlast the limits after which connections and nodes count as lost.
const DURATION: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(8)];
/// Nodes that join to three.
const JOINING: usize = 2;

impl Nemesis<'_> {
    /// Two storage nodes join, and a rebalance makes sets of all five. While groups move, a node of the first
    /// set is killed, and two other ones hang or are cut off. Returns when there is nothing to move any more.
    pub(super) fn grow_into_sets(&mut self, choice: u64) {
        let mut rng = Rng::new(choice);
        wait_until("the cluster has the newest version", || self.cluster.view(FIRST).upgrade.is_none());
        for _ in 0..JOINING {
            let new = self.join();
            self.cluster.add_storage(new);
        }
        self.request_rebalance();
        for kind in DURING_MOVES {
            let node = match kind {
                FaultKind::Kill => *rng.pick(&STORAGE),
                _ => *rng.pick(self.cluster.storage()),
            };
            self.fail_during_moves(kind, node, &mut rng);
        }
        self.until_balanced();
    }

    /// A storage node joins, and another one is drained and removed, so its places in sets are taken. A
    /// rebalance is requested meanwhile, and a node of the first set is killed while groups move.
    pub(super) fn replace_in_sets(&mut self, node: usize, choice: u64) {
        let mut rng = Rng::new(choice);
        let (old, new) = (self.leaving_for(node), self.join());
        self.run(&["drain", &old.to_string()]);
        self.request_rebalance();
        let homes = home_nodes(&self.cluster.view(FIRST)).into_iter().filter(|id| *id != old);
        let homes: Vec<usize> = homes.collect();
        self.fail_during_moves(FaultKind::Kill, *rng.pick(&homes), &mut rng);
        self.remove_drained(old, DRAIN_MAX);
        self.cluster.replace_storage(old, new);
        self.until_balanced();
    }

    /// Requests a rebalance through the first node. It may be running, or have nothing to do.
    fn request_rebalance(&mut self) {
        let (output, _) = command(self.cluster, FIRST, &["rebalance"]);
        self.trace.add(&format!("rebalance: {}", output.lines().next().unwrap_or_default()));
    }

    /// A node fails for a while at a moment at which a group moves.
    fn fail_during_moves(&mut self, kind: FaultKind, node: usize, rng: &mut Rng) {
        let moving = self.until_moving();
        let [shortest, longest] = DURATION.map(|duration| duration.as_secs());
        let duration = Duration::from_secs(shortest + rng.below(longest - shortest + 1));
        let parts = self.parts_of(node);
        self.trace.add(&format!(
            "{kind:?} of node {node} ({parts}) for {duration:?} while the groups {moving:?} move"
        ));
        let (target, rest, choice) = (FaultTarget::Other, Duration::ZERO, rng.next());
        let fault = PlannedFault { kind, target, duration, rest, choice };
        match kind {
            FaultKind::Isolate => self.fault_of_links(node, &fault),
            _ => self.fault_of_process(node, &fault),
        }
        // Commands and views come from the first node, which may be this one.
        self.until_runs(node);
    }

    /// The groups that move; none if none of them does for long.
    fn until_moving(&self) -> Vec<u32> {
        let begun = Instant::now();
        loop {
            let moving = self.view(FIRST).map(|view| view.moving_groups).unwrap_or_default();
            if !moving.is_empty() || begun.elapsed() > MOVING_MAX {
                return moving;
            }
            block_for(POLL_INTERVAL);
        }
    }

    /// Waits until a rebalance has nothing to do. Panics after a limited time.
    fn until_balanced(&mut self) {
        let mut output = String::new();
        let begun = Instant::now();
        while !output.contains("othing to move") {
            assert!(begun.elapsed() < MOVES_MAX, "never: the sets are as they should be: {output}");
            wait_at_most(MOVES_MAX, "no group moves, and no rebalance is under way", || {
                let view = self.view(FIRST);
                view.is_some_and(|view| {
                    view.rebalance.is_none() && view.moving_groups.is_empty() && view.sets_wait.is_none()
                })
            });
            output = command(self.cluster, FIRST, &["rebalance"]).0;
        }
        self.trace.add("no group moves");
    }
}
