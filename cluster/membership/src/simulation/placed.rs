//! A group of objects whose set changes: nodes of the set are replaced, the group moves to another set, and
//! nodes fail, are drained and removed meanwhile. All are storage nodes. A node that leaves is in the set
//! until another one takes its place.

use super::raft::SimRaft;
use super::world::{ENTRY_BYTES, LIMITS, TICK_MS};
use crate::decision::{MemberStep, VoterChange, decide_by};
use crate::facts::{ChangeState, Contact, DecisionInput, DecisionLimits, MemberFacts, SystemMembership};
use crate::places::MemberPlace;
use crate::rules::RuleSet;
use fastrand::Rng;
use mlgw_common::NodeId;
use mlgw_formats::schema::{NodeRole, NodeState};
use std::collections::{BTreeMap, BTreeSet};

const NODES: u64 = 7;

struct PlacedWorld {
    raft: SimRaft,
    states: BTreeMap<NodeId, NodeState>,
    /// Nodes of the set.
    set: BTreeSet<NodeId>,
    /// Nodes that learn although they are not in the set.
    learning: BTreeSet<NodeId>,
    now_ms: u64,
    rules: RuleSet,
    rng: Rng,
}

/// Runs a schedule. Returns the first violation.
pub(super) fn run(seed: u64, rules: RuleSet) -> Result<(), String> {
    let mut world = PlacedWorld::new(seed, rules);
    for _ in 0..world.rng.usize(50..200) {
        world.fault();
        world.operate();
        world.tick()?;
        world.maybe_abandon();
    }
    world.calm_down();
    for _ in 0..150 {
        world.tick()?;
    }
    world.goal_is_reached()
}

fn require(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

impl PlacedWorld {
    fn new(seed: u64, rules: RuleSet) -> Self {
        let mut raft = SimRaft::new(NodeId(1));
        (2..=NODES).for_each(|node| raft.add_process(NodeId(node), 0));
        let set = [1, 2, 3].map(NodeId).into();
        let states = (1..=NODES).map(|node| (NodeId(node), NodeState::Active)).collect();
        Self { raft, states, set, learning: BTreeSet::new(), now_ms: 0, rules, rng: Rng::with_seed(seed) }
    }

    fn is_active(&self, node: NodeId) -> bool {
        self.states[&node] == NodeState::Active
    }

    /// Every node returns. Nodes that leave are replaced in the set.
    fn calm_down(&mut self) {
        for node in (1..=NODES).map(NodeId) {
            self.raft.set_up(node, true, self.now_ms);
        }
        for node in self.set.clone().into_iter().filter(|node| !self.is_active(*node)).collect::<Vec<_>>() {
            let mut others = (1..=NODES).map(NodeId);
            let new = others.find(|other| self.is_active(*other) && !self.set.contains(other));
            self.set.remove(&node);
            self.set.extend(new);
        }
    }

    fn place(&self, node: NodeId) -> MemberPlace {
        match (self.set.contains(&node), self.learning.contains(&node)) {
            (true, _) => MemberPlace::Votes,
            (false, true) => MemberPlace::Learns,
            (false, false) => MemberPlace::Leaves,
        }
    }

    fn fault(&mut self) {
        for node in (1..=NODES).map(NodeId) {
            let chance = if self.raft.is_up(node) { 60 } else { 12 };
            if self.rng.u32(0..chance) == 0 {
                self.raft.set_up(node, !self.raft.is_up(node), self.now_ms);
            }
        }
    }

    /// Replaces one node of the set, or the whole set, which may share nodes with the former one.
    fn operate(&mut self) {
        let (former, drawn) = (self.set.clone(), self.draw(3));
        match self.rng.u8(0..40) {
            0 => self.set = drawn,
            1 => {
                let new = drawn.into_iter().find(|node| !self.set.contains(node));
                let old = self.set.iter().next().copied();
                self.set.extend(new);
                if let Some(old) = old.filter(|_| self.set.len() > former.len()) {
                    self.set.remove(&old);
                }
            }
            2 | 3 => return self.change_state(),
            _ => return,
        }
        let guests = self.rng.usize(0..3);
        self.learning = if self.rng.bool() { former } else { self.draw(guests) };
    }

    /// A node is drained, removed, or active again: a removed node that is active again models a new one.
    fn change_state(&mut self) {
        let node = NodeId(self.rng.u64(1..=NODES));
        let active = self.states.values().filter(|state| **state == NodeState::Active).count();
        let state = match (self.rng.bool(), self.is_active(node)) {
            (_, false) => NodeState::Active,
            (_, true) if active <= 4 => NodeState::Active,
            (true, true) => NodeState::Draining,
            (false, true) => NodeState::Leaving,
        };
        self.states.insert(node, state);
    }

    /// Active nodes.
    fn draw(&mut self, count: usize) -> BTreeSet<NodeId> {
        let mut nodes: Vec<NodeId> = (1..=NODES).map(NodeId).filter(|node| self.is_active(*node)).collect();
        self.rng.shuffle(&mut nodes);
        nodes.into_iter().take(count).collect()
    }

    /// Sometimes the leader fails after a step, or gives a change up half-way.
    fn maybe_abandon(&mut self) {
        let Some(leader) = self.raft.leader.filter(|_| self.rng.u8(0..30) == 0) else { return };
        match self.rng.bool() {
            true => self.raft.set_up(leader, false, self.now_ms),
            false => self.raft.abandon_change(),
        }
    }

    fn tick(&mut self) -> Result<(), String> {
        self.now_ms += TICK_MS;
        self.raft.tick(&mut self.rng, self.now_ms);
        if let Some(leader) = self.raft.leader {
            let step = decide_by(&self.input(leader), self.rules);
            let allowed = self.step_is_allowed(&step);
            allowed.map_err(|why| {
                format!("{why}: {step:?} with {:?} in {:?}", self.raft.membership(), self.set)
            })?;
            self.raft.carry_out(step, self.now_ms);
        }
        self.raft.violation.clone().map_or(Ok(()), Err)
    }

    fn input(&self, leader: NodeId) -> DecisionInput {
        let facts = |node: NodeId| {
            let replica = &self.raft.replicas[&node];
            let for_ms = self.now_ms - replica.changed_ms.max(self.raft.led_since_ms);
            let contact = match replica.is_up {
                true if node == leader => Contact::Reachable { for_ms: u64::MAX },
                true => Contact::Reachable { for_ms },
                false => Contact::Unreachable { for_ms },
            };
            let lag = if node == leader { Some(0) } else { self.raft.known_lag(node) };
            let lag_bytes = lag.map(|entries| entries as u64 * ENTRY_BYTES);
            let (role, state, place) = (NodeRole::Storage, self.states[&node], self.place(node));
            let (is_in_set, has_all_groups, is_held) = (self.set.contains(&node), true, false);
            let facts =
                MemberFacts { role, state, place, is_in_set, has_all_groups, is_held, contact, lag_bytes };
            (node, facts)
        };
        DecisionInput {
            leader,
            membership: self.raft.membership().unwrap_or_default(),
            change: if self.raft.is_changing() { ChangeState::InProgress } else { ChangeState::Committed },
            nodes: (1..=NODES).map(NodeId).map(facts).collect(),
            limits: DecisionLimits { voters_max: 3, ..LIMITS },
            is_system: false,
            failed: BTreeSet::new(),
        }
    }

    fn step_is_allowed(&self, step: &MemberStep) -> Result<(), String> {
        let membership = self.raft.membership().unwrap_or_default();
        match step {
            MemberStep::Idle | MemberStep::Wait(_) => Ok(()),
            MemberStep::AddLearner(node) => {
                require(self.place(*node) != MemberPlace::Leaves, "a node without a place is added")
            }
            MemberStep::RemoveLearner(node) => {
                require(membership.learners.contains(node), "it is no learner")?;
                let is_leaving = self.states[node] == NodeState::Leaving;
                let has_place = self.place(*node) != MemberPlace::Leaves;
                require(is_leaving || !has_place, "a node with a place is removed")
            }
            MemberStep::ChangeVoters(change) => self.change_is_allowed(&membership, change),
            MemberStep::TransferLeader { to } => {
                require(membership.voters.contains(to) && self.raft.is_up(*to), "the node cannot lead")
            }
            MemberStep::RecordRemoval(_) => Err("a group of objects records a removal".to_owned()),
        }
    }

    fn change_is_allowed(&self, before: &SystemMembership, change: &VoterChange) -> Result<(), String> {
        let after = &change.voters;
        if before.outgoing.is_some() {
            return require(*after == before.voters, "a change begins during a joint change");
        }
        require([1, 3].contains(&after.len()), "the number of voters is wrong")?;
        require(after.len() >= before.voters.len(), "voters become fewer")?;
        let staying = |voters: &BTreeSet<NodeId>| {
            voters.iter().filter(|node| self.states[node] != NodeState::Leaving).count()
        };
        require(staying(after) >= staying(&before.voters), "voters that stay become fewer")?;
        let up = after.iter().filter(|node| self.raft.is_up(**node)).count();
        require(up > after.len() / 2, "too few of the voters afterwards are reachable")?;
        let new = after - &before.voters;
        require(new.is_subset(&self.set), "a node outside of the set gets a vote")?;
        let lacks = |node: &NodeId| self.raft.lag(*node) as u64 * ENTRY_BYTES > LIMITS.promote_lag_bytes;
        require(!new.iter().any(lacks), "a node that lacks bytes gets a vote")?;
        let leader = self.raft.leader.ok_or("there is no leader")?;
        require(after.contains(&leader), "the leader leaves without a transfer")
    }

    /// Checks the membership after a long calm.
    fn goal_is_reached(&self) -> Result<(), String> {
        let membership = self.raft.membership().ok_or("there is no leader")?;
        let described = |what: &str| format!("{what}: {membership:?} in {:?}, {:?}", self.set, self.learning);
        let is_over = membership.outgoing.is_none() && !self.raft.is_changing();
        require(is_over, &described("a change is unfinished"))?;
        require(membership.voters == self.set, &described("the nodes of the set are not the voters"))?;
        let stays = |node: &NodeId| self.set.contains(node) || self.states[node] != NodeState::Leaving;
        let members: BTreeSet<NodeId> = (&self.set | &self.learning).into_iter().filter(stays).collect();
        require(
            membership.members() == members,
            &described("other nodes than those with a place are members"),
        )?;
        require(self.raft.leader.is_some_and(|leader| self.set.contains(&leader)), "a node outside leads")
    }
}
