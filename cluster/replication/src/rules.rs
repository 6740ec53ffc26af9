//! Rules of replication. The simulation leaves each of them out in turn and must find a violation.
//!
//! Most are kept by the state machines of this package. Those marked with *kept by the driver* or *kept by
//! `apply`* are kept by their callers; the simulation has both.

/// A rule of replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ReplicationRule {
    /// The primary acknowledges what W replicas have synced. Without it the primary's disk holds the only
    /// copy.
    QuorumSynced,
    /// The primary is among those W. Without it an acknowledged record cannot be read at its owner.
    PrimaryAmongThem,
    /// The acknowledgements of dropped followers count, and such followers are named by the seal. Without it
    /// a follower that acknowledged and then failed lowers the sealed length.
    DroppedCount,
    /// A follower that trails by 1 s or 32 MiB is dropped. Without it the third copy lags without bound.
    TrailIsBounded,
    /// After a seal was proposed nothing is appended or acknowledged. Without it acknowledged records lie
    /// beyond the seal.
    NothingAfterProposal,
    /// The seal names only replicas that have its length. Without it fewer copies exist than are recorded.
    NamedHaveLength,
    /// The seal names all replicas that have its length. Without it one disk holds the only named copy.
    AllAreNamed,
    /// A segment begins only when every listed follower has opened its file. *Kept by the driver.* Without it
    /// an acknowledged record waits for an owner that never returns, since a replica without a file does not
    /// count.
    BegunWhenAllOpened,

    /// A follower acknowledges synced lengths only. *Kept by the driver.* Without it a power cut takes
    /// acknowledged records.
    AcknowledgeSynced,
    /// The right to append ends with a restart. *Kept by the driver.* Without it a follower goes on behind a
    /// torn end.
    RightEndsWithRestart,
    /// Close ends the right to append for ever. Without it records are acknowledged beyond the seal.
    CloseEndsRight,
    /// Close awaits the write in progress. Without it that write is acknowledged after the length was stated.
    CloseAwaitsWrite,
    /// Close syncs a file of an earlier process before it states a length. *Kept by the driver.* Without it a
    /// power cut takes what the seal has counted.
    CloseSyncs,

    /// |replicas| − W + 1 replicas are closed before a seal. Without it the others go on.
    EnoughAnswers,
    /// A replica without a file counts only when all have answered. Without it a lost disk is taken for an
    /// empty replica.
    NoFileCountsLast,
    /// The length is the largest one over the answers. Without it a short follower shortens the segment.
    LargestLength,
    /// A seal waits for all answers if the end of a replica is uncertain beyond its length. Without it a
    /// damaged last record ends the segment before acknowledged bytes of a node that does not answer.
    UncertainEndWaits,
    /// Replicas that are shorter than the seal are marked. Without it they count as good.
    ShorterIsMarked,
    /// Replicas with more damage than the best one are marked. Without it they are never healed.
    DamagedIsMarked,
    /// The seal names the owner, whether it answered or not. Without it the segment has another owner.
    OwnerIsNamed,
    /// The first seal decides. *Kept by `apply`.* Without it a late seal changes the length.
    FirstSealDecides,

    /// A marked replica stays a source. Without it a segment whose replicas are all marked is never healed.
    SuspectIsSource,
    /// A marked replica is dropped only when enough verified others exist.
    DropAfterEnough,
    /// The last replica stays, and so does that of the owner. *Kept by the driver too, which heals it.*
    LastStays,
    /// Replicas at nodes that leave count as no copies. Without it they are never copied.
    LeavingIsNoCopy,
    /// A node that leaves makes no copies.
    LeavingTakesNoCopy,
    /// A node that leaves drops a replica only when the other nodes have all copies. Without it bytes are
    /// lost.
    LeavingDropsLast,
    /// Another node becomes the owner if the owner leaves. Without it that one never gets rid of its
    /// replicas.
    OwnerIsReplaced,
    /// An owner that stays is not replaced. Without it two nodes compact and move a segment in turn.
    OnlyLeavingIsReplaced,
    /// The next owner has a good replica.
    HeirIsGood,
    /// The owner drops the replicas of removed nodes. Without it records name them for ever.
    RemovedIsForgotten,
    /// A removed node never answers. Without it an open segment with too few other replicas stays open.
    RemovedNeverAnswers,
    /// For a segment, nodes outside of its set are like nodes that leave. Without it replicas stay where a
    /// set has been.
    SetIsKept,
    /// A change of the replicas compares the record's change counter. *Kept by `apply`.* Without it a node
    /// puts a replica back that was dropped meanwhile.
    ChangesCompared,

    /// A peer that answers late is left out of open segments. Without it all writes wait for it.
    LateIsLeftOut,
    /// The last peer is never left out for being late. Without this rule no quorum remains.
    LastTwoStay,
}

impl ReplicationRule {
    /// All rules.
    pub const ALL: [Self; 36] = [
        Self::QuorumSynced,
        Self::PrimaryAmongThem,
        Self::DroppedCount,
        Self::TrailIsBounded,
        Self::NothingAfterProposal,
        Self::NamedHaveLength,
        Self::AllAreNamed,
        Self::BegunWhenAllOpened,
        Self::AcknowledgeSynced,
        Self::RightEndsWithRestart,
        Self::CloseEndsRight,
        Self::CloseAwaitsWrite,
        Self::CloseSyncs,
        Self::EnoughAnswers,
        Self::NoFileCountsLast,
        Self::LargestLength,
        Self::UncertainEndWaits,
        Self::ShorterIsMarked,
        Self::DamagedIsMarked,
        Self::OwnerIsNamed,
        Self::FirstSealDecides,
        Self::SuspectIsSource,
        Self::DropAfterEnough,
        Self::LastStays,
        Self::LeavingIsNoCopy,
        Self::LeavingTakesNoCopy,
        Self::LeavingDropsLast,
        Self::OwnerIsReplaced,
        Self::OnlyLeavingIsReplaced,
        Self::HeirIsGood,
        Self::RemovedIsForgotten,
        Self::RemovedNeverAnswers,
        Self::SetIsKept,
        Self::ChangesCompared,
        Self::LateIsLeftOut,
        Self::LastTwoStay,
    ];
}

/// Rules in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicationRules(u64);

impl Default for ReplicationRules {
    fn default() -> Self {
        Self::ALL
    }
}

impl ReplicationRules {
    /// Every rule.
    pub(crate) const ALL: Self = Self(u64::MAX);

    /// Every rule except one.
    #[cfg(test)]
    pub(crate) const fn without(rule: ReplicationRule) -> Self {
        Self(!(1 << rule as u32))
    }

    /// True if the rule is in force.
    pub(crate) const fn has(self, rule: ReplicationRule) -> bool {
        self.0 & (1 << rule as u32) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::{ReplicationRule, ReplicationRules};

    #[test]
    fn a_rule_is_left_out_alone() {
        for (at, rule) in ReplicationRule::ALL.into_iter().enumerate() {
            assert_eq!(rule as usize, at, "all rules are listed once");
            let without = ReplicationRules::without(rule);
            assert!(ReplicationRule::ALL.into_iter().all(|other| without.has(other) == (other != rule)));
            assert!(ReplicationRules::ALL.has(rule));
        }
    }
}
