//! A small Raft without a network: logs, elections by majorities of the configuration in the candidate's log,
//! commits by majorities of the configuration in the leader's log, joint changes.
//!
//! A change of the membership is carried out as it is requested, also when a correct Raft would refuse it:
//! the decisions must not rely on a refusal.

use crate::decision::MemberStep;
use crate::facts::SystemMembership;
use fastrand::Rng;
use mlgw_common::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Entry of a log.
#[derive(Clone, Debug)]
struct SimEntry {
    term: u64,
    membership: Option<SystemMembership>,
}

/// A node's log and process.
#[derive(Clone, Debug)]
pub(super) struct SimReplica {
    log: Vec<SimEntry>,
    pub(super) is_up: bool,
    /// Time of its last start or stop.
    pub(super) changed_ms: u64,
}

impl SimReplica {
    fn membership_at(&self) -> Option<usize> {
        self.log.iter().rposition(|entry| entry.membership.is_some())
    }

    fn membership(&self) -> SystemMembership {
        let at = self.membership_at();
        at.and_then(|at| self.log[at].membership.clone()).unwrap_or_default()
    }

    fn last(&self) -> (u64, usize) {
        (self.log.last().map_or(0, |entry| entry.term), self.log.len())
    }

    /// Number of entries that it shares with another log: equal terms at an index mean equal prefixes.
    fn shared(&self, other: &Self) -> usize {
        let mut shared = self.log.len().min(other.log.len());
        while shared > 0 && self.log[shared - 1].term != other.log[shared - 1].term {
            shared -= 1;
        }
        shared
    }
}

/// The system group of the simulation.
pub(super) struct SimRaft {
    pub(super) replicas: BTreeMap<NodeId, SimReplica>,
    pub(super) leader: Option<NodeId>,
    pub(super) led_since_ms: u64,
    term: u64,
    /// Terms of the committed entries.
    committed: Vec<u64>,
    /// The membership that follows the joint one, while this leader runs a change.
    running: Option<SystemMembership>,
    /// Nodes that answered this leader.
    answered: BTreeSet<NodeId>,
    pub(super) violation: Option<String>,
}

impl SimRaft {
    /// One voter, which leads.
    pub(super) fn new(first: NodeId) -> Self {
        let membership = SystemMembership { voters: BTreeSet::from([first]), ..SystemMembership::default() };
        let log = vec![SimEntry { term: 1, membership: Some(membership) }];
        let replica = SimReplica { log, is_up: true, changed_ms: 0 };
        Self {
            replicas: BTreeMap::from([(first, replica)]),
            leader: Some(first),
            led_since_ms: 0,
            term: 1,
            committed: vec![1],
            running: None,
            answered: BTreeSet::new(),
            violation: None,
        }
    }

    pub(super) fn add_process(&mut self, node: NodeId, now_ms: u64) {
        self.replicas.insert(node, SimReplica { log: Vec::new(), is_up: true, changed_ms: now_ms });
    }

    pub(super) fn set_up(&mut self, node: NodeId, is_up: bool, now_ms: u64) {
        let Some(replica) = self.replicas.get_mut(&node).filter(|replica| replica.is_up != is_up) else {
            return;
        };
        (replica.is_up, replica.changed_ms) = (is_up, now_ms);
        self.answered.remove(&node);
        if !is_up && self.leader == Some(node) {
            self.leader_is_gone();
        }
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.replicas.get(&node).is_some_and(|replica| replica.is_up)
    }

    fn leader_is_gone(&mut self) {
        (self.leader, self.running) = (None, None);
        self.answered.clear();
    }

    /// The effective membership of the leader.
    pub(super) fn membership(&self) -> Option<SystemMembership> {
        Some(self.replicas.get(&self.leader?)?.membership())
    }

    /// True if the leader runs a change, or its effective membership is not committed.
    pub(super) fn is_changing(&self) -> bool {
        let at = self.leader.and_then(|leader| self.replicas[&leader].membership_at());
        self.running.is_some() || at.is_some_and(|at| at >= self.committed.len())
    }

    /// Entries that a node lacks.
    pub(super) fn lag(&self, node: NodeId) -> usize {
        let Some(leader) = self.leader.map(|leader| &self.replicas[&leader]) else { return usize::MAX };
        self.replicas.get(&node).map_or(usize::MAX, |replica| leader.log.len() - leader.shared(replica))
    }

    /// Entries that a node lacks, as the leader knows.
    pub(super) fn known_lag(&self, node: NodeId) -> Option<usize> {
        self.answered.contains(&node).then(|| self.lag(node))
    }

    /// True if a majority of each set of voters is up, so that the leader can commit.
    pub(super) fn can_commit(&self) -> bool {
        self.membership().is_some_and(|membership| {
            sets(&membership).iter().all(|set| self.is_majority(set, |node| self.is_up(node)))
        })
    }

    fn is_majority(&self, set: &BTreeSet<NodeId>, has: impl Fn(NodeId) -> bool) -> bool {
        set.iter().filter(|node| has(**node)).count() > set.len() / 2
    }

    /// One round: an election if one is needed, writes, replication, commits, the second half of a change.
    pub(super) fn tick(&mut self, rng: &mut Rng, now_ms: u64) {
        if self.leader.is_none() {
            self.elect(rng, now_ms);
        }
        let Some(leader) = self.leader else { return };
        for _ in 0..rng.usize(0..3) {
            self.append(leader, None);
        }
        self.replicate(rng, leader);
        self.commit(leader);
        if self.running.is_some() && !self.has_uncommitted_membership(leader) {
            let membership = self.running.take();
            self.append(leader, membership);
        }
        let membership = self.replicas[&leader].membership();
        let is_over = membership.outgoing.is_none() && !membership.voters.contains(&leader);
        if is_over && !self.is_changing() {
            self.leader_is_gone();
        }
    }

    fn has_uncommitted_membership(&self, leader: NodeId) -> bool {
        self.replicas[&leader].membership_at().is_some_and(|at| at >= self.committed.len())
    }

    fn append(&mut self, leader: NodeId, membership: Option<SystemMembership>) {
        let term = self.term;
        if let Some(replica) = self.replicas.get_mut(&leader) {
            replica.log.push(SimEntry { term, membership });
        }
    }

    fn elect(&mut self, rng: &mut Rng, now_ms: u64) {
        let candidates: Vec<NodeId> =
            self.replicas.keys().copied().filter(|node| self.can_win(*node)).collect();
        if let Some(winner) = rng.choice(candidates) {
            self.lead(winner, now_ms);
        }
    }

    fn can_win(&self, node: NodeId) -> bool {
        let candidate = &self.replicas[&node];
        let sets = sets(&candidate.membership());
        let votes = |voter: NodeId| {
            self.replicas.get(&voter).is_some_and(|voter| voter.is_up && voter.last() <= candidate.last())
        };
        let is_voter = sets.iter().any(|set| set.contains(&node));
        candidate.is_up && is_voter && sets.iter().all(|set| self.is_majority(set, votes))
    }

    fn lead(&mut self, node: NodeId, now_ms: u64) {
        let has_committed = {
            let log = &self.replicas[&node].log;
            self.committed.iter().enumerate().all(|(at, term)| log.get(at).is_some_and(|e| e.term == *term))
        };
        if !has_committed {
            self.violation.get_or_insert(format!("node {node} leads without committed entries"));
        }
        self.leader_is_gone();
        self.term += 1;
        (self.leader, self.led_since_ms) = (Some(node), now_ms);
        self.append(node, None);
    }

    /// Transfers the leadership to a node that has everything.
    fn transfer(&mut self, to: NodeId, now_ms: u64) {
        if self.is_up(to) && self.lag(to) == 0 && self.can_win(to) {
            self.lead(to, now_ms);
        }
    }

    fn replicate(&mut self, rng: &mut Rng, leader: NodeId) {
        let log = self.replicas[&leader].log.clone();
        let source = SimReplica { log, is_up: true, changed_ms: 0 };
        for node in source.membership().members() {
            let Some(replica) = self.replicas.get_mut(&node).filter(|replica| replica.is_up) else {
                continue;
            };
            if node == leader || rng.u8(0..10) == 0 {
                continue;
            }
            let shared = replica.shared(&source);
            replica.log.truncate(shared);
            let end = source.log.len().min(shared + rng.usize(2..12));
            replica.log.extend_from_slice(&source.log[shared..end]);
            self.answered.insert(node);
        }
    }

    fn commit(&mut self, leader: NodeId) {
        let source = &self.replicas[&leader];
        let sets = sets(&source.membership());
        let has = |end: usize| {
            let has_all = |node: NodeId| {
                self.replicas.get(&node).is_some_and(|replica| replica.is_up && source.shared(replica) >= end)
            };
            sets.iter().all(|set| self.is_majority(set, has_all))
        };
        let ends = (self.committed.len() + 1..=source.log.len()).rev();
        let end = ends.filter(|end| source.log[end - 1].term == self.term).find(|end| has(*end));
        let Some(end) = end else { return };
        let terms: Vec<u64> = source.log[self.committed.len()..end].iter().map(|entry| entry.term).collect();
        self.committed.extend(terms);
    }

    /// Carries out a step. The record of a removal is no entry of this log.
    pub(super) fn carry_out(&mut self, step: MemberStep, now_ms: u64) {
        match step {
            MemberStep::Idle | MemberStep::Wait(_) | MemberStep::RecordRemoval(_) => {}
            MemberStep::AddLearner(node) => self.change_learners(|learners| {
                learners.insert(node);
            }),
            MemberStep::RemoveLearner(node) => self.change_learners(|learners| {
                learners.remove(&node);
            }),
            MemberStep::ChangeVoters(change) => self.change_voters(change.voters),
            MemberStep::TransferLeader { to } => self.transfer(to, now_ms),
        }
    }

    /// Begins a change of the voters, or finishes the one that an earlier leader left.
    fn change_voters(&mut self, voters: BTreeSet<NodeId>) {
        let (Some(leader), Some(before)) = (self.leader, self.membership()) else { return };
        let learners = &before.members() - &voters;
        let after = SystemMembership { voters, outgoing: None, learners };
        if before.outgoing.is_some() && before.voters == after.voters {
            self.append(leader, Some(after));
            return;
        }
        let learners = &before.learners - &after.voters;
        let joint =
            SystemMembership { outgoing: Some(before.voters), learners, voters: after.voters.clone() };
        self.append(leader, Some(joint));
        self.running = Some(after);
    }

    fn change_learners(&mut self, change: impl FnOnce(&mut BTreeSet<NodeId>)) {
        let (Some(leader), Some(mut membership)) = (self.leader, self.membership()) else { return };
        change(&mut membership.learners);
        self.append(leader, Some(membership));
    }

    /// Stops the driver of a change: the joint membership stays.
    pub(super) fn abandon_change(&mut self) {
        self.running = None;
    }
}

/// The sets of voters that must all have a majority.
fn sets(membership: &SystemMembership) -> Vec<BTreeSet<NodeId>> {
    let sets = std::iter::once(membership.voters.clone()).chain(membership.outgoing.clone());
    sets.filter(|set| !set.is_empty()).collect()
}
