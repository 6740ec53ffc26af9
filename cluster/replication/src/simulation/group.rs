//! The segment group of the simulation: leaders with terms, commands with unknown outcomes that arrive late,
//! and nodes that apply late.

use super::world::{Event, World};
use crate::epoch::{SealProposal, SegmentEpoch};
use crate::repair::ReplicaFacts;
use crate::rules::ReplicationRule;
use crate::stretch::Stretch;
use mlgw_common::{NodeId, SegmentId};
use std::collections::{BTreeMap, BTreeSet};

/// Time after which a proposer gives up waiting.
const PROPOSAL_TIMEOUT_MS: u64 = 1_500;

/// A segment's record.
#[derive(Clone, Debug)]
pub(super) struct SimRecord {
    pub(super) segment: SegmentId,
    pub(super) replicas: Vec<ReplicaFacts>,
    pub(super) write_quorum: usize,
    pub(super) primary: NodeId,
    pub(super) epoch: SegmentEpoch,
    pub(super) sealed: Option<u64>,
    pub(super) changes: u64,
    /// Stretches that are known to be bad everywhere.
    pub(super) damage: Vec<Stretch>,
}

impl SimRecord {
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.replicas.iter().map(|replica| replica.node).collect()
    }

    pub(super) fn replica_of(&self, node: NodeId) -> Option<ReplicaFacts> {
        self.replicas.iter().copied().find(|replica| replica.node == node)
    }
}

/// Damage of a replica that its node reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenDamage {
    pub(super) node: NodeId,
    pub(super) stretch: Stretch,
    pub(super) seen_at: u64,
}

/// Facts about a recovery, for the checks when its seal is applied.
#[derive(Clone, Debug, Default)]
pub(super) struct RecoveryFacts {
    pub(super) damage: Vec<Stretch>,
    /// Replicas that answered.
    pub(super) answered: BTreeSet<NodeId>,
    pub(super) seen: Vec<SeenDamage>,
}

#[derive(Clone, Debug)]
pub(super) enum SimCommand {
    Create { primary: NodeId, replicas: Vec<NodeId>, write_quorum: usize },
    Seal { proposal: SealProposal, recovery: Option<RecoveryFacts> },
    SetReplicas { segment: SegmentId, changes: u64, replicas: Vec<ReplicaFacts> },
}

/// Part of a node that proposed a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Create,
    PrimarySeal(SegmentId),
    RecoverySeal(SegmentId, SegmentEpoch),
    Repair(SegmentId),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ProposalOutcome {
    /// The command was applied at this index; for a creation, to this segment.
    Applied {
        index: usize,
        segment: SegmentId,
    },
    NotAppended,
    Unknown,
}

/// A command on its way.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    node: NodeId,
    start: u32,
    leader: NodeId,
    term: u64,
    command: SimCommand,
    purpose: Purpose,
    /// The proposer has given up.
    is_given_up: bool,
}

#[derive(Debug, Default)]
pub(super) struct SimGroup {
    pub(super) leader: Option<NodeId>,
    pub(super) term: u64,
    pub(super) records: BTreeMap<SegmentId, SimRecord>,
    /// Records after each change.
    pub(super) log: Vec<SimRecord>,
    pub(super) next_segment: u64,
    /// Nodes that were replaced.
    pub(super) removed: BTreeSet<NodeId>,
    leaderless_since: Option<u64>,
}

impl SimGroup {
    pub(super) fn led_by(leader: NodeId) -> Self {
        Self { leader: Some(leader), term: 1, ..Self::default() }
    }
}

impl World {
    /// Sends a command to the leader that the node believes in.
    pub(super) fn propose(&mut self, node: NodeId, command: SimCommand, purpose: Purpose) {
        let (start, (leader, term)) = (self.nodes[&node].start, self.nodes[&node].belief);
        let Some(leader) = leader.filter(|leader| self.network.is_linked(node, *leader)) else {
            self.finish(node, start, purpose, ProposalOutcome::NotAppended, 300);
            return;
        };
        let proposal = Proposal { node, start, leader, term, command, purpose, is_given_up: false };
        let latency = self.rng.u64(1..5);
        self.schedule(latency, Event::Proposed(Box::new(proposal)));
    }

    fn finish(&mut self, node: NodeId, start: u32, purpose: Purpose, outcome: ProposalOutcome, delay: u64) {
        self.schedule(delay, Event::Outcome { node, start, purpose, outcome });
    }

    pub(super) fn proposed(&mut self, mut proposal: Box<Proposal>) {
        let Proposal { node, start, leader, term, purpose, .. } = *proposal;
        // A leader appends a recovery's command only in the term in which it was decided.
        let is_forwarded = !matches!(purpose, Purpose::RecoverySeal(..));
        let leads = self.group.leader == Some(leader) && (is_forwarded || self.group.term == term);
        if !leads {
            let is_answered = self.network.is_linked(node, leader) && self.is_up(leader);
            let outcome = if is_answered { ProposalOutcome::NotAppended } else { ProposalOutcome::Unknown };
            self.finish(node, start, purpose, outcome, if is_answered { 2 } else { PROPOSAL_TIMEOUT_MS });
            return;
        }
        proposal.term = self.group.term;
        let is_late = self.rng.u64(0..1_000) < self.swarm.late_commits;
        let delay = if is_late { self.rng.u64(200..5_000) } else { self.rng.u64(2..15) };
        if delay > PROPOSAL_TIMEOUT_MS {
            proposal.is_given_up = true;
            self.finish(node, start, purpose, ProposalOutcome::Unknown, PROPOSAL_TIMEOUT_MS);
        }
        self.schedule(delay, Event::Commit(proposal));
    }

    pub(super) fn commit(&mut self, proposal: Box<Proposal>) {
        let Proposal { node, start, leader, term, purpose, command, is_given_up } = *proposal;
        let leads = self.group.leader == Some(leader) && self.group.term == term;
        // A later leader keeps the entry or discards it.
        let segment = if leads || self.rng.bool() { self.apply(command) } else { SegmentId(0) };
        if is_given_up {
            return;
        }
        let is_answered = leads && self.network.is_linked(node, leader) && self.rng.u8(0..40) > 0;
        let (outcome, delay) = match is_answered {
            true => (ProposalOutcome::Applied { index: self.group.log.len(), segment }, 3),
            false => (ProposalOutcome::Unknown, PROPOSAL_TIMEOUT_MS),
        };
        self.finish(node, start, purpose, outcome, delay);
    }

    pub(super) fn outcome(&mut self, node: NodeId, purpose: Purpose, outcome: ProposalOutcome) {
        if let ProposalOutcome::Applied { index, .. } = outcome {
            self.apply_at(node, index);
        }
        match purpose {
            Purpose::Create => self.create_outcome(node, outcome),
            Purpose::PrimarySeal(segment) => self.primary_seal_outcome(node, segment, outcome),
            Purpose::RecoverySeal(segment, epoch) => self.recovery_outcome(node, segment, epoch),
            Purpose::Repair(segment) => self.repair_outcome(node, segment),
        }
    }

    /// Applies a command to the group's state. Returns the segment.
    fn apply(&mut self, command: SimCommand) -> SegmentId {
        match command {
            SimCommand::Create { primary, replicas, write_quorum } => {
                self.apply_create(primary, replicas, write_quorum)
            }
            SimCommand::Seal { proposal, recovery } => {
                let segment = proposal.segment;
                self.apply_seal(&proposal, recovery);
                segment
            }
            SimCommand::SetReplicas { segment, changes, replicas } => {
                self.apply_replicas(segment, changes, replicas);
                segment
            }
        }
    }

    fn apply_create(&mut self, primary: NodeId, replicas: Vec<NodeId>, write_quorum: usize) -> SegmentId {
        self.group.next_segment += 1;
        let segment = SegmentId(self.group.next_segment);
        let replica = |node| ReplicaFacts { node, is_suspect: false };
        let record = SimRecord {
            segment,
            replicas: replicas.into_iter().map(replica).collect(),
            write_quorum,
            primary,
            epoch: SegmentEpoch { term: self.group.term, attempt: 0 },
            sealed: None,
            changes: 0,
            damage: Vec::new(),
        };
        self.truth.create(segment, self.now);
        self.record_changed(record);
        segment
    }

    /// The first seal decides; one with a lower epoch than the record's is refused. Nodes that were removed
    /// meanwhile are not recorded.
    fn apply_seal(&mut self, proposal: &SealProposal, recovery: Option<RecoveryFacts>) {
        let mut record = self.group.records[&proposal.segment].clone();
        let is_first = self.rules.has(ReplicationRule::FirstSealDecides);
        if proposal.epoch < record.epoch || is_first && record.sealed.is_some() {
            return;
        }
        self.check_seal(&record, proposal, recovery.as_ref());
        let replica = |node: &NodeId| ReplicaFacts { node: *node, is_suspect: false };
        let present = proposal.replicas.iter().filter(|node| !self.group.removed.contains(node));
        record.replicas = present.map(replica).collect();
        record.epoch = proposal.epoch;
        record.sealed = Some(proposal.length);
        record.damage = recovery.map(|facts| facts.damage).unwrap_or_default();
        record.changes += 1;
        self.record_changed(record);
    }

    fn apply_replicas(&mut self, segment: SegmentId, changes: u64, replicas: Vec<ReplicaFacts>) {
        let mut record = self.group.records[&segment].clone();
        let is_compared = self.rules.has(ReplicationRule::ChangesCompared);
        let names_removed = replicas.iter().any(|replica| self.group.removed.contains(&replica.node));
        if names_removed || is_compared && record.changes != changes {
            return;
        }
        self.note(format_args!("{segment} is at {replicas:?}"));
        record.replicas = replicas;
        record.changes += 1;
        self.record_changed(record);
    }

    fn record_changed(&mut self, record: SimRecord) {
        self.touched.insert(record.segment);
        self.group.log.push(record.clone());
        self.group.records.insert(record.segment, record);
    }

    /// An operator removes a node for good. Its replicas of sealed segments are no longer recorded.
    pub(super) fn remove_node(&mut self, node: NodeId) {
        self.group.removed.insert(node);
        let records: Vec<SimRecord> = self.group.records.values().cloned().collect();
        for mut record in records.into_iter().filter(|record| record.sealed.is_some()) {
            if record.replica_of(node).is_some() && record.replicas.len() > 1 {
                record.replicas.retain(|replica| replica.node != node);
                record.changes += 1;
                self.record_changed(record);
            }
        }
    }

    /// A node applies the log up to an index.
    pub(super) fn apply_at(&mut self, node: NodeId, index: usize) {
        let from = self.nodes[&node].applied;
        if from >= index {
            return;
        }
        self.node(node).applied = index;
        for record in self.group.log[from..index].to_vec() {
            self.node(node).records.insert(record.segment, record.clone());
            self.record_applied(node, &record);
        }
    }

    /// Nodes that reach the leader learn of it and apply what is committed, some of them late.
    pub(super) fn replicate_log(&mut self) {
        let Some(leader) = self.group.leader else { return };
        for node in self.up_nodes() {
            let is_late = self.rng.u64(0..100) < self.swarm.late_apply;
            if self.network.is_linked(node, leader) && (!is_late || node == leader) {
                self.node(node).belief = (Some(leader), self.group.term);
                self.apply_at(node, self.group.log.len());
            }
        }
    }

    /// A leader that is down, or reaches fewer than half of the others, is replaced after a while.
    pub(super) fn watch_leader(&mut self) {
        let leads = self.group.leader.is_some_and(|leader| self.is_up(leader) && self.is_central(leader));
        if leads {
            self.group.leaderless_since = None;
            return;
        }
        let since = *self.group.leaderless_since.get_or_insert(self.now);
        if self.now >= since + 1_000 {
            self.elect();
        }
    }

    /// Elects a leader, which has applied all that is committed.
    pub(super) fn elect(&mut self) {
        let candidates: Vec<NodeId> =
            self.up_nodes().into_iter().filter(|node| self.is_central(*node)).collect();
        let Some(leader) = self.rng.choice(candidates) else { return };
        self.group.term += 1;
        (self.group.leader, self.group.leaderless_since) = (Some(leader), None);
        self.node(leader).belief = (Some(leader), self.group.term);
        self.apply_at(leader, self.group.log.len());
    }

    fn is_central(&self, node: NodeId) -> bool {
        let others = self.nodes.keys().filter(|other| **other != node);
        let linked = others.clone().filter(|other| self.network.is_linked(node, **other)).count();
        linked * 2 >= others.count()
    }
}
