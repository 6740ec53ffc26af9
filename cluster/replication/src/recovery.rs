//! Recovery of a segment whose primary is gone, by the leader of the segment group.
//!
//! - Close goes to the segment's own replicas. |replicas| − W + 1 distinct answers of them fence the segment,
//!   by the record's own W: any W replicas, which a further acknowledgement needs, include one of them.
//! - The length is the largest end of a valid record over the answers, or the synced length of a replica whose
//!   process has written all of it. So it is never less than what was acknowledged.
//! - What one replica lacks is copied from another, record by record and verified. What is bad everywhere is
//!   reported, and never shortens the segment.
//! - The seal names the replicas that have the length: at least one, and W of them if so many answered.
//!
//! An attempt has one epoch and lives in the memory of one leader. When it fails in any way, a new attempt
//! with a higher epoch begins: all that an attempt did to replicas is harmless to the next one.

use crate::epoch::{SealProposal, SegmentEpoch};
use crate::rules::{ReplicationRule, ReplicationRules};
use crate::stretch::{Stretch, StretchSet};
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeMap;

/// An open segment, as recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryRecord {
    /// Id of the segment.
    pub segment: SegmentId,
    /// Nodes of its replicas, the primary first.
    pub replicas: Vec<NodeId>,
    /// Number of replicas that had to sync before an append was acknowledged.
    pub write_quorum: usize,
}

/// Content of a closed replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaContent {
    /// The node has written all of the file since it started, and this length is synced.
    Synced {
        /// Length of the file.
        length: u64,
    },
    /// The file was scanned on its device: the header and the records that verify. Empty without a file.
    Scanned {
        /// Stretches of verified bytes.
        valid: Vec<Stretch>,
    },
    /// The directory of the replica was lost after the segment was created.
    Lost,
}

/// Answer to Close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseAnswer {
    /// The node that answered.
    pub node: NodeId,
    /// Epoch of the Close.
    pub epoch: SegmentEpoch,
    /// Content of its replica.
    pub content: ReplicaContent,
}

/// Copy of verified records from one closed replica to another. It is refused by a replica that was closed
/// with a higher epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailCopy {
    /// Node to read from.
    pub source: NodeId,
    /// Node to write to.
    pub target: NodeId,
    /// Epoch of the attempt.
    pub epoch: SegmentEpoch,
    /// Bytes to copy.
    pub stretch: Stretch,
}

/// Next step of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    /// Too few replicas have answered: the segment is not fenced.
    Wait {
        /// Replicas that have not answered, or were lost.
        missing: Vec<NodeId>,
        /// Number of further answers that are needed.
        needed: usize,
    },
    /// The segment is fenced.
    Proceed(RecoveryPlan),
}

/// Work after the segment is fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// Length of the segment.
    pub length: u64,
    /// Copies that give every replica that answered all that any of them has.
    pub copies: Vec<TailCopy>,
    /// The seal, as soon as enough replicas have the length. It may be proposed at once; proposed after the
    /// copies it names more replicas.
    pub seal: Option<SealProposal>,
    /// Stretches that are bad at all replicas that answered.
    pub damage: Vec<Stretch>,
}

/// An attempt to recover a segment.
#[derive(Clone, Debug)]
pub struct SegmentRecovery {
    record: RecoveryRecord,
    epoch: SegmentEpoch,
    /// Replicas that count.
    answers: BTreeMap<NodeId, AnsweredReplica>,
    /// Number of answers, repeated ones included.
    received: usize,
    rules: ReplicationRules,
}

#[derive(Clone, Debug)]
struct AnsweredReplica {
    /// End of the file, which later damage does not shorten.
    end: u64,
    content: StretchSet,
}

impl SegmentRecovery {
    /// Begins an attempt. Its epoch is higher than that of any earlier one.
    #[must_use]
    pub fn new(record: RecoveryRecord, epoch: SegmentEpoch) -> Self {
        Self::by(record, epoch, ReplicationRules::ALL)
    }

    pub(crate) fn by(record: RecoveryRecord, epoch: SegmentEpoch, rules: ReplicationRules) -> Self {
        let quorum = record.write_quorum;
        assert!((1..=record.replicas.len()).contains(&quorum), "the quorum is a part of the replicas");
        Self { record, epoch, answers: BTreeMap::new(), received: 0, rules }
    }

    /// Epoch of the attempt.
    #[must_use]
    pub const fn epoch(&self) -> SegmentEpoch {
        self.epoch
    }

    /// Nodes to send Close to, again until they answer.
    #[must_use]
    pub fn unanswered(&self) -> Vec<NodeId> {
        let missing = self.record.replicas.iter().filter(|node| !self.answers.contains_key(node));
        missing.copied().collect()
    }

    /// Records an answer to Close.
    pub fn answered(&mut self, answer: CloseAnswer) {
        let is_own =
            self.record.replicas.contains(&answer.node) || !self.rules.has(ReplicationRule::OwnReplicasOnly);
        if answer.epoch != self.epoch || !is_own {
            return;
        }
        let content = match answer.content {
            ReplicaContent::Synced { length } => StretchSet::prefix(length),
            ReplicaContent::Scanned { valid } => StretchSet::of(valid),
            ReplicaContent::Lost if self.rules.has(ReplicationRule::LostNeverCounts) => return,
            ReplicaContent::Lost => StretchSet::default(),
        };
        self.received += 1;
        let content = self.readable(content);
        self.answers.entry(answer.node).or_insert(AnsweredReplica { end: content.end(), content });
    }

    /// Records that a copy is written and synced at its target.
    pub fn copied(&mut self, copy: &TailCopy) {
        if let Some(replica) = self.answers.get_mut(&copy.target).filter(|_| copy.epoch == self.epoch) {
            replica.content.insert(copy.stretch);
        }
    }

    /// Records that bytes of a replica did not verify when they were read for a copy. The length stays.
    pub fn unreadable(&mut self, node: NodeId, stretch: Stretch) {
        if let Some(replica) = self.answers.get_mut(&node) {
            replica.content = replica.content.without(&StretchSet::of([stretch]));
        }
    }

    /// Records that the directory of a replica was lost after it answered: its answer no longer counts.
    pub fn lost(&mut self, node: NodeId) {
        if self.rules.has(ReplicationRule::LostNeverCounts) {
            self.answers.remove(&node);
        }
    }

    /// Returns the next step.
    #[must_use]
    pub fn step(&self) -> RecoveryStep {
        let (needed, counted) = (self.needed(), self.counted());
        if counted < needed {
            return RecoveryStep::Wait { missing: self.unanswered(), needed: needed - counted };
        }
        RecoveryStep::Proceed(self.plan())
    }

    /// Number of answers that fence the segment.
    fn needed(&self) -> usize {
        let RecoveryRecord { replicas, write_quorum, .. } = &self.record;
        let fence = replicas.len() - write_quorum + 1;
        if self.rules.has(ReplicationRule::EnoughAnswers) { fence } else { 1 }
    }

    fn counted(&self) -> usize {
        let is_distinct = self.rules.has(ReplicationRule::DistinctAnswers);
        let answers = if is_distinct { self.answers.len() } else { self.received };
        let primary = self.record.replicas.first();
        let is_primary_missing = primary.is_some_and(|node| !self.answers.contains_key(node));
        let is_presumed = is_primary_missing && !self.rules.has(ReplicationRule::PrimaryAnswers);
        if is_presumed && answers > 0 { answers + 1 } else { answers }
    }

    /// The part of a content that a scan returns.
    fn readable(&self, content: StretchSet) -> StretchSet {
        if self.rules.has(ReplicationRule::ScanPastDamage) {
            return content;
        }
        StretchSet::of(content.iter().take(1).filter(|stretch| stretch.from == 0))
    }

    /// Ends of the files that count, and the length that follows.
    fn length(&self) -> u64 {
        let mut ends = self.answers.values().map(|replica| replica.end);
        let is_largest = self.rules.has(ReplicationRule::LargestEnd);
        let length =
            if is_largest { ends.max() } else { ends.next().map(|first| ends.fold(first, u64::min)) };
        length.unwrap_or(0)
    }

    fn plan(&self) -> RecoveryPlan {
        let end = self.length();
        let anywhere = StretchSet::of(self.answers.values().flat_map(|replica| replica.content.iter()));
        let damage = StretchSet::prefix(end).without(&anywhere);
        let shortens = !self.rules.has(ReplicationRule::DamageNeverShortens);
        let length = damage.iter().next().filter(|_| shortens).map_or(end, |first| first.from);
        let wanted = StretchSet::prefix(length).without(&damage);
        let (mut copies, mut complete) = (Vec::new(), Vec::new());
        for node in self.ordered() {
            let missing = self.missing(node, &wanted);
            if missing.is_empty() {
                complete.push(node);
            }
            copies.extend(self.copies_for(node, missing));
        }
        let seal = self.seal(length, complete);
        RecoveryPlan { length, copies, seal, damage: damage.iter().collect() }
    }

    /// Nodes that have answered, in the order of the record.
    fn ordered(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.answers.keys().copied().collect();
        let place = |node: &NodeId| self.record.replicas.iter().position(|other| other == node);
        nodes.sort_by_key(|node| place(node).unwrap_or(usize::MAX));
        nodes
    }

    /// Bytes that a replica does not have and another one has.
    fn missing(&self, node: NodeId, wanted: &StretchSet) -> StretchSet {
        let Some(replica) = self.answers.get(&node) else { return StretchSet::default() };
        if self.rules.has(ReplicationRule::DamageIsFilled) {
            return wanted.without(&replica.content);
        }
        wanted.without(&StretchSet::prefix(replica.content.end()))
    }

    fn copies_for(&self, target: NodeId, mut missing: StretchSet) -> Vec<TailCopy> {
        let mut copies = Vec::new();
        for source in self.ordered().into_iter().filter(|node| *node != target) {
            let Some(replica) = self.answers.get(&source) else { continue };
            let here = missing.intersection(&replica.content);
            missing = missing.without(&here);
            let copy = |stretch| TailCopy { source, target, epoch: self.epoch, stretch };
            copies.extend(here.iter().map(copy));
        }
        copies.sort_by_key(|copy| copy.stretch);
        copies
    }

    fn seal(&self, length: u64, complete: Vec<NodeId>) -> Option<SealProposal> {
        let enough = match self.rules.has(ReplicationRule::QuorumIsNamed) {
            true => self.record.write_quorum.min(self.answers.len()),
            false => 1,
        };
        let all = !self.rules.has(ReplicationRule::NamedHaveLength);
        let replicas = if all { self.ordered() } else { complete };
        let is_enough = !replicas.is_empty() && replicas.len() >= enough;
        let (segment, epoch) = (self.record.segment, self.epoch);
        is_enough.then_some(SealProposal { segment, epoch, length, replicas })
    }
}

#[cfg(test)]
mod tests;
