//! The primary of an open segment: the length up to which appends are durable, and the seal.
//!
//! - An append is acknowledged when W replicas have synced it, the primary's own among them.
//! - A segment is sealed at the acknowledged length. The seal names every replica that has it, whether or not
//!   it was dropped meanwhile, and so never fewer than W.
//! - Once a seal was proposed, nothing is appended or acknowledged any more, whatever becomes of the
//!   proposal: a seal by another node that was faster has every acknowledged byte too. What lies beyond the
//!   acknowledged length is appended again, whole, in another segment.
//! - A follower that fails, answers late or trails too much is dropped, and the segment is sealed: the next
//!   one has other replicas. A failure of the primary's own disk does the same.
//!
//! Lengths are those of the file, and every write ends at the end of a record. Nothing here survives a
//! restart: a primary that restarted has no open segments, and recovery seals those that it had.

use crate::rules::{ReplicationRule, ReplicationRules};
use mlgw_common::{NodeId, SegmentId};
use std::collections::VecDeque;
use std::time::Duration;

/// Time by which a follower beyond the quorum may trail.
pub const TRAIL_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes by which a follower beyond the quorum may trail.
pub const TRAIL_BYTES_MAX: u64 = 32 << 20;

/// Distance in time of the marks from which trailing is computed: a tenth of the maximum, so that few are
/// kept.
const MARK_DISTANCE: Duration = Duration::from_millis(100);

/// Facts about a segment that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryStart {
    /// Id of the segment.
    pub segment: SegmentId,
    /// Nodes of the replicas, the primary first.
    pub replicas: Vec<NodeId>,
    /// Number of replicas that must have synced before an append is acknowledged.
    pub write_quorum: usize,
}

/// The command that seals a segment. It changes nothing if the segment is sealed: the first seal decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealProposal {
    /// Id of the segment.
    pub segment: SegmentId,
    /// Length of the sealed segment.
    pub length: u64,
    /// Nodes with a replica of that length, in the order of the record. The owner is the first.
    pub replicas: Vec<NodeId>,
}

/// Work for the driver of a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrimaryEffect {
    /// Acknowledge the appends that end at this length or before.
    Acknowledge {
        /// Durable length.
        length: u64,
    },
    /// The follower trails too much: stop sending to it.
    Dropped {
        /// The follower.
        node: NodeId,
    },
    /// Propose the command.
    ProposeSeal(SealProposal),
}

/// An open segment on its primary.
#[derive(Clone, Debug)]
pub struct PrimarySegment {
    start: PrimaryStart,
    phase: PrimaryPhase,
    /// End of what was written, or is being written.
    appended: u64,
    /// Length of the own file that is synced.
    synced: u64,
    has_failed: bool,
    /// Length up to which appends were acknowledged to callers.
    acknowledged: u64,
    followers: Vec<FollowerProgress>,
    marks: VecDeque<AcknowledgedMark>,
    rules: ReplicationRules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrimaryPhase {
    Appending,
    /// No more appends; the seal is proposed when the followers in step have everything.
    Finishing,
    /// Neither appends nor acknowledgements.
    Proposed,
}

#[derive(Clone, Debug)]
struct FollowerProgress {
    node: NodeId,
    /// Length that the follower has synced.
    acknowledged: u64,
    is_dropped: bool,
}

/// A length that was acknowledged, and the time.
#[derive(Clone, Copy, Debug)]
struct AcknowledgedMark {
    length: u64,
    at: Duration,
}

impl PrimarySegment {
    /// Returns the state of a segment that begins: it is recorded, and all its replicas have opened their
    /// files. Without that a listed replica without a file would not mean a lost disk, to a recovery.
    #[must_use]
    pub fn new(start: PrimaryStart) -> Self {
        Self::by(start, ReplicationRules::ALL)
    }

    pub(crate) fn by(start: PrimaryStart, rules: ReplicationRules) -> Self {
        let quorum = start.write_quorum;
        assert!((1..=start.replicas.len()).contains(&quorum), "the quorum is a part of the replicas");
        let follower = |node: &NodeId| FollowerProgress { node: *node, acknowledged: 0, is_dropped: false };
        let followers = start.replicas.iter().skip(1).map(follower).collect();
        Self {
            start,
            phase: PrimaryPhase::Appending,
            appended: 0,
            synced: 0,
            has_failed: false,
            acknowledged: 0,
            followers,
            marks: VecDeque::new(),
            rules,
        }
    }

    /// True if the segment takes appends.
    #[must_use]
    pub fn takes_appends(&self) -> bool {
        let goes_on = !self.rules.has(ReplicationRule::NothingAfterProposal);
        self.phase == PrimaryPhase::Appending || goes_on && self.phase == PrimaryPhase::Proposed
    }

    /// Length up to which appends are acknowledged.
    #[must_use]
    pub const fn acknowledged_length(&self) -> u64 {
        self.acknowledged
    }

    /// Records that bytes up to a length are being written to the own file. The file's header is the first.
    pub fn append(&mut self, end: u64) {
        assert!(self.takes_appends(), "a segment whose seal was requested takes no append");
        assert!(end >= self.appended, "a segment only grows");
        self.appended = end;
    }

    /// Records that the own file is synced up to a length.
    pub fn own_synced(&mut self, length: u64, now: Duration) -> Vec<PrimaryEffect> {
        assert!(length <= self.appended, "no more is synced than was written");
        self.synced = self.synced.max(length);
        self.advance(now)
    }

    /// Records that a write or sync of the own file failed. Its length stays the one that was synced last.
    pub fn own_failed(&mut self, now: Duration) -> Vec<PrimaryEffect> {
        self.has_failed = true;
        self.request_seal(now)
    }

    /// Records that a follower, dropped or not, has synced its file up to a length.
    pub fn acknowledged_by(&mut self, node: NodeId, length: u64, now: Duration) -> Vec<PrimaryEffect> {
        assert!(length <= self.appended, "a follower has no more bytes than its primary");
        self.with(node, |follower| follower.acknowledged = follower.acknowledged.max(length));
        self.advance(now)
    }

    /// Records that a follower failed, refused to append, or was left out for its health. All its
    /// acknowledgements that have arrived must have been recorded before.
    pub fn follower_failed(&mut self, node: NodeId, now: Duration) -> Vec<PrimaryEffect> {
        self.with(node, |follower| follower.is_dropped = true);
        self.request_seal(now)
    }

    /// Stops appends and seals, because the segment is full or idle, the node stops, or a replica is in
    /// trouble. Without trouble the followers in step get everything first.
    pub fn request_seal(&mut self, now: Duration) -> Vec<PrimaryEffect> {
        if self.phase == PrimaryPhase::Appending {
            self.phase = PrimaryPhase::Finishing;
        }
        self.advance(now)
    }

    /// Drops followers that trail too much. To be called every [`TRAIL_TIME_MAX`] / 10 or so.
    pub fn tick(&mut self, now: Duration) -> Vec<PrimaryEffect> {
        if self.phase == PrimaryPhase::Proposed || !self.rules.has(ReplicationRule::TrailIsBounded) {
            return Vec::new();
        }
        let in_step = self.followers.iter().filter(|follower| !follower.is_dropped);
        let trailing: Vec<NodeId> =
            in_step.filter(|follower| self.trails(follower, now)).map(|follower| follower.node).collect();
        let mut effects = Vec::new();
        for node in trailing {
            effects.push(PrimaryEffect::Dropped { node });
            effects.extend(self.follower_failed(node, now));
        }
        effects
    }

    fn with(&mut self, node: NodeId, change: impl FnOnce(&mut FollowerProgress)) {
        if let Some(follower) = self.followers.iter_mut().find(|follower| follower.node == node) {
            change(follower);
        }
    }

    /// The largest length that W replicas have synced, the primary among them.
    fn quorum_length(&self) -> u64 {
        if !self.rules.has(ReplicationRule::QuorumSynced) {
            return self.synced;
        }
        let followers = self.counted_followers().map(|follower| follower.acknowledged);
        let mut lengths: Vec<u64> = followers.chain([self.synced]).collect();
        lengths.sort_unstable_by(|one, two| two.cmp(one));
        let length = lengths.get(self.start.write_quorum - 1).copied().unwrap_or(0);
        let is_own_counted = self.rules.has(ReplicationRule::PrimaryAmongThem);
        if is_own_counted { length.min(self.synced) } else { length }
    }

    fn counted_followers(&self) -> impl Iterator<Item = &FollowerProgress> {
        let with_dropped = self.rules.has(ReplicationRule::DroppedCount);
        self.followers.iter().filter(move |follower| with_dropped || !follower.is_dropped)
    }

    fn trails(&self, follower: &FollowerProgress, now: Duration) -> bool {
        let is_late = |mark: &AcknowledgedMark| {
            mark.length > follower.acknowledged
                && now.saturating_sub(mark.at) > TRAIL_TIME_MAX - MARK_DISTANCE
        };
        let behind = self.acknowledged.saturating_sub(follower.acknowledged);
        behind > TRAIL_BYTES_MAX || self.marks.iter().any(is_late)
    }

    /// Acknowledges and proposes what has become possible.
    fn advance(&mut self, now: Duration) -> Vec<PrimaryEffect> {
        let is_open =
            self.phase != PrimaryPhase::Proposed || !self.rules.has(ReplicationRule::NothingAfterProposal);
        let mut effects = Vec::new();
        let length = self.quorum_length();
        if is_open && length > self.acknowledged {
            self.acknowledged = length;
            self.mark(now);
            effects.push(PrimaryEffect::Acknowledge { length });
        }
        if self.phase == PrimaryPhase::Finishing && self.may_propose() {
            let proposal = self.proposal();
            self.phase = PrimaryPhase::Proposed;
            effects.push(PrimaryEffect::ProposeSeal(proposal));
        }
        effects
    }

    /// True if a replica is in trouble, or all replicas have everything.
    fn may_propose(&self) -> bool {
        let is_complete = |follower: &FollowerProgress| follower.acknowledged == self.appended;
        self.has_failed
            || self.followers.iter().any(|follower| follower.is_dropped)
            || self.synced == self.appended && self.followers.iter().all(is_complete)
    }

    fn proposal(&self) -> SealProposal {
        let length = self.quorum_length();
        let has_length = |follower: &&FollowerProgress| match self.rules.has(ReplicationRule::AllAreNamed) {
            true => follower.acknowledged >= length || !self.rules.has(ReplicationRule::NamedHaveLength),
            false => false,
        };
        let followers = self.counted_followers().filter(has_length).map(|follower| follower.node);
        let own = self.start.replicas.iter().take(1).copied();
        let replicas: Vec<NodeId> = own.chain(followers).collect();
        let is_lawful = self.rules == ReplicationRules::ALL;
        assert!(!is_lawful || length == self.acknowledged, "a seal is at the acknowledged length");
        assert!(!is_lawful || replicas.len() >= self.start.write_quorum, "a seal names the quorum");
        SealProposal { segment: self.start.segment, length, replicas }
    }

    /// Notes the acknowledged length for the followers that trail.
    fn mark(&mut self, now: Duration) {
        let in_step = self.followers.iter().filter(|follower| !follower.is_dropped);
        let all_have = in_step.map(|follower| follower.acknowledged).min().unwrap_or(u64::MAX);
        while self.marks.front().is_some_and(|mark| mark.length <= all_have) {
            self.marks.pop_front();
        }
        let length = self.acknowledged;
        match self.marks.back_mut().filter(|last| now.saturating_sub(last.at) < MARK_DISTANCE) {
            Some(last) => last.length = length,
            None => self.marks.push_back(AcknowledgedMark { length, at: now }),
        }
    }
}

#[cfg(test)]
mod tests;
