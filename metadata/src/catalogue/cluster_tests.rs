//! Catalogues of three nodes in one process: a server grows, loses a node, and gets it back.

use super::groups::SYSTEM_GROUP;
use super::testing::{NOW, bucket, do_put, key, name, new_bucket, options, put, version};
use super::{
    BarrierScope, Catalogue, CatalogueOptions, ChangeMembersError, CreateBucketError, DeleteBucketError,
    Durability, NewBucket, OpenError, ProposeError,
};
use crate::raft::in_process::{InProcess, TestService};
use crate::raft::peers::CallRefused;
use crate::raft::snapshot_receiver::IncomingSnapshot;
use crate::store::log::{LogStore, LogWrite};
use crate::store::log_rows::{LogRowKind, key as log_key};
use crate::view::RowReader as _;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use mlgw_common::limits::GROUP_ID_MAX;
use mlgw_common::time::{sleep, timeout};
use mlgw_common::{NodeId, SplitKeys};
use mlgw_formats::cluster_version::SERVING_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, CreateBucket, SetBucketState};
use mlgw_formats::member_calls::{CreateMemberCall, MemberCall, MemberRequest};
use mlgw_formats::schema::{Bucket, BucketState};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Longest time for anything that elections are part of.
const SOON: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(20);

impl TestService for Catalogue {
    fn serve(&self, from: NodeId, call: Bytes) -> BoxFuture<'static, Result<Bytes, CallRefused>> {
        let catalogue = self.clone();
        Box::pin(async move { catalogue.serve_call(from, call).await })
    }

    fn accept(&self, from: NodeId, head: &[u8]) -> Result<IncomingSnapshot, CallRefused> {
        self.accept_snapshot(from, head)
    }
}

/// The nodes of a cluster that run.
pub(super) struct TestCluster {
    pub(super) network: InProcess,
    dir: TempDir,
    pub(super) nodes: BTreeMap<u64, Catalogue>,
    /// Tests with elections do not wait for the disk, which may be slower than an election.
    durability: Durability,
    log_bytes_max: u64,
}

impl TestCluster {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let network = InProcess::default();
        let log_bytes_max = options(dir.path()).log_bytes_max;
        Self { network, dir, nodes: BTreeMap::new(), durability: Durability::Os, log_bytes_max }
    }

    pub(super) fn dir(&self, node: u64) -> PathBuf {
        self.dir.path().join(node.to_string())
    }

    pub(super) async fn start(&mut self, node: u64) {
        let (id, peers) = (NodeId(node), Some(self.network.peers(node)));
        let (durability, log_bytes_max) = (self.durability, self.log_bytes_max);
        let catalogue = CatalogueOptions {
            node: id,
            peers,
            durability,
            log_bytes_max,
            lease_reads: true,
            ..options(&self.dir(node))
        };
        let catalogue = Catalogue::open(catalogue).await.unwrap();
        self.network.connect_node(node, Arc::new(catalogue.clone()));
        self.nodes.insert(node, catalogue);
    }

    pub(super) async fn stop(&mut self, node: u64) {
        self.network.disconnect(node);
        self.nodes.remove(&node).unwrap().shutdown().await;
    }

    pub(super) fn node(&self, node: u64) -> &Catalogue {
        &self.nodes[&node]
    }

    /// The node that leads a group.
    pub(super) async fn leader(&self, group: u32) -> u64 {
        until(async || {
            let leads = |catalogue: &&Catalogue| catalogue.members(group).is_ok();
            self.nodes.iter().find(|(_, catalogue)| leads(catalogue)).map(|(node, _)| *node)
        })
        .await
    }

    /// Makes a node the leader of a group.
    pub(super) async fn lead(&self, group: u32, node: u64) {
        until(async || {
            let leader = self.leader(group).await;
            if leader != node {
                // Whether it took place is seen at the next attempt.
                let _ = self.node(leader).transfer_leader(group, NodeId(node)).await;
            }
            (leader == node).then_some(())
        })
        .await;
    }

    /// Result of a change at the leader of the system group.
    async fn at_leader(
        &self,
        change: impl AsyncFn(&Catalogue) -> Result<(), ChangeMembersError>,
    ) -> Result<(), ChangeMembersError> {
        until(async || match change(self.node(self.leader(SYSTEM_GROUP).await)).await {
            Err(ChangeMembersError::NotLeader { .. } | ChangeMembersError::InProgress) => None,
            result => Some(result),
        })
        .await
    }

    /// Adds nodes to a group as learners, and makes them voters when they have everything.
    pub(super) async fn grow(&self, group: u32, voters: &[u64]) {
        let leader = self.node(self.leader(group).await);
        for node in voters {
            leader.add_learner(group, NodeId(*node)).await.unwrap();
        }
        let voters: BTreeSet<NodeId> = voters.iter().copied().map(NodeId).collect();
        until(async || match leader.change_voters(group, &voters).await {
            Ok(()) => Some(()),
            Err(ChangeMembersError::NotCaughtUp { .. } | ChangeMembersError::InProgress) => None,
            Err(other) => panic!("{other}"),
        })
        .await;
    }

    /// Puts an object through a node, again if the command is not in the log.
    pub(super) async fn put(&self, node: u64, bucket: &Bucket, object: &str) {
        let catalogue = self.node(node);
        until(async || {
            let body = catalogue.body_id().await.ok()?;
            let command = Command::object(bucket, &key(object), NOW, put(version(body, 10)));
            match catalogue.propose(command).await {
                Ok(_) => Some(()),
                Err(ProposeError::NotLeader { .. } | ProposeError::UnknownOutcome) => None,
                Err(other) => panic!("{other}"),
            }
        })
        .await;
    }

    /// Checks behind barriers that every node has an object.
    pub(super) async fn check(&self, bucket: &Bucket, object: &str) {
        for (node, catalogue) in &self.nodes {
            let scope = BarrierScope::Key(bucket.bucket_id(), &key(object));
            until(async || catalogue.barrier(scope).await.ok()).await;
            let found = catalogue.object(bucket.bucket_id(), &key(object)).unwrap();
            assert!(found.is_some(), "{object} on node {node}");
        }
    }

    /// Checks that the rows of a group are the same on all nodes.
    pub(super) async fn compare(&self, group: u32) {
        let rows = |catalogue: &Catalogue| {
            let state = catalogue.inner().groups.get(group).unwrap().state();
            state.range(&[0], &[0xFF], usize::MAX).unwrap()
        };
        let leader = self.node(self.leader(group).await);
        until(async || {
            let expected = rows(leader);
            self.nodes.values().all(|catalogue| rows(catalogue) == expected).then_some(())
        })
        .await;
    }
}

/// Repeats `attempt` until it has a result.
pub(super) async fn until<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let repeated = timeout(SOON, async {
        loop {
            if let Some(result) = attempt().await {
                return result;
            }
            sleep(PAUSE).await;
        }
    });
    repeated.await.expect("it happens soon")
}

/// A server without peers with a bucket and a purged log, which a learner cannot follow from its beginning.
async fn server_without_peers(dir: &Path) -> Arc<Bucket> {
    let catalogue = Catalogue::open(options(dir)).await.unwrap();
    let bucket = bucket(&catalogue, "data").await;
    for number in 0..50 {
        do_put(&catalogue, &bucket, &format!("k{number}"), 10).await;
    }
    catalogue.inner().compact().await.unwrap();
    catalogue.shutdown().await;
    bucket
}

/// A server without peers with two groups, and a bucket in each.
pub(super) async fn with_two_groups(dir: &Path) -> (Catalogue, [Arc<Bucket>; 2]) {
    let catalogue = Catalogue::open(CatalogueOptions { groups: 2, ..options(dir) }).await.unwrap();
    let buckets = [bucket(&catalogue, "one").await, bucket(&catalogue, "two").await];
    (catalogue, buckets)
}

/// Three nodes, all of them voters of the system group, which holds the objects.
pub(super) async fn three_nodes() -> (TestCluster, Arc<Bucket>) {
    three_nodes_of(TestCluster::new()).await
}

/// The same in a cluster without nodes.
async fn three_nodes_of(mut cluster: TestCluster) -> (TestCluster, Arc<Bucket>) {
    let bucket = server_without_peers(&cluster.dir(1)).await;
    for node in 1..=3 {
        cluster.start(node).await;
    }
    cluster.grow(SYSTEM_GROUP, &[1, 2, 3]).await;
    (cluster, bucket)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_grows_to_three_nodes_and_survives_the_loss_of_one() {
    let mut cluster = TestCluster::new();
    let bucket = server_without_peers(&cluster.dir(1)).await;
    cluster.start(1).await;
    assert!(cluster.node(1).is_alone() && cluster.node(1).bucket("data").is_some());
    cluster.node(1).barrier(BarrierScope::System).await.unwrap();
    for node in [2, 3] {
        cluster.start(node).await;
        assert!(cluster.node(node).bucket("data").is_none(), "it is empty");
    }
    cluster.network.cut_snapshot(1000);
    cluster.grow(SYSTEM_GROUP, &[1, 2, 3]).await;
    let [begun, installed] = cluster.network.snapshots();
    assert!(begun > 2 && installed == 2, "one was cut and sent again: {begun}, {installed}");
    let counted = [1, 2, 3].map(|node| cluster.node(node).metrics().snapshots_installed);
    assert_eq!(counted, [0, 1, 1], "each new node counts the one that it has installed");
    assert!(!cluster.node(1).is_alone());
    for node in 1..=3 {
        let object = format!("through-{node}");
        cluster.put(node, &bucket, &object).await;
        cluster.check(&bucket, &object).await;
        cluster.check(&bucket, "k0").await;
    }
    let lost = cluster.leader(SYSTEM_GROUP).await;
    cluster.stop(lost).await;
    for node in cluster.nodes.keys() {
        let object = format!("without-{lost}-{node}");
        cluster.put(*node, &bucket, &object).await;
        cluster.check(&bucket, &object).await;
    }
    cluster.start(lost).await;
    cluster.check(&bucket, "k49").await;
    cluster.put(lost, &bucket, "again").await;
    cluster.check(&bucket, "again").await;
    cluster.compare(SYSTEM_GROUP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_are_created_and_deleted_through_any_node() {
    let (cluster, _) = three_nodes().await;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let other = (1..=3).find(|node| *node != leader).unwrap();
    let made = cluster.node(other).create_bucket(new_bucket("one")).await.unwrap();
    assert_eq!(cluster.node(other).bucket("one").unwrap().id, made.id, "its node has it");
    assert_eq!(made.state(), BucketState::Active);
    assert!(cluster.node(other).create_bucket(new_bucket("one")).await.is_err());
    cluster.put(other, &made, "k").await;
    let deleted = cluster.node(other).delete_bucket(&name("one")).await;
    assert_eq!(deleted, Err(DeleteBucketError::NotEmpty));
    cluster.put(leader, &cluster.node(leader).bucket("one").unwrap(), "l").await;
    cluster.node(leader).create_bucket(new_bucket("two")).await.unwrap();
    until(async || cluster.node(other).bucket("two")).await;
    cluster.node(other).delete_bucket(&name("two")).await.unwrap();
    assert!(cluster.node(leader).bucket("two").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_keys_are_refused_until_every_node_knows_them() {
    let (cluster, _) = three_nodes().await;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let other = (1..=3).find(|node| *node != leader).unwrap();
    let split = NewBucket { split_keys: SplitKeys::new(&["m"]).unwrap(), ..new_bucket("split") };
    let needs = SERVING_CLUSTER_VERSION;
    for node in [leader, other] {
        let refused = cluster.node(node).create_bucket(split.clone()).await;
        let too_old = ProposeError::NotFinalized { needs, has: 1 };
        assert_eq!(refused, Err(CreateBucketError::Propose(too_old)));
    }
    cluster.node(leader).raise_cluster_version(needs).await.unwrap();
    until(async || (cluster.node(other).cluster_version() == needs).then_some(())).await;
    cluster.node(other).create_bucket(split).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_are_one_three_or_five_and_have_the_log() {
    let mut cluster = TestCluster::new();
    server_without_peers(&cluster.dir(1)).await;
    for node in 1..=3 {
        cluster.start(node).await;
    }
    let first = cluster.node(1);
    assert!(matches!(cluster.node(2).members(0), Err(ChangeMembersError::NotLeader { .. })));
    first.add_learner(0, NodeId(2)).await.unwrap();
    // It is a member, but nothing reaches it.
    cluster.network.isolate(3);
    assert!(matches!(first.add_learner(0, NodeId(3)).await, Err(ChangeMembersError::NodeFailed { .. })));
    first.inner().groups.system().add_learner(NodeId(3)).await.unwrap();
    // A start keeps facts for every id up to the largest.
    let create = MemberRequest::CreateMember(CreateMemberCall {});
    let create = MemberCall::encode_request(GROUP_ID_MAX + 1, create);
    assert!(cluster.node(2).serve_call(NodeId(1), create).await.is_err());
    let voters = |nodes: &[u64]| nodes.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
    for bad in [&[][..], &[1, 2], &[2, 3, 4], &[1, 2, 4], &[1, 2, 3, 4]] {
        let refused = first.change_voters(0, &voters(bad)).await;
        assert!(matches!(refused, Err(ChangeMembersError::NotAllowed(_))), "{bad:?}: {refused:?}");
    }
    let refused = until(async || match first.change_voters(0, &voters(&[1, 2, 3])).await {
        Err(ChangeMembersError::NotCaughtUp { node: NodeId(2), .. }) => None,
        other => Some(other),
    })
    .await;
    assert!(matches!(refused, Err(ChangeMembersError::NotCaughtUp { node: NodeId(3), .. })), "{refused:?}");
    assert!(first.is_alone(), "a learner is no voter");
    cluster.network.rejoin(3);
    cluster.grow(0, &[1, 2, 3]).await;
    let leader = cluster.leader(0).await;
    let other = (1..=3).find(|node| *node != leader).unwrap();
    let change = async |voters: BTreeSet<NodeId>| {
        cluster.at_leader(async |catalogue: &Catalogue| catalogue.change_voters(0, &voters).await).await
    };
    let refused = cluster.node(leader).change_voters(0, &voters(&[other])).await;
    assert!(refused.is_err(), "a leader transfers first");
    let remove = async |node| {
        cluster.at_leader(async |leader: &Catalogue| leader.remove_member(0, NodeId(node)).await).await
    };
    assert!(remove(other).await.is_err(), "a voter is not removed");
    change(voters(&[leader])).await.unwrap();
    assert!(cluster.node(leader).is_alone());
    remove(other).await.unwrap();
    let members = cluster.node(leader).members(0).unwrap().members;
    assert!(members.len() == 2 && members.iter().all(|member| member.node != NodeId(other)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_duty_node_resumes_sagas_and_refuses_the_old_runner() {
    let (cluster, _) = three_nodes().await;
    let first = cluster.leader(SYSTEM_GROUP).await;
    let leadership = cluster.node(first).inner().groups.system().leadership().unwrap();
    // A saga that stops after its first step.
    let create = CreateBucket { name: "half".into(), owner: "o".into(), ..CreateBucket::default() };
    let begin = Arc::new(Command::from(Change::CreateBucket(create)));
    cluster.node(first).inner().propose_to(SYSTEM_GROUP, begin).await.unwrap();
    assert!(cluster.node(first).bucket("half").is_none());
    let next = (1..=3).find(|node| *node != first).unwrap();
    cluster.lead(SYSTEM_GROUP, next).await;
    let made = until(async || cluster.node(first).bucket("half")).await;
    // The first one leads again, in another term: its old saga stays refused.
    cluster.lead(SYSTEM_GROUP, first).await;
    let state = BucketState::Deleting as i32;
    let set = SetBucketState { name: "half".into(), bucket_id: made.id, state };
    let set = Arc::new(Command::from(Change::SetBucketState(set)));
    let old = cluster.node(first).inner().propose_under(leadership, set).await;
    assert!(matches!(old, Err(ProposeError::NotLeader { .. })), "{old:?}");
    assert_eq!(cluster.node(first).bucket("half").unwrap().state(), BucketState::Active);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duty_node_without_a_member_of_a_group_does_not_fail() {
    let mut cluster = TestCluster::new();
    let (catalogue, buckets) = with_two_groups(&cluster.dir(1)).await;
    catalogue.shutdown().await;
    for node in 1..=3 {
        cluster.start(node).await;
    }
    assert_eq!(cluster.node(1).groups(), [0, 1]);
    cluster.grow(SYSTEM_GROUP, &[1, 2, 3]).await;
    assert_eq!(cluster.node(2).groups(), [0]);
    until(async || {
        cluster.lead(SYSTEM_GROUP, 2).await;
        match cluster.node(2).inner().begin_leader_work().await {
            Err(ProposeError::NotLeader { .. }) => None,
            result => Some(result),
        }
    })
    .await
    .unwrap();
    cluster.node(2).inner().release_all().await.unwrap();
    for bucket in &buckets {
        cluster.put(1, bucket, "k").await;
    }
    // It becomes a member of the other group, too.
    cluster.grow(1, &[1, 2, 3]).await;
    assert_eq!(cluster.node(2).groups(), [0, 1]);
    for bucket in &buckets {
        cluster.put(2, bucket, "l").await;
        cluster.check(bucket, "l").await;
    }
    cluster.compare(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_finds_recent_rows_only_after_barriers_of_both_groups() {
    const GROUP: u32 = 1;
    let mut cluster = TestCluster::new();
    let (catalogue, buckets) = with_two_groups(&cluster.dir(1)).await;
    catalogue.shutdown().await;
    for node in 1..=3 {
        cluster.start(node).await;
    }
    cluster.grow(SYSTEM_GROUP, &[1, 2, 3]).await;
    cluster.grow(GROUP, &[1, 2, 3]).await;
    let (node, object) = (cluster.node(2), key("k"));
    let is_in_group =
        |bucket: &Arc<Bucket>| node.inner().resident.group_of(bucket.bucket_id(), object.as_bytes()) == GROUP;
    let id = buckets.iter().find(|bucket| is_in_group(bucket)).expect("one in each group").bucket_id();
    let is_recent = || node.has_recent_rows_for_put(id, &object);
    let pass = async |scope| node.barrier(scope).await.ok();
    until(async || {
        pass(BarrierScope::System).await?;
        pass(BarrierScope::Key(id, &object)).await?;
        is_recent().then_some(())
    })
    .await;

    until(async || (!is_recent()).then_some(())).await;
    for _ in 0..10 {
        until(async || pass(BarrierScope::System).await).await;
        assert!(!is_recent(), "the rows of the group of the key are old");
    }
    cluster.network.isolate(2);
    assert_eq!(pass(BarrierScope::Key(id, &object)).await, None);
    assert!(!is_recent(), "a barrier that did not pass confirms nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_log_lost_its_end_opens_and_follows() {
    let (mut cluster, bucket) = three_nodes().await;
    // Without syncs a start accepts such a log in any case.
    cluster.durability = Durability::Full;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let victim = (1..=3).find(|node| *node != leader).unwrap();
    cluster.put(leader, &bucket, "a").await;
    cluster.check(&bucket, "a").await;
    cluster.stop(victim).await;
    let dir = cluster.dir(victim);
    let cache = crate::store::options::cache(1 << 20);
    let log = LogStore::open(&dir.join("log"), &cache, Durability::Full, None, |why| panic!("{why}"));
    let log = log.unwrap();
    let (last, _) = log.last_entry(0).unwrap().unwrap();
    let (done, synced) = std::sync::mpsc::channel();
    let cut =
        LogWrite::DeleteRange(log_key(0, LogRowKind::Entry, last), log_key(0, LogRowKind::Entry, u64::MAX));
    log.write(vec![cut], Box::new(move |written| done.send(written).unwrap()));
    synced.recv().unwrap().unwrap();
    log.end();
    drop(log);
    cluster.start(victim).await;
    cluster.put(victim, &bucket, "b").await;
    cluster.check(&bucket, "b").await;
    cluster.compare(SYSTEM_GROUP).await;
    // As a server without peers it would lead alone.
    cluster.stop(victim).await;
    let alone = CatalogueOptions { node: NodeId(victim), ..options(&dir) };
    let refused = Catalogue::open(alone).await.err();
    assert!(matches!(&refused, Some(OpenError::Raft(why)) if why.contains("voters")), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_longer_for_a_slow_node_that_answers_and_has_a_limit() {
    const BYTES_MAX: u64 = 40_000;
    let cluster = TestCluster { log_bytes_max: BYTES_MAX, ..TestCluster::new() };
    let (cluster, bucket) = three_nodes_of(cluster).await;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let slow = (1..=3).find(|node| *node != leader).unwrap();
    let bytes = || cluster.node(leader).inner().log_bytes();
    let snapshots = || cluster.node(slow).metrics().snapshots_installed;
    cluster.compare(SYSTEM_GROUP).await;
    let before = snapshots();
    cluster.network.hold_entries(slow);
    let mut puts = 0;
    // A narrow bound stops proposers at one and a half times its bytes.
    while bytes() <= BYTES_MAX * 7 / 4 {
        assert!(puts < 2_000, "the entries that it lacks are kept: {} bytes", bytes());
        cluster.put(leader, &bucket, &format!("k{puts}")).await;
        puts += 1;
    }
    cluster.network.pass_entries(slow);
    cluster.compare(SYSTEM_GROUP).await;
    assert_eq!(snapshots(), before, "the log has what it lacks");

    cluster.network.hold_entries(slow);
    let mut longest = 0;
    for number in 0..6 * puts {
        cluster.put(leader, &bucket, &format!("l{number}")).await;
        longest = longest.max(bytes());
    }
    // Half a bound more than a wide one, and the command that was admitted then.
    assert!(longest <= BYTES_MAX * 9 / 2 + 1_000, "{longest}");
    cluster.network.pass_entries(slow);
    cluster.compare(SYSTEM_GROUP).await;
    assert!(snapshots() > before, "no log has all that it lacks");
}
