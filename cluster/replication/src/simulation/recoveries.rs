//! The driver of recoveries in the simulation: the leader closes segments whose primary is gone. A leader that
//! was replaced goes on until it learns of it, and one leader may run several attempts at once.

use super::group::{Purpose, RecoveryFacts, SeenDamage, SimCommand, SimRecord};
use super::network::Message;
use super::world::{Phase, World};
use crate::epoch::{SealProposal, SegmentEpoch};
use crate::recovery::{
    CloseAnswer, RecoveryPlan, RecoveryRecord, RecoveryStep, ReplicaContent, SegmentRecovery, TailCopy,
};
use crate::rules::ReplicationRule;
use crate::stretch::{Stretch, StretchSet};
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeSet;

/// Time for which answers beyond the needed ones are waited for.
const GRACE_MS: u64 = 400;

/// Time after which copies are given up.
const COPIES_MS: u64 = 1_500;

/// Time after which an attempt that waits is given up.
const ATTEMPT_MS: u64 = 6_000;

/// An attempt in the memory of a leader.
#[derive(Debug)]
pub(super) struct SimRecovery {
    segment: SegmentId,
    machine: SegmentRecovery,
    replicas: Vec<NodeId>,
    started: u64,
    closed_at: Option<u64>,
    fenced_at: Option<u64>,
    copies_at: Option<u64>,
    outstanding: Vec<TailCopy>,
    must_plan_again: bool,
    answered: BTreeSet<NodeId>,
    /// Damage in the answers.
    seen: Vec<SeenDamage>,
    is_proposed: bool,
    /// The seal is proposed as soon as it is possible, without further copies.
    is_hasty: bool,
}

enum Move {
    Wait,
    GiveUp,
    Copy(Vec<TailCopy>),
    Seal(SealProposal, RecoveryFacts),
}

impl World {
    pub(super) fn recoveries_tick(&mut self, node: NodeId) {
        if self.nodes[&node].belief.0 != Some(node) {
            self.node(node).recoveries.clear();
            return;
        }
        let records: Vec<SimRecord> = self.nodes[&node].records.values().cloned().collect();
        for record in records.into_iter().filter(|record| record.sealed.is_none()) {
            let recoveries = &self.nodes[&node].recoveries;
            let is_running = recoveries.iter().any(|recovery| recovery.segment == record.segment);
            let is_impatient = self.phase == Phase::Faults && self.rng.u8(0..30) == 0;
            if self.is_primary_gone(node, &record) && (!is_running || is_impatient) {
                self.start_recovery(node, &record);
            }
        }
        let epochs: Vec<SegmentEpoch> =
            self.nodes[&node].recoveries.iter().map(|recovery| recovery.machine.epoch()).collect();
        for epoch in epochs {
            self.recovery_tick(node, epoch);
        }
    }

    fn is_primary_gone(&self, node: NodeId, record: &SimRecord) -> bool {
        let (primary, segment) = (record.primary, record.segment);
        if self.suspected.contains(&segment) || !self.nodes.contains_key(&primary) {
            return true;
        }
        let since = self.nodes[&node].unreachable_since.get(&primary);
        let is_unreachable = since.is_some_and(|since| self.now >= since + 1_500);
        let is_young = self.now < self.truth.created_at(segment) + 2_000;
        let forgot = self.reaches(node, primary) && !self.nodes[&primary].primaries.contains_key(&segment);
        is_unreachable || forgot && !is_young
    }

    fn start_recovery(&mut self, node: NodeId, record: &SimRecord) {
        let replicas = record.nodes();
        let setting = if self.has_quorum_of_all { replicas.len() } else { 2.min(replicas.len()) };
        let is_recorded = self.rules.has(ReplicationRule::RecordedQuorum);
        let write_quorum = if is_recorded { record.write_quorum } else { setting };
        let (rules, started) = (self.rules, self.now);
        let is_hasty = self.rng.u8(0..3) == 0;
        let leader = self.node(node);
        leader.attempts += 1;
        let epoch = SegmentEpoch { term: leader.belief.1, attempt: leader.attempts };
        let wanted = RecoveryRecord { segment: record.segment, replicas: replicas.clone(), write_quorum };
        leader.recoveries.push(SimRecovery {
            segment: record.segment,
            machine: SegmentRecovery::by(wanted, epoch, rules),
            replicas,
            started,
            closed_at: None,
            fenced_at: None,
            copies_at: None,
            outstanding: Vec::new(),
            must_plan_again: false,
            answered: BTreeSet::new(),
            seen: Vec::new(),
            is_proposed: false,
            is_hasty,
        });
        self.note(format_args!("{} is recovered in {epoch}", record.segment));
    }

    fn recovery(&mut self, node: NodeId, epoch: SegmentEpoch) -> Option<&mut SimRecovery> {
        let recoveries = self.node(node).recoveries.iter_mut();
        recoveries.into_iter().find(|recovery| recovery.machine.epoch() == epoch)
    }

    fn recovery_tick(&mut self, node: NodeId, epoch: SegmentEpoch) {
        self.close_replicas(node, epoch);
        let now = self.now;
        let Some(recovery) = self.recovery(node, epoch) else { return };
        let segment = recovery.segment;
        match recovery.next_move(now) {
            Move::Wait => {}
            Move::GiveUp => self.end_recovery(node, epoch),
            Move::Copy(copies) => {
                for copy in copies {
                    self.send(node, copy.target, Message::Copy { segment, copy });
                }
            }
            Move::Seal(proposal, facts) => {
                let command = SimCommand::Seal { proposal, recovery: Some(facts) };
                self.propose(node, command, Purpose::RecoverySeal(segment, epoch));
            }
        }
    }

    /// Sends Close to all replicas, and again until all have answered.
    fn close_replicas(&mut self, node: NodeId, epoch: SegmentEpoch) {
        let (now, only_own) = (self.now, self.rules.has(ReplicationRule::OwnReplicasOnly));
        let everybody: Vec<NodeId> = self.nodes.keys().copied().collect();
        let Some(recovery) = self.recovery(node, epoch) else { return };
        let is_due = recovery.closed_at.is_none_or(|at| now >= at + 300);
        let is_complete = recovery.answered.len() >= recovery.replicas.len();
        if recovery.copies_at.is_some() || is_complete || !is_due {
            return;
        }
        recovery.closed_at = Some(now);
        let targets = if only_own { recovery.replicas.clone() } else { everybody };
        let segment = recovery.segment;
        for target in targets {
            self.send(node, target, Message::Close { segment, epoch });
        }
    }

    pub(super) fn close_answered(&mut self, node: NodeId, segment: SegmentId, answer: CloseAnswer) {
        let seen_at = self.now;
        let Some(recovery) = self.recovery(node, answer.epoch) else { return };
        assert_eq!(recovery.segment, segment, "epochs are unique");
        // Only the first answer of a replica counts.
        let is_first = !recovery.answered.contains(&answer.node);
        if let ReplicaContent::Scanned { valid } = &answer.content
            && is_first
        {
            let valid = StretchSet::of(valid.iter().copied());
            let damage = StretchSet::prefix(valid.end()).without(&valid);
            let seen = damage.iter().map(|stretch| SeenDamage { node: answer.node, stretch, seen_at });
            recovery.seen.extend(seen);
        }
        if answer.content != ReplicaContent::Lost && recovery.replicas.contains(&answer.node) {
            recovery.answered.insert(answer.node);
        }
        recovery.machine.answered(answer);
    }

    pub(super) fn copy_done(&mut self, node: NodeId, segment: SegmentId, copy: TailCopy) {
        let Some(recovery) = self.recovery(node, copy.epoch) else { return };
        assert_eq!(recovery.segment, segment, "epochs are unique");
        recovery.machine.copied(&copy);
        recovery.outstanding.retain(|other| *other != copy);
    }

    /// The source of a copy is damaged: another one is planned.
    pub(super) fn copy_unreadable(
        &mut self,
        node: NodeId,
        segment: SegmentId,
        copy: TailCopy,
        bad: &[Stretch],
    ) {
        let seen_at = self.now;
        let Some(recovery) = self.recovery(node, copy.epoch) else { return };
        assert_eq!(recovery.segment, segment, "epochs are unique");
        for stretch in bad.iter().copied() {
            recovery.machine.unreadable(copy.source, stretch);
            recovery.seen.push(SeenDamage { node: copy.source, stretch, seen_at });
        }
        recovery.outstanding.retain(|other| *other != copy);
        recovery.must_plan_again = true;
    }

    /// A replica was lost after it answered.
    pub(super) fn replica_lost(
        &mut self,
        node: NodeId,
        segment: SegmentId,
        epoch: SegmentEpoch,
        replica: NodeId,
    ) {
        let Some(recovery) = self.recovery(node, epoch) else { return };
        assert_eq!(recovery.segment, segment, "epochs are unique");
        recovery.machine.lost(replica);
        recovery.answered.remove(&replica);
        recovery.outstanding.clear();
        recovery.must_plan_again = true;
    }

    /// Whatever the outcome was, the record decides: an attempt is made anew while it is open.
    pub(super) fn recovery_outcome(&mut self, node: NodeId, segment: SegmentId, epoch: SegmentEpoch) {
        self.note(format_args!("{segment} was proposed to be sealed in {epoch}"));
        self.end_recovery(node, epoch);
    }

    fn end_recovery(&mut self, node: NodeId, epoch: SegmentEpoch) {
        self.node(node).recoveries.retain(|recovery| recovery.machine.epoch() != epoch);
    }
}

impl SimRecovery {
    fn next_move(&mut self, now: u64) -> Move {
        if self.is_proposed {
            return Move::Wait;
        }
        let plan = match self.machine.step() {
            RecoveryStep::Wait { .. } if now >= self.started + ATTEMPT_MS => return Move::GiveUp,
            RecoveryStep::Wait { .. } => return Move::Wait,
            RecoveryStep::Proceed(plan) => plan,
        };
        let fenced_at = *self.fenced_at.get_or_insert(now);
        let Some(copies_at) = self.copies_at else {
            if self.is_hasty && plan.seal.is_some() {
                return self.seal(plan);
            }
            if self.answered.len() < self.replicas.len() && now < fenced_at + GRACE_MS {
                return Move::Wait;
            }
            return self.copy(now, plan);
        };
        if !self.outstanding.is_empty() && now < copies_at + COPIES_MS {
            return Move::Wait;
        }
        if self.must_plan_again && !plan.copies.is_empty() {
            return self.copy(now, plan);
        }
        self.seal(plan)
    }

    fn copy(&mut self, now: u64, plan: RecoveryPlan) -> Move {
        (self.copies_at, self.must_plan_again) = (Some(now), false);
        self.outstanding.clone_from(&plan.copies);
        Move::Copy(plan.copies)
    }

    fn seal(&mut self, plan: RecoveryPlan) -> Move {
        let Some(proposal) = plan.seal else { return Move::GiveUp };
        self.is_proposed = true;
        let (answered, seen) = (self.answered.clone(), self.seen.clone());
        Move::Seal(proposal, RecoveryFacts { damage: plan.damage, answered, seen })
    }
}
