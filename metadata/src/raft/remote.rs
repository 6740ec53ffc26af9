//! Network between the members of a group: openraft's calls over [`MemberPeers`].
//!
//! Appends with entries have their own lane and a long deadline, because a slow disk of the follower is no
//! reason to send the same entries again. Heartbeats and votes have openraft's deadlines. A member asks for
//! votes only after its [`VotePause`].

use super::heartbeats::{HEARTBEAT_MAX, Heartbeats};
use super::held_commits::NeededCommits;
use super::lease::MemberLease;
use super::peers::{MemberLane, MemberPeers, PeerError};
use super::snapshot::{Snapshot, SnapshotDir};
use super::snapshot_sender;
use super::vote_pause::VotePause;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream};
use mlgw_common::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::log_types::{RaftTypes, Vote};
use mlgw_formats::member_calls::{
    AppendCall, MemberAnswer, MemberCall, MemberReply, MemberRequest, TransferCall, VoteCall, VoteRecord,
    log_id, position,
};
use openraft::BasicNode;
use openraft::error::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderError,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use std::sync::Arc;
use std::time::Duration;

/// Longest time that an append with entries may take. It waits for two or three syncs of the follower: the
/// one in progress, sometimes that of a new log file, and its own.
pub(crate) const APPEND_MAX: Duration = Duration::from_secs(8);

/// Calls of one group to other nodes.
#[derive(Clone)]
pub(crate) struct RemoteNetwork {
    /// The other nodes.
    pub(crate) peers: Arc<dyn MemberPeers>,
    /// The group.
    pub(crate) group: u32,
}

/// Network of one member.
pub(super) struct MemberNetwork {
    pub(super) network: RemoteNetwork,
    pub(super) vote_pause: VotePause,
    pub(super) member_lease: Arc<MemberLease>,
    /// The heartbeats of all groups of the node.
    pub(super) heartbeats: Option<Arc<Heartbeats>>,
    pub(super) needed_commits: NeededCommits,
}

/// Connection to one other member.
pub(super) struct RemoteMember {
    network: RemoteNetwork,
    vote_pause: VotePause,
    member_lease: Arc<MemberLease>,
    heartbeats: Option<Arc<Heartbeats>>,
    needed_commits: NeededCommits,
    to: NodeId,
}

type Answered<T> = Result<T, RPCError<RaftTypes>>;

/// Answers to a stream of appends.
type AppendAnswers<'s> = Answered<BoxStream<'s, Answered<StreamAppendResult<RaftTypes>>>>;

/// A failed call as openraft's error: it waits before it calls an unreachable member again.
fn rpc_error(error: &PeerError) -> RPCError<RaftTypes> {
    match error {
        PeerError::NotSent(_) | PeerError::Refused(_) => RPCError::Unreachable(Unreachable::new(error)),
        PeerError::Unknown(_) => RPCError::Network(NetworkError::new(error)),
    }
}

/// The error of an answer that does not fit its call.
fn misfit(reply: MemberReply) -> RPCError<RaftTypes> {
    RPCError::Unreachable(Unreachable::from_string(format!("the answer does not fit the call: {reply:?}")))
}

impl RemoteNetwork {
    /// Sends a request to the member on node `to` and returns its reply.
    pub(crate) async fn call(
        &self,
        to: NodeId,
        lane: MemberLane,
        request: MemberRequest,
        deadline: Instant,
    ) -> Result<MemberReply, PeerError> {
        let call = MemberCall::encode_request(self.group, request);
        let called = mlgw_common::time::timeout_at(deadline, self.peers.call(to, lane, call, deadline));
        let answer: Bytes =
            called.await.map_err(|_| PeerError::Unknown("it took too long".into())).flatten()?;
        MemberAnswer::read(answer).map_err(|error| PeerError::Unknown(error.to_string()))
    }
}

impl RaftNetworkFactory<RaftTypes> for MemberNetwork {
    type Network = RemoteMember;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> RemoteMember {
        RemoteMember {
            network: self.network.clone(),
            vote_pause: self.vote_pause,
            member_lease: Arc::clone(&self.member_lease),
            heartbeats: self.heartbeats.clone(),
            needed_commits: self.needed_commits.clone(),
            to: NodeId(target),
        }
    }
}

impl RemoteMember {
    async fn call(&self, lane: MemberLane, request: MemberRequest, max: Duration) -> Answered<MemberReply> {
        let answered = self.network.call(self.to, lane, request, Instant::now() + max).await;
        answered.map_err(|error| rpc_error(&error))
    }

    /// Sends an append without entries, with those of other groups if they are being gathered.
    async fn send_heartbeat(&self, append: AppendCall, max: Duration) -> Answered<MemberReply> {
        let append = match &self.heartbeats {
            Some(heartbeats) => match heartbeats.join(self.to, self.network.group, append).await {
                Ok(answered) => return answered.map_err(|error| rpc_error(&error)),
                Err(append) => append,
            },
            None => append,
        };
        self.call(MemberLane::Control, MemberRequest::Append(append), max).await
    }

    async fn request_vote(&self, request: MemberRequest, max: Duration) -> Answered<VoteResponse<RaftTypes>> {
        match self.call(MemberLane::Control, request, max).await? {
            MemberReply::Vote(reply) => {
                Ok(VoteResponse::new(reply.vote.vote(), log_id(reply.last.as_ref()), reply.is_granted))
            }
            other => Err(misfit(other)),
        }
    }
}

fn vote_call(rpc: &VoteRequest<RaftTypes>) -> VoteCall {
    VoteCall {
        vote: VoteRecord::of(&rpc.vote),
        last: position(rpc.last_log_id.as_ref()),
        is_transfer: rpc.leadership_transfer,
    }
}

impl RaftNetworkV2<RaftTypes> for RemoteMember {
    type SnapshotData = SnapshotDir;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<RaftTypes>,
        option: RPCOption,
    ) -> Answered<AppendEntriesResponse<RaftTypes>> {
        if let Some(committed) = &rpc.leader_commit {
            self.member_lease.record_committed(committed.index);
        }
        let append = AppendCall {
            vote: VoteRecord::of(&rpc.vote),
            previous: position(rpc.prev_log_id.as_ref()),
            committed: position(rpc.leader_commit.as_ref()),
            entries: AppendCall::encode_entries(&rpc.entries),
        };
        let answered = match rpc.entries.is_empty() {
            true => self.send_heartbeat(append, option.soft_ttl().min(HEARTBEAT_MAX)).await?,
            false => self.call(MemberLane::Log, MemberRequest::Append(append), APPEND_MAX).await?,
        };
        match answered {
            MemberReply::Appended(_) => Ok(AppendEntriesResponse::Success),
            MemberReply::AppendedTo(last) => Ok(AppendEntriesResponse::PartialSuccess(log_id(Some(&last)))),
            // A conflict at the beginning of the log is impossible, and openraft ends at one.
            MemberReply::Conflict(_) if rpc.prev_log_id.is_some() => Ok(AppendEntriesResponse::Conflict),
            MemberReply::HigherVote(vote) => Ok(AppendEntriesResponse::HigherVote(vote.vote())),
            other => Err(misfit(other)),
        }
    }

    fn stream_append<'s, S>(&'s mut self, appends: S, option: RPCOption) -> BoxFuture<'s, AppendAnswers<'s>>
    where
        S: Stream<Item = AppendEntriesRequest<RaftTypes>> + Send + Unpin + 'static,
    {
        let held = self.needed_commits.hold(appends);
        stream_append_sequential(self, held, option)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<RaftTypes>,
        option: RPCOption,
    ) -> Answered<VoteResponse<RaftTypes>> {
        if !rpc.leadership_transfer {
            self.vote_pause.over().await;
        }
        self.request_vote(MemberRequest::Vote(vote_call(&rpc)), option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<RaftTypes>,
        option: RPCOption,
    ) -> Answered<VoteResponse<RaftTypes>> {
        // openraft gives the attempt up if that takes longer than an election may.
        self.vote_pause.over().await;
        self.request_vote(MemberRequest::PreVote(vote_call(&rpc)), option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<RaftTypes>, StreamingError<RaftTypes>> {
        let sending = snapshot_sender::send(&self.network, self.to, &vote, snapshot);
        tokio::select! {
            sent = sending => match sent {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(error) => Err(StreamingError::Unreachable(Unreachable::new(&error))),
            },
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<RaftTypes>,
        option: RPCOption,
    ) -> Answered<TransferLeaderResponse<RaftTypes>> {
        let request = MemberRequest::Transfer(TransferCall {
            vote: VoteRecord::of(req.from_leader()),
            to: *req.to_node_id(),
            last: position(req.last_log_id()),
        });
        match self.call(MemberLane::Control, request, option.soft_ttl()).await? {
            MemberReply::Transferring(_) => Ok(Ok(())),
            MemberReply::HigherVote(actual) => Ok(Err(TransferLeaderError::VoteChanged {
                expected: *req.from_leader(),
                actual: actual.vote(),
            })),
            MemberReply::TransferLacks(lacks) => Ok(Err(TransferLeaderError::LogNotFlushed {
                expected: log_id(lacks.expected.as_ref()),
                actual: log_id(lacks.last.as_ref()),
            })),
            other => Err(misfit(other)),
        }
    }
}
