//! Calls of a follower to its leader: proposals, read indexes, and a question about its own part.
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
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, timeout};
use mlgw_formats::log_batch::Outcomes;
use mlgw_formats::log_entry;
use mlgw_formats::log_types::{Leadership, LogId};
use mlgw_formats::member_calls::{
    DeclineReason, DeclineReply, IsMemberCall, MemberReply, MemberRequest, ProposeCall, ReadIndexCall,
};
use openraft::LogIdOptionExt as _;
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
                let request = MemberRequest::ReadIndex(ReadIndexCall {});
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

    /// Returns true if the leader, one of `nodes`, confirms that this node is a member no more. It may not
    /// have received that from the log.
    pub(crate) async fn is_removed(&self, nodes: &[NodeId]) -> bool {
        let Some(network) = &self.network else { return false };
        for node in nodes.iter().filter(|node| node.get() != self.node) {
            let request = MemberRequest::IsMember(IsMemberCall {});
            let deadline = Instant::now() + READ_INDEX_MAX;
            // Of the others, each answers that it does not lead.
            let answered = network.call(*node, MemberLane::Control, request, deadline).await;
            if let Ok(MemberReply::Membership(part)) = answered {
                return !part.is_member;
            }
        }
        false
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
