//! Transfer of a snapshot to a second, empty member: files over the transport, with digests compared.

use super::group::{Group, GroupParts, member_config};
use super::in_process::InProcess;
use super::proposal_tests::{SOON, stop, three};
use super::purge::KeptMax;
use super::suite_tests::parts;
use crate::catalogue::testing::{NOW, extent};
use crate::view::RowReader;
use mlgw_formats::command::{
    Change, Command, LeaseBodies, MirrorBucket, ObjectChange, ObjectCommand, PutObject,
};
use mlgw_formats::schema::ObjectVersion;
use openraft::BasicNode;
use openraft::LogIdOptionExt as _;
use openraft::async_runtime::WatchReceiver;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// All rows of a group, to compare states.
pub(super) fn digest(group: &Group) -> (usize, u64) {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let rows = group.state().range(&[0], &[0xFF], usize::MAX).unwrap();
    let mut hasher = DefaultHasher::new();
    rows.hash(&mut hasher);
    (rows.len(), hasher.finish())
}

async fn member(dir: &Path, id: u64, network: &InProcess) -> Group {
    let parts = GroupParts { peers: Some(network.peers(id)), ..parts(dir, id) };
    let group = Group::open_member(parts, member_config()).await.unwrap();
    network.connect(id, group.clone());
    group
}

pub(super) fn put(i: u64) -> Command {
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
        grows_times: false,
        duty_term: None,
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_gives_an_empty_member_the_same_state() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let network = InProcess::default();
    let first = member(one.path(), 1, &network).await;
    first.raft.initialize(BTreeMap::from([(1, BasicNode { addr: "1".into() })])).await.unwrap();
    let leads = first.raft.wait(Some(Duration::from_secs(10)));
    leads.metrics(|m| m.current_leader == Some(1) && m.vote.committed, "leads").await.unwrap();
    let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
    first.propose(Arc::new(Change::MirrorBucket(mirror).into())).await.unwrap();
    for i in 0..500 {
        first.propose(Arc::new(put(i))).await.unwrap();
    }
    first.compact().await.unwrap();
    assert!(first.raft.metrics().borrow_watched().purged.is_some(), "the log alone cannot tell the second");
    let sent = first.raft.get_snapshot().await.unwrap();
    assert!(sent.is_some() && first.is_old_log_needed(u64::MAX), "its member needs the log that follows");
    drop(sent);
    assert!(!first.is_old_log_needed(u64::MAX));

    // A power loss left this of an earlier transfer.
    std::fs::create_dir_all(two.path().join("group-0/incoming-9")).unwrap();
    let second = member(two.path(), 2, &network).await;
    network.cut_snapshot(1000);
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
    assert_eq!(network.snapshots(), [2, 1], "the first one was cut, and the second one was not");
    let left = std::fs::read_dir(two.path().join("group-0")).unwrap().count();
    assert_eq!(left, 1, "nothing of interrupted ones is left beside the state");
    let (rows, hash) = digest(&first);
    assert!(rows > 500);
    assert_eq!(digest(&second), (rows, hash));
    first.raft.shutdown().await.unwrap();
    second.raft.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_a_slow_follower_lacks_are_purged_only_if_they_are_most_of_the_log() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let (leader, slow) = (&members[0], &members[2]);
    // The bucket of the objects.
    let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
    leader.propose(Arc::new(Change::MirrorBucket(mirror).into())).await.unwrap();
    for i in 0..300 {
        leader.propose(Arc::new(put(i))).await.unwrap();
    }
    let applied = |member: &Group| member.raft.metrics().borrow_watched().last_applied.index();
    let follows = slow.raft.wait(Some(SOON));
    follows.applied_index_at_least(applied(leader), "it has all").await.unwrap();
    network.hold_entries(slow.node);
    let matched = leader.log.last().unwrap().index();
    assert!(!leader.is_old_log_needed(0));
    for i in 300..400 {
        leader.propose(Arc::new(put(i))).await.unwrap();
    }
    assert!(!leader.is_old_log_needed(0), "a purge keeps what it lacks");
    leader.compact().await.unwrap();
    assert_eq!(leader.purged(), matched);
    let (first, end) = (matched.unwrap() + 1, leader.log.last().unwrap().index().unwrap() + 1);
    assert_eq!(leader.log_bytes(), leader.log.bytes_between(first, end, u64::MAX).unwrap());
    network.pass_entries(slow.node);
    let follows = slow.raft.wait(Some(SOON));
    follows.applied_index_at_least(applied(leader), "it has all").await.unwrap();
    assert_eq!(network.snapshots(), [0, 0]);

    network.hold_entries(slow.node);
    for i in 400..1000 {
        leader.propose(Arc::new(put(i))).await.unwrap();
    }
    let matched = matched_by(leader, slow);
    let end = leader.log.last().unwrap().unwrap().index() + 1;
    let few = leader.log.bytes_between(matched.unwrap() + 1, end, u64::MAX).unwrap();
    purge(leader, few, few).await;
    assert_eq!(leader.purged(), matched, "so little is kept if it is all of the log");
    purge(leader, few - 1, few - 1).await;
    assert_eq!(leader.purged(), applied(leader));
    network.pass_entries(slow.node);
    let follows = slow.raft.wait(Some(SOON));
    follows.applied_index_at_least(applied(leader), "it has all").await.unwrap();
    assert!(network.snapshots()[0] > 0, "the log does not have what it lacks");
    stop(members).await;
}

/// The last entry that the leader knows a member to have.
fn matched_by(leader: &Group, member: &Group) -> Option<u64> {
    let metrics = leader.raft.metrics();
    let metrics = metrics.borrow_watched();
    metrics.replication.as_ref().unwrap()[&member.node].index()
}

async fn purge(leader: &Group, any: u64, answering: u64) {
    leader.begin_purge(KeptMax { any, answering }).await.unwrap().unwrap().finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_keeps_more_for_a_follower_that_answers() {
    let (dir, network) = (tempfile::tempdir().unwrap(), InProcess::default());
    let members = three(dir.path(), &network).await;
    let (leader, slow) = (&members[0], &members[2]);
    let needed = async |is_needed: bool| {
        let found = async {
            while leader.is_old_log_needed(0) != is_needed {
                mlgw_common::time::sleep(Duration::from_millis(1)).await;
            }
        };
        mlgw_common::time::timeout(SOON, found).await.expect("that is found soon");
    };
    let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
    let index = leader.propose(Arc::new(Change::MirrorBucket(mirror).into())).await.unwrap().index;
    slow.raft.wait(Some(SOON)).applied_index_at_least(Some(index), "it follows").await.unwrap();
    needed(false).await;
    network.hold_entries(slow.node);
    for i in 0..300 {
        leader.propose(Arc::new(put(i))).await.unwrap();
    }
    needed(true).await;
    assert!(!leader.is_old_log_needed(u64::MAX), "so little is kept in any case");
    purge(leader, 0, u64::MAX).await;
    assert_eq!(leader.purged(), matched_by(leader, slow));
    let last = leader.log.last().unwrap().index();
    network.isolate(slow.node);
    needed(false).await;
    purge(leader, 0, u64::MAX).await;
    assert_eq!(leader.purged(), last);
    stop(members).await;
}
