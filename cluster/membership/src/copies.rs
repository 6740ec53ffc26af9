//! Nodes that may be lost: the arithmetic behind the status of a cluster.
//!
//! A group survives the loss of as many reachable voters as it has beyond a majority. Bytes survive the loss
//! of as many nodes as they have further copies. The cluster survives the smallest of these.

use crate::facts::{DecisionInput, SystemMembership};
use crate::goal::voter_goal;
use crate::rules::{Rule, RuleSet};
use mlgw_common::NodeId;
use mlgw_formats::schema::NodeState;
use std::collections::BTreeSet;
use std::fmt;

/// Nodes that may be lost now with nothing lost and no interruption that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossLimit {
    /// So many nodes, any ones.
    Any {
        /// Number of nodes.
        nodes: usize,
    },
    /// None: the group goes on only with all of these.
    AllNeeded {
        /// The reachable voters, which are just a majority.
        nodes: BTreeSet<NodeId>,
    },
    /// None: only this node has everything.
    OnlyCopy {
        /// The node.
        node: NodeId,
        /// A node with a copy that may lack the newest changes.
        trailing: Option<NodeId>,
    },
    /// Too many voters are unreachable already.
    Unavailable {
        /// Reachable voters.
        reachable: usize,
        /// Number of voters that are needed.
        needed: usize,
    },
}

impl LossLimit {
    /// Rank: a smaller one is a greater risk.
    fn rank(&self) -> usize {
        match self {
            Self::Unavailable { .. } => 0,
            Self::OnlyCopy { trailing: None, .. } => 1,
            Self::OnlyCopy { trailing: Some(_), .. } => 2,
            Self::AllNeeded { .. } => 3,
            Self::Any { nodes } => nodes.saturating_add(3),
        }
    }
}

impl fmt::Display for LossLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any { nodes: 1 } => f.write_str("any one node"),
            Self::Any { nodes: 2 } => f.write_str("any two nodes"),
            Self::Any { nodes } => write!(f, "any {nodes} nodes"),
            Self::AllNeeded { nodes } => {
                let names: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
                write!(f, "nothing: nodes {} are all needed", names.join(", "))
            }
            Self::OnlyCopy { node, trailing: None } => write!(f, "nothing: node {node} is the only copy"),
            Self::OnlyCopy { node, trailing: Some(other) } => {
                write!(f, "nothing: node {node} is the only complete copy, node {other} may trail behind it")
            }
            Self::Unavailable { reachable, needed } => {
                write!(f, "nothing: {reachable} voters are reachable, and {needed} are needed")
            }
        }
    }
}

/// Copies of segments, summed up by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentCopies {
    /// Fewest copies of any segment, counting intact ones on reachable nodes.
    pub fewest: usize,
    /// A node that has the only copy of a segment.
    pub only_on: Option<NodeId>,
}

impl SegmentCopies {
    /// Nodes that may be lost without the loss of a segment; `None` if a segment has no copy at all.
    #[must_use]
    pub fn loss_limit(self) -> Option<LossLimit> {
        match (self.fewest, self.only_on) {
            (0, _) => None,
            (1, Some(node)) => Some(LossLimit::OnlyCopy { node, trailing: None }),
            (copies, _) => Some(LossLimit::Any { nodes: copies - 1 }),
        }
    }
}

/// Risk of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRisk {
    /// Id of the group.
    pub group: u32,
    /// Nodes that it may lose.
    pub limit: LossLimit,
}

impl GroupRisk {
    /// Risk of the group `group` while the nodes `reachable` are reachable.
    #[must_use]
    pub fn of(group: u32, membership: &SystemMembership, reachable: &BTreeSet<NodeId>) -> Self {
        let of_new = voters_limit(&membership.voters, membership, reachable);
        let of_old = membership.outgoing.as_ref().map(|old| voters_limit(old, membership, reachable));
        let limit = of_old.into_iter().fold(of_new, worse);
        Self { group, limit }
    }
}

fn voters_limit(
    voters: &BTreeSet<NodeId>,
    membership: &SystemMembership,
    reachable: &BTreeSet<NodeId>,
) -> LossLimit {
    let up = voters & reachable;
    let needed = voters.len() / 2 + 1;
    match voters.first() {
        _ if up.len() < needed => LossLimit::Unavailable { reachable: up.len(), needed },
        Some(node) if voters.len() == 1 => {
            let mut trailing = membership.learners.intersection(reachable);
            LossLimit::OnlyCopy { node: *node, trailing: trailing.next().copied() }
        }
        _ if up.len() == needed => LossLimit::AllNeeded { nodes: up },
        _ => LossLimit::Any { nodes: up.len() - needed },
    }
}

fn worse(a: LossLimit, b: LossLimit) -> LossLimit {
    if b.rank() < a.rank() { b } else { a }
}

/// The greatest risk of a cluster, over its groups and its segments. `None` if there is nothing to lose.
#[must_use]
pub fn cluster_risk(groups: &[GroupRisk], segments: Option<SegmentCopies>) -> Option<LossLimit> {
    let of_groups = groups.iter().map(|group| group.limit.clone());
    of_groups.chain(segments.and_then(SegmentCopies::loss_limit)).reduce(worse)
}

/// Risk of the system group after the removal of a node, before any other node replaces it.
#[must_use]
pub fn risk_after_removal(input: &DecisionInput, node: NodeId) -> LossLimit {
    let mut after = input.clone();
    if let Some(facts) = after.nodes.get_mut(&node) {
        facts.state = NodeState::Leaving;
    }
    let voters = voter_goal(&after, RuleSet::without(Rule::AwaitReplacement)).voters;
    let mut learners = after.membership.members();
    learners.retain(|member| *member != node && !voters.contains(member));
    let reachable = after.nodes.keys().copied().filter(|id| *id != node && after.is_reachable(*id)).collect();
    GroupRisk::of(0, &SystemMembership { voters, outgoing: None, learners }, &reachable).limit
}

#[cfg(test)]
mod tests {
    use super::{GroupRisk, LossLimit, SegmentCopies, SystemMembership, cluster_risk, risk_after_removal};
    use crate::facts::{ChangeState, Contact, DecisionInput, DecisionLimits, MemberFacts};
    use crate::places::MemberPlace;
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{NodeRole, NodeState};
    use std::collections::BTreeSet;

    fn set(ids: &[u64]) -> BTreeSet<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    fn limit(voters: &[u64], learners: &[u64], reachable: &[u64]) -> String {
        let membership = SystemMembership { voters: set(voters), outgoing: None, learners: set(learners) };
        GroupRisk::of(0, &membership, &set(reachable)).limit.to_string()
    }

    #[test]
    fn a_group_names_its_risk() {
        assert_eq!(limit(&[1], &[], &[1]), "nothing: node 1 is the only copy");
        let trailing = "nothing: node 1 is the only complete copy, node 2 may trail behind it";
        assert_eq!(limit(&[1], &[2], &[1, 2]), trailing);
        assert_eq!(limit(&[1], &[2], &[1]), "nothing: node 1 is the only copy");
        assert_eq!(limit(&[1, 2, 3], &[], &[1, 2, 3]), "any one node");
        assert_eq!(limit(&[1, 2, 3], &[4], &[1, 3, 4]), "nothing: nodes 1, 3 are all needed");
        assert_eq!(limit(&[1, 2, 3], &[], &[1]), "nothing: 1 voters are reachable, and 2 are needed");
        assert_eq!(limit(&[1, 2, 3, 4, 5], &[], &[1, 2, 3, 4, 5]), "any two nodes");
        assert_eq!(limit(&[1, 2, 3, 4, 5], &[], &[1, 2, 4, 5]), "any one node");
    }

    #[test]
    fn a_joint_change_needs_both_sets() {
        let membership =
            SystemMembership { voters: set(&[1, 2, 3]), outgoing: Some(set(&[1])), learners: set(&[]) };
        let risk = GroupRisk::of(0, &membership, &set(&[1, 2, 3]));
        assert_eq!(risk.limit, LossLimit::OnlyCopy { node: NodeId(1), trailing: None });
    }

    #[test]
    fn the_greatest_risk_is_that_of_the_cluster() {
        let three = SystemMembership { voters: set(&[1, 2, 3]), ..SystemMembership::default() };
        let whole = GroupRisk::of(0, &three, &set(&[1, 2, 3]));
        let fragile = GroupRisk::of(1, &three, &set(&[1, 2]));
        let copies =
            |fewest, only_on: Option<u64>| Some(SegmentCopies { fewest, only_on: only_on.map(NodeId) });
        let risk = |groups: &[GroupRisk], segments| cluster_risk(groups, segments).unwrap().to_string();
        assert_eq!(risk(std::slice::from_ref(&whole), copies(3, None)), "any one node");
        assert_eq!(
            risk(std::slice::from_ref(&whole), copies(1, Some(2))),
            "nothing: node 2 is the only copy"
        );
        assert_eq!(risk(&[whole.clone(), fragile], copies(3, None)), "nothing: nodes 1, 2 are all needed");
        assert_eq!(cluster_risk(&[], None), None);
        assert_eq!(copies(0, None).unwrap().loss_limit(), None);
    }

    #[test]
    fn the_risk_of_a_removal_is_known_before_it() {
        let facts = MemberFacts {
            role: NodeRole::Storage,
            state: NodeState::Active,
            place: MemberPlace::Votes,
            is_in_set: false,
            has_all_groups: true,
            is_held: false,
            contact: Contact::Reachable { for_ms: 60_000 },
            lag_bytes: Some(0),
        };
        let input = |voters: &[u64], learners: &[u64]| DecisionInput {
            leader: NodeId(1),
            membership: SystemMembership { voters: set(voters), outgoing: None, learners: set(learners) },
            change: ChangeState::Committed,
            nodes: (&set(voters) | &set(learners)).into_iter().map(|id| (id, facts)).collect(),
            limits: DecisionLimits::default(),
            is_system: true,
            failed: BTreeSet::new(),
        };
        let risk = |input: &DecisionInput, node| risk_after_removal(input, NodeId(node)).to_string();
        let trailing = "nothing: node 1 is the only complete copy, node 2 may trail behind it";
        assert_eq!(risk(&input(&[1, 2, 3], &[]), 3), trailing);
        assert_eq!(risk(&input(&[1, 2, 3], &[4]), 3), "any one node");
        assert_eq!(risk(&input(&[1, 2, 3, 4, 5], &[]), 5), "any one node");
        assert_eq!(risk(&input(&[1], &[2]), 2), "nothing: node 1 is the only copy");
    }
}
