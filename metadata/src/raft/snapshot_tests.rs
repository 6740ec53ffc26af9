//! Transfer of a snapshot to a second, empty member: directory to directory, with digests compared.

use super::group::{Group, lone_voter_config};
use super::machine::GroupStateMachine;
use super::snapshot::{ScratchDir, Snapshot, SnapshotDir};
use super::suite_tests::parts;
use crate::catalogue::testing::{NOW, extent};
use crate::view::RowReader;
use mlgw_formats::command::{
    Change, Command, LeaseBodies, MirrorBucket, ObjectChange, ObjectCommand, PutObject,
};
use mlgw_formats::log_types::{RaftTypes, Vote};
use mlgw_formats::schema::ObjectVersion;
use mlgw_formats::store_files;
use openraft::async_runtime::WatchReceiver;
use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode, Config, Raft};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Members in this process by id, with the directory in which they receive snapshots.
type Members = Arc<Mutex<BTreeMap<u64, (Raft<RaftTypes, GroupStateMachine>, PathBuf)>>>;

#[derive(Clone, Default)]
struct InProcess {
    members: Members,
    target: u64,
}

impl InProcess {
    fn target(&self) -> Result<(Raft<RaftTypes, GroupStateMachine>, PathBuf), Unreachable<RaftTypes>> {
        let found = self.members.lock().get(&self.target).cloned();
        found.ok_or_else(|| Unreachable::new(&AnyError::error("not started")))
    }
}

impl RaftNetworkFactory<RaftTypes> for InProcess {
    type Network = Self;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Self {
        Self { members: Arc::clone(&self.members), target }
    }
}

impl RaftNetworkV2<RaftTypes> for InProcess {
    type SnapshotData = SnapshotDir;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<RaftTypes>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<RaftTypes>, RPCError<RaftTypes>> {
        let (raft, _) = self.target().map_err(RPCError::Unreachable)?;
        raft.append_entries(rpc).await.map_err(|e| RPCError::Unreachable(Unreachable::new(&e)))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<RaftTypes>,
        _option: RPCOption,
    ) -> Result<VoteResponse<RaftTypes>, RPCError<RaftTypes>> {
        let (raft, _) = self.target().map_err(RPCError::Unreachable)?;
        raft.vote(rpc).await.map_err(|e| RPCError::Unreachable(Unreachable::new(&e)))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<RaftTypes>, StreamingError<RaftTypes>> {
        let (raft, incoming) = self.target().map_err(StreamingError::Unreachable)?;
        let from = snapshot.snapshot.dir.expect("a snapshot to send has a directory");
        stream(from.path(), &incoming);
        let received = SnapshotDir { dir: Some(Arc::new(ScratchDir(incoming))) };
        let snapshot = Snapshot { meta: snapshot.meta, snapshot: received };
        raft.install_full_snapshot(vote, snapshot)
            .await
            .map_err(|e| StreamingError::Unreachable(Unreachable::new(&e)))
    }
}

/// Copies a checkpoint file by file through a small buffer, and syncs it.
fn stream(from: &Path, to: &Path) {
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

/// All rows of a group, to compare states.
fn digest(group: &Group) -> (usize, u64) {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let rows = group.state().range(&[0], &[0xFF], usize::MAX).unwrap();
    let mut hasher = DefaultHasher::new();
    rows.hash(&mut hasher);
    (rows.len(), hasher.finish())
}

async fn member(dir: &Path, id: u64, network: &InProcess) -> Group {
    let ticking =
        Config { enable_tick: true, enable_heartbeat: true, enable_elect: true, ..lone_voter_config() };
    let group = Group::start(parts(dir, id), network.clone(), ticking).await.unwrap();
    let incoming = dir.join("group-0").join("incoming");
    network.members.lock().insert(id, (group.raft.clone(), incoming));
    group
}

fn put(i: u64) -> Command {
    let version = ObjectVersion {
        body_id: i + 1,
        size: 10,
        etag: format!("{i:032x}"),
        extents: vec![extent(1 + i % 3, 10)],
        ..ObjectVersion::default()
    };
    let put = PutObject { version, pages: vec![], ..PutObject::default() };
    Command::from(Change::Object(ObjectCommand {
        bucket_id: 1,
        epoch: 1,
        key: format!("k{i}"),
        now_ms: NOW.0,
        change: Some(ObjectChange::Put(put)),
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_gives_an_empty_member_the_same_state() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let network = InProcess::default();
    let first = member(one.path(), 1, &network).await;
    first.raft.initialize(BTreeMap::from([(1, BasicNode { addr: "1".into() })])).await.unwrap();
    first.raft.wait(Some(Duration::from_secs(10))).current_leader(1, "leads").await.unwrap();
    let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
    first.propose(Arc::new(Change::MirrorBucket(mirror).into())).await.unwrap();
    for i in 0..500 {
        first.propose(Arc::new(put(i))).await.unwrap();
    }
    first.compact().await.unwrap();
    assert!(first.raft.metrics().borrow_watched().purged.is_some(), "the log alone cannot tell the second");

    let second = member(two.path(), 2, &network).await;
    first.raft.add_learner(2, BasicNode { addr: "2".into() }, true).await.unwrap();
    first.raft.change_membership(BTreeSet::from([1, 2]), false).await.unwrap();
    first.propose(Arc::new(Change::LeaseBodies(LeaseBodies { count: 7 }).into())).await.unwrap();
    first.propose(Arc::new(put(1_000))).await.unwrap();
    // The rows are read, because metrics may lag.
    let state = first.state();
    let applied = super::snapshot::position_of(|key| state.get(key)).unwrap().0.unwrap().index;
    second
        .raft
        .wait(Some(Duration::from_secs(10)))
        .applied_index_at_least(Some(applied), "follows")
        .await
        .unwrap();
    assert!(second.raft.metrics().borrow_watched().snapshot.is_some(), "it came by snapshot");
    let (rows, hash) = digest(&first);
    assert!(rows > 500);
    assert_eq!(digest(&second), (rows, hash));
    first.raft.shutdown().await.unwrap();
    second.raft.shutdown().await.unwrap();
}
