//! Faults of the simulation. Each schedule has its own mix: some faults often, some never.

use super::world::{Event, QUORUM, World};
use crate::repair::COPIES;
use crate::rules::ReplicationRule;
use fastrand::Rng;
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeMap;

/// Kind of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScheduleKind {
    /// Any fault.
    Faults,
    /// Any fault but lost bytes, and a node that never returns.
    NodeGone,
    /// Any fault, nodes that are drained, one that is lost and removed, and a set whose nodes change.
    Leaving,
    /// One node has a slow network or disk, and nothing else happens.
    SlowNode,
}

#[derive(Clone, Copy, Debug)]
enum FaultKind {
    Kill,
    PowerCut,
    PowerCutAll,
    WipeDisk,
    Damage,
    BreakLink,
    HealLinks,
    CutOff,
    Coordinate,
    Drain,
    Undrain,
    Remove,
    ChangeSet,
}

const KINDS: [FaultKind; 13] = [
    FaultKind::Kill,
    FaultKind::PowerCut,
    FaultKind::PowerCutAll,
    FaultKind::WipeDisk,
    FaultKind::Damage,
    FaultKind::BreakLink,
    FaultKind::HealLinks,
    FaultKind::CutOff,
    FaultKind::Coordinate,
    FaultKind::Drain,
    FaultKind::Undrain,
    FaultKind::Remove,
    FaultKind::ChangeSet,
];

/// The mix of a schedule.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    pub(super) kind: ScheduleKind,
    pub(super) nodes: u64,
    weights: [u32; KINDS.len()],
    fault_ms: u64,
    /// Mean time between two appends.
    pub(super) append_ms: u64,
    /// Length from which a segment is sealed.
    pub(super) full: u64,
    /// Per thousand: commands that are recorded late, and calls on files that fail.
    pub(super) late_commits: u64,
    pub(super) failures: u64,
    has_slow_disk: bool,
    /// True if appends are acknowledged by all replicas of their segment, and not by two.
    is_quorum_of_all: bool,
}

impl Swarm {
    /// Write quorum of a segment with this number of replicas.
    pub(super) fn quorum_of(&self, replicas: usize) -> usize {
        if self.is_quorum_of_all { replicas } else { QUORUM }
    }

    pub(super) fn choose(rng: &mut Rng) -> Self {
        let kind = match rng.u8(0..10) {
            0 => ScheduleKind::SlowNode,
            1 => ScheduleKind::NodeGone,
            2..5 => ScheduleKind::Leaving,
            _ => ScheduleKind::Faults,
        };
        let mut weights = [0; KINDS.len()];
        for weight in &mut weights[..FaultKind::ChangeSet as usize] {
            *weight = if rng.bool() { 0 } else { rng.u32(1..10) };
        }
        let mut nodes = *rng.choice(&[2, 3, 3, 3, 4, 5]).unwrap_or(&3);
        if kind == ScheduleKind::NodeGone {
            weights[FaultKind::WipeDisk as usize] = 0;
            weights[FaultKind::Damage as usize] = 0;
            nodes = nodes.max(3);
        }
        if kind == ScheduleKind::Leaving {
            weights[FaultKind::Drain as usize] = 5;
            nodes = nodes.max(3);
            weights[FaultKind::ChangeSet as usize] = if nodes > 3 { 2 } else { 0 };
        } else {
            weights[FaultKind::Drain as usize..].fill(0);
        }
        let is_quiet = kind == ScheduleKind::SlowNode;
        let mut sometimes = |most: u64| if is_quiet || rng.bool() { 0 } else { rng.u64(0..most) };
        let (late_commits, failures) = (sometimes(300), sometimes(15));
        let has_slow_disk = rng.bool() && nodes > 2;
        Self {
            kind,
            nodes,
            weights,
            fault_ms: rng.u64(40..500),
            append_ms: if is_quiet { 5 } else { rng.u64(5..40) },
            full: if is_quiet { 100 } else { rng.u64(8..80) },
            late_commits,
            failures,
            has_slow_disk,
            // With all, a slow node delays every write until it is left out.
            is_quorum_of_all: !is_quiet && rng.u8(0..4) == 0,
        }
    }
}

impl World {
    pub(super) fn slow_down(&mut self) {
        if self.swarm.kind == ScheduleKind::SlowNode {
            let node = NodeId(self.rng.u64(1..=self.swarm.nodes));
            let slow = (self.rng.u64(200..330), self.rng.u64(400..460));
            let has_slow_disk = self.swarm.has_slow_disk;
            let of = self.node(node);
            (of.slow_disk_ms, of.slow_network_ms) = if has_slow_disk { (slow.0, 0) } else { (0, slow.1) };
        }
    }

    pub(super) fn fault(&mut self) {
        if self.is_calm || self.swarm.kind == ScheduleKind::SlowNode {
            return;
        }
        let total: u32 = self.swarm.weights.iter().sum();
        if total > 0 {
            let mut at = self.rng.u32(0..total);
            let chosen = KINDS.iter().zip(self.swarm.weights).find(|(_, weight)| {
                let is_hit = at < *weight;
                at = at.saturating_sub(*weight);
                is_hit
            });
            if let Some((kind, _)) = chosen {
                self.inject(*kind);
            }
        }
        let delay = self.rng.u64(1..=2 * self.swarm.fault_ms);
        self.schedule(delay, Event::Fault);
    }

    fn inject(&mut self, kind: FaultKind) {
        let node = NodeId(self.rng.u64(1..=self.swarm.nodes));
        let other = NodeId(self.rng.u64(1..=self.swarm.nodes));
        self.note(format_args!("fault {kind:?} at {node}, {other}"));
        match kind {
            FaultKind::Kill => self.kill(node, false),
            FaultKind::PowerCut => self.kill(node, true),
            FaultKind::PowerCutAll => self.ids().into_iter().for_each(|node| self.kill(node, true)),
            FaultKind::WipeDisk => self.wipe_disk(node),
            FaultKind::Damage => self.damage(node),
            FaultKind::BreakLink if node != other => {
                self.broken.insert((node.min(other), node.max(other)));
                self.end_sessions(node, other);
            }
            FaultKind::BreakLink => {}
            FaultKind::HealLinks => {
                self.broken.clear();
                self.cut_off.clear();
            }
            FaultKind::CutOff => {
                self.cut_off.insert(node);
            }
            FaultKind::Coordinate => {
                let open = self.records.iter().filter(|(_, record)| record.sealed.is_none());
                let open: Vec<SegmentId> = open.map(|(segment, _)| *segment).collect();
                if let Some(segment) = self.rng.choice(&open).copied().filter(|_| self.nodes[&node].is_up) {
                    self.start_recovery(node, segment);
                }
            }
            FaultKind::Drain if self.staying_without(node) >= QUORUM => {
                self.leaving.insert(node);
                self.has_left.insert(node);
            }
            FaultKind::Undrain => {
                self.leaving.remove(&node);
            }
            FaultKind::Remove if self.removed.is_empty() && self.staying_without(node) >= QUORUM => {
                self.remove(node);
            }
            FaultKind::ChangeSet => self.change_set(),
            FaultKind::Drain | FaultKind::Remove => {}
        }
    }

    /// Number of nodes that stay if this one leaves.
    fn staying_without(&self, node: NodeId) -> usize {
        let stays = |of: &&NodeId| **of != node && !self.leaving.contains(of) && !self.removed.contains(of);
        self.nodes.keys().filter(stays).count()
    }

    /// Draws the nodes of the set anew. They may be leaving already.
    fn change_set(&mut self) {
        let mut nodes = self.ids();
        nodes.retain(|node| !self.removed.contains(node));
        self.rng.shuffle(&mut nodes);
        let outside = nodes.split_off(nodes.len().min(COPIES));
        self.has_left.extend(outside);
        self.set = Some(nodes);
    }

    /// Fills the set with nodes that stay, for which those that leave make room.
    fn fill_set(&mut self) {
        let Some(mut nodes) = self.set.take() else { return };
        let stays = |of: &NodeId| !self.leaving.contains(of) && !self.removed.contains(of);
        nodes.retain(stays);
        let others = self.nodes.keys().copied().filter(stays).filter(|node| !nodes.contains(node));
        let others: Vec<NodeId> = others.take(COPIES.saturating_sub(nodes.len())).collect();
        nodes.extend(others);
        self.has_left.extend(self.nodes.keys().filter(|node| !nodes.contains(node)));
        self.set = Some(nodes);
    }

    /// Removes a node that is lost with its disk.
    fn remove(&mut self, node: NodeId) {
        self.kill(node, false);
        self.node(node).disk.clear();
        self.leaving.remove(&node);
        self.has_left.insert(node);
        self.removed.insert(node);
        let listed = self.records.iter().filter(|(_, record)| record.names(node));
        let listed: Vec<SegmentId> = listed.map(|(segment, _)| *segment).collect();
        for segment in listed {
            self.truth.losses.entry(segment).or_default().insert(node);
        }
        self.check_all();
    }

    /// Ends a process. Without power its disk loses what was not synced.
    fn kill(&mut self, node: NodeId, without_power: bool) {
        if self.nodes[&node].is_up {
            self.tear_own_writes(node);
            self.tear_followed_writes(node);
            self.node(node).is_up = false;
            let delay = self.rng.u64(20..2_500);
            self.schedule(delay, Event::Restart(node));
            for peer in self.ids() {
                if peer != node && self.rules.has(ReplicationRule::RightEndsWithRestart) {
                    self.end_sessions(node, peer);
                }
            }
        }
        if without_power {
            let mut disk = std::mem::take(&mut self.node(node).disk);
            disk.values_mut().for_each(|file| file.cut_power(&mut self.rng));
            self.node(node).disk = disk;
            self.check_all();
        }
    }

    fn wipe_disk(&mut self, node: NodeId) {
        self.kill(node, false);
        let lost = std::mem::take(&mut self.node(node).disk);
        for (segment, _) in lost.iter().filter(|(_, file)| file.length() > 0) {
            let is_listed = self.records.get(segment).is_some_and(|record| record.names(node));
            let losses = if is_listed { &mut self.truth.losses } else { &mut self.truth.unlisted_losses };
            losses.entry(*segment).or_default().insert(node);
        }
        self.check_all();
    }

    /// Damages a byte of a replica that has no loss yet, often the last one: without that one a replica looks
    /// as one that was never longer.
    fn damage(&mut self, node: NodeId) {
        let is_whole = |segment: &SegmentId| {
            !self.truth.losses.contains_key(segment)
                && self.records.get(segment).is_some_and(|record| record.names(node))
        };
        let of = &self.nodes[&node];
        let files = of.disk.iter().filter(|(segment, file)| is_whole(segment) && file.synced > 1);
        let files: Vec<SegmentId> = files.map(|(segment, _)| *segment).collect();
        let Some(segment) = self.rng.choice(&files).copied() else { return };
        self.truth.losses.entry(segment).or_default().insert(node);
        let synced = self.nodes[&node].disk[&segment].synced;
        let at = if self.rng.bool() { synced - 1 } else { self.rng.usize(1..synced) };
        if let Some(file) = self.node(node).disk.get_mut(&segment) {
            file.bytes[at] = false;
        }
        // A replica that is open is read when it is closed.
        let was_read = self.truth.closed.get(&segment).is_some_and(|closed| closed.contains_key(&node));
        if was_read || self.records[&segment].sealed.is_some() {
            self.schedule(1_000, Event::Scrub { node, segment });
        }
        self.check(segment);
    }

    pub(super) fn restart(&mut self, node: NodeId) {
        let is_gone = self.is_calm && self.is_gone(node);
        if self.nodes[&node].is_up || is_gone || self.removed.contains(&node) {
            return;
        }
        let keeps = !self.rules.has(ReplicationRule::RightEndsWithRestart);
        let old = self.node(node);
        let (start, disk) = (old.start + 1, std::mem::take(&mut old.disk));
        let followed = if keeps { std::mem::take(&mut old.followed) } else { BTreeMap::new() };
        let mut fresh = self.fresh_node(node, start, disk);
        fresh.followed = followed;
        self.nodes.insert(node, fresh);
        if keeps {
            self.keep_rights(node);
        }
    }

    /// True if the node never returns from the end of the faults on.
    pub(super) fn is_gone(&self, node: NodeId) -> bool {
        self.swarm.kind == ScheduleKind::NodeGone && node == NodeId(1)
    }

    /// Ends all faults. A node may stay away.
    pub(super) fn calm_down(&mut self) {
        self.note("calm");
        self.is_calm = true;
        self.broken.clear();
        self.cut_off.clear();
        self.fill_set();
        for node in self.ids() {
            if self.is_gone(node) {
                self.kill(node, false);
            } else {
                self.restart(node);
            }
            let of = self.node(node);
            (of.slow_disk_ms, of.slow_network_ms) = (0, 0);
        }
    }
}
