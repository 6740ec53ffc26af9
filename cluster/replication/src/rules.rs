//! Rules of replication. The simulation leaves each of them out in turn and must find a violation.
//!
//! Most are kept by the state machines of this package. Those marked with *kept by the caller* are kept by the
//! driver or by the command's `apply`; the simulation has both.

/// A rule of replication. The number after "Schedule" is that of the design's list: 4 is a cut-off primary
/// that acknowledges past the recovery's seal, 5 a start on an old state that removes good replicas, 6 an id
/// with an empty or restored disk, 10 a slow follower that stops all writes.
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
    /// When the outcome of a seal is unknown, the record decides. Without it the primary goes on beyond a
    /// seal that was recorded.
    RecordDecides,
    /// No file is truncated before the seal is applied. Without it a primary cuts bytes off that the recovery
    /// has counted.
    TruncateAfterSeal,

    /// Open never succeeds over a file or a closed marker. Schedule 4: the Open of a cut-off primary comes
    /// after the recovery's Close.
    OpenOnlyOnce,
    /// The right to append ends with a restart. Schedule 5: a follower goes on behind a torn end.
    RightEndsWithRestart,
    /// An append begins at the end of the file. Without it lost messages leave a hole.
    OffsetIsEnd,
    /// A follower acknowledges synced lengths only. Without it a power cut takes acknowledged records.
    AcknowledgeSynced,
    /// Close is durable before it answers. Schedule 4: a power cut makes a replica forget that it was closed.
    CloseIsDurable,
    /// Close without a file makes a closed marker. Schedule 4: the file is opened afterwards.
    MarkerWithoutFile,
    /// Close ends the write in progress. Schedule 4: the write is acknowledged after the length was stated.
    CloseEndsWrites,
    /// Close syncs before it states a length. Without it a power cut takes what the seal has counted.
    CloseSyncs,
    /// Nothing is appended after Close. Schedule 4.
    NothingAfterClose,
    /// Copies of an earlier recovery are refused. Without it they overwrite synced bytes of a replica that
    /// the seal names, and a power cut tears them.
    OldCopiesRefused,

    /// |replicas| − W + 1 replicas are fenced. Schedule 4: the others go on.
    EnoughAnswers,
    /// Each replica counts once. Schedule 4.
    DistinctAnswers,
    /// Nodes that are not in the record never count. Schedule 6: a new node has no file. *Kept by the caller
    /// too, who sends Close to replicas only.*
    OwnReplicasOnly,
    /// The record's own W counts. *Kept by the caller, who hands the record over.* Schedule 4: after a change
    /// of the setting too few replicas are fenced.
    RecordedQuorum,
    /// A primary that restarted counts only once it answered. Without it what only the primary and an absent
    /// follower have is lost.
    PrimaryAnswers,
    /// A replica whose directory was lost never counts. Schedule 6: an empty disk states length 0.
    LostNeverCounts,
    /// The length is the largest end over the answers. Without it a short follower shortens the segment.
    LargestEnd,
    /// The scan goes on past damage. Without it one bad record hides all later ones.
    ScanPastDamage,
    /// Damaged stretches are filled from another replica. Without it the seal names a replica as good that is
    /// known to be bad.
    DamageIsFilled,
    /// Damage that all replicas have never shortens the segment. Without it one bad record loses all later
    /// ones.
    DamageNeverShortens,
    /// The seal names only replicas that have its length. Without it fewer copies exist than are recorded.
    NamedHaveLength,
    /// The seal names W replicas if so many answered. Without it one disk holds the only copy.
    QuorumIsNamed,
    /// The first seal decides. *Kept by `apply`.* Without it a late seal names a replica that was removed
    /// after the first one.
    FirstSealDecides,

    /// All referrers are fenced before references are counted. Schedule 3.
    FenceBeforeCount,
    /// Extents are summed before records are looked up. Without it a reference that ends between the two
    /// hides one beyond the prefix.
    ExtentsBeforeLookup,

    /// A marked replica stays a source. Without it a segment whose replicas are all marked is never healed.
    SuspectIsSource,
    /// A marked replica is dropped only when enough verified others exist.
    DropAfterEnough,
    /// The last replica stays.
    LastStays,
    /// A change of the replicas compares the record's change counter. *Kept by `apply`.* Without it two nodes
    /// drop their replicas on the same facts.
    ChangesCompared,

    /// A peer that answers late is left out of open segments. Schedule 10.
    LateIsLeftOut,
    /// With two members left nobody is left out for slowness. Schedule 10: no quorum remains.
    LastTwoStay,
}

impl ReplicationRule {
    /// All rules.
    pub const ALL: [Self; 38] = [
        Self::QuorumSynced,
        Self::PrimaryAmongThem,
        Self::DroppedCount,
        Self::TrailIsBounded,
        Self::NothingAfterProposal,
        Self::RecordDecides,
        Self::TruncateAfterSeal,
        Self::OpenOnlyOnce,
        Self::RightEndsWithRestart,
        Self::OffsetIsEnd,
        Self::AcknowledgeSynced,
        Self::CloseIsDurable,
        Self::MarkerWithoutFile,
        Self::CloseEndsWrites,
        Self::CloseSyncs,
        Self::NothingAfterClose,
        Self::OldCopiesRefused,
        Self::EnoughAnswers,
        Self::DistinctAnswers,
        Self::OwnReplicasOnly,
        Self::RecordedQuorum,
        Self::PrimaryAnswers,
        Self::LostNeverCounts,
        Self::LargestEnd,
        Self::ScanPastDamage,
        Self::DamageIsFilled,
        Self::DamageNeverShortens,
        Self::NamedHaveLength,
        Self::QuorumIsNamed,
        Self::FirstSealDecides,
        Self::FenceBeforeCount,
        Self::ExtentsBeforeLookup,
        Self::SuspectIsSource,
        Self::DropAfterEnough,
        Self::LastStays,
        Self::ChangesCompared,
        Self::LateIsLeftOut,
        Self::LastTwoStay,
    ];
}

/// Rules in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicationRules(u64);

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
