//! Faults of the simulation. Each schedule has its own mix: some faults often, some never.

use super::disk::SimFile;
use super::network::BulkSpeed;
use super::world::{Event, Phase, World};
use crate::health::PeerHealth;
use fastrand::Rng;
use mlgw_common::{NodeId, SegmentId};

/// Kind of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScheduleKind {
    /// Any fault.
    Faults,
    /// One node is slow or hangs, and nothing else happens.
    SlowNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    ToggleLink,
    HealLinks,
    Isolate,
    Kill,
    PowerCut,
    PowerCutAll,
    LoseDirectory,
    Replace,
    Damage,
    DamageEverywhere,
    DamageEach,
    Elect,
    Suspect,
    ChangeQuorum,
    Slow,
}

const KINDS: [FaultKind; 15] = [
    FaultKind::ToggleLink,
    FaultKind::HealLinks,
    FaultKind::Isolate,
    FaultKind::Kill,
    FaultKind::PowerCut,
    FaultKind::PowerCutAll,
    FaultKind::LoseDirectory,
    FaultKind::Replace,
    FaultKind::Damage,
    FaultKind::DamageEverywhere,
    FaultKind::DamageEach,
    FaultKind::Elect,
    FaultKind::Suspect,
    FaultKind::ChangeQuorum,
    FaultKind::Slow,
];

/// The mix of a schedule.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    pub(super) kind: ScheduleKind,
    pub(super) nodes: u64,
    /// Weights of the faults.
    weights: [u32; KINDS.len()],
    /// Mean time between two faults.
    fault_ms: u64,
    /// Mean time between two appends.
    pub(super) client_ms: u64,
    /// Most cells of a segment.
    pub(super) full_cells: usize,
    /// Per thousand: commands that are committed late, segments whose primary is suspected at once, and
    /// power cuts at critical points.
    pub(super) late_commits: u64,
    pub(super) suspect_at_once: u64,
    critical_cuts: u64,
    /// Per thousand: requests to open that are late.
    pub(super) late_opens: u64,
    /// Percent of ticks at which a node applies nothing.
    pub(super) late_apply: u64,
    pub(super) bulk: BulkSpeed,
    pub(super) starts_with_quorum_of_all: bool,
    /// Nodes that may still lose all replicas.
    losses: u32,
}

impl Swarm {
    pub(super) fn choose(rng: &mut Rng) -> Self {
        let kind = if rng.u8(0..10) == 0 { ScheduleKind::SlowNode } else { ScheduleKind::Faults };
        let mut weights = [0; KINDS.len()];
        for weight in &mut weights {
            *weight = if rng.bool() { 0 } else { rng.u32(1..10) };
        }
        let is_calm = kind == ScheduleKind::SlowNode;
        let often = |rng: &mut Rng, most: u64| if is_calm || rng.bool() { 0 } else { rng.u64(0..most) };
        Self {
            kind,
            nodes: *rng.choice(&[2, 3, 3, 3, 4, 5]).unwrap_or(&3),
            weights,
            fault_ms: rng.u64(50..600),
            client_ms: rng.u64(15..80),
            full_cells: rng.usize(10..120),
            late_commits: often(rng, 300),
            suspect_at_once: often(rng, 400),
            critical_cuts: often(rng, 150),
            late_opens: often(rng, 400),
            late_apply: often(rng, 95),
            bulk: if rng.bool() { BulkSpeed::Uneven } else { BulkSpeed::Even },
            starts_with_quorum_of_all: rng.u8(0..3) == 0,
            losses: rng.u32(0..3),
        }
    }
}

impl World {
    pub(super) fn fault(&mut self) {
        if self.phase == Phase::Calm {
            return;
        }
        match self.swarm.kind {
            ScheduleKind::SlowNode => self.slow_one(),
            ScheduleKind::Faults => {
                let total: u32 = self.swarm.weights.iter().sum();
                let mut at = if total > 0 { self.rng.u32(0..total) } else { return };
                for (kind, weight) in KINDS.into_iter().zip(self.swarm.weights) {
                    if at < weight {
                        self.inject(kind);
                        break;
                    }
                    at -= weight;
                }
                let delay = self.rng.u64(1..self.swarm.fault_ms * 2);
                self.schedule(delay, Event::Fault);
            }
        }
    }

    fn any_node(&mut self) -> NodeId {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        *self.rng.choice(&nodes).expect("there are nodes")
    }

    fn inject(&mut self, kind: FaultKind) {
        let (node, other) = (self.any_node(), self.any_node());
        match kind {
            FaultKind::ToggleLink => self.network.toggle(node, other),
            FaultKind::HealLinks => self.network.heal_all(),
            FaultKind::Isolate => self.nodes.keys().for_each(|other| self.network.cut(node, *other)),
            FaultKind::Kill => self.stop_for_a_while(node),
            FaultKind::PowerCut => self.power_cut(node),
            FaultKind::PowerCutAll => {
                self.nodes
                    .keys()
                    .copied()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|node| self.power_cut(node));
            }
            FaultKind::LoseDirectory => self.lose_directory(node),
            FaultKind::Replace => self.replace(node),
            FaultKind::Damage => self.damage(DamageOf::OneReplica),
            FaultKind::DamageEverywhere => self.damage(DamageOf::OneRecordEverywhere),
            FaultKind::DamageEach => self.damage(DamageOf::OneRecordOfEach),
            FaultKind::Elect => self.elect(),
            FaultKind::Suspect => {
                let open = self.group.records.values().filter(|record| record.sealed.is_none());
                let open: Vec<SegmentId> = open.map(|record| record.segment).collect();
                self.suspected.extend(self.rng.choice(open));
            }
            FaultKind::ChangeQuorum => self.has_quorum_of_all = !self.has_quorum_of_all,
            FaultKind::Slow => {
                let slow = *self.rng.choice(&[0, 0, 20, 150, 350]).unwrap_or(&0);
                let hangs_until =
                    if self.rng.u8(0..4) == 0 { self.now + self.rng.u64(100..3_000) } else { 0 };
                let node = self.node(node);
                (node.slow_ms, node.hangs_until) = (slow, hangs_until);
            }
        }
        self.note(format_args!("{kind:?} {node} {other}"));
    }

    /// One node that does not lead becomes slow, or hangs to the end. The last two are not stopped by that.
    fn slow_one(&mut self) {
        let others = self.nodes.keys().copied().filter(|node| Some(*node) != self.group.leader);
        let Some(node) = self.rng.choice(others.collect::<Vec<_>>()) else { return };
        let hangs = self.nodes.len() > 2 && self.rng.bool();
        let slow = if self.nodes.len() == 2 { 350 } else { *self.rng.choice(&[150, 350]).unwrap_or(&350) };
        let node = self.node(node);
        node.slow_ms = slow;
        node.hangs_until = if hangs { u64::from(u32::MAX) } else { 0 };
    }

    /// Ends a process.
    fn stop(&mut self, node: NodeId) {
        if self.group.leader == Some(node) {
            self.group.leader = None;
        }
        let rules = self.rules;
        let stopped = self.node(node);
        stopped.is_up = false;
        stopped.belief = (None, 0);
        stopped.replicas.clear();
        stopped.primaries.clear();
        stopped.is_creating = false;
        stopped.recoveries.clear();
        stopped.attempts = 0;
        stopped.repairs.clear();
        stopped.failed_repairs.clear();
        stopped.health = PeerHealth::by(rules);
        stopped.unreachable_since.clear();
    }

    fn stop_for_a_while(&mut self, node: NodeId) {
        if !self.is_up(node) {
            return;
        }
        self.stop(node);
        let most = *self.rng.choice(&[50, 50, 500, 5_000]).unwrap_or(&50);
        let delay = self.rng.u64(10..most);
        self.schedule(delay, Event::Restart { node });
    }

    pub(super) fn restart(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node).filter(|node| !node.is_up) {
            node.is_up = true;
            node.start += 1;
        }
    }

    pub(super) fn power_cut(&mut self, node: NodeId) {
        self.stop_for_a_while(node);
        let Some(stopped) = self.nodes.get_mut(&node) else { return };
        for (segment, file) in &mut stopped.disk {
            file.power_cut(&mut self.rng);
            self.touched.insert(*segment);
        }
    }

    /// At a critical point the power is cut more often.
    pub(super) fn may_fail_now(&mut self, node: NodeId) {
        if self.phase == Phase::Faults && self.rng.u64(0..1_000) < self.swarm.critical_cuts {
            let (delay, start) = (self.rng.u64(0..30), self.nodes[&node].start);
            self.schedule(delay, Event::PowerCut { node, start });
        }
    }

    fn may_lose(&mut self) -> bool {
        let may = self.swarm.losses > 0;
        self.swarm.losses = self.swarm.losses.saturating_sub(1);
        may
    }

    /// A node restarts with an empty directory, and knows that its replicas are lost.
    fn lose_directory(&mut self, node: NodeId) {
        if !self.may_lose() {
            return;
        }
        self.stop_for_a_while(node);
        self.lose_replicas(node);
        let until = SegmentId(self.group.next_segment);
        let node = self.node(node);
        node.disk.clear();
        node.lost_until = until;
    }

    /// A node starts from an old image of its disks. Its peers refuse it at the handshake, for its counter of
    /// starts is too low; it is removed, and joins under a new id.
    fn replace(&mut self, node: NodeId) {
        if self.nodes.len() < 3 || !self.may_lose() {
            return;
        }
        if self.is_up(node) {
            self.stop(node);
        }
        self.lose_replicas(node);
        self.nodes.remove(&node);
        self.remove_node(node);
        let all = self.nodes.keys().chain(&self.group.removed);
        let new = NodeId(all.map(|node| node.0).max().unwrap_or(0) + 1);
        self.add_node(new);
    }

    fn lose_replicas(&mut self, node: NodeId) {
        self.note(format_args!("all replicas of {node} are lost"));
        self.truth.lost_node(node);
        self.touched.extend(self.group.records.keys().copied());
    }

    fn damage(&mut self, of: DamageOf) {
        // A segment with one replica is the most interesting one.
        let single = |record: &&super::group::SimRecord| record.replicas.len() == 1;
        let records = self.group.records.values();
        let mut segments: Vec<SegmentId> =
            records.clone().filter(single).map(|record| record.segment).collect();
        if segments.is_empty() || self.rng.bool() {
            segments = records.map(|record| record.segment).collect();
        }
        let Some(segment) = self.rng.choice(segments) else { return };
        let nodes = self.group.records[&segment].nodes();
        let count = self.truth.segments[&segment].records.len();
        if count == 0 {
            return;
        }
        let mut record = self.rng.usize(0..count);
        let chosen = *self.rng.choice(&nodes).unwrap_or(&NodeId(0));
        let targets = if of == DamageOf::OneReplica { vec![chosen] } else { nodes };
        for node in targets {
            let of_record = self.truth.segments[&segment].records[record];
            self.damage_cells(node, segment, of_record.begin..of_record.end);
            if of == DamageOf::OneRecordOfEach {
                record = (record + 1) % count;
            }
        }
        self.touched.insert(segment);
    }

    fn damage_cells(&mut self, node: NodeId, segment: SegmentId, range: std::ops::Range<usize>) {
        let file: Option<&mut SimFile> =
            self.nodes.get_mut(&node).and_then(|node| node.disk.get_mut(&segment));
        let Some(file) =
            file.filter(|file| file.durable.cells.as_ref().is_some_and(|cells| cells.len() >= range.end))
        else {
            return;
        };
        file.damage(range.clone());
        self.truth.damaged(node, segment, range, self.now);
    }

    /// Ends all faults.
    pub(super) fn calm_down(&mut self) {
        self.phase = Phase::Calm;
        self.network.heal_all();
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.restart(node);
            let node = self.node(node);
            (node.slow_ms, node.hangs_until) = (0, 0);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DamageOf {
    OneReplica,
    OneRecordEverywhere,
    OneRecordOfEach,
}
