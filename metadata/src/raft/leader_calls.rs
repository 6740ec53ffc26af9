//! Calls of a follower to its leader: proposals, read indexes, and questions about its membership.
//!
//! A proposal names the leadership that this member knows. The leader refuses it under another one, so an old
//! proposal cannot enter the log of a later term. **A proposal that may have reached the leader is never sent
//! again.** Its outcome is unknown if no answer comes.

use super::error::GroupError;
use super::group::Group;
use super::peers::{MemberLane, PeerError};
use super::remote::RemoteNetwork;
use crate::catalogue::options::BarrierError;
use bytes::Bytes;
use futures_util::future::join_all;
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, timeout};
use mlgw_formats::log_batch::Outcomes;
use mlgw_formats::log_entry;
use mlgw_formats::log_types::{Leadership, LogId};
use mlgw_formats::member_calls::{
    DeclineReason, DeclineReply, IsMemberCall, MemberReply, MemberRequest, ProposeCall, ReadIndexCall,
};
use openraft::LogIdOptionExt as _;
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest time that the leader may take for a proposal.
const PROPOSE_MAX: Duration = Duration::from_secs(8);

/// Longest time that a follower waits for the entry of a proposal, after the leader has answered.
const APPLY_MAX: Duration = Duration::from_secs(2);

/// Time in which a leader that lost its leadership may still answer a proposal.
const GRACE: Duration = Duration::from_millis(500);

/// Longest time that one attempt to get a read index takes. Reads are repeated.
const READ_INDEX_MAX: Duration = Duration::from_millis(700);

/// Pause before a read index is requested again.
const READ_PAUSE: Duration = Duration::from_millis(20);

impl Group {
    /// Proposes a batch to the leader, and returns the entry and its outcomes when this member has applied
    /// it.
    pub(super) async fn propose_at_leader(
        &self,
        network: &RemoteNetwork,
        leadership: Leadership,
        batch: Bytes,
    ) -> Result<(LogId, Outcomes), GroupError> {
        let leader = NodeId(leadership.node_id);
        if self.known_leadership() != Ok(leadership) {
            return Err(GroupError::NotLeader { leader: None });
        }
        let expected = self.outcomes.expect();
        let request =
            MemberRequest::Propose(ProposeCall { term: leadership.term, node: leader.get(), batch });
        let calling = network.call(leader, MemberLane::Log, request, Instant::now() + PROPOSE_MAX);
        let called = tokio::select! {
            called = calling => called,
            () = self.leadership_ended(leadership) => Err(PeerError::Unknown("its leadership ended".into())),
        };
        let id = match called {
            Ok(MemberReply::Proposed(position)) => log_entry::log_id_from_position(&position),
            Ok(MemberReply::Declined(declined)) => return Err(declined_proposal(&declined)),
            Err(PeerError::NotSent(_) | PeerError::Refused(_)) => {
                return Err(GroupError::NotLeader { leader: Some(leader) });
            }
            Ok(_) | Err(PeerError::Unknown(_)) => return Err(GroupError::UnknownOutcome),
        };
        match timeout(APPLY_MAX, expected.wait(id)).await {
            Ok(Ok(outcomes)) => Ok((id, outcomes)),
            Ok(Err(_)) | Err(_) => Err(GroupError::UnknownOutcome),
        }
    }

    /// Returns some time after another leadership is known.
    async fn leadership_ended(&self, leadership: Leadership) {
        let wait = self.raft.wait(None);
        let _ = wait.metrics(|m| m.vote.leader_id != leadership, "another leadership").await;
        mlgw_common::time::sleep(GRACE).await;
    }

    /// Waits until this member has applied every change that was acknowledged before the call, as the leader
    /// confirms.
    pub(super) async fn confirm_at_leader(&self, network: &RemoteNetwork) -> Result<(), BarrierError> {
        loop {
            if self.raft.is_leader() {
                match self.confirm_own_leadership().await {
                    // Another member leads since.
                    Err(BarrierError::NotLeader { .. }) => {}
                    confirmed => return confirmed,
                }
            }
            let leader = self.leader().filter(|leader| leader.get() != self.node);
            if let Some(leader) = leader {
                let request = MemberRequest::ReadIndex(ReadIndexCall { vote: self.vote_record() });
                let deadline = Instant::now() + READ_INDEX_MAX;
                match network.call(leader, MemberLane::Control, request, deadline).await {
                    Ok(MemberReply::ReadIndex(position)) => return self.applied(position.index).await,
                    Ok(MemberReply::Declined(declined))
                        if declined.known_reason() == DeclineReason::NoQuorum =>
                    {
                        return Err(BarrierError::NoQuorum);
                    }
                    // Another member may lead by now, or the leader is not reachable for a moment.
                    Ok(_) | Err(_) => {}
                }
            }
            mlgw_common::time::sleep(READ_PAUSE).await;
        }
    }

    /// Returns the leader if it confirms that this node was removed from the group. This node may not have
    /// received the entry that removed it. The leader is one of `nodes`, or one that they name.
    pub(crate) async fn removed_by(&self, nodes: &BTreeSet<NodeId>) -> Option<NodeId> {
        let mut answers = self.ask_membership(nodes.clone()).await;
        let mut named: BTreeSet<NodeId> = answers.iter().filter_map(named_leader).collect();
        named.retain(|node| !nodes.contains(node));
        answers.extend(self.ask_membership(named).await);
        leader_that_removed(&answers)
    }

    /// Asks all these nodes at once if this node is a member. Only the leader answers the question.
    async fn ask_membership(&self, mut nodes: BTreeSet<NodeId>) -> Vec<MembershipAnswer> {
        let Some(network) = &self.network else { return Vec::new() };
        nodes.retain(|node| node.get() != self.node);
        let deadline = Instant::now() + READ_INDEX_MAX;
        let asking = nodes.into_iter().map(|node| async move {
            let request = MemberRequest::IsMember(IsMemberCall {});
            let reply = network.call(node, MemberLane::Control, request, deadline).await.ok()?;
            Some(MembershipAnswer { node, reply })
        });
        join_all(asking).await.into_iter().flatten().collect()
    }

    /// Waits until this member has applied the entry `index`.
    ///
    /// # Errors
    /// If this member stops.
    pub(crate) async fn applied(&self, index: u64) -> Result<(), BarrierError> {
        let wait = self.raft.wait(None);
        let applied = wait.metrics(|m| m.last_applied.index() >= Some(index), "applied").await;
        applied.map(drop).map_err(|_| BarrierError::Stopping)
    }
}

/// A node's reply to the question if this node is a member.
struct MembershipAnswer {
    node: NodeId,
    reply: MemberReply,
}

/// The leader that a node names because it does not lead.
fn named_leader(answer: &MembershipAnswer) -> Option<NodeId> {
    match &answer.reply {
        MemberReply::Declined(declined) => declined.leader.map(NodeId),
        _ => None,
    }
}

/// The leader that has removed this node. After a change of leaders two nodes may have answered as leaders:
/// then both must confirm the removal.
fn leader_that_removed(answers: &[MembershipAnswer]) -> Option<NodeId> {
    let confirmed = |answer: &MembershipAnswer| match &answer.reply {
        MemberReply::Membership(part) => Some((answer.node, part.is_member)),
        _ => None,
    };
    let mut leaders = answers.iter().filter_map(confirmed);
    let (leader, is_member) = leaders.next()?;
    (!is_member && leaders.all(|(_, is_member)| !is_member)).then_some(leader)
}

/// The error of a proposal that the leader declined.
fn declined_proposal(declined: &DeclineReply) -> GroupError {
    match declined.known_reason() {
        DeclineReason::NotLeader | DeclineReason::Stopping => {
            GroupError::NotLeader { leader: declined.leader.map(NodeId) }
        }
        DeclineReason::Overloaded => GroupError::Overloaded,
        DeclineReason::UnknownOutcome | DeclineReason::NoQuorum => GroupError::UnknownOutcome,
    }
}

#[cfg(test)]
mod tests {
    use super::{MembershipAnswer, leader_that_removed, named_leader};
    use crate::raft::serve::declined;
    use mlgw_common::NodeId;
    use mlgw_formats::member_calls::{DeclineReason, MemberReply, MembershipReply};

    #[test]
    fn a_node_is_removed_when_the_leader_confirms_it_and_no_other_leader_contradicts() {
        let leader = |node, is_member| MembershipAnswer {
            node: NodeId(node),
            reply: MemberReply::Membership(MembershipReply { is_member }),
        };
        let follower = || MembershipAnswer {
            node: NodeId(2),
            reply: declined(DeclineReason::NotLeader, Some(NodeId(5))),
        };
        assert_eq!(named_leader(&follower()), Some(NodeId(5)));
        assert_eq!(leader_that_removed(&[follower()]), None);
        assert_eq!(leader_that_removed(&[follower(), leader(5, false)]), Some(NodeId(5)));
        assert_eq!(leader_that_removed(&[leader(5, true)]), None);
        assert_eq!(leader_that_removed(&[leader(5, false), leader(1, true)]), None, "it was added again");
    }
}
