//! Calls of other members to this one.
//!
//! The transport names the calling node. A node that calls in the name of another one is refused.

use super::error::GroupError;
use super::group::Group;
use super::peers::CallRefused;
use super::row_digests::RowDigest;
use crate::catalogue::options::BarrierError;
use mlgw_common::NodeId;
use mlgw_common::limits::BATCH_COMMANDS_MAX;
use mlgw_formats::cluster_version::check_known;
use mlgw_formats::log_batch::Batch;
use mlgw_formats::log_entry::log_position;
use mlgw_formats::log_types::{Leadership, OutcomeCallback, RaftLogEntry, RaftTypes};
use mlgw_formats::member_calls::{
    AppendCall, DeclineReason, DeclineReply, EmptyReply, MemberReply, MemberRequest, MembershipReply,
    ProposeCall, ReadIndexCall, TransferCall, TransferReply, VoteCall, VoteRecord, VoteReply, log_id,
    position,
};
use openraft::async_runtime::WatchReceiver as _;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, ClientWriteResult, TransferLeaderError,
    TransferLeaderRequest, VoteRequest, VoteResponse,
};
use openraft::{EntryPayload, LogIdOptionExt as _};
use tokio::sync::oneshot;

type Served = Result<MemberReply, CallRefused>;

impl Group {
    /// Serves a call of the node `from`.
    ///
    /// # Errors
    /// If the call is invalid or this member stops; nothing was done then.
    pub(crate) async fn serve(&self, from: NodeId, request: MemberRequest) -> Served {
        match request {
            MemberRequest::Append(call) => self.serve_append(from, call).await,
            MemberRequest::Vote(call) => self.serve_vote(from, &call).await,
            MemberRequest::PreVote(call) => self.serve_pre_vote(from, &call).await,
            MemberRequest::Transfer(call) => self.serve_transfer(from, &call).await,
            MemberRequest::Propose(call) => self.serve_proposal(from, call).await,
            MemberRequest::ReadIndex(call) => Ok(self.serve_read_index(from, &call).await),
            MemberRequest::StateVote(_) => self.serve_state_vote(),
            MemberRequest::RowDigest(call) => Ok(MemberReply::RowDigest(self.row_digest(call.index).reply())),
            MemberRequest::IsMember(_) => Ok(self.serve_is_member(from).await),
            MemberRequest::CreateMember(_) => Ok(MemberReply::MemberExists(EmptyReply {})),
            MemberRequest::Saga(_) => Err(CallRefused("sagas are the catalogue's".into())),
            MemberRequest::Readers(_) => Err(CallRefused("readers are the catalogue's".into())),
            MemberRequest::RowVerdict(_) => Err(CallRefused("comparisons are the catalogue's".into())),
            MemberRequest::Usage(_) => Err(CallRefused("usage is the catalogue's".into())),
            MemberRequest::Heartbeats(_) => Err(CallRefused("heartbeats are the catalogue's".into())),
        }
    }

    /// Votes or refuses. A vote ends the leases of this member before it is returned.
    async fn serve_vote(&self, from: NodeId, call: &VoteCall) -> Served {
        check_caller(from, &call.vote)?;
        // The leader that hands over has no lease any more.
        if !call.is_transfer && !self.vote_pause.is_over() {
            let answered = self.pre_vote(call).await?;
            return Ok(vote_reply(&VoteResponse { vote_granted: false, ..answered }));
        }
        let answered = self.raft.vote(vote_request(call)).await;
        let answered = answered.map_err(|error| CallRefused(error.to_string()))?;
        if answered.vote_granted {
            self.member_lease.voted_for(call.vote.vote().leader_id);
        }
        Ok(vote_reply(&answered))
    }

    /// Answers as to a request for a vote, and changes nothing.
    async fn serve_pre_vote(&self, from: NodeId, call: &VoteCall) -> Served {
        check_caller(from, &call.vote)?;
        let may_vote = self.vote_pause.is_over();
        let answered = self.pre_vote(call).await?;
        let vote_granted = answered.vote_granted && may_vote;
        Ok(vote_reply(&VoteResponse { vote_granted, ..answered }))
    }

    /// The answer of openraft, which does not know the pause.
    async fn pre_vote(&self, call: &VoteCall) -> Result<VoteResponse<RaftTypes>, CallRefused> {
        let answered = self.raft.pre_vote(vote_request(call)).await;
        answered.map_err(|error| CallRefused(error.to_string()))
    }

    async fn serve_append(&self, from: NodeId, call: AppendCall) -> Served {
        check_caller(from, &call.vote)?;
        let request = AppendEntriesRequest {
            vote: call.vote.vote(),
            prev_log_id: log_id(call.previous.as_ref()),
            entries: self.known_entries(&call)?,
            leader_commit: log_id(call.committed.as_ref()),
        };
        let appended = self.raft.append_entries(request).await;
        let appended = appended.map_err(|error| CallRefused(error.to_string()))?;
        if !matches!(appended, AppendEntriesResponse::HigherVote(_)) {
            self.last_append.record();
        }
        Ok(match appended {
            AppendEntriesResponse::Success => MemberReply::Appended(EmptyReply {}),
            AppendEntriesResponse::PartialSuccess(Some(id)) => MemberReply::AppendedTo(log_position(&id)),
            AppendEntriesResponse::PartialSuccess(None) | AppendEntriesResponse::Conflict => {
                MemberReply::Conflict(EmptyReply {})
            }
            AppendEntriesResponse::HigherVote(vote) => MemberReply::HigherVote(VoteRecord::of(&vote)),
        })
    }

    /// Decodes the entries of a call. A later command, or one with later fields, stops this node: it must
    /// neither apply it as another command nor stay behind unnoticed.
    fn known_entries(&self, call: &AppendCall) -> Result<Vec<RaftLogEntry>, CallRefused> {
        let entries = call.decode_entries().inspect_err(|error| {
            if error.is_of_later_version() {
                (self.fatal)(&format!("the leader of group {} sent an entry: {error}", self.id));
            }
        })?;
        let batches = entries.iter().filter_map(|entry| match &entry.payload {
            EntryPayload::Normal(batch) => Some(batch),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        });
        for command in batches.flat_map(|batch| &batch.commands) {
            if let Err(later) = check_known(command, self.known_version) {
                (self.fatal)(&format!("the leader of group {} sent an entry: {later}", self.id));
                return Err(CallRefused(later.to_string()));
            }
        }
        Ok(entries)
    }

    async fn serve_transfer(&self, from: NodeId, call: &TransferCall) -> Served {
        check_caller(from, &call.vote)?;
        let request = TransferLeaderRequest::new(call.vote.vote(), call.to, log_id(call.last.as_ref()));
        let handled = self.raft.handle_transfer_leader(request).await;
        Ok(match handled.map_err(|error| CallRefused(error.to_string()))? {
            Ok(()) => MemberReply::Transferring(EmptyReply {}),
            Err(TransferLeaderError::VoteChanged { actual, .. }) => {
                MemberReply::HigherVote(VoteRecord::of(&actual))
            }
            Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
                let (expected, last) = (position(expected.as_ref()), position(actual.as_ref()));
                MemberReply::TransferLacks(TransferReply { expected, last })
            }
        })
    }

    /// Writes the proposed commands to the log, and answers when a quorum has them.
    async fn serve_proposal(&self, from: NodeId, call: ProposeCall) -> Served {
        let leadership = Leadership { term: call.term, node_id: call.node };
        if leadership.node_id != self.node {
            return Err(CallRefused("the proposal is for another leader".into()));
        }
        let bytes = call.batch.len();
        let batch = Batch::decode(call.batch)?;
        let count = batch.commands.len() - usize::from(batch.tag().is_some());
        if count == 0 || count > BATCH_COMMANDS_MAX {
            return Err(CallRefused("a proposal has no commands, or too many".into()));
        }
        if batch.tag().is_some_and(|tag| tag.node != from.get()) {
            return Err(CallRefused(format!("node {from} proposes a batch with the tag of another node")));
        }
        for command in &batch.commands {
            check_known(command, self.known_version).map_err(|why| CallRefused(why.to_string()))?;
        }
        // The permits bound the proposals of all nodes; local ones take them too.
        let Ok(_room) = self.limiter.acquire(bytes).await else {
            return Ok(declined(DeclineReason::Overloaded, None));
        };
        let _proposal = self.needed_commits.begin_proposal();
        let (answer, answered) = oneshot::channel();
        let route = OutcomeCallback(Box::new(move |result: ClientWriteResult<RaftTypes>| {
            let _ = answer.send(result.map(|written| written.log_id));
        }));
        if self.raft.write(batch).responder(route).with_leader(leadership).await.is_err() {
            return Ok(declined(DeclineReason::UnknownOutcome, None));
        }
        let waited = mlgw_common::time::timeout(super::group::OUTCOME_WAIT, answered).await;
        Ok(match waited {
            Ok(Ok(Ok(id))) => {
                self.needed_commits.need(id.index);
                MemberReply::Proposed(log_position(&id))
            }
            Ok(Ok(Err(error))) => match GroupError::of_write(error) {
                GroupError::NotLeader { leader } => declined(DeclineReason::NotLeader, leader),
                _ => declined(DeclineReason::UnknownOutcome, None),
            },
            Ok(Err(_)) | Err(_) => declined(DeclineReason::UnknownOutcome, None),
        })
    }

    /// Confirms the leadership of this member and returns the entry that a read must have applied.
    async fn serve_read_index(&self, from: NodeId, call: &ReadIndexCall) -> MemberReply {
        let read_index = match self.read_index_for(from, call.vote.as_ref()).await {
            Some(id) => Ok(id),
            None => self.shared_read_index().await,
        };
        match read_index {
            Ok(id) => {
                self.needed_commits.need(id.index);
                MemberReply::ReadIndex(log_position(&id))
            }
            Err(error) => not_confirmed(error),
        }
    }

    /// States the vote of this member.
    fn serve_state_vote(&self) -> Served {
        let vote = self.vote_record().ok_or_else(|| CallRefused("this member has no vote yet".into()))?;
        Ok(MemberReply::StatedVote(vote))
    }

    /// The digest of the rows of this member after the entry `index`.
    pub(crate) fn row_digest(&self, index: u64) -> RowDigest {
        // Read first: an entry that is applied meanwhile has a digest already.
        let applied = self.raft.metrics().borrow_watched().last_applied.index();
        match self.row_digests.of(index) {
            Some(digest) => digest,
            None if applied < Some(index) => RowDigest::Pending,
            None => RowDigest::Absent,
        }
    }

    /// Confirms the leadership of this member, and returns the part of a node in the group.
    async fn serve_is_member(&self, node: NodeId) -> MemberReply {
        match self.shared_read_index().await {
            Ok(_) => MemberReply::Membership(MembershipReply { is_member: self.may_have_node(node) }),
            Err(error) => not_confirmed(error),
        }
    }
}

/// Checks that a call is in the name of the node that sent it.
fn check_caller(from: NodeId, vote: &VoteRecord) -> Result<(), CallRefused> {
    if vote.node == from.get() {
        return Ok(());
    }
    Err(CallRefused(format!("node {from} calls in the name of node {}", vote.node)))
}

/// The reply of a member whose leadership was not confirmed.
fn not_confirmed(error: BarrierError) -> MemberReply {
    match error {
        BarrierError::NotLeader { leader } => declined(DeclineReason::NotLeader, leader),
        BarrierError::NoQuorum => declined(DeclineReason::NoQuorum, None),
        BarrierError::Stopping => declined(DeclineReason::Stopping, None),
    }
}

/// A reply that declines a call.
pub(crate) fn declined(reason: DeclineReason, leader: Option<NodeId>) -> MemberReply {
    MemberReply::Declined(DeclineReply { reason: reason as i32, leader: leader.map(NodeId::get) })
}

fn vote_request(call: &VoteCall) -> VoteRequest<RaftTypes> {
    let mut request = VoteRequest::new(call.vote.vote(), log_id(call.last.as_ref()));
    request.leadership_transfer = call.is_transfer;
    request
}

fn vote_reply(answered: &VoteResponse<RaftTypes>) -> MemberReply {
    MemberReply::Vote(VoteReply {
        vote: VoteRecord::of(&answered.vote),
        is_granted: answered.vote_granted,
        last: position(answered.last_log_id.as_ref()),
    })
}
