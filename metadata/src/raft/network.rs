//! Network between members of a group. A group with one voter has no other members.

use super::snapshot::{Snapshot, SnapshotDir};
use mlgw_formats::log_types::{Types, Vote};
use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode};

/// The network of a group with one voter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alone;

fn unreachable() -> Unreachable<Types> {
    Unreachable::new(&AnyError::error("this group has one voter"))
}

impl RaftNetworkFactory<Types> for Alone {
    type Network = Self;

    async fn new_client(&mut self, _target: u64, _node: &BasicNode) -> Self {
        Self
    }
}

impl RaftNetworkV2<Types> for Alone {
    type SnapshotData = SnapshotDir;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(unreachable()))
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(unreachable()))
    }
}
