//! Rules of decisions. The simulation leaves each of them out in turn and must find a violation.

/// A rule of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    /// No change starts while another one is in progress.
    OneChangeAtATime,
    /// A joint change that its leader left unfinished is finished first.
    FinishJointChange,
    /// Voters are 1, 3 or 5: a second node waits for a third, and both are promoted at once.
    OddVoters,
    /// Only a learner that lacks few bytes becomes a voter.
    BytesFirst,
    /// Only a learner that has been reachable for a while becomes a voter.
    SteadyFirst,
    /// Only an active node becomes a voter.
    ActiveFirst,
    /// A gateway votes only as the third beside two storage nodes.
    StorageVotes,
    /// A majority of the voters after a change is reachable.
    ReachableMajority,
    /// A leader transfers its leadership before it leaves the voters.
    TransferFirst,
    /// A draining node, or a gateway, gives up its leadership.
    UnfitLeaderTransfers,
    /// A draining node gives up its vote when another node can take it.
    DrainingLast,
    /// A node that is unreachable for long loses its vote when another node can take it.
    ReplaceUnreachable,
    /// Voters do not become fewer while a node that can take the vote is on its way.
    AwaitReplacement,
    /// A node that leaves loses its vote.
    LeavingLosesVote,
    /// A removal is recorded only when the node is in no membership.
    RecordLast,
    /// Only nodes of the set get votes, and others give theirs up when a node of the set can take it.
    SetVotes,
    /// A learner without a place in the group is removed, and none is added.
    PlacesOnly,
    /// A node that leaves keeps its vote until another one takes it, as long as the set of the group can be
    /// filled.
    SetKeepsVotes,
    /// A learner without a place is removed when all nodes with a place have the rows of the group.
    RowsFirst,
    /// Nodes with the rows of all groups vote in the system group before others.
    AllGroupsFirst,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 20] = [
        Self::OneChangeAtATime,
        Self::FinishJointChange,
        Self::OddVoters,
        Self::BytesFirst,
        Self::SteadyFirst,
        Self::ActiveFirst,
        Self::StorageVotes,
        Self::ReachableMajority,
        Self::TransferFirst,
        Self::UnfitLeaderTransfers,
        Self::DrainingLast,
        Self::ReplaceUnreachable,
        Self::AwaitReplacement,
        Self::LeavingLosesVote,
        Self::RecordLast,
        Self::SetVotes,
        Self::PlacesOnly,
        Self::SetKeepsVotes,
        Self::RowsFirst,
        Self::AllGroupsFirst,
    ];
}

/// Rules in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleSet(u32);

impl RuleSet {
    /// Every rule.
    pub(crate) const ALL: Self = Self(u32::MAX);

    /// Every rule except one.
    pub(crate) const fn without(rule: Rule) -> Self {
        Self(!(1 << rule as u32))
    }

    /// True if the rule is in force.
    pub(crate) const fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u32) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::{Rule, RuleSet};

    #[test]
    fn a_rule_is_left_out_alone() {
        for (at, rule) in Rule::ALL.into_iter().enumerate() {
            assert_eq!(rule as usize, at, "all rules are listed once");
            let without = RuleSet::without(rule);
            assert!(Rule::ALL.into_iter().all(|other| without.has(other) == (other != rule)));
            assert!(RuleSet::ALL.has(rule));
        }
    }
}
