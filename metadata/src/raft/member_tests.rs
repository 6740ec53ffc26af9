//! Three groups of three members in one process: leaders are killed and isolated while clients write and
//! read through any member. `MLGW_LEADER_KILLS` sets the number of groups whose leader is killed. Each kill
//! waits for an election, so a full test run has more of them than a quick one.

use super::error::GroupError;
use super::group::{Group, GroupParts, member_config};
use super::in_process::InProcess;
use super::snapshot_tests::digest;
use super::suite_tests::IgnoringWatcher;
use crate::catalogue::testing::NOW;
use crate::durability::Durability;
use crate::store::log::LogStore;
use crate::store::options;
use crate::store::state::StateStore;
use crate::view::RowReader;
use mlgw_common::BucketId;
use mlgw_formats::cluster_version::CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, MirrorBucket, ObjectChange, ObjectCommand, PutObject};
use mlgw_formats::schema::{ObjectVersion, decode, object};
use openraft::async_runtime::WatchReceiver;
use openraft::{BasicNode, Config};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const NODES: [u64; 3] = [1, 2, 3];
const GROUPS: u32 = 3;
const CLIENTS: u64 = 3;

/// Pause of a client between two commands.
const PAUSE: Duration = Duration::from_millis(2);

/// Time after which a client gives up a command, whose outcome it does not know then.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest time in which the groups have to make progress with two of three members.
const PROGRESS_MAX: Duration = Duration::from_secs(60);

/// Rounds per isolation of a leader. In the other rounds a leader is killed.
const ISOLATION_EVERY: u32 = 5;

/// Acknowledged writes of every group that count as progress.
const PROGRESS: u64 = 10;

/// A node with a member of every group.
struct TestNode {
    id: u64,
    log: LogStore,
    groups: Vec<Group>,
}

impl TestNode {
    async fn open(id: u64, dir: &Path, network: &InProcess) -> Self {
        let cache = options::cache(1 << 20);
        let dir = dir.join(id.to_string());
        let log =
            LogStore::open(&dir.join("log"), &cache, Durability::Os, None, |why| panic!("{why}")).unwrap();
        let config = Config {
            heartbeat_interval: 150,
            election_timeout_min: 700,
            election_timeout_max: 1400,
            ..member_config()
        };
        let mut groups = Vec::new();
        for group in 0..GROUPS {
            let dir = dir.join(format!("group-{group}"));
            let parts = GroupParts {
                id: group,
                node: id,
                log: log.clone(),
                store: StateStore::open(&dir, &cache, 4 << 20).unwrap(),
                watcher: Arc::new(IgnoringWatcher(CLUSTER_VERSION)),
                cluster_version: CLUSTER_VERSION,
                fatal: Arc::new(|why| panic!("{why}")),
                peers: Some(network.peers(id)),
                heartbeats: None,
                digest_pace: Arc::default(),
            };
            let member = Group::open_member(parts, config.clone()).await.unwrap();
            network.connect(id, member.clone());
            groups.push(member);
        }
        Self { id, log, groups }
    }

    /// Ends the node without flushing its states.
    async fn kill(self, network: &InProcess) {
        network.disconnect(self.id);
        let states = self.groups.iter().map(|group| group.state().open_token());
        let open: Vec<_> = states.chain([self.log.open_token()]).collect();
        for group in &self.groups {
            group.raft.shutdown().await.unwrap();
        }
        drop(self);
        while open.iter().any(|store| store.strong_count() > 0) {
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The nodes that run, and what clients achieved.
struct Cluster {
    network: InProcess,
    nodes: Mutex<BTreeMap<u64, TestNode>>,
    acknowledged: [AtomicU64; GROUPS as usize],
    is_over: AtomicBool,
}

impl Cluster {
    fn member(&self, node: u64, group: u32) -> Option<Group> {
        self.nodes.lock().get(&node).map(|node| node.groups[group as usize].clone())
    }

    /// A member that leads `group`.
    async fn leader(&self, group: u32) -> Group {
        loop {
            for node in NODES {
                if let Some(member) = self.member(node, group)
                    && member.raft.is_leader()
                {
                    return member;
                }
            }
            mlgw_common::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until every group has acknowledged some more writes.
    async fn progress(&self) {
        let before = self.acknowledged.each_ref().map(|count| count.load(Ordering::Relaxed));
        let progressed = mlgw_common::time::timeout(PROGRESS_MAX, async {
            for (count, before) in self.acknowledged.iter().zip(before) {
                while count.load(Ordering::Relaxed) < before + PROGRESS {
                    mlgw_common::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
        progressed.await.expect("two of three members make progress");
    }
}

fn write(client: u64, value: u64) -> Arc<Command> {
    let version = ObjectVersion { body_id: value, etag: format!("{value:032x}"), ..ObjectVersion::default() };
    let put = PutObject { version, pages: vec![], ..PutObject::default() };
    Arc::new(Command::from(Change::Object(ObjectCommand {
        bucket_id: 1,
        epoch: 1,
        key: format!("c{client}"),
        now_ms: NOW.0,
        change: Some(ObjectChange::Put(put)),
        grows_times: false,
        duty_term: None,
    })))
}

fn value_of(member: &Group, client: u64) -> u64 {
    let row = object::row(BucketId(1), format!("c{client}").as_bytes());
    let value = member.state().get(&row).unwrap();
    value.map_or(0, |value| decode::<ObjectVersion>(&value).unwrap().body_id)
}

/// The values that a key may have. A write of unknown outcome may enter the log later, so its value may
/// replace a newer one, once.
#[derive(Debug, Default)]
struct PossibleValues {
    /// The last value that was acknowledged or read; 0 before the first write.
    current: u64,
    unknown: BTreeSet<u64>,
}

impl PossibleValues {
    fn acknowledged(&mut self, value: u64) {
        self.current = value;
    }

    fn unknown(&mut self, value: u64) {
        self.unknown.insert(value);
    }

    /// Records that the key has `value`. Returns false if it cannot have it.
    fn found(&mut self, value: u64) -> bool {
        let is_possible = self.current == value || self.unknown.remove(&value);
        self.current = value;
        is_possible
    }
}

/// Writes ascending values to a key of its own through changing members, and reads them back behind barriers.
/// Returns the values that the key may have in the end.
async fn run_client(cluster: Arc<Cluster>, group: u32, client: u64) -> PossibleValues {
    let mut possible = PossibleValues::default();
    let mut value = 0;
    while !cluster.is_over.load(Ordering::Relaxed) {
        value += 1;
        // Every write begins at another node, which sends it to the leader.
        let first = (value % NODES.len() as u64) as usize;
        for node in (0..NODES.len()).map(|at| NODES[(first + at) % NODES.len()]) {
            let Some(member) = cluster.member(node, group) else { continue };
            let proposed = member.propose(write(client, value));
            match mlgw_common::time::timeout(PATIENCE, proposed).await {
                Ok(Ok(applied)) => {
                    assert!(applied.index > 0);
                    possible.acknowledged(value);
                    let found = value_of(&member, client);
                    let is_applied = member.raft.is_leader() || possible.found(found);
                    assert!(is_applied, "client {client}, value {value}: {found}, {possible:?}");
                    cluster.acknowledged[group as usize].fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(_) | Ok(Err(GroupError::UnknownOutcome)) => {
                    possible.unknown(value);
                    break;
                }
                Ok(Err(GroupError::NotLeader { .. } | GroupError::Stopped)) => {}
                Ok(Err(other)) => panic!("{other:?}"),
            }
        }
        let reader = NODES[(value % NODES.len() as u64) as usize];
        if let Some(member) = cluster.member(reader, group)
            && let Ok(Ok(())) = mlgw_common::time::timeout(PATIENCE, member.barrier()).await
        {
            let found = value_of(&member, client);
            assert!(possible.found(found), "client {client}: {found} is not in {possible:?}");
        }
        mlgw_common::time::sleep(PAUSE).await;
    }
    possible
}

async fn start_cluster(dir: &Path) -> Arc<Cluster> {
    let network = InProcess::default();
    let mut nodes = BTreeMap::new();
    for id in NODES {
        nodes.insert(id, TestNode::open(id, dir, &network).await);
    }
    for group in 0..GROUPS {
        let member = &nodes[&1].groups[group as usize];
        let members: BTreeMap<_, _> = NODES.map(|id| (id, BasicNode { addr: String::new() })).into();
        member.raft.initialize(members).await.unwrap();
    }
    let cluster = Arc::new(Cluster {
        network,
        nodes: Mutex::new(nodes),
        acknowledged: Default::default(),
        is_over: AtomicBool::new(false),
    });
    for group in 0..GROUPS {
        let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
        let leader = cluster.leader(group).await;
        leader.propose(Arc::new(Change::MirrorBucket(mirror).into())).await.unwrap();
    }
    cluster
}

/// Kills or isolates the leader of a group, until the others have made progress. Returns the number of groups
/// whose leader was killed: the node may lead several.
async fn disturb(cluster: &Cluster, dir: &Path, round: u32) -> usize {
    let leader = cluster.leader(round % GROUPS).await;
    let node = *leader.raft.node_id();
    drop(leader);
    let leads = |group: &u32| cluster.member(node, *group).is_some_and(|member| member.raft.is_leader());
    let led = (0..GROUPS).filter(leads).count();
    let killed = round % ISOLATION_EVERY != ISOLATION_EVERY - 1;
    if killed {
        let victim = cluster.nodes.lock().remove(&node).unwrap();
        victim.kill(&cluster.network).await;
    } else {
        cluster.network.isolate(node);
    }
    cluster.progress().await;
    if round % 4 == 3 {
        // The member that was away has to be sent a snapshot then.
        for group in 0..GROUPS {
            for other in NODES.into_iter().filter(|other| *other != node) {
                cluster.member(other, group).unwrap().compact().await.unwrap();
            }
        }
    }
    if killed {
        let restarted = TestNode::open(node, dir, &cluster.network).await;
        cluster.nodes.lock().insert(node, restarted);
    } else {
        cluster.network.rejoin(node);
    }
    cluster.progress().await;
    if killed { led } else { 0 }
}

/// Waits until all members have applied the same entries, and compares their states.
async fn compare_members(cluster: &Cluster) {
    for group in 0..GROUPS {
        let leader = cluster.leader(group).await;
        let last = leader.raft.metrics().borrow_watched().last_log_index;
        let mut digests = BTreeSet::new();
        for node in NODES {
            let member = cluster.member(node, group).unwrap();
            member
                .raft
                .wait(Some(PROGRESS_MAX))
                .applied_index_at_least(last, "all members apply the whole log")
                .await
                .unwrap();
            digests.insert(digest(&member));
        }
        assert_eq!(digests.len(), 1, "group {group}: {digests:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_three_survive_the_loss_of_their_leaders() {
    let kills = std::env::var("MLGW_LEADER_KILLS").map_or(2, |kills| kills.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let cluster = start_cluster(dir.path()).await;
    let mut clients = Vec::new();
    for group in 0..GROUPS {
        for client in 0..CLIENTS {
            let running = tokio::spawn(run_client(Arc::clone(&cluster), group, client));
            clients.push((group, client, running));
        }
    }
    let (mut killed, mut round) = (0, 0);
    while killed < kills {
        assert!(clients.iter().all(|(_, _, running)| !running.is_finished()), "a client failed");
        killed += disturb(&cluster, dir.path(), round).await;
        round += 1;
    }
    println!("{killed} leaders were killed in {round} rounds");
    cluster.is_over.store(true, Ordering::Relaxed);
    let mut ends = Vec::new();
    for (group, client, running) in clients {
        ends.push((group, client, running.await.unwrap()));
    }
    compare_members(&cluster).await;
    for (group, client, mut possible) in ends {
        let found = value_of(&cluster.leader(group).await, client);
        assert!(possible.found(found), "group {group}, client {client}: {found} of {possible:?}");
    }
}
