//! Voters that a group should have now.
//!
//! Candidates are the voters that stay, and the learners that may be promoted. A voter that is only
//! unreachable stays a candidate, so the loss of a node never makes voters fewer; only a removal does. In a
//! group of a set a removal does not either while the set can be filled: voters that leave are the last
//! candidates.

use crate::decision::WaitReason;
use crate::facts::{Contact, DecisionInput, MemberFacts};
use crate::rules::{Rule, RuleSet};
use mlgw_common::NodeId;
use mlgw_formats::schema::{NodeRole, NodeState};
use std::collections::BTreeSet;

/// Voters to reach, and the reason if better ones must wait.
pub(crate) struct VoterGoal {
    pub(crate) voters: BTreeSet<NodeId>,
    pub(crate) waits: Option<WaitReason>,
}

/// Largest allowed number of voters among `candidates` nodes.
pub(crate) fn voter_count(candidates: usize, voters_max: usize) -> usize {
    let odd = match candidates {
        0 => 0,
        1 | 2 => 1,
        3 | 4 => 3,
        _ => 5,
    };
    odd.min(voters_max)
}

/// The voters that the facts allow.
pub(crate) fn voter_goal(input: &DecisionInput, rules: RuleSet) -> VoterGoal {
    let choice = Choice { input, rules };
    let current = &input.membership.voters;
    let gateways = choice.ranked(NodeRole::Gateway);
    let candidates = choice.candidates(&gateways);
    let count = choice.count(candidates.len());
    if count == 0 {
        return VoterGoal { voters: current.clone(), waits: Some(WaitReason::NoStorageVoter) };
    }
    let voters: BTreeSet<NodeId> = candidates.iter().take(count).copied().collect();
    assert_eq!(voters.len(), count, "there are as many candidates as votes");
    if voters.len() < current.len()
        && rules.has(Rule::AwaitReplacement)
        && let Some(waits) = choice.replacement_on_its_way(voters.len(), &gateways)
    {
        return VoterGoal { voters: current.clone(), waits: Some(waits) };
    }
    if rules.has(Rule::ReachableMajority) && !input.has_majority(&voters) {
        return VoterGoal { voters: current.clone(), waits: Some(WaitReason::NoMajorityAfterwards) };
    }
    VoterGoal { voters, waits: choice.better_later(&candidates) }
}

/// Two nodes that may vote beside the leader, or fewer if there are not so many. Gateways come later, and
/// voters that leave last.
pub(crate) fn helpers(input: &DecisionInput, rules: RuleSet) -> BTreeSet<NodeId> {
    let choice = Choice { input, rules };
    let mut ranked = choice.ranked(NodeRole::Storage);
    ranked.extend(choice.ranked(NodeRole::Gateway));
    let leaving = input.membership.voters.iter().filter(|id| !ranked.contains(id));
    let leaving: Vec<NodeId> = leaving.copied().filter(|id| input.is_reachable(*id)).collect();
    ranked.extend(leaving);
    ranked.into_iter().filter(|id| *id != input.leader).take(2).collect()
}

struct Choice<'a> {
    input: &'a DecisionInput,
    rules: RuleSet,
}

impl Choice<'_> {
    /// True if voters that leave stay candidates: the set of the group has enough nodes, or others could be
    /// added to it. A node of the set that leaves counts, because another one takes its place there.
    fn keeps_leaving(&self) -> bool {
        let nodes = self.input.nodes.values();
        let in_set = nodes.clone().filter(|facts| facts.is_in_set).count();
        let could_be_in_set = |facts: &&MemberFacts| {
            facts.role == NodeRole::Storage
                && !facts.is_in_set
                && matches!(facts.state, NodeState::Active | NodeState::Joining)
                && !self.is_lost(facts)
        };
        let possible = in_set + nodes.filter(could_be_in_set).count();
        in_set > 0 && possible >= self.input.limits.voters_max && self.rules.has(Rule::SetKeepsVotes)
    }

    /// True if a node is unreachable for so long that another one takes its vote.
    const fn is_lost(&self, facts: &MemberFacts) -> bool {
        match facts.contact {
            Contact::Unreachable { for_ms } => for_ms >= self.input.limits.replace_after_ms,
            Contact::Reachable { .. } => false,
        }
    }

    fn count(&self, candidates: usize) -> usize {
        let max = self.input.limits.voters_max;
        if self.rules.has(Rule::OddVoters) { voter_count(candidates, max) } else { candidates.min(max) }
    }

    /// Candidates for a vote, the best first. Gateways are among them only as the third beside two storage
    /// nodes.
    fn candidates(&self, gateways: &[NodeId]) -> Vec<NodeId> {
        let mut candidates = self.ranked(NodeRole::Storage);
        if !self.rules.has(Rule::StorageVotes) {
            candidates.extend(gateways);
            candidates.sort_by_key(|id| self.preference(*id));
        } else if candidates.len() == 2 {
            candidates.extend(gateways.first());
        }
        candidates
    }

    /// Nodes of a role that may vote, the best first.
    fn ranked(&self, role: NodeRole) -> Vec<NodeId> {
        let keeps_leaving = self.keeps_leaving() || !self.rules.has(Rule::LeavingLosesVote);
        let can_vote = |(id, facts): &(&NodeId, &MemberFacts)| {
            if self.input.membership.voters.contains(id) {
                !facts.is_leaving() || keeps_leaving
            } else {
                self.has_place(facts) && self.promotion_waits(**id, facts).is_none()
            }
        };
        let of_role = self.input.nodes.iter().filter(|(_, facts)| facts.role == role);
        let mut ranked: Vec<NodeId> = of_role.filter(can_vote).map(|(id, _)| *id).collect();
        ranked.sort_by_key(|id| self.preference(*id));
        ranked
    }

    /// True if a node without a vote may get one in this group.
    fn has_place(&self, facts: &MemberFacts) -> bool {
        facts.may_vote() || !self.rules.has(Rule::SetVotes)
    }

    /// Order of candidates: smaller ones first. A voter keeps its vote unless it is worse than a learner.
    fn preference(&self, id: NodeId) -> ([bool; 8], NodeId) {
        let (input, rules) = (self.input, self.rules);
        let is = |property: &dyn Fn(&MemberFacts) -> bool| input.nodes.get(&id).is_some_and(property);
        let reasons = [
            is(&MemberFacts::is_leaving) && rules.has(Rule::LeavingLosesVote),
            is(&|facts| !self.has_place(facts)),
            is(&|facts| facts.state == NodeState::Draining) && rules.has(Rule::DrainingLast),
            is(&|facts| self.is_lost(facts)) && rules.has(Rule::ReplaceUnreachable),
            is(&|facts| !facts.has_all_groups) && input.is_system && rules.has(Rule::AllGroupsFirst),
            !input.membership.voters.contains(&id),
            !input.is_reachable(id),
            id != input.leader,
        ];
        (reasons, id)
    }

    /// The reason why a node that is no voter may not become one now.
    fn promotion_waits(&self, id: NodeId, facts: &MemberFacts) -> Option<WaitReason> {
        let limits = &self.input.limits;
        if !self.input.membership.learners.contains(&id) || facts.is_leaving() {
            return Some(WaitReason::NotCaughtUp { node: id, lag_bytes: None });
        }
        if facts.state != NodeState::Active && self.rules.has(Rule::ActiveFirst) {
            return Some(WaitReason::NotActive { node: id });
        }
        match facts.contact {
            Contact::Unreachable { .. } => return Some(WaitReason::NotReachable { node: id }),
            Contact::Reachable { for_ms } => {
                if for_ms < limits.promote_after_ms && self.rules.has(Rule::SteadyFirst) {
                    return Some(WaitReason::NotReachable { node: id });
                }
            }
        }
        let is_caught_up = facts.lag_bytes.is_some_and(|lag| lag <= limits.promote_lag_bytes);
        if !is_caught_up && self.rules.has(Rule::BytesFirst) {
            return Some(WaitReason::NotCaughtUp { node: id, lag_bytes: facts.lag_bytes });
        }
        None
    }

    /// Storage nodes without a vote that are reachable and will be able to take one.
    fn coming(&self) -> Vec<NodeId> {
        let is_coming = |(id, facts): &(&NodeId, &MemberFacts)| {
            !self.input.membership.voters.contains(id)
                && facts.role == NodeRole::Storage
                && self.has_place(facts)
                && matches!(facts.state, NodeState::Active | NodeState::Joining)
                && facts.contact.is_reachable()
        };
        self.input.nodes.iter().filter(is_coming).map(|(id, _)| *id).collect()
    }

    /// The reason to keep the voters, if nodes on their way allow more than `count` of them.
    fn replacement_on_its_way(&self, count: usize, gateways: &[NodeId]) -> Option<WaitReason> {
        let coming = self.coming();
        let stays = |id: &&NodeId| {
            let facts = self.input.nodes.get(id);
            facts.is_some_and(|facts| facts.role == NodeRole::Storage && !facts.is_leaving())
        };
        let staying = self.input.membership.voters.iter().filter(stays).count();
        let storage = staying + coming.len();
        let possible = if storage == 2 { storage + gateways.len().min(1) } else { storage };
        let possible = self.count(possible);
        let node = coming.first().copied().filter(|_| possible > count)?;
        Some(WaitReason::ReplacementNotReady { node })
    }

    /// The reason why voters are fewer than they could be, for status.
    fn better_later(&self, candidates: &[NodeId]) -> Option<WaitReason> {
        let learners = self.input.membership.learners.iter();
        let waiting = learners.filter_map(|id| {
            let facts = self.input.nodes.get(id)?;
            let is_wanted = facts.role == NodeRole::Storage
                && self.has_place(facts)
                && matches!(facts.state, NodeState::Active | NodeState::Joining);
            self.promotion_waits(*id, facts).filter(|_| is_wanted)
        });
        let waiting: Vec<WaitReason> = waiting.collect();
        let is_leaving = |id: &&NodeId| self.input.nodes.get(id).is_some_and(MemberFacts::is_leaving);
        let staying = candidates.iter().filter(|id| !is_leaving(id)).count();
        let possible = self.count(staying + waiting.len());
        let kept = candidates.iter().find(is_leaving).filter(|_| staying < self.count(candidates.len()));
        match (waiting.into_iter().next(), kept) {
            (Some(reason), _) if possible > self.count(staying) => Some(reason),
            (_, Some(node)) => Some(WaitReason::VoteNotTaken { node: *node }),
            _ if candidates.len() == 2 => Some(WaitReason::ThirdNode { ready: candidates[1] }),
            _ => None,
        }
    }
}
