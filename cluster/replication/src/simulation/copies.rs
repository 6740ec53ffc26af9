//! The driver of repair in the simulation: scrubs mark replicas, and nodes heal, copy and drop their own.

use super::disk::{Cell, cells, cells_of};
use super::group::{Purpose, SimCommand, SimRecord};
use super::world::{Event, World};
use crate::repair::{
    COPIES, RepairInput, RepairKind, RepairTask, ReplicaFacts, SegmentFacts, StorageNode, next_tasks_by,
};
use crate::stretch::StretchSet;
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeSet;

/// Ticks between two rounds of repair, and between two scrubs.
const REPAIR_TICKS: u64 = 3;
const SCRUB_TICKS: u64 = 10;

/// First time after which a repair that failed is tried again. It doubles each time.
const RETRY_MS: u64 = 1_000;

/// A repair that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedRepair {
    until: u64,
    next_delay: u64,
}

/// Tasks begun at once.
const TASKS_MAX: usize = 4;

impl World {
    pub(super) fn repairs_tick(&mut self, node: NodeId) {
        let tick = self.now / super::world::TICK_MS + node.0;
        if tick.is_multiple_of(SCRUB_TICKS) {
            self.scrub(node);
        }
        if tick.is_multiple_of(REPAIR_TICKS) {
            for task in self.repair_tasks(node) {
                self.begin_repair(node, task);
            }
        }
    }

    fn repair_tasks(&self, node: NodeId) -> Vec<RepairTask> {
        let own = &self.nodes[&node];
        let facts = |record: &SimRecord| SegmentFacts {
            segment: record.segment,
            bytes: record.sealed.unwrap_or(0),
            changes: record.changes,
            replicas: record.replicas.clone(),
            is_at_upstream: false,
        };
        let sealed = own.records.values().filter(|record| record.sealed.is_some());
        let segments: Vec<SegmentFacts> = sealed.map(facts).collect();
        let storage = |other: &NodeId| StorageNode { node: *other, is_reachable: self.reaches(node, *other) };
        let nodes: Vec<StorageNode> = self.nodes.keys().map(storage).collect();
        // A task that fails again and again must not keep others from their turn.
        let failed = own.failed_repairs.iter().filter(|(_, failed)| failed.until > self.now);
        let busy: BTreeSet<SegmentId> = own.repairs.keys().chain(failed.map(|(id, _)| id)).copied().collect();
        let input = RepairInput {
            own: node,
            copies: COPIES,
            nodes: &nodes,
            segments: &segments,
            busy: &busy,
            tasks_max: TASKS_MAX,
        };
        next_tasks_by(&input, self.rules)
    }

    fn begin_repair(&mut self, node: NodeId, task: RepairTask) {
        let (segment, start) = (task.segment, self.nodes[&node].start);
        self.node(node).repairs.insert(segment, task);
        let delay = self.rng.u64(20..300);
        self.schedule(delay, Event::RepairDone { node, start, segment });
    }

    pub(super) fn repair_done(&mut self, node: NodeId, segment: SegmentId) {
        let Some(task) = self.nodes[&node].repairs.get(&segment).cloned() else { return };
        let record = self.nodes[&node].records[&segment].clone();
        let is_own = |replica: &ReplicaFacts| replica.node == node;
        let mut replicas = record.replicas.clone();
        let is_done = match task.kind {
            RepairKind::Drop => {
                replicas.retain(|replica| !is_own(replica));
                true
            }
            RepairKind::Copy | RepairKind::Heal => {
                match replicas.iter_mut().find(|replica| is_own(replica)) {
                    Some(replica) => replica.is_suspect = false,
                    None => replicas.push(ReplicaFacts { node, is_suspect: false }),
                }
                self.make_replica(node, &task, &record)
            }
        };
        if is_done {
            let command = SimCommand::SetReplicas { segment, changes: task.changes, replicas };
            self.propose(node, command, Purpose::Repair(segment));
        } else {
            let now = self.now;
            let node = self.node(node);
            node.repairs.remove(&segment);
            let delay = node.failed_repairs.get(&segment).map_or(RETRY_MS, |failed| failed.next_delay);
            let failed = FailedRepair { until: now + delay, next_delay: delay * 2 };
            node.failed_repairs.insert(segment, failed);
        }
    }

    pub(super) fn repair_outcome(&mut self, node: NodeId, segment: SegmentId) {
        self.node(node).repairs.remove(&segment);
    }

    /// Writes all of a segment from verified records, if the sources and this node have all of them.
    fn make_replica(&mut self, node: NodeId, task: &RepairTask, record: &SimRecord) -> bool {
        let length = record.sealed.unwrap_or(0);
        let mut content = vec![Cell::Garbage; cells(length)];
        for source in [node].iter().chain(&task.sources).filter(|source| self.reaches(node, **source)) {
            let Some(file) = self.nodes[source].disk.get(&record.segment) else { continue };
            let Some(found) = &file.current.cells else { continue };
            for at in file.current.valid().into_iter().flat_map(cells_of) {
                if let Some(cell) = content.get_mut(at) {
                    *cell = found[at];
                }
            }
        }
        let bad_everywhere: BTreeSet<usize> = record.damage.iter().copied().flat_map(cells_of).collect();
        let is_bad = |(at, cell): (usize, &Cell)| *cell == Cell::Garbage && !bad_everywhere.contains(&at);
        if content.iter().enumerate().any(is_bad) {
            return false;
        }
        let file = self.node(node).disk.entry(record.segment).or_default();
        file.current.cells = Some(content);
        file.sync();
        self.truth.verified(node, record.segment);
        self.touched.insert(record.segment);
        true
    }

    /// Marks replicas whose bytes do not verify.
    fn scrub(&mut self, node: NodeId) {
        let own = &self.nodes[&node];
        let is_bad = |record: &&SimRecord| {
            let Some(length) = record.sealed else { return false };
            let is_good = record.replica_of(node).is_some_and(|replica| !replica.is_suspect);
            let file = own.disk.get(&record.segment);
            let valid = file.map(|file| file.current.valid()).unwrap_or_default();
            let valid = StretchSet::of(valid.into_iter().chain(record.damage.iter().copied()));
            is_good && !StretchSet::prefix(length).without(&valid).is_empty()
        };
        let busy = &own.repairs;
        let marked = own.records.values().filter(|record| !busy.contains_key(&record.segment));
        for record in marked.filter(is_bad).cloned().collect::<Vec<_>>() {
            let mut replicas = record.replicas.clone();
            for replica in replicas.iter_mut().filter(|replica| replica.node == node) {
                replica.is_suspect = true;
            }
            let (segment, changes) = (record.segment, record.changes);
            let command = SimCommand::SetReplicas { segment, changes, replicas };
            self.propose(node, command, Purpose::Repair(segment));
        }
    }
}
