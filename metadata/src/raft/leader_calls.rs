//! Questions of a follower to its leader: read indexes, and its membership. They are repeated until a leader
//! answers; proposals are in [`super::remote_proposals`].

use super::group::Group;
use super::peers::MemberLane;
use super::remote::RemoteNetwork;
use crate::catalogue::options::BarrierError;
use futures_util::future::join_all;
use mlgw_common::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::member_calls::{DeclineReason, IsMemberCall, MemberReply, MemberRequest, ReadIndexCall};
use openraft::LogIdOptionExt as _;
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest time that one attempt to get a read index takes. Reads are repeated.
const READ_INDEX_MAX: Duration = Duration::from_millis(700);

/// Pause before a read index is requested again.
const READ_PAUSE: Duration = Duration::from_millis(20);

impl Group {
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
