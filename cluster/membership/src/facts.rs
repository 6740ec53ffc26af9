//! Input of a decision: the membership of a group and its leader's knowledge of each node.

use crate::places::MemberPlace;
use mlgw_common::NodeId;
use mlgw_formats::schema::{NodeRole, NodeState};
use std::collections::{BTreeMap, BTreeSet};

/// Reachability of a node, as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// The node has answered every call for this long.
    Reachable {
        /// Duration in milliseconds.
        for_ms: u64,
    },
    /// The node has answered no call for this long.
    Unreachable {
        /// Duration in milliseconds.
        for_ms: u64,
    },
}

impl Contact {
    /// True if the node answers.
    #[must_use]
    pub const fn is_reachable(self) -> bool {
        matches!(self, Self::Reachable { .. })
    }
}

/// A node as the leader of the group sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberFacts {
    /// Role of the node, from its record.
    pub role: NodeRole,
    /// State of the node, from its record.
    pub state: NodeState,
    /// Place of the node in the group.
    pub place: MemberPlace,
    /// True if the node is in the set of the group. False in the system group, and without sets.
    pub is_in_set: bool,
    /// True if the node has the rows of all groups, or is to get them. The leader of the system group needs
    /// them.
    pub has_all_groups: bool,
    /// True while a set or another group has the node. Only the system group uses it: the removal of the node
    /// is recorded later.
    pub is_held: bool,
    /// Reachability of the node.
    pub contact: Contact,
    /// Bytes of log that the node does not have yet; `None` if the leader does not know.
    pub lag_bytes: Option<u64>,
}

impl MemberFacts {
    /// True if the node is to be in no membership.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        matches!(self.state, NodeState::Leaving | NodeState::Removed)
    }

    /// True if the node may vote in the group.
    #[must_use]
    pub const fn may_vote(&self) -> bool {
        matches!(self.place, MemberPlace::Votes)
    }
}

/// The effective membership of a group, which is the newest one in its leader's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemMembership {
    /// The voters; in a joint change those after it.
    pub voters: BTreeSet<NodeId>,
    /// The voters before a joint change; `None` if there is none.
    pub outgoing: Option<BTreeSet<NodeId>>,
    /// Members without a vote.
    pub learners: BTreeSet<NodeId>,
}

impl SystemMembership {
    /// True if the node is a voter or a learner, before or after a joint change.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        let is_outgoing = self.outgoing.as_ref().is_some_and(|voters| voters.contains(&node));
        is_outgoing || self.voters.contains(&node) || self.learners.contains(&node)
    }

    /// All members.
    #[must_use]
    pub fn members(&self) -> BTreeSet<NodeId> {
        let mut members = &self.voters | &self.learners;
        members.extend(self.outgoing.iter().flatten());
        members
    }
}

/// Progress of a change of the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeState {
    /// The effective membership is committed, and this leader runs no change.
    Committed,
    /// This leader runs a change, or the effective membership is not committed yet.
    InProgress,
}

/// Limits of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionLimits {
    /// Maximum number of voters: 3 or 5.
    pub voters_max: usize,
    /// Bytes of log that a learner may lack when it becomes a voter.
    pub promote_lag_bytes: u64,
    /// Time for which a learner must have been reachable when it becomes a voter, in milliseconds.
    pub promote_after_ms: u64,
    /// Time after which another node takes the vote of an unreachable one, in milliseconds.
    pub replace_after_ms: u64,
}

impl Default for DecisionLimits {
    fn default() -> Self {
        Self {
            voters_max: 5,
            // A quarter of a second at the speed of one disk: the commit after a promotion is not delayed.
            promote_lag_bytes: 1 << 20,
            promote_after_ms: 5_000,
            // Longer than a restart, an upgrade or a repair of the network.
            replace_after_ms: 10 * 60_000,
        }
    }
}

/// Facts from which the next step follows. The node that decides is the leader.
#[derive(Clone, Debug)]
pub struct DecisionInput {
    /// The leader of the group.
    pub leader: NodeId,
    /// The effective membership.
    pub membership: SystemMembership,
    /// Progress of a change.
    pub change: ChangeState,
    /// Nodes with a record, by id. The leader itself is reachable and lacks nothing.
    pub nodes: BTreeMap<NodeId, MemberFacts>,
    /// Limits.
    pub limits: DecisionLimits,
    /// True for the system group: its leader records removals.
    pub is_system: bool,
    /// Nodes that could not be added a short time ago. Other steps come first.
    pub failed: BTreeSet<NodeId>,
}

impl DecisionInput {
    /// True if the node is reachable.
    #[must_use]
    pub fn is_reachable(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|facts| facts.contact.is_reachable())
    }

    /// True if a majority of `voters` is reachable.
    #[must_use]
    pub fn has_majority(&self, voters: &BTreeSet<NodeId>) -> bool {
        let reachable = voters.iter().filter(|node| self.is_reachable(**node)).count();
        reachable > voters.len() / 2
    }
}
