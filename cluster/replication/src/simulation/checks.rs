//! What always holds, and what holds when nothing fails any more.

use super::faults::ScheduleKind;
use super::recoveries::SET;
use super::replicas::SimFile;
use super::world::{Event, QUORUM, SealedBy, SimRecord, World};
use crate::recovery::{ClosedAnswer, is_end_uncertain, needed_answers};
use crate::repair::{COPIES, ReplicaFacts, wanted_copies};
use mlgw_common::{NodeId, SegmentId};

/// Time after which pauses count.
const WARM_UP_MS: u64 = 3_000;

impl World {
    /// Records that a primary acknowledges a length, and checks that it may.
    pub(super) fn acknowledge(&mut self, node: NodeId, segment: SegmentId, length: u64) {
        let now = self.now;
        let of = self.node(node);
        let before = std::mem::replace(&mut of.last_acknowledged, now);
        if before > WARM_UP_MS {
            of.longest_pause = of.longest_pause.max(now - before);
        }
        let acknowledged = self.truth.acknowledged.entry(segment).or_default();
        *acknowledged = length.max(*acknowledged);
        let listed = self.records.get(&segment).map_or(0, |record| record.replicas.len());
        if let Some(closed) = self.truth.closed.get(&segment) {
            let is_over = closed.len() >= needed_answers(listed, self.quorum(segment));
            if is_over && closed.values().all(|of| *of < length) {
                self.violated(format!("{segment} was acknowledged after a quorum closed"));
            }
        }
        let file = self.nodes[&node].disk.get(&segment);
        let has_lost = self.truth.losses.get(&segment).is_some_and(|lost| lost.contains(&node));
        if !has_lost && file.is_none_or(|file| (0..length).any(|at| !file.has(at))) {
            self.violated(format!("{segment} was acknowledged beyond what its primary has"));
        }
        self.check(segment);
    }

    pub(super) fn check_all(&mut self) {
        let segments: Vec<SegmentId> = self.records.keys().copied().collect();
        segments.into_iter().for_each(|segment| self.check(segment));
    }

    /// True if fewer replicas lost bytes, at any time, than are needed for an acknowledgement, and than there
    /// are: a drain may leave two of three.
    fn is_guaranteed(&self, segment: SegmentId) -> bool {
        if self.truth.unguaranteed.contains(&segment) {
            return false;
        }
        let listed = self.records.get(&segment).map_or(0, |record| record.replicas.len());
        let needed = self.quorum(segment).min(listed.max(QUORUM));
        self.truth.losses.get(&segment).is_none_or(|lost| lost.len() < needed)
    }

    /// Write quorum of a segment.
    pub(super) fn quorum(&self, segment: SegmentId) -> usize {
        self.truth.quorums.get(&segment).copied().unwrap_or(QUORUM)
    }

    /// Checks that every acknowledged byte is in the segment, and in a replica that the record names.
    pub(super) fn check(&mut self, segment: SegmentId) {
        let acknowledged = self.truth.acknowledged.get(&segment).copied().unwrap_or(0);
        let is_guaranteed = self.is_guaranteed(segment);
        if !is_guaranteed {
            self.truth.unguaranteed.insert(segment);
        }
        let Some(record) = self.records.get(&segment) else {
            if acknowledged > 1 && is_guaranteed {
                self.violated(format!("{segment} was released with acknowledged bytes"));
            }
            return;
        };
        if record.replicas.first().map(|of| of.node) != Some(self.truth.owners[&segment]) {
            return self.violated(format!("{segment} has another owner"));
        }
        if !is_guaranteed {
            return;
        }
        if record.sealed.is_some_and(|sealed| sealed < acknowledged) {
            return self.violated(format!("{segment} has {acknowledged} acknowledged bytes beyond its seal"));
        }
        let files = record.replicas.iter().filter_map(|of| self.nodes[&of.node].disk.get(&segment));
        let files: Vec<_> = files.collect();
        let is_lost = |at: &u64| !files.iter().any(|file| file.has(*at));
        if let Some(at) = (0..acknowledged).find(is_lost) {
            self.violated(format!("{segment} has lost the acknowledged byte {at}"));
        }
    }

    /// Counts the files that were lost after their listing was proposed and before it was recorded. Until
    /// their node marks them, they count as good.
    pub(super) fn count_late_losses(&mut self, segment: SegmentId, after: &[ReplicaFacts]) {
        let Some(lost) = self.truth.unlisted_losses.get_mut(&segment) else { return };
        for node in after.iter().map(|of| of.node).filter(|node| lost.remove(node)) {
            self.truth.losses.entry(segment).or_default().insert(node);
        }
    }

    /// Checks a change of the replicas: only an owner that leaves is replaced, by a node with a good replica.
    pub(super) fn check_replacement(
        &mut self,
        segment: SegmentId,
        before: &[ReplicaFacts],
        after: &[ReplicaFacts],
    ) {
        let (Some(old), Some(new)) = (before.first(), after.first()) else { return };
        if old.node != new.node {
            if !self.has_left.contains(&old.node) {
                self.violated(format!("{segment} has another owner, and its owner stays"));
            }
            if new.is_suspect {
                self.violated(format!("{segment} is owned by a node with a marked replica"));
            }
            self.truth.owners.insert(segment, new.node);
        }
    }

    /// Checks that a seal names as good what has the length. A listed replica that a recovery gives up, since
    /// it did not answer, counts as lost.
    pub(super) fn check_seal(&mut self, segment: SegmentId, listed: &[NodeId], by: &SealedBy) {
        let record = self.records[&segment].clone();
        let found: &[NodeId] = match by {
            SealedBy::Primary => &[],
            SealedBy::Recovery(damaged) => damaged,
        };
        let is_recovery = matches!(by, SealedBy::Recovery(_));
        for node in listed.iter().filter(|node| is_recovery && !record.names(**node)) {
            self.truth.losses.entry(segment).or_default().insert(*node);
        }
        let length = record.sealed.unwrap_or(0);
        let good: Vec<NodeId> =
            record.replicas.iter().filter(|of| !of.is_suspect).map(|of| of.node).collect();
        let damaged = good.iter().filter(|node| found.contains(node)).count();
        if (1..good.len()).contains(&damaged) {
            self.violated(format!("{segment} has damaged replicas beside a better one, named as good"));
        }
        for node in good {
            let file = self.nodes[&node].disk.get(&segment);
            let has_length = file.is_some_and(|file| file.length() >= length);
            let has_lost = self.truth.losses.get(&segment).is_some_and(|lost| lost.contains(&node));
            if !has_length && !has_lost {
                self.violated(format!("{node} is named as good and lacks bytes of {segment}"));
            }
            // Its close reports it to its own node, or scrub finds it.
            if has_lost {
                self.schedule(1_000, Event::Scrub { node, segment });
            }
        }
    }

    /// Returns what is not as it is when nothing fails any more.
    pub(super) fn unfinished(&self) -> Option<String> {
        self.records.keys().find_map(|segment| self.unfinished_of(*segment))
    }

    /// True if a seal waits for a node that is gone, because the end of another replica is uncertain.
    fn waits_for_gone(&self, segment: SegmentId, record: &SimRecord) -> bool {
        let (gone, there): (Vec<NodeId>, Vec<NodeId>) =
            record.listed().into_iter().partition(|node| self.is_gone(*node));
        let files = there.iter().filter_map(|node| self.nodes[node].disk.get(&segment));
        let answers: Vec<ClosedAnswer> = files.map(SimFile::scan).collect();
        !gone.is_empty() && is_end_uncertain(&answers)
    }

    fn unfinished_of(&self, segment: SegmentId) -> Option<String> {
        let record = &self.records[&segment];
        let acknowledged = self.truth.acknowledged.get(&segment).copied().unwrap_or(0);
        let is_gone = self.swarm.kind == ScheduleKind::NodeGone;
        let Some(length) = record.sealed else {
            // A segment that never began and whose owner is gone needs no seal. Another one waits for a node
            // that is gone if that one may have a record that is damaged elsewhere.
            let waits = is_gone && (acknowledged <= 1 || self.waits_for_gone(segment, record));
            return (!waits).then(|| format!("{segment} is not sealed: {record:?}"));
        };
        if is_gone || !self.is_guaranteed(segment) {
            return None;
        }
        let is_whole = |node: NodeId| {
            let file = self.nodes[&node].disk.get(&segment);
            file.is_some_and(|file| file.length() >= length && (0..acknowledged).all(|at| file.has(at)))
        };
        let good: Vec<NodeId> =
            record.replicas.iter().filter(|of| !of.is_suspect).map(|of| of.node).collect();
        let views = self.storage_views(NodeId(1));
        let nodes = views.of(SET);
        let leaves = |of: &NodeId| nodes.iter().all(|node| node.node != *of || node.is_leaving);
        if let Some(left) = record.listed().into_iter().find(leaves) {
            return Some(format!("{segment} is still on {left}, which leaves: {record:?}"));
        }
        let lacks = good.len() < wanted_copies(COPIES, views.all()) || !good.into_iter().all(is_whole);
        let files = || self.nodes.iter().map(|(node, of)| (node, of.disk.get(&segment))).collect::<Vec<_>>();
        lacks
            .then(|| format!("{segment} lacks good replicas up to {acknowledged}: {record:?}, {:?}", files()))
    }
}
