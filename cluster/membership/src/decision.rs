//! The next single step towards the membership that a group should have.

use crate::facts::{ChangeState, DecisionInput, MemberFacts};
use crate::goal::{helpers, voter_goal};
use crate::places::MemberPlace;
use crate::rules::{Rule, RuleSet};
use mlgw_common::NodeId;
use mlgw_formats::schema::{NodeRole, NodeState};
use std::collections::BTreeSet;

/// The next step. The caller decides again when its outcome is known, or when it gave up waiting for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberStep {
    /// The membership is as it should be.
    Idle,
    /// Nothing can be done now.
    Wait(WaitReason),
    /// Add a node as a learner.
    AddLearner(NodeId),
    /// Remove a learner.
    RemoveLearner(NodeId),
    /// Change the voters, all at once, by a joint change. Voters that lose their vote become learners.
    ChangeVoters(VoterChange),
    /// Transfer the leadership.
    TransferLeader {
        /// A voter that can lead.
        to: NodeId,
    },
    /// Record the removal of a node, which is in no membership any more.
    RecordRemoval(NodeId),
}

/// A change of the voters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterChange {
    /// Kind of the change, for logs and status.
    pub kind: VoterChangeKind,
    /// The voters after it.
    pub voters: BTreeSet<NodeId>,
}

/// Kind of a change of the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoterChangeKind {
    /// Learners are promoted: to three voters, or to five.
    Promote,
    /// Voters are replaced.
    Replace,
    /// Voters become fewer, because a node leaves.
    Demote,
    /// A joint change is finished that its leader left.
    Finish,
}

/// Reason to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitReason {
    /// A change is in progress.
    #[error("a change of the membership is in progress")]
    ChangeInProgress,
    /// Too few voters are reachable.
    #[error("too few voters are reachable")]
    NoMajority,
    /// Too few voters would be reachable after the change.
    #[error("too few nodes are reachable to change the voters")]
    NoMajorityAfterwards,
    /// All storage nodes that vote leave, and no other one is ready.
    #[error("no storage node is ready to vote")]
    NoStorageVoter,
    /// The only voter is to leave, and cannot transfer its leadership.
    #[error("node {node} is the only voter: add nodes until there are three, then it can leave")]
    LoneVoter {
        /// The voter.
        node: NodeId,
    },
    /// No voter that stays can lead.
    #[error("no other voter is ready to lead")]
    NoSuccessor,
    /// A node is ready, and voters are added two at a time.
    #[error("node {ready} is ready to vote: add a third node, and both get a vote")]
    ThirdNode {
        /// The node.
        ready: NodeId,
    },
    /// A learner lacks too much of the log.
    #[error("node {node} is catching up")]
    NotCaughtUp {
        /// The learner.
        node: NodeId,
        /// Bytes that it lacks, if they are known.
        lag_bytes: Option<u64>,
    },
    /// A learner does not serve yet.
    #[error("node {node} does not serve yet")]
    NotActive {
        /// The learner.
        node: NodeId,
    },
    /// A learner is unreachable, or reachable for too short a time.
    #[error("node {node} is not reachable, or was not until recently")]
    NotReachable {
        /// The learner.
        node: NodeId,
    },
    /// A node leaves, and its replacement is not ready.
    #[error("node {node} will replace a node that leaves, and is not ready yet")]
    ReplacementNotReady {
        /// The replacement.
        node: NodeId,
    },
    /// A node leaves, and keeps its vote until another node of the set can take it.
    #[error("node {node} leaves, and no other node can take its vote yet")]
    VoteNotTaken {
        /// The node that leaves.
        node: NodeId,
    },
    /// A member has no record.
    #[error("node {node} is a member and has no record: run `mlgw store check`")]
    UnknownMember {
        /// The member.
        node: NodeId,
    },
}

/// Decides the next step.
#[must_use]
pub fn decide(input: &DecisionInput) -> MemberStep {
    decide_by(input, RuleSet::ALL)
}

pub(crate) fn decide_by(input: &DecisionInput, rules: RuleSet) -> MemberStep {
    assert!([3, 5].contains(&input.limits.voters_max), "voters are odd");
    assert!(!input.membership.voters.is_empty(), "a leader has voters");
    if input.change == ChangeState::InProgress && rules.has(Rule::OneChangeAtATime) {
        return MemberStep::Wait(WaitReason::ChangeInProgress);
    }
    if let Some(outgoing) = &input.membership.outgoing {
        return finish(input, outgoing, rules);
    }
    if !input.has_majority(&input.membership.voters) {
        return MemberStep::Wait(WaitReason::NoMajority);
    }
    if let Some(node) = input.membership.members().into_iter().find(|id| !input.nodes.contains_key(id)) {
        return MemberStep::Wait(WaitReason::UnknownMember { node });
    }
    if let Some(step) = change_of_members(input, rules) {
        return step;
    }
    let step = change_of_voters(input, rules);
    match step {
        // A removal that cannot be recorded yet must hide no other step, which it may be waiting for.
        MemberStep::Idle | MemberStep::Wait(_) => removal(input, rules).unwrap_or(step),
        _ => step,
    }
}

/// Finishes a joint change whose leader left it.
fn finish(input: &DecisionInput, outgoing: &BTreeSet<NodeId>, rules: RuleSet) -> MemberStep {
    if !rules.has(Rule::FinishJointChange) {
        return MemberStep::Wait(WaitReason::ChangeInProgress);
    }
    let voters = input.membership.voters.clone();
    if !input.has_majority(&voters) || !input.has_majority(outgoing) {
        return MemberStep::Wait(WaitReason::NoMajority);
    }
    MemberStep::ChangeVoters(VoterChange { kind: VoterChangeKind::Finish, voters })
}

/// Steps about nodes without a vote. Nodes that come are added before voters change, so that a replacement is
/// known, and before others leave, so that the rows are never on fewer nodes.
fn change_of_members(input: &DecisionInput, rules: RuleSet) -> Option<MemberStep> {
    let membership = &input.membership;
    let is_outside = |facts: &MemberFacts| facts.place == MemberPlace::Leaves && rules.has(Rule::PlacesOnly);
    for (id, facts) in &input.nodes {
        if facts.is_leaving() && membership.learners.contains(id) {
            return Some(MemberStep::RemoveLearner(*id));
        }
        let can_be_added = facts.contact.is_reachable() && !input.failed.contains(id);
        let belongs = !facts.is_leaving() && !is_outside(facts);
        if belongs && !membership.contains(*id) && can_be_added {
            return Some(MemberStep::AddLearner(*id));
        }
    }
    if rules.has(Rule::RowsFirst) && !input.nodes.iter().all(|(id, facts)| has_its_rows(input, *id, facts)) {
        return None;
    }
    let mut learners = input.nodes.iter().filter(|(id, _)| membership.learners.contains(id));
    learners.find(|(_, facts)| is_outside(facts)).map(|(id, _)| MemberStep::RemoveLearner(*id))
}

/// True if a node has the rows of the group, or does not need them.
fn has_its_rows(input: &DecisionInput, node: NodeId, facts: &MemberFacts) -> bool {
    let needs_them = facts.place != MemberPlace::Leaves && !facts.is_leaving();
    !needs_them || input.membership.contains(node) && is_caught_up(input, facts)
}

/// The removal of a node that nothing has any more, for the system group.
fn removal(input: &DecisionInput, rules: RuleSet) -> Option<MemberStep> {
    let is_over = |(id, facts): &(&NodeId, &MemberFacts)| {
        let is_held = facts.is_held || input.membership.contains(**id);
        facts.state == NodeState::Leaving && !(is_held && rules.has(Rule::RecordLast))
    };
    let mut nodes = input.nodes.iter().filter(|_| input.is_system);
    nodes.find(is_over).map(|(id, _)| MemberStep::RecordRemoval(*id))
}

fn change_of_voters(input: &DecisionInput, rules: RuleSet) -> MemberStep {
    let current = &input.membership.voters;
    let goal = voter_goal(input, rules);
    if goal.voters == *current {
        let unfit = !is_fit_leader(input, input.leader) && rules.has(Rule::UnfitLeaderTransfers);
        return match successor(input, current).filter(|_| unfit) {
            Some(to) => MemberStep::TransferLeader { to },
            None => goal.waits.map_or(MemberStep::Idle, MemberStep::Wait),
        };
    }
    assert!(!goal.voters.is_empty(), "a group keeps voters");
    let mut kept = current & &goal.voters;
    if kept.is_empty() {
        return replace_all(input, goal.voters, rules);
    }
    if !goal.voters.contains(&input.leader) && rules.has(Rule::TransferFirst) {
        kept.remove(&input.leader);
        return match successor(input, &kept).or_else(|| any_successor(input, &kept)) {
            Some(to) => MemberStep::TransferLeader { to },
            None => MemberStep::Wait(WaitReason::NoSuccessor),
        };
    }
    let kind = match goal.voters.len().cmp(&current.len()) {
        std::cmp::Ordering::Greater => VoterChangeKind::Promote,
        std::cmp::Ordering::Equal => VoterChangeKind::Replace,
        std::cmp::Ordering::Less => VoterChangeKind::Demote,
    };
    MemberStep::ChangeVoters(VoterChange { kind, voters: goal.voters })
}

/// Replaces all voters. The leader keeps its vote in the first of two changes, and transfers its leadership
/// between them. If it left at once and restarted before the others have the end of the change, no member
/// could be elected: it may not stand for election, and the others need its vote.
fn replace_all(input: &DecisionInput, goal: BTreeSet<NodeId>, rules: RuleSet) -> MemberStep {
    let mut voters = goal;
    if rules.has(Rule::TransferFirst) {
        if voters.len() == 1 {
            voters = helpers(input, rules);
        } else {
            let is_gateway = |id: &NodeId| input.nodes.get(id).is_some_and(|of| of.role == NodeRole::Gateway);
            let dropped = voters.iter().copied().find(is_gateway).or(voters.last().copied());
            voters.retain(|id| Some(*id) != dropped);
        }
        if voters.len() < 2 {
            return MemberStep::Wait(WaitReason::LoneVoter { node: input.leader });
        }
        voters.insert(input.leader);
    }
    let is_more = voters.len() > input.membership.voters.len();
    let kind = if is_more { VoterChangeKind::Promote } else { VoterChangeKind::Replace };
    MemberStep::ChangeVoters(VoterChange { kind, voters })
}

/// True if the node should lead: the leader also does the work that exists once in the cluster.
fn is_fit_leader(input: &DecisionInput, node: NodeId) -> bool {
    let facts = input.nodes.get(&node);
    facts.is_some_and(|facts| {
        facts.role == NodeRole::Storage && facts.state == NodeState::Active && facts.may_vote()
    })
}

/// A node among `voters` that should lead and can.
fn successor(input: &DecisionInput, voters: &BTreeSet<NodeId>) -> Option<NodeId> {
    voters.iter().copied().find(|id| is_fit_leader(input, *id) && can_lead(input, *id))
}

/// A node among `voters` that can lead, if none should.
fn any_successor(input: &DecisionInput, voters: &BTreeSet<NodeId>) -> Option<NodeId> {
    voters.iter().copied().find(|id| can_lead(input, *id))
}

fn can_lead(input: &DecisionInput, node: NodeId) -> bool {
    let facts = input.nodes.get(&node).filter(|_| node != input.leader);
    facts.is_some_and(|facts| facts.contact.is_reachable() && is_caught_up(input, facts))
}

fn is_caught_up(input: &DecisionInput, facts: &MemberFacts) -> bool {
    facts.lag_bytes.is_some_and(|lag| lag <= input.limits.promote_lag_bytes)
}

#[cfg(test)]
mod tests;
