//! The cluster of a schedule: records of nodes, an operator, faults, and the driver that carries steps out.

use super::checks;
use super::raft::SimRaft;
use crate::decision::{MemberStep, decide_by};
use crate::facts::{ChangeState, Contact, DecisionInput, DecisionLimits, MemberFacts};
use crate::places::MemberPlace;
use crate::rules::RuleSet;
use fastrand::Rng;
use mlgw_common::NodeId;
use mlgw_formats::schema::{NodeRole, NodeState};
use std::collections::{BTreeMap, BTreeSet};

/// Time between two decisions.
pub(super) const TICK_MS: u64 = 1_000;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: u64 = 64 << 10;

/// Most nodes at once.
const NODES_AT_ONCE: usize = 9;

pub(super) const LIMITS: DecisionLimits = DecisionLimits {
    voters_max: 5,
    promote_lag_bytes: 8 * ENTRY_BYTES,
    promote_after_ms: 3 * TICK_MS,
    replace_after_ms: 60 * TICK_MS,
};

/// Record of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimRecord {
    pub(super) role: NodeRole,
    pub(super) state: NodeState,
}

/// Operators and faults of a phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No node fails, and no operator changes the cluster.
    Calm,
    /// Anything may happen.
    Faults,
}

pub(super) struct World {
    pub(super) raft: SimRaft,
    pub(super) records: BTreeMap<NodeId, SimRecord>,
    pub(super) now_ms: u64,
    /// Steps that changed something.
    pub(super) trace: Vec<String>,
    pub(super) violation: Option<String>,
    /// A node that is down for good.
    pub(super) lost: Option<NodeId>,
    rules: RuleSet,
    rng: Rng,
}

impl World {
    pub(super) fn new(seed: u64, rules: RuleSet) -> Self {
        let first = SimRecord { role: NodeRole::Storage, state: NodeState::Active };
        Self {
            raft: SimRaft::new(NodeId(1)),
            records: BTreeMap::from([(NodeId(1), first)]),
            now_ms: 0,
            trace: Vec::new(),
            violation: None,
            lost: None,
            rules,
            rng: Rng::with_seed(seed),
        }
    }

    /// Some nodes join while nothing fails.
    pub(super) fn grow(&mut self) {
        for _ in 0..self.rng.usize(0..8) {
            self.join();
            for _ in 0..self.rng.usize(0..20) {
                self.tick(Phase::Calm);
            }
        }
    }

    pub(super) fn fail_at_random(&mut self) {
        for _ in 0..self.rng.usize(50..250) {
            self.tick(Phase::Faults);
        }
    }

    /// Every node returns, and nothing happens for long. Draining nodes stay so in half of the schedules.
    pub(super) fn calm_down(&mut self) {
        for (node, record) in self.records.clone() {
            if record.state != NodeState::Removed {
                self.raft.set_up(node, true, self.now_ms);
            }
        }
        if self.rng.bool() {
            for record in self.records.values_mut().filter(|record| record.state == NodeState::Draining) {
                record.state = NodeState::Active;
            }
        }
        for _ in 0..200 {
            self.tick(Phase::Calm);
        }
    }

    /// One node other than the leader is lost for long.
    pub(super) fn fail_one_for_long(&mut self) {
        let Some(membership) = self.raft.membership().filter(|of| of.voters.len() >= 3) else { return };
        let others = membership.voters.into_iter().filter(|node| Some(*node) != self.raft.leader);
        let Some(lost) = self.rng.choice(others.collect::<Vec<_>>()) else { return };
        self.raft.set_up(lost, false, self.now_ms);
        self.lost = Some(lost);
        for _ in 0..120 {
            self.tick(Phase::Calm);
        }
    }

    fn tick(&mut self, phase: Phase) {
        if self.violation.is_some() {
            return;
        }
        self.now_ms += TICK_MS;
        if phase == Phase::Faults {
            self.fault();
            if self.rng.u8(0..3) == 0 {
                self.operate();
            }
        }
        self.raft.tick(&mut self.rng, self.now_ms);
        self.become_active();
        self.drive(phase);
        if self.violation.is_none() {
            self.violation.clone_from(&self.raft.violation);
        }
    }

    /// Facts as the leader knows them.
    fn input(&self, leader: NodeId) -> DecisionInput {
        let facts = |(node, record): (&NodeId, &SimRecord)| {
            let replica = &self.raft.replicas[node];
            let for_ms = self.now_ms - replica.changed_ms.max(self.raft.led_since_ms);
            let contact = match replica.is_up {
                true if *node == leader => Contact::Reachable { for_ms: u64::MAX },
                true => Contact::Reachable { for_ms },
                false => Contact::Unreachable { for_ms },
            };
            let lag = if *node == leader { Some(0) } else { self.raft.known_lag(*node) };
            let lag_bytes = lag.map(|entries| entries as u64 * ENTRY_BYTES);
            let SimRecord { role, state } = *record;
            let (place, is_in_set, has_all_groups, is_held) = (MemberPlace::Votes, false, true, false);
            let facts =
                MemberFacts { role, state, place, is_in_set, has_all_groups, is_held, contact, lag_bytes };
            (*node, facts)
        };
        DecisionInput {
            leader,
            membership: self.raft.membership().unwrap_or_default(),
            change: if self.raft.is_changing() { ChangeState::InProgress } else { ChangeState::Committed },
            nodes: self.records.iter().map(facts).collect(),
            limits: LIMITS,
            is_system: true,
            failed: BTreeSet::new(),
        }
    }

    /// Decides and carries the step out. It may fail, and its leader may fail right after it.
    fn drive(&mut self, phase: Phase) {
        let Some(leader) = self.raft.leader else { return };
        let step = decide_by(&self.input(leader), self.rules);
        if let Err(why) = checks::step_is_allowed(self, &step) {
            self.violation.get_or_insert(format!("{why}: {step:?} with {:?}", self.raft.membership()));
            return;
        }
        if phase == Phase::Faults && self.rng.u8(0..8) == 0 {
            return;
        }
        self.carry_out(step);
        if phase == Phase::Faults && self.rng.u8(0..20) == 0 {
            match self.rng.bool() {
                true => self.raft.set_up(leader, false, self.now_ms),
                false => self.raft.abandon_change(),
            }
        }
    }

    fn carry_out(&mut self, step: MemberStep) {
        if !matches!(step, MemberStep::Idle | MemberStep::Wait(_)) {
            self.trace.push(format!("{step:?}"));
        }
        if let MemberStep::RecordRemoval(node) = step
            && let Some(record) = self.records.get_mut(&node).filter(|_| self.raft.can_commit())
        {
            record.state = NodeState::Removed;
            self.raft.set_up(node, false, self.now_ms);
        }
        self.raft.carry_out(step, self.now_ms);
    }

    /// A joining node that has caught up reports that it serves.
    fn become_active(&mut self) {
        let can_commit = self.raft.can_commit();
        for (node, record) in &mut self.records {
            let is_ready = self.raft.is_up(*node) && self.raft.lag(*node) < 20;
            if record.state == NodeState::Joining && is_ready && can_commit && self.rng.u8(0..4) == 0 {
                record.state = NodeState::Active;
            }
        }
    }

    fn fault(&mut self) {
        for (node, record) in self.records.clone() {
            let is_gone = record.state == NodeState::Removed;
            let chance = if self.raft.is_up(node) { 40 } else { 15 };
            if !is_gone && self.rng.u32(0..chance) == 0 {
                self.raft.set_up(node, !self.raft.is_up(node), self.now_ms);
            }
        }
    }

    /// An operator changes a record, or several at once. It needs a leader that commits.
    fn operate(&mut self) {
        if !self.raft.can_commit() {
            return;
        }
        match self.rng.u8(0..12) {
            0..=2 => self.join(),
            3 | 4 => self.with_node(Self::remove),
            5 | 6 => self.with_node(Self::drain),
            7 | 8 => self.with_node(Self::undrain),
            9 => self.with_node(Self::change_role),
            10 => {
                self.with_node(Self::remove);
                self.with_node(Self::remove);
            }
            _ => {}
        }
    }

    fn join(&mut self) {
        let staying = self.records.values().filter(|record| record.state != NodeState::Removed).count();
        if staying >= NODES_AT_ONCE {
            return;
        }
        let node = NodeId(self.records.len() as u64 + 1);
        let role = if self.rng.u8(0..5) == 0 { NodeRole::Gateway } else { NodeRole::Storage };
        self.records.insert(node, SimRecord { role, state: NodeState::Joining });
        self.raft.add_process(node, self.now_ms);
    }

    fn with_node(&mut self, change: fn(&mut Self, NodeId)) {
        let staying = self.records.iter().filter(|(_, record)| record.state != NodeState::Removed);
        if let Some(node) = self.rng.choice(staying.map(|(node, _)| *node).collect::<Vec<_>>()) {
            change(self, node);
        }
    }

    /// True if another active node stores data: commands refuse to remove the last one.
    fn has_other_storage(&self, node: NodeId) -> bool {
        self.records.iter().any(|(other, record)| {
            *other != node && record.role == NodeRole::Storage && record.state == NodeState::Active
        })
    }

    fn set_state(&mut self, node: NodeId, state: NodeState) {
        if let Some(record) = self.records.get_mut(&node) {
            record.state = state;
        }
    }

    fn remove(&mut self, node: NodeId) {
        if self.records[&node].role == NodeRole::Gateway || self.has_other_storage(node) {
            self.set_state(node, NodeState::Leaving);
        }
    }

    fn drain(&mut self, node: NodeId) {
        if self.records[&node].state == NodeState::Active && self.has_other_storage(node) {
            self.set_state(node, NodeState::Draining);
        }
    }

    fn undrain(&mut self, node: NodeId) {
        if self.records[&node].state == NodeState::Draining {
            self.set_state(node, NodeState::Active);
        }
    }

    fn change_role(&mut self, node: NodeId) {
        let has_other = self.has_other_storage(node);
        let Some(record) = self.records.get_mut(&node) else { return };
        let is_free = matches!(record.state, NodeState::Draining | NodeState::Joining) && has_other;
        record.role = match record.role {
            NodeRole::Storage if is_free => NodeRole::Gateway,
            NodeRole::Storage | NodeRole::Gateway => NodeRole::Storage,
        };
    }
}
