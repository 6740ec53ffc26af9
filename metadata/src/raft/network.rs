//! Network between members of a group. A group with one voter has no other members.

use super::snapshot::{Snapshot, SnapshotDir};
use mlgw_formats::log_types::{RaftTypes, Vote};
use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode};

/// The network of a group with one voter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NoNetwork;

fn unreachable() -> Unreachable<RaftTypes> {
    Unreachable::new(&AnyError::error("this group has one voter"))
}

impl RaftNetworkFactory<RaftTypes> for NoNetwork {
    type Network = Self;

    async fn new_client(&mut self, _target: u64, _node: &BasicNode) -> Self {
        Self
    }
}

impl RaftNetworkV2<RaftTypes> for NoNetwork {
    type SnapshotData = SnapshotDir;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<RaftTypes>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<RaftTypes>, RPCError<RaftTypes>> {
        Err(RPCError::Unreachable(unreachable()))
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<RaftTypes>,
        _option: RPCOption,
    ) -> Result<VoteResponse<RaftTypes>, RPCError<RaftTypes>> {
        Err(RPCError::Unreachable(unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<RaftTypes>, StreamingError<RaftTypes>> {
        Err(StreamingError::Unreachable(unreachable()))
    }
}
