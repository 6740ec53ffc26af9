//! Network of members in one process, for tests: calls go from one Raft instance to the other. Nodes can be
//! isolated.

use super::machine::GroupStateMachine;
use super::snapshot::{ScratchDir, Snapshot, SnapshotDir};
use mlgw_formats::log_types::{RaftTypes, Vote};
use mlgw_formats::store_files;
use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode, Raft};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) type MemberRaft = Raft<RaftTypes, GroupStateMachine>;

#[derive(Default)]
struct Shared {
    /// Members by node and group, with the directory of their group.
    members: Mutex<BTreeMap<(u64, u32), (MemberRaft, PathBuf)>>,
    isolated: Mutex<BTreeSet<u64>>,
    snapshots: AtomicU64,
}

/// The network of all groups of a process.
#[derive(Clone, Default)]
pub(super) struct InProcess {
    shared: Arc<Shared>,
}

impl InProcess {
    /// Connects a member. `dir` is the directory of its group.
    pub(super) fn connect(&self, node: u64, group: u32, raft: MemberRaft, dir: PathBuf) {
        self.shared.members.lock().insert((node, group), (raft, dir));
    }

    /// Disconnects all members of a node.
    pub(super) fn disconnect(&self, node: u64) {
        self.shared.members.lock().retain(|(of, _), _| *of != node);
    }

    /// Drops every call from and to a node until [`Self::rejoin`].
    pub(super) fn isolate(&self, node: u64) {
        self.shared.isolated.lock().insert(node);
    }

    /// Ends the isolation of a node.
    pub(super) fn rejoin(&self, node: u64) {
        self.shared.isolated.lock().remove(&node);
    }

    /// The network of one member.
    pub(super) fn of(&self, node: u64, group: u32) -> MemberNetwork {
        MemberNetwork { network: self.clone(), from: node, to: 0, group }
    }
}

/// Connection of a member to another one.
#[derive(Clone)]
pub(super) struct MemberNetwork {
    network: InProcess,
    from: u64,
    to: u64,
    group: u32,
}

fn unreachable(why: impl ToString) -> Unreachable<RaftTypes> {
    Unreachable::new(&AnyError::error(why))
}

impl MemberNetwork {
    fn target(&self) -> Result<(MemberRaft, PathBuf), Unreachable<RaftTypes>> {
        let isolated = self.network.shared.isolated.lock();
        if isolated.contains(&self.from) || isolated.contains(&self.to) {
            return Err(unreachable("isolated"));
        }
        let found = self.network.shared.members.lock().get(&(self.to, self.group)).cloned();
        found.ok_or_else(|| unreachable("not started"))
    }

    /// Drops a response if the nodes were separated meanwhile.
    fn received<T>(&self, response: T) -> Result<T, RPCError<RaftTypes>> {
        self.target().map_err(RPCError::Unreachable)?;
        Ok(response)
    }
}

impl RaftNetworkFactory<RaftTypes> for MemberNetwork {
    type Network = Self;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Self {
        Self { to: target, ..self.clone() }
    }
}

impl RaftNetworkV2<RaftTypes> for MemberNetwork {
    type SnapshotData = SnapshotDir;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<RaftTypes>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<RaftTypes>, RPCError<RaftTypes>> {
        let (raft, _) = self.target().map_err(RPCError::Unreachable)?;
        self.received(raft.append_entries(rpc).await.map_err(|e| RPCError::Unreachable(unreachable(e)))?)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<RaftTypes>,
        _option: RPCOption,
    ) -> Result<VoteResponse<RaftTypes>, RPCError<RaftTypes>> {
        let (raft, _) = self.target().map_err(RPCError::Unreachable)?;
        self.received(raft.vote(rpc).await.map_err(|e| RPCError::Unreachable(unreachable(e)))?)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<RaftTypes>,
        _option: RPCOption,
    ) -> Result<VoteResponse<RaftTypes>, RPCError<RaftTypes>> {
        let (raft, _) = self.target().map_err(RPCError::Unreachable)?;
        self.received(raft.pre_vote(rpc).await.map_err(|e| RPCError::Unreachable(unreachable(e)))?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<RaftTypes>, StreamingError<RaftTypes>> {
        let (raft, dir) = self.target().map_err(StreamingError::Unreachable)?;
        let from = snapshot.snapshot.dir.expect("a snapshot to send has a directory");
        let number = self.network.shared.snapshots.fetch_add(1, Ordering::Relaxed);
        let incoming = dir.join(format!("incoming-{number}"));
        copy_synced(from.path(), &incoming);
        let received = SnapshotDir { dir: Some(Arc::new(ScratchDir::new(incoming))) };
        let snapshot = Snapshot { meta: snapshot.meta, snapshot: received };
        raft.install_full_snapshot(vote, snapshot)
            .await
            .map_err(|e| StreamingError::Unreachable(unreachable(e)))
    }
}

/// Copies a checkpoint file by file through a small buffer, and syncs it.
fn copy_synced(from: &Path, to: &Path) {
    store_files::make_dir(to).unwrap();
    let mut buffer = vec![0; 64 << 10];
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let mut source = std::fs::File::open(entry.path()).unwrap();
        let mut target = std::fs::File::create(to.join(entry.file_name())).unwrap();
        loop {
            let read = source.read(&mut buffer).unwrap();
            if read == 0 {
                break;
            }
            target.write_all(&buffer[..read]).unwrap();
        }
        target.sync_all().unwrap();
    }
    store_files::sync_dir(to).unwrap();
}
