//! Invariants of the simulation, as one would state them without the code that decides.
//!
//! - When a record is acknowledged, W replicas of its segment hold it on their devices, the primary among
//!   them, and it lies within the sealed length if the segment is sealed.
//! - When a segment is sealed, every acknowledged record lies within its length, unless faults of disks took
//!   it from so many replicas that with those that are known as lost fewer than W are left. The seal names as
//!   many replicas with it as there were answers, at most W.
//! - Replicas that a sealed segment names hold its bytes, except known damage, damage that a fault did and
//!   nobody has found, and replicas that are marked.
//! - Only a fault of a disk makes the copies of a record fewer than they are to be.

use super::disk::{Cell, cells, cells_of};
use super::group::{RecoveryFacts, SeenDamage, SimRecord};
use super::truth::TrueRecord;
use super::violation::ViolationKind;
use super::world::World;
use crate::epoch::SealProposal;
use crate::repair::COPIES;
use mlgw_common::{NodeId, SegmentId};

impl World {
    fn lost(&mut self, what: impl std::fmt::Display) {
        self.violated(ViolationKind::Loss, what);
    }

    /// The device of a node has these cells of a segment.
    fn is_intact(&self, node: NodeId, segment: SegmentId, record: &TrueRecord) -> bool {
        (record.begin..record.end).all(|at| self.has_cell(node, segment, at))
    }

    fn has_cell(&self, node: NodeId, segment: SegmentId, at: usize) -> bool {
        let expected = self.truth.segments[&segment].cells.get(at);
        let file = self.nodes.get(&node).and_then(|node| node.disk.get(&segment));
        let found = file.and_then(|file| file.durable.cells.as_ref()?.get(at));
        expected.is_some() && found == expected && found != Some(&Cell::Garbage)
    }

    /// The node has the record, or a fault that nobody has found took it.
    fn holds(&self, node: NodeId, segment: SegmentId, record: &TrueRecord) -> bool {
        let has = |at| self.has_cell(node, segment, at) || self.truth.is_hidden(node, segment, at);
        self.group.removed.contains(&node) || (record.begin..record.end).all(has)
    }

    /// A primary acknowledges the record with this end.
    pub(super) fn client_acknowledged(&mut self, node: NodeId, segment: SegmentId, end: u64) {
        let end = cells(end);
        let record = self.group.records[&segment].clone();
        let truth = &self.truth.segments[&segment];
        let Some(at) = truth.records.iter().position(|record| record.end == end) else { return };
        let acknowledged = truth.records[at];
        match record.sealed {
            Some(length) if end > cells(length) => {
                self.lost(format_args!("a record is acknowledged beyond the seal of {segment}"));
            }
            Some(_) => {}
            None => {
                let nodes = record.nodes();
                let holders =
                    nodes.iter().filter(|other| self.holds(**other, segment, &acknowledged)).count();
                if holders < record.write_quorum || !self.holds(node, segment, &acknowledged) {
                    self.lost(format_args!("{holders} replicas of {segment} have an acknowledged record"));
                }
            }
        }
        let now = self.now;
        self.truth.acknowledged += 1;
        self.truth.last_acknowledged.insert(node, now);
        if let Some(truth) = self.truth.segments.get_mut(&segment) {
            truth.records[at].acknowledged_at = Some(now);
        }
    }

    /// A seal is applied to a record.
    pub(super) fn check_seal(
        &mut self,
        record: &SimRecord,
        proposal: &SealProposal,
        recovery: Option<&RecoveryFacts>,
    ) {
        let (segment, length) = (record.segment, cells(proposal.length));
        let answered = recovery.map_or(record.write_quorum, |facts| facts.answered.len());
        let records = self.truth.segments[&segment].records.clone();
        for done in records.iter().filter(|record| record.acknowledged_at.is_some()) {
            let is_old = self.is_old(record, proposal);
            if done.had_fault && (is_old || self.is_taken(record, recovery, done)) {
                continue;
            }
            if done.end > length {
                self.lost(format_args!("{segment} is sealed below an acknowledged record"));
            }
            let named = proposal.replicas.iter().filter(|node| self.holds(**node, segment, done)).count();
            if named < record.write_quorum.min(answered) {
                self.lost(format_args!("the seal of {segment} names {named} replicas with a record"));
            }
        }
        if let Some(facts) = recovery {
            self.check_seen(record, proposal, facts);
        }
        self.note(format_args!("{segment} is sealed at {length} in {}", proposal.epoch));
        if let Some(truth) = self.truth.segments.get_mut(&segment) {
            truth.copies = None;
        }
    }

    /// Named replicas have no damage that the recovery knew, unless all replicas have it.
    fn check_seen(&mut self, record: &SimRecord, proposal: &SealProposal, facts: &RecoveryFacts) {
        let segment = record.segment;
        let is_known = |at| facts.damage.iter().any(|known| cells_of(*known).contains(&at));
        for SeenDamage { node, stretch, seen_at } in facts.seen.iter().copied() {
            let is_bad = |at: usize| {
                !self.has_cell(node, segment, at)
                    && !is_known(at)
                    && !self.truth.is_damaged_after(node, segment, at, seen_at)
            };
            let is_named = proposal.replicas.contains(&node) && self.nodes.contains_key(&node);
            let length = cells(proposal.length);
            if is_named && cells_of(stretch).filter(|at| *at < length).any(is_bad) {
                self.lost(format_args!("the seal of {segment} names {node}, which is known to be bad"));
            }
        }
    }

    /// A later recovery has closed a replica, and may have brought records back.
    fn is_old(&self, record: &SimRecord, proposal: &SealProposal) -> bool {
        let files =
            record.nodes().into_iter().filter_map(|node| self.nodes.get(&node)?.disk.get(&record.segment));
        files.filter_map(|file| file.current.closed).any(|closed| closed > proposal.epoch)
    }

    /// Faults of disks took the record from too many replicas. A replica that is lost, and did not answer
    /// before, is no excuse: the recovery knows that it has to do without.
    fn is_taken(&self, record: &SimRecord, recovery: Option<&RecoveryFacts>, done: &TrueRecord) -> bool {
        let (segment, nodes) = (record.segment, record.nodes());
        let has_answered = |node: &NodeId| recovery.is_some_and(|facts| facts.answered.contains(node));
        let is_missed = |node: &&NodeId| self.is_lost(**node, segment) && !has_answered(node);
        let missed = nodes.iter().filter(is_missed).count();
        let holders = nodes.iter().filter(|node| self.is_intact(**node, segment, done)).count();
        holders + missed < record.write_quorum
    }

    /// The node was removed, or lost its replica and knows that.
    pub(super) fn is_lost(&self, node: NodeId, segment: SegmentId) -> bool {
        self.nodes.get(&node).is_none_or(|node| {
            let file = node.disk.get(&segment);
            segment <= node.lost_until && file.is_none_or(|file| file.current.cells.is_none())
        })
    }

    /// Checks the sealed segments that changed.
    pub(super) fn check_touched(&mut self) {
        for segment in std::mem::take(&mut self.touched) {
            let record = self.group.records.get(&segment).cloned();
            if let Some((record, length)) = record.and_then(|record| record.sealed.map(|at| (record, at))) {
                self.check_content(&record, cells(length));
                self.check_copies(&record, cells(length));
            }
        }
    }

    fn is_known_damage(record: &SimRecord, at: usize) -> bool {
        record.damage.iter().any(|stretch| cells_of(*stretch).contains(&at))
    }

    fn check_content(&mut self, record: &SimRecord, length: usize) {
        let segment = record.segment;
        let good = record.replicas.iter().filter(|replica| !replica.is_suspect).map(|replica| replica.node);
        for node in good.filter(|node| self.nodes.contains_key(node)).collect::<Vec<_>>() {
            let is_bad = |at: &usize| {
                !self.has_cell(node, segment, *at)
                    && !Self::is_known_damage(record, *at)
                    && !self.truth.is_hidden(node, segment, *at)
            };
            if let Some(at) = (0..length).find(is_bad) {
                self.lost(format_args!("{node} is named by {segment} and lacks cell {at} of {length}"));
            }
        }
    }

    fn check_copies(&mut self, record: &SimRecord, length: usize) {
        let segment = record.segment;
        let nodes = record.nodes();
        let truth = &self.truth.segments[&segment];
        let is_whole = |done: &&TrueRecord| {
            done.end <= length && (done.begin..done.end).all(|at| !Self::is_known_damage(record, at))
        };
        let within = truth.records.iter().filter(is_whole);
        let copies: Vec<usize> = within
            .map(|done| nodes.iter().filter(|node| self.holds(**node, segment, done)).count())
            .collect();
        let wanted = COPIES.min(self.nodes.len());
        let before = truth.copies.clone().unwrap_or_default();
        if before.iter().zip(&copies).any(|(before, now)| now < before && *now < wanted) {
            self.lost(format_args!("a record of {segment} has fewer copies than before"));
        }
        if let Some(truth) = self.truth.segments.get_mut(&segment) {
            truth.copies = Some(copies);
        }
    }

    /// True if every segment that can be is sealed and has as many good replicas as it is to have.
    pub(super) fn is_converged(&self) -> bool {
        self.unfinished().is_none()
    }

    /// The first segment that is not in its goal state, although it could be.
    pub(super) fn unfinished(&self) -> Option<String> {
        self.group.records.values().find_map(|record| {
            let segment = record.segment;
            match record.sealed {
                None if self.can_be_sealed(record) => Some(format!("{segment} is open")),
                Some(length) if self.can_be_healed(record, cells(length)) => self.below(record),
                _ => None,
            }
        })
    }

    fn can_be_sealed(&self, record: &SimRecord) -> bool {
        let nodes = record.nodes();
        nodes.iter().filter(|node| !self.is_lost(**node, record.segment)).count()
            > nodes.len() - record.write_quorum
    }

    /// A node has a replica, and every byte is on some replica or known to be bad.
    fn can_be_healed(&self, record: &SimRecord, length: usize) -> bool {
        let nodes = record.nodes();
        let is_somewhere = |at| nodes.iter().any(|node| self.has_cell(*node, record.segment, at));
        let has_source = nodes.iter().any(|node| self.nodes.contains_key(node));
        has_source && (0..length).all(|at| is_somewhere(at) || Self::is_known_damage(record, at))
    }

    fn below(&self, record: &SimRecord) -> Option<String> {
        let good = record.replicas.iter().filter(|replica| !replica.is_suspect);
        let good = good.filter(|replica| self.nodes.contains_key(&replica.node)).count();
        let wanted = COPIES.min(self.nodes.len());
        let is_exact = good == wanted && record.replicas.len() == wanted;
        (!is_exact)
            .then(|| format!("{} has {good} of {wanted} replicas: {:?}", record.segment, record.replicas))
    }
}
