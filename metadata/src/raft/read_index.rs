//! Read indexes: the entry that a read on any member must have applied.
//!
//! A leader may have been replaced without its knowledge, so a read is only current if no other member led
//! when it began. openraft finds that out by heartbeats to all members. Here each of as many voters as a
//! quorum needs states the vote that it has given, and nothing else; a member that reads states its own with
//! its question. That costs one call instead of three.
//!
//! A member leads when a quorum has voted for it, and each voter has saved its vote before
//! ([`GroupLog::vote`](super::log::GroupLog::vote)). So no later leader existed when a read began, if the
//! voters of a quorum state, each at some time after that, that their vote is the one for this leader.
//! Every change that was acknowledged by then is one of this leader or of an earlier one. The first entry
//! of a leadership follows all entries of earlier ones. So a read must have applied the last committed
//! entry, taken after the read began, if that is one of the leadership. The quorum is that of the voters
//! which the leader knows at that moment; while they change, openraft confirms the leadership.
//!
//! Nothing is stored here. A voter that restarts reads its vote before it answers.

use super::error::barrier_error;
use super::group::Group;
use super::peers::MemberLane;
use crate::catalogue::options::BarrierError;
use futures_util::future::join_all;
use mlgw_common::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::log_types::{Leadership, LogId, RaftTypes};
use mlgw_formats::member_calls::{MemberReply, MemberRequest, StateVoteCall, VoteRecord};
use openraft::{RaftState, ReadPolicy, ServerState};
use std::time::Duration;

/// Longest time that a voter takes to state its vote. Afterwards openraft confirms the leadership, and the
/// next confirmation begins with another voter.
const STATE_VOTE_MAX: Duration = Duration::from_millis(100);

/// What a leader knows at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeaderState {
    leadership: Leadership,
    /// The last committed entry, which is one of the leadership.
    committed: LogId,
    /// The other voters.
    others: Vec<NodeId>,
    /// Number of the other voters that a quorum needs.
    needed: usize,
}

impl LeaderState {
    /// The state of the member `node`; `None` if it does not lead, has committed nothing of its leadership,
    /// or if the voters change.
    fn of(state: &RaftState<RaftTypes>, node: u64) -> Option<Self> {
        let leadership = state.vote_ref().leader_id;
        let committed = *state.cluster_committed()?;
        let [voters] = &state.membership_state.effective().membership().get_joint_config()[..] else {
            return None;
        };
        let leads = state.server_state == ServerState::Leader && leadership.node_id == node;
        if !leads || committed.leader_id != leadership || !voters.contains(&node) {
            return None;
        }
        let others: Vec<NodeId> =
            voters.iter().filter(|voter| **voter != node).copied().map(NodeId).collect();
        Some(Self { leadership, committed, needed: voters.len() / 2, others })
    }
}

impl Group {
    /// Confirms with a quorum that this member leads, and returns the entry that a read on any member must
    /// have applied. Callers share confirmations that began after their calls.
    pub(super) async fn shared_read_index(&self) -> Result<LogId, BarrierError> {
        let read_index = || {
            let group = self.clone();
            move || group.clone().read_index()
        };
        self.read_indexes.confirmed(read_index).await
    }

    async fn read_index(self) -> Result<LogId, BarrierError> {
        if let Some(confirmed) = self.read_index_of_voters().await {
            return Ok(confirmed);
        }
        let read = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await;
        Ok(*read.map_err(barrier_error)?.read_log_id().log_id())
    }

    /// The read index, if as many voters as a quorum needs have given no higher vote; `None` if that is not
    /// certain.
    pub(super) async fn read_index_of_voters(&self) -> Option<LogId> {
        let state = self.leader_state().await?;
        let chosen = self.answering_voters.choose(&state.others, state.needed);
        let asked = join_all(chosen.into_iter().map(|voter| self.ask_vote(voter))).await;
        if asked.contains(&None) {
            self.answering_voters.skip();
        }
        asked.iter().all(|vote| is_for(vote.as_ref(), state.leadership)).then_some(state.committed)
    }

    /// The read index for a voter that has stated its vote with its question; `None` if other voters must be
    /// asked.
    pub(super) async fn read_index_for(&self, voter: NodeId, vote: Option<&VoteRecord>) -> Option<LogId> {
        let vote = vote?;
        let state = self.leader_state().await?;
        let suffices = state.needed <= 1 && state.others.contains(&voter);
        (suffices && is_for(Some(vote), state.leadership)).then_some(state.committed)
    }

    /// This member's vote, as it states it to others.
    pub(super) fn vote_record(&self) -> Option<VoteRecord> {
        self.log.vote().as_ref().map(VoteRecord::of)
    }

    async fn leader_state(&self) -> Option<LeaderState> {
        let node = self.node;
        let state = self.raft.with_raft_state(move |state| LeaderState::of(state, node)).await;
        // An error means that this member stops.
        state.ok().flatten()
    }

    /// The vote of a voter; `None` if it does not answer.
    async fn ask_vote(&self, voter: NodeId) -> Option<VoteRecord> {
        let request = MemberRequest::StateVote(StateVoteCall {});
        let deadline = Instant::now() + STATE_VOTE_MAX;
        match self.network.as_ref()?.call(voter, MemberLane::Control, request, deadline).await {
            Ok(MemberReply::StatedVote(vote)) => Some(vote),
            // A node of an earlier build refuses the call.
            Ok(_) | Err(_) => None,
        }
    }
}

fn is_for(vote: Option<&VoteRecord>, leadership: Leadership) -> bool {
    vote.is_some_and(|vote| vote.vote().leader_id == leadership)
}
