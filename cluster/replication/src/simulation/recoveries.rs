//! Coordinators: recovery of open segments, and repair of sealed ones.

use super::replicas::SimFile;
use super::world::{Command, Event, Message, SealedBy, SimRecord, World};
use crate::recovery::{ListedReplicas, RecoveredSeal, decide_seal_by};
use crate::repair::{
    COPIES, RepairInput, RepairKind, RepairTask, ReplicaFacts, SegmentFacts, next_tasks_by, wanted_copies,
};
use crate::rules::ReplicationRule;
use crate::views::{StorageNode, StorageViews};
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeMap;

/// Set of all segments.
pub(super) const SET: u32 = 0;

/// Time for which a node does not answer before its segments are recovered.
const UNREACHABLE_MS: u64 = 500;
/// Wait for the remaining replicas when enough are closed, and for answers at all.
const REMAINING_MS: u64 = 300;
const ANSWERS_MS: u64 = 1_500;

impl SimRecord {
    pub(super) fn listed(&self) -> Vec<NodeId> {
        self.replicas.iter().map(|replica| replica.node).collect()
    }

    pub(super) fn names(&self, node: NodeId) -> bool {
        self.replicas.iter().any(|replica| replica.node == node)
    }
}

impl World {
    /// Closes all replicas of a segment. Any node may do so at any time.
    pub(super) fn start_recovery(&mut self, node: NodeId, segment: SegmentId) {
        let is_open = self.records.get(&segment).is_some_and(|record| record.sealed.is_none());
        if !is_open || self.nodes[&node].recoveries.contains_key(&segment) {
            return;
        }
        let now = self.now;
        self.node(node).recoveries.insert(segment, (now, BTreeMap::new()));
        for peer in self.records[&segment].listed() {
            if let Some(session) = self.session(node, peer) {
                self.send(node, peer, session, Message::Close(segment));
            }
        }
    }

    pub(super) fn recoveries_tick(&mut self, node: NodeId) {
        let now = self.now;
        for peer in self.ids() {
            if self.session(node, peer).is_some() {
                self.node(node).unreachable_since.remove(&peer);
            } else {
                self.node(node).unreachable_since.entry(peer).or_insert(now);
            }
        }
        if self.cut_off.contains(&node) {
            return;
        }
        let of = &self.nodes[&node];
        let gone = |peer: NodeId| of.unreachable_since.get(&peer).is_some_and(|at| at + UNREACHABLE_MS < now);
        let is_first = (1..node.0).map(NodeId).all(gone);
        let is_due = |(segment, record): (&SegmentId, &SimRecord)| {
            let owner = self.truth.owners[segment];
            let is_left = owner == node && !of.writers.contains_key(segment);
            let was_left = is_left && (self.is_calm || !of.created.contains(segment));
            (record.sealed.is_none() && (was_left || is_first && gone(owner))).then_some(*segment)
        };
        let due: Vec<SegmentId> = self.records.iter().filter_map(is_due).collect();
        for segment in due {
            self.start_recovery(node, segment);
        }
        let running: Vec<SegmentId> = self.nodes[&node].recoveries.keys().copied().collect();
        for segment in running {
            self.decide_recovery(node, segment);
        }
    }

    fn decide_recovery(&mut self, node: NodeId, segment: SegmentId) {
        let (begun, answers) = &self.nodes[&node].recoveries[&segment];
        let (age, answers) = (self.now - begun, answers.clone());
        let Some(record) = self.records.get(&segment).filter(|record| record.sealed.is_none()) else {
            self.node(node).recoveries.remove(&segment);
            return;
        };
        let listed = record.listed();
        let replicas =
            ListedReplicas { nodes: &listed, write_quorum: self.quorum(segment), removed: &self.removed };
        let decided = decide_seal_by(&replicas, &answers, self.rules);
        if answers.len() < listed.len() && age < if decided.is_ok() { REMAINING_MS } else { ANSWERS_MS } {
            return;
        }
        self.node(node).recoveries.remove(&segment);
        if let Ok(RecoveredSeal { length, replicas, may_miss_bytes: _ }) = decided {
            let facts = replicas.iter().map(|of| ReplicaFacts { node: of.node, is_suspect: of.is_suspect });
            let replicas = facts.collect();
            let damaged = answers.iter().filter(|(_, answer)| answer.damaged_bytes > 0);
            let by = SealedBy::Recovery(damaged.map(|(node, _)| *node).collect());
            self.propose(node, Command::Seal { segment, length, replicas, by });
        }
    }

    /// Begins the repairs of a node, and marks its replicas whose files are missing.
    pub(super) fn repairs_tick(&mut self, node: NodeId) {
        if self.cut_off.contains(&node) {
            return;
        }
        let views = self.storage_views(node);
        let nodes = views.of(SET);
        let wanted = wanted_copies(COPIES, views.all());
        let is_staying = |of: &ReplicaFacts| nodes.iter().any(|one| one.node == of.node && !one.is_leaving);
        let (mut segments, mut missing) = (Vec::new(), Vec::new());
        for (segment, record) in &self.records {
            let Some(bytes) = record.sealed else { continue };
            let has_file = self.nodes[&node].disk.get(segment).is_some_and(|file| file.length() > 0);
            if !has_file && record.replicas.iter().any(|of| of.node == node && !of.is_suspect) {
                missing.push(*segment);
            }
            let is_settled = |of: &ReplicaFacts| !of.is_suspect && is_staying(of);
            if record.replicas.len() != wanted || !record.replicas.iter().all(is_settled) {
                let (changes, replicas) = (record.changes, record.replicas.clone());
                let (segment, set, is_at_upstream) = (*segment, SET, false);
                segments.push(SegmentFacts { segment, set, bytes, changes, replicas, is_at_upstream });
            }
        }
        for segment in missing {
            self.mark(node, segment);
        }
        let input = RepairInput {
            own: node,
            copies: COPIES,
            nodes: &views,
            segments: &segments,
            busy: &self.nodes[&node].busy,
            tasks_max: 2,
        };
        for task in next_tasks_by(&input, self.rules) {
            if task.kind == RepairKind::Copy && self.leaving.contains(&node) {
                self.violated(format!("{node} copies {} although it leaves", task.segment));
            }
            let (delay, start) = (self.rng.u64(20..300), self.nodes[&node].start);
            self.node(node).busy.insert(task.segment);
            self.schedule(delay, Event::Repaired { node, start, task });
        }
    }

    /// The storage nodes, as a node sees them.
    pub(super) fn storage_views(&self, own: NodeId) -> StorageViews {
        let described = |node: NodeId| {
            let is_reachable = node == own || self.session(own, node).is_some();
            StorageNode { node, is_reachable, is_leaving: self.leaving.contains(&node), is_full: false }
        };
        let nodes = self.ids().into_iter().filter(|node| !self.removed.contains(node)).map(described);
        StorageViews::new(nodes.collect(), self.set.clone().map(|nodes| (SET, nodes)))
    }

    /// Makes a node the owner of a segment.
    fn take_over(&mut self, node: NodeId, segment: SegmentId) {
        let Some(record) = self.records.get(&segment) else { return };
        let (changes, mut replicas) = (record.changes, record.replicas.clone());
        replicas.sort_by_key(|of| of.node != node);
        self.node(node).busy.insert(segment);
        self.propose(node, Command::Replace { segment, changes, replicas });
    }

    /// Drops the replicas of removed nodes.
    fn forget(&mut self, node: NodeId, segment: SegmentId) {
        let Some(record) = self.records.get(&segment) else { return };
        let (changes, mut replicas) = (record.changes, record.replicas.clone());
        replicas.retain(|of| !self.removed.contains(&of.node));
        self.node(node).busy.insert(segment);
        self.propose(node, Command::Replace { segment, changes, replicas });
    }

    /// Proposes a change of the replica of a node.
    fn replace(&mut self, node: NodeId, segment: SegmentId, own: Option<bool>) {
        let Some(record) = self.records.get(&segment) else { return };
        let (changes, mut replicas) = (record.changes, record.replicas.clone());
        match (own, replicas.iter_mut().find(|of| of.node == node)) {
            (Some(is_suspect), Some(listed)) => listed.is_suspect = is_suspect,
            (Some(is_suspect), None) => replicas.push(ReplicaFacts { node, is_suspect }),
            (None, _) => replicas.retain(|of| of.node != node),
        }
        self.node(node).busy.insert(segment);
        self.propose(node, Command::Replace { segment, changes, replicas });
    }

    fn mark(&mut self, node: NodeId, segment: SegmentId) {
        if !self.nodes[&node].busy.contains(&segment) {
            self.replace(node, segment, Some(true));
        }
    }

    /// Ends a repair: what is bad here is read from the other replicas. The local file is a source too, also
    /// one that the record does not list yet: its listing may be recorded late. So it never gets worse.
    pub(super) fn repaired(&mut self, node: NodeId, task: &RepairTask) {
        let segment = task.segment;
        self.node(node).busy.remove(&segment);
        let Some(record) = self.records.get(&segment).filter(|of| of.changes == task.changes).cloned() else {
            return;
        };
        let is_owner = self.truth.owners[&segment] == node && self.rules.has(ReplicationRule::LastStays);
        match task.kind {
            RepairKind::Drop if !is_owner => return self.replace(node, segment, None),
            RepairKind::TakeOver => return self.take_over(node, segment),
            RepairKind::Forget => return self.forget(node, segment),
            RepairKind::Drop | RepairKind::Heal | RepairKind::Copy => {}
        }
        if !self.close_followed(node, segment) {
            return;
        }
        let others = record.listed().into_iter().filter(|of| *of != node && !self.removed.contains(of));
        let (read, unread): (Vec<NodeId>, Vec<NodeId>) =
            others.partition(|of| self.session(node, *of).is_some());
        let sources: Vec<NodeId> = read.into_iter().chain([node]).collect();
        let has = |of: &NodeId, at| self.nodes[of].disk.get(&segment).is_some_and(|file| file.has(at));
        let length = record.sealed.unwrap_or(0);
        let bytes: Vec<bool> = (0..length).map(|at| sources.iter().any(|of| has(of, at))).collect();
        let is_partial = bytes.contains(&false) && !unread.is_empty();
        // The mark stays, and so does the file: a replica that is not read now may have what is missing.
        if is_partial && task.kind != RepairKind::Copy {
            return;
        }
        self.node(node).disk.insert(segment, SimFile::of(bytes));
        self.truth.unlisted_losses.entry(segment).or_default().remove(&node);
        self.check(segment);
        self.replace(node, segment, Some(is_partial));
    }

    /// Marks a damaged replica of a sealed segment, sooner or later. A mark is made once: only a repair of
    /// its node clears it.
    pub(super) fn scrub(&mut self, node: NodeId, segment: SegmentId) {
        let Some(record) = self.records.get(&segment) else { return };
        if record.sealed.is_none() {
            return self.schedule(1_000, Event::Scrub { node, segment });
        }
        let has = |of: NodeId, at| self.nodes[&of].disk.get(&segment).is_some_and(|file| file.has(at));
        let elsewhere = |at| record.replicas.iter().any(|of| has(of.node, at));
        // What is bad everywhere stays bad.
        let is_bad = (0..record.sealed.unwrap_or(0)).any(|at| !has(node, at) && elsewhere(at));
        let is_good = record.replicas.iter().any(|of| of.node == node && !of.is_suspect);
        if !is_bad || !is_good {
            return;
        }
        if self.nodes[&node].is_up && !self.cut_off.contains(&node) {
            self.mark(node, segment);
        }
        self.schedule(300, Event::Scrub { node, segment });
    }
}
