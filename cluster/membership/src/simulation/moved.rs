//! A cluster whose sets change while groups move: nodes join, some of them without ever answering, are
//! drained, replaced, lost and removed, several at a time. The decisions about sets and about the members of
//! every group work together here, over groups without logs: a member has the rows of its group, or lacks
//! them for some ticks.
//!
//! A node fails only if most voters of each group stay up, and three active nodes stay in the cluster.

use super::world::{LIMITS, TICK_MS};
use crate::decision::{MemberStep, decide_by};
use crate::facts::{ChangeState, Contact, DecisionInput, DecisionLimits, MemberFacts, SystemMembership};
use crate::places::{MemberPlace, SYSTEM_GROUP, SetRows, nodes_of};
use crate::rules::RuleSet;
use crate::sets::{GroupProgress, SetInput, SetStep, next_set_step};
use fastrand::Rng;
use mlgw_common::NodeId;
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{GroupSet, NodeRole, NodeSet, NodeState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NODES_MAX: u64 = 16;

/// Active nodes that no operator makes fewer: a set can always be filled.
const ACTIVE_MIN: usize = 3;

struct MovedNode {
    state: NodeState,
    is_up: bool,
    changed_ms: u64,
    /// True for a node that never answers again.
    is_lost: bool,
}

#[derive(Default)]
struct MovedGroup {
    membership: SystemMembership,
    leader: Option<NodeId>,
    /// Ticks until a member has the rows of the group.
    lacks: BTreeMap<NodeId, u64>,
}

impl MovedGroup {
    fn has_rows(&self, node: NodeId) -> bool {
        self.membership.contains(node) && !self.lacks.contains_key(&node)
    }

    fn voters(&self) -> impl Iterator<Item = &BTreeSet<NodeId>> {
        std::iter::once(&self.membership.voters).chain(&self.membership.outgoing)
    }
}

struct MovedWorld {
    nodes: BTreeMap<NodeId, MovedNode>,
    groups: BTreeMap<u32, MovedGroup>,
    sets: BTreeMap<u32, NodeSet>,
    assigned: BTreeMap<u32, GroupSet>,
    /// The rows of both.
    rows: SetRows,
    successors: BTreeMap<NodeId, NodeId>,
    is_rebalancing: bool,
    /// Steps and waits that occurred, by name.
    seen: BTreeSet<String>,
    now_ms: u64,
    rules: RuleSet,
    rng: Rng,
}

/// Runs a schedule. Returns the first violation.
pub(super) fn run(seed: u64, rules: RuleSet) -> Result<(), String> {
    run_in(&mut MovedWorld::new(seed, rules))
}

fn run_in(world: &mut MovedWorld) -> Result<(), String> {
    for _ in 0..world.rng.usize(60..240) {
        world.fault();
        world.operate();
        world.tick()?;
    }
    world.calm_down();
    let mut reached = Ok(());
    for _ in 0..40 {
        for _ in 0..20 {
            world.tick()?;
        }
        reached = world.goal_is_reached();
        if reached.is_ok() {
            break;
        }
    }
    reached
}

fn require(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

impl MovedWorld {
    fn new(seed: u64, rules: RuleSet) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (nodes, groups) = (rng.u64(4..9), rng.u32(1..5));
        let active = || MovedNode { state: NodeState::Active, is_up: true, changed_ms: 0, is_lost: false };
        let all: BTreeSet<NodeId> = (1..=nodes).map(NodeId).collect();
        let group = |id: u32| {
            let count = if id == SYSTEM_GROUP && nodes > 4 { 5 } else { 3 };
            let voters: BTreeSet<NodeId> = all.iter().copied().take(count).collect();
            let membership = SystemMembership { learners: &all - &voters, voters, outgoing: None };
            (id, MovedGroup { membership, ..MovedGroup::default() })
        };
        Self {
            nodes: all.iter().map(|node| (*node, active())).collect(),
            groups: (0..=groups).map(group).collect(),
            sets: BTreeMap::new(),
            assigned: BTreeMap::new(),
            rows: SetRows::default(),
            successors: BTreeMap::new(),
            is_rebalancing: true,
            seen: BTreeSet::new(),
            now_ms: 0,
            rules,
            rng,
        }
    }

    fn read_rows(&mut self) {
        let groups = self.assigned.values().cloned().map(Arc::new);
        self.rows = SetRows::new(self.sets.values().cloned().map(Arc::new), groups);
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|of| of.is_up)
    }

    fn is_in(&self, node: NodeId, state: NodeState) -> bool {
        self.nodes.get(&node).is_some_and(|of| of.state == state)
    }

    fn in_state(&self, state: NodeState) -> Vec<NodeId> {
        self.nodes.keys().copied().filter(|node| self.is_in(*node, state)).collect()
    }

    fn has_majorities(&self, group: &MovedGroup, without: Option<NodeId>) -> bool {
        let is_up = |node: &&NodeId| self.is_up(**node) && Some(**node) != without;
        group.voters().all(|voters| voters.iter().filter(is_up).count() > voters.len() / 2)
    }

    /// True if the node has the rows of all groups.
    fn is_complete(&self, node: NodeId) -> bool {
        self.groups.values().all(|group| group.has_rows(node))
    }

    fn set_up(&mut self, node: NodeId, is_up: bool) {
        let now_ms = self.now_ms;
        if let Some(of) = self.nodes.get_mut(&node).filter(|of| of.is_up != is_up && !of.is_lost) {
            (of.is_up, of.changed_ms) = (is_up, now_ms);
        }
    }

    fn fault(&mut self) {
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            let is_up = self.is_up(node);
            let chance = if is_up { 80 } else { 12 };
            let keeps_majorities = || self.groups.values().all(|of| self.has_majorities(of, Some(node)));
            if (!is_up || keeps_majorities()) && self.rng.u32(0..chance) == 0 {
                self.set_up(node, !is_up);
            }
        }
    }

    fn operate(&mut self) {
        let Some(node) = self.rng.choice(self.nodes.keys().copied().collect::<Vec<_>>()) else { return };
        let active = self.in_state(NodeState::Active);
        let others = active.iter().filter(|other| **other != node).count();
        let is_removable = others >= ACTIVE_MIN;
        let state = self.nodes[&node].state;
        match (self.rng.u8(0..24), state) {
            (0 | 1, _) => self.join(),
            (2 | 3, NodeState::Active) if is_removable => self.set_state(node, NodeState::Draining),
            (4, NodeState::Active) if is_removable => self.replace(node),
            (5, NodeState::Draining) => self.set_state(node, NodeState::Active),
            (6 | 7, NodeState::Draining) if !self.rows.is_in_any_set(node) => {
                self.set_state(node, NodeState::Leaving);
            }
            (8..=11, NodeState::Active | NodeState::Draining | NodeState::Joining) if is_removable => {
                self.remove_lost(node);
            }
            (12, _) => self.is_rebalancing = true,
            _ => {}
        }
    }

    fn set_state(&mut self, node: NodeId, state: NodeState) {
        if let Some(of) = self.nodes.get_mut(&node) {
            of.state = state;
        }
        if state == NodeState::Active {
            self.successors.remove(&node);
        }
    }

    /// Some new nodes never answer.
    fn join(&mut self) {
        let id = self.nodes.keys().last().map_or(1, |last| last.0 + 1);
        let staying = self.nodes.len() - self.in_state(NodeState::Removed).len();
        if id > NODES_MAX || staying >= 8 {
            return;
        }
        let is_lost = self.rng.u8(0..4) == 0;
        let state = if self.rng.bool() { NodeState::Active } else { NodeState::Joining };
        let node = MovedNode { state, is_up: !is_lost, changed_ms: self.now_ms, is_lost };
        self.nodes.insert(NodeId(id), node);
    }

    fn replace(&mut self, node: NodeId) {
        let mut others = self.in_state(NodeState::Active);
        others.retain(|other| *other != node);
        if let Some(new) = self.rng.choice(others) {
            self.set_state(node, NodeState::Draining);
            self.successors.insert(node, new);
        }
    }

    /// A node that is down does not return, and is removed as lost.
    fn remove_lost(&mut self, node: NodeId) {
        if !self.is_up(node) {
            self.set_state(node, NodeState::Leaving);
            if let Some(of) = self.nodes.get_mut(&node) {
                of.is_lost = true;
            }
        }
    }

    /// Every node returns that is not lost; the others are removed. New nodes take their places.
    fn calm_down(&mut self) {
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.set_up(node, true);
            let is_staying = !self.is_in(node, NodeState::Removed) && self.nodes[&node].is_lost;
            if is_staying {
                self.set_state(node, NodeState::Leaving);
            }
        }
        let next = self.nodes.keys().last().map_or(1, |last| last.0 + 1);
        let missing = ACTIVE_MIN.saturating_sub(self.in_state(NodeState::Active).len());
        for id in (next..).take(missing) {
            let (state, changed_ms) = (NodeState::Active, self.now_ms);
            let node = MovedNode { state, is_up: true, changed_ms, is_lost: false };
            self.nodes.insert(NodeId(id), node);
        }
    }

    fn tick(&mut self) -> Result<(), String> {
        self.now_ms += TICK_MS;
        for node in self.in_state(NodeState::Joining) {
            let is_ready = self.is_up(node) && self.groups[&SYSTEM_GROUP].has_rows(node);
            if is_ready && self.rng.bool() {
                self.set_state(node, NodeState::Active);
            }
        }
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            let mut group = self.groups.remove(&id).unwrap_or_default();
            self.run_group(&mut group);
            self.groups.insert(id, group);
            self.drive(id)?;
        }
        self.move_sets()
    }

    /// Notes a step without its values.
    fn see(&mut self, step: &impl std::fmt::Debug) {
        let shown = format!("{step:?}");
        let name = shown.split([' ', '{']).next().unwrap_or_default();
        let name = name.trim_end_matches(|of: char| !of.is_alphabetic());
        self.seen.insert(name.split("(NodeId").next().unwrap_or_default().to_owned());
    }

    /// Elections, replication, and the second half of a change.
    fn run_group(&mut self, group: &mut MovedGroup) {
        if !self.has_majorities(group, None) {
            group.leader = None;
            return;
        }
        let voters = &group.membership.voters;
        let can_lead = |node: &NodeId| self.is_up(*node) && !group.lacks.contains_key(node);
        group.leader = group.leader.filter(|node| can_lead(node) && voters.contains(node));
        if group.leader.is_none() {
            let able: Vec<NodeId> = voters.iter().copied().filter(can_lead).collect();
            group.leader = self.rng.choice(able);
        }
        if group.leader.is_some() {
            group.lacks.retain(|node, ticks| {
                *ticks -= u64::from(self.is_up(*node));
                *ticks > 0
            });
            if let Some(outgoing) = group.membership.outgoing.take() {
                group.membership.learners.extend(&outgoing - &group.membership.voters);
            }
        }
    }

    fn input(&self, id: u32, leader: NodeId) -> DecisionInput {
        let (rows, group, is_system) = (&self.rows, &self.groups[&id], id == SYSTEM_GROUP);
        let facts = |(node, of): (&NodeId, &MovedNode)| {
            let for_ms = self.now_ms - of.changed_ms;
            let contact = match of.is_up {
                true if *node == leader => Contact::Reachable { for_ms: u64::MAX },
                true => Contact::Reachable { for_ms },
                false => Contact::Unreachable { for_ms },
            };
            let lacks = group.lacks.get(node).copied().unwrap_or(0);
            let is_elsewhere = || self.groups.values().any(|of| of.membership.contains(*node));
            let facts = MemberFacts {
                role: NodeRole::Storage,
                state: of.state,
                place: rows.place(id, *node),
                is_in_set: rows.is_in_set_of(id, *node),
                has_all_groups: rows.has_all_groups(*node),
                is_held: rows.is_in_any_set(*node) || is_elsewhere(),
                contact,
                lag_bytes: Some(lacks * (LIMITS.promote_lag_bytes + 1)),
            };
            (*node, facts)
        };
        DecisionInput {
            leader,
            membership: group.membership.clone(),
            change: ChangeState::Committed,
            nodes: self.nodes.iter().map(facts).collect(),
            limits: if is_system { LIMITS } else { DecisionLimits { voters_max: 3, ..LIMITS } },
            is_system,
            failed: BTreeSet::new(),
        }
    }

    /// Carries out the step of a group, which may fail.
    fn drive(&mut self, id: u32) -> Result<(), String> {
        let Some(leader) = self.groups[&id].leader else { return Ok(()) };
        let step = decide_by(&self.input(id, leader), self.rules);
        self.see(&step);
        let shown = |why: String| {
            let membership = &self.groups[&id].membership;
            format!("group {id}: {why}: {step:?} with {membership:?} in {:?}", self.sets)
        };
        self.step_is_allowed(id, &step).map_err(shown)?;
        if self.rng.u8(0..8) == 0 {
            return Ok(());
        }
        let ticks = self.rng.u64(1..8);
        let group = self.groups.entry(id).or_default();
        let membership = &mut group.membership;
        match &step {
            MemberStep::Idle | MemberStep::Wait(_) => {}
            MemberStep::AddLearner(node) => {
                membership.learners.insert(*node);
                group.lacks.insert(*node, ticks);
            }
            MemberStep::RemoveLearner(node) => {
                membership.learners.remove(node);
                group.lacks.remove(node);
            }
            MemberStep::ChangeVoters(change) => {
                let before = std::mem::replace(&mut membership.voters, change.voters.clone());
                membership.learners = &membership.learners - &change.voters;
                membership.outgoing.get_or_insert(before);
            }
            MemberStep::TransferLeader { to } => group.leader = Some(*to),
            MemberStep::RecordRemoval(node) => {
                self.set_state(*node, NodeState::Removed);
                self.set_up(*node, false);
            }
        }
        Ok(())
    }

    /// True if the drain of a node does not take it out of the first set while no other one there has the
    /// rows of all groups.
    fn is_drain_safe(&self, set: u32, after: &[NodeId]) -> bool {
        let before = self.sets.get(&set).filter(|_| set == FIRST_SET);
        let mut removed = before.into_iter().flat_map(nodes_of).filter(|node| !after.contains(node));
        let is_drained = removed.any(|node| self.is_in(node, NodeState::Draining));
        !is_drained || after.iter().any(|node| self.is_complete(*node))
    }

    fn step_is_allowed(&self, id: u32, step: &MemberStep) -> Result<(), String> {
        let membership = &self.groups[&id].membership;
        match step {
            MemberStep::Idle | MemberStep::Wait(_) => Ok(()),
            MemberStep::AddLearner(node) => {
                require(membership.outgoing.is_none(), "a learner is added during a change")?;
                require(!membership.contains(*node), "it is a member")
            }
            MemberStep::RemoveLearner(node) => {
                require(membership.outgoing.is_none(), "a learner is removed during a change")?;
                require(membership.learners.contains(node), "it is no learner")?;
                let is_leaving = self.is_in(*node, NodeState::Leaving);
                require(
                    is_leaving || self.has_all_rows(id),
                    "a learner is removed before others have the rows",
                )
            }
            MemberStep::ChangeVoters(change) if membership.outgoing.is_some() => {
                require(change.voters == membership.voters, "a change begins during a joint change")
            }
            MemberStep::ChangeVoters(change) if id != SYSTEM_GROUP && !self.sets.is_empty() => {
                self.voters_are_kept(&membership.voters, &change.voters)
            }
            MemberStep::ChangeVoters(change) => {
                let up = change.voters.iter().filter(|node| self.is_up(**node)).count();
                require(up > change.voters.len() / 2, "too few of the voters afterwards are reachable")
            }
            MemberStep::TransferLeader { to } => {
                require(membership.voters.contains(to) && self.is_up(*to), "the node cannot lead")
            }
            MemberStep::RecordRemoval(node) => {
                let is_in_group = self.groups.values().any(|group| group.membership.contains(*node));
                require(id == SYSTEM_GROUP, "a group of objects records a removal")?;
                require(!is_in_group, "a member is recorded as removed")?;
                require(!self.rows.is_in_any_set(*node), "a node of a set is recorded as removed")
            }
        }
    }

    /// True if all nodes with a place in a group have its rows, except those that leave.
    fn has_all_rows(&self, id: u32) -> bool {
        let nodes = self.nodes.iter().filter(|(_, of)| {
            let is_leaving = matches!(of.state, NodeState::Leaving | NodeState::Removed);
            !is_leaving
        });
        let mut placed = nodes.filter(|(node, _)| self.rows.place(id, **node) != MemberPlace::Leaves);
        placed.all(|(node, _)| self.groups[&id].has_rows(*node))
    }

    /// Neither voters, nor those that stay, nor those that are up become fewer: the set can be filled.
    fn voters_are_kept(&self, before: &BTreeSet<NodeId>, after: &BTreeSet<NodeId>) -> Result<(), String> {
        let count = |voters: &BTreeSet<NodeId>, counts: &dyn Fn(NodeId) -> bool| {
            voters.iter().filter(|node| counts(**node)).count()
        };
        let fewer = |counts: &dyn Fn(NodeId) -> bool| count(after, counts) < count(before, counts);
        require(after.len() == 3 && !fewer(&|_| true), "voters become fewer")?;
        require(!fewer(&|node| !self.is_in(node, NodeState::Leaving)), "voters that stay become fewer")?;
        require(!fewer(&|node| self.is_up(node)), "voters that are up become fewer")
    }

    /// Takes the next step of the sets.
    fn move_sets(&mut self) -> Result<(), String> {
        if self.groups[&SYSTEM_GROUP].leader.is_none() {
            return Ok(());
        }
        let step = self.next_set_step();
        self.see(&step);
        if self.rng.u8(0..4) == 0 {
            return Ok(());
        }
        match step {
            SetStep::Wait(_) => {}
            SetStep::Idle => self.is_rebalancing = false,
            SetStep::Put { set, nodes, changes } => {
                let is_full = nodes.len() == 3 || self.in_state(NodeState::Active).len() < 3;
                require(is_full, "a set gets smaller")?;
                require(self.is_drain_safe(set, &nodes), "no node has the rows of all groups after a drain")?;
                let nodes = nodes.iter().map(|node| node.0).collect();
                self.sets.insert(set, NodeSet { id: set, nodes, changes: changes + 1 });
            }
            SetStep::Assign { group, set, .. } => {
                let known = self.assigned.get(&group).cloned().unwrap_or(GroupSet::first(group));
                self.assigned.insert(group, known.assigned_to(set));
            }
        }
        self.read_rows();
        Ok(())
    }

    fn next_set_step(&self) -> SetStep {
        let rows = &self.rows;
        let progress = |(id, group): (&u32, &MovedGroup)| {
            let mut active = rows.nodes_of_group(*id);
            active.retain(|node| self.is_in(*node, NodeState::Active));
            let voters = group.voters().flatten().copied().collect();
            (*id, GroupProgress::of(&active, &voters))
        };
        let objects = self.groups.iter().filter(|(id, _)| **id != SYSTEM_GROUP);
        let staying = self.nodes.iter().filter(|(_, of)| of.state != NodeState::Removed);
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let those = |are: &dyn Fn(NodeId) -> bool| -> BTreeSet<NodeId> {
            nodes.iter().copied().filter(|node| are(*node)).collect()
        };
        next_set_step(&SetInput {
            nodes: &staying.map(|(node, of)| (*node, of.state)).collect(),
            rows,
            groups: &objects.map(progress).collect(),
            silent: &those(&|node| !self.is_up(node)),
            lacking: &those(&|node| !self.is_up(node) || !self.is_complete(node)),
            successors: &self.successors,
            is_rebalancing: self.is_rebalancing,
        })
    }

    /// Checks the cluster after a long calm.
    fn goal_is_reached(&self) -> Result<(), String> {
        let rows = &self.rows;
        let step = self.next_set_step();
        let states: Vec<(u64, NodeState)> = self.nodes.iter().map(|(node, of)| (node.0, of.state)).collect();
        require(
            step == SetStep::Idle,
            &format!("the sets are not done: {step:?}, {:?} {states:?}", self.sets),
        )?;
        let leaving = self.in_state(NodeState::Leaving);
        require(leaving.is_empty(), &format!("removals do not end: {leaving:?}"))?;
        for set in self.sets.values() {
            let is_whole = set.nodes.len() == 3 && set.nodes.iter().all(|id| self.is_staying(*id));
            require(is_whole, &format!("a set is not whole: {set:?}"))?;
        }
        for (id, group) in &self.groups {
            let described = |what: &str| format!("group {id}: {what}: {:?} in {rows:?}", group.membership);
            let nodes = self.nodes.keys().copied().filter(|node| !self.is_in(*node, NodeState::Removed));
            let members: BTreeSet<NodeId> =
                nodes.filter(|node| rows.place(*id, *node) != MemberPlace::Leaves).collect();
            require(
                group.membership.members() == members,
                &described("members without a place, or too few"),
            )?;
            let voters = &group.membership.voters;
            if *id == SYSTEM_GROUP {
                let mut first = self.sets.get(&FIRST_SET).into_iter().flat_map(nodes_of);
                let can_lead = first.all(|node| voters.contains(&node));
                require(can_lead, &described("a node with the rows of all groups does not vote"))?;
            } else if !rows.is_empty() {
                let set: BTreeSet<NodeId> = rows.nodes_of_group(*id).into_iter().collect();
                require(*voters == set, &described("the nodes of the set are not the voters"))?;
            }
        }
        let mut first = self.sets.get(&FIRST_SET).into_iter().flat_map(nodes_of);
        require(first.all(|node| self.is_complete(node)), "a node of the first set lacks rows")
    }

    fn is_staying(&self, id: u64) -> bool {
        self.is_in(NodeId(id), NodeState::Active)
    }
}

#[test]
fn the_schedules_have_every_step_and_every_wait() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let mut world = MovedWorld::new(seed, RuleSet::ALL);
        assert_eq!(run_in(&mut world), Ok(()), "seed {seed}");
        seen.append(&mut world.seen);
    }
    let of_groups = ["AddLearner", "RemoveLearner", "ChangeVoters(VoterChange", "TransferLeader"];
    let of_removals = ["RecordRemoval", "Wait(VoteNotTaken", "Wait(NoReplacement", "Wait(LacksRows"];
    let of_sets = ["Put", "Assign", "Wait(GroupMoves", "Wait(Silent"];
    for step in of_groups.iter().chain(&of_removals).chain(&of_sets) {
        assert!(seen.contains(*step), "no schedule has {step}: {seen:?}");
    }
}
