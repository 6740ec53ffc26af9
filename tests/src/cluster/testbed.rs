//! A cluster whose nodes are processes of the shipped server, each with its own directory and address.
//!
//! Node 1 is a server with objects that became a cluster. The others join it by a token each. Every storage
//! node serves requests, and a gateway forwards them. A node has new S3 and admin ports after each start, so
//! clients are made anew.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, block_for, sleep};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(super) use self::member::TestMember;
use super::view::{ClusterView, GroupView};
use crate::content::TestContent;
use crate::s3::{CallFailure, S3ClientResponse, S3TestClient, full_body};
use crate::seed::mix;
use crate::server::{ServerProcess, ServerSetup, runtime};

mod member;

/// The bucket that exists before the cluster.
pub(super) const BUCKET: &str = "cluster-tests";
/// Group of all nodes.
pub(super) const SYSTEM_GROUP: u32 = 0;
/// Group of the buckets that exist before the cluster.
pub(super) const OBJECT_GROUP: u32 = 1;
/// The first node: that of `mlgw cluster init`. It has the duty until another node takes it over.
pub(crate) const FIRST: usize = 1;
/// Storage nodes of a whole cluster, which all serve requests.
pub(super) const STORAGE: [usize; 3] = [FIRST, 2, 3];
/// Buckets of a cluster with three object groups, one in each group.
pub(super) const SPREAD: [&str; 3] = [BUCKET, "cluster-tests-b", "cluster-tests-c"];
/// Node of a whole cluster that stores nothing.
pub(super) const GATEWAY: usize = 4;

/// Number of objects that exist before the cluster.
const OBJECTS_BEFORE: usize = 24;
/// Lengths of objects: those of bodies that are sent at once, and of streamed ones.
const LENGTHS: [usize; 4] = [40, 5_000, 100_000, 300_000];
/// Longest wait for a condition. It is reached only if something is broken.
const WAIT_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Header of each response to an S3 request, with the id of the node that served it.
const NODE_HEADER: &str = "x-mlgw-node";
/// First port of nodes, below the ports that the kernel gives to connections.
const FIRST_PORT: u16 = 9100;

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_at_most(WAIT_MAX, what, is_so);
}

/// Repeats a command on a node until it succeeds. Panics with its last output.
pub(super) fn until_run(cluster: &TestCluster, node: usize, words: &[&str]) {
    let begun = Instant::now();
    loop {
        let (output, status) = cluster.member(node).setup.command(words);
        if status == Some(0) {
            return;
        }
        assert!(begun.elapsed() < WAIT_MAX, "never: {words:?} on node {node}: {output}");
        block_for(POLL_INTERVAL);
    }
}

/// Waits until a condition holds that may take longer than others.
pub(super) fn wait_at_most(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < limit, "never: {what}");
        block_for(POLL_INTERVAL);
    }
}

/// Repeats a request that is refused with a 503 until it succeeds. Panics after any other failure.
pub(super) async fn until_served<T>(
    what: &str,
    mut request: impl AsyncFnMut() -> Result<T, CallFailure>,
) -> T {
    let begun = Instant::now();
    loop {
        match request().await {
            Ok(answer) => return answer,
            Err(failure) => {
                let is_repeated = failure.status() == Some(503) && begun.elapsed() < WAIT_MAX;
                assert!(is_repeated, "never: {what}: {failure:?}");
                sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// The node that served a request, from the value of `x-mlgw-node`.
fn parse_node(value: &str) -> usize {
    value.trim().parse().unwrap_or_else(|_| panic!("{value:?} is not the id of a node"))
}

/// The node that served a request.
pub(super) fn node_of(answer: &S3ClientResponse) -> usize {
    parse_node(answer.header(NODE_HEADER).expect("every response names its node"))
}

/// The node that served a request, from the head of its response; `None` if the head names none.
pub(super) fn node_of_head(head: &str) -> Option<usize> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let mut nodes = fields.filter(|(name, _)| name.eq_ignore_ascii_case(NODE_HEADER));
    nodes.next().map(|(_, value)| parse_node(value))
}

/// True if a node leads a group of a cluster of these storage nodes as long as nothing changes: any of them
/// the system group, and one after the other the groups of objects.
fn is_assigned(storage: &[usize], group: u32, node: usize) -> bool {
    match group {
        SYSTEM_GROUP => storage.contains(&node),
        group => storage[usize::try_from(group - 1).expect("small") % storage.len()] == node,
    }
}

/// Settings for three object groups.
fn three_object_groups(setup: ServerSetup) -> ServerSetup {
    setup.with("catalogue.object_groups", 3)
}

/// Settings of all nodes of a cluster.
pub(super) type NodeSettings = fn(ServerSetup) -> ServerSetup;

/// Returns a loopback address that nothing else uses, also not while its node is stopped: its host is made of
/// the id of this process, and no connection gets its port.
pub(super) fn unused_address() -> SocketAddr {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(FIRST_PORT);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 64 | (high & 63), middle, low);
    SocketAddr::from((host, NEXT_PORT.fetch_add(1, Ordering::Relaxed)))
}

/// The body of the object with this key.
pub(super) fn content_of(key: &str) -> TestContent {
    let id = key.bytes().fold(1, |id, byte| mix(id ^ u64::from(byte)));
    let at = usize::try_from(id % LENGTHS.len() as u64).expect("small");
    TestContent { id, length: LENGTHS[at] }
}

/// Puts the object with this key.
pub(crate) async fn put(client: &S3TestClient, key: &str) -> Result<String, CallFailure> {
    client.put(BUCKET, key, full_body(content_of(key).bytes())).await
}

/// Asserts that a node returns the object with this key.
pub(super) async fn assert_reads(client: &S3TestClient, key: &str) {
    let read = client.get(BUCKET, key).await.unwrap_or_else(|failure| panic!("{key}: {failure:?}"));
    assert_eq!(content_of(key).difference(&read.body), None, "{key}");
}

/// Asserts that a node returns all objects that exist before the cluster.
pub(super) async fn assert_reads_before(client: &S3TestClient) {
    for key in keys_before() {
        assert_reads(client, &key).await;
    }
}

/// Keys of the objects that exist before the cluster.
pub(super) fn keys_before() -> impl Iterator<Item = String> {
    (0..OBJECTS_BEFORE).map(|number| format!("before-{number:02}"))
}

/// The nodes of a cluster. The first has the id 1, and so on.
pub(crate) struct TestCluster {
    members: Vec<TestMember>,
    /// Ids of the three storage nodes that vote when it is settled, in their order. In a cluster with sets of
    /// nodes those of all storage nodes.
    storage: Vec<usize>,
    settings: NodeSettings,
    runtime: Runtime,
    room: TempDir,
}

impl TestCluster {
    /// Makes a server with objects the first node of a cluster, and starts it.
    pub(crate) fn first() -> Self {
        Self::first_with(|setup| setup)
    }

    /// Like [`TestCluster::first`], with these settings of each node.
    pub(super) fn first_with(settings: NodeSettings) -> Self {
        Self::first_at(None, settings)
    }

    /// Like [`TestCluster::first_with`], with its directory below `dir`, if there is one.
    pub(super) fn first_at(dir: Option<&Path>, settings: NodeSettings) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let runtime = runtime();
        let member = TestMember::new(&dir.unwrap_or(room.path()).join("node-1"), settings);
        let server = member.setup.start();
        runtime.block_on(async {
            let client = server.client();
            client.create_bucket(BUCKET).await.expect("made");
            for key in keys_before() {
                put(&client, &key).await.expect("stored");
            }
        });
        server.stop();
        let (output, status) = member.setup.cluster_init();
        assert_eq!(status, Some(0), "{output}");
        let storage = STORAGE.into();
        let mut cluster = Self { members: vec![member], storage, settings, runtime, room };
        cluster.start(FIRST);
        cluster
    }

    /// Makes a cluster of three storage nodes, which all vote.
    pub(crate) fn three() -> Self {
        Self::three_with(|setup| setup)
    }

    /// Like [`TestCluster::three`], with these settings of each node.
    pub(super) fn three_with(settings: NodeSettings) -> Self {
        let mut cluster = Self::first_with(settings);
        cluster.join("storage");
        cluster.join("storage");
        cluster.until_settled();
        cluster.until_first_has_duty();
        cluster
    }

    /// Makes a cluster of three storage nodes, which all vote, and a gateway.
    pub(super) fn whole() -> Self {
        let mut cluster = Self::first();
        for role in ["storage", "storage", "gateway"] {
            cluster.join(role);
        }
        cluster.until_settled();
        cluster.until_first_has_duty();
        cluster
    }

    /// Makes a cluster of three storage nodes and a gateway. Each storage node leads one of the three object
    /// groups, and each of these groups has one of the buckets [`SPREAD`].
    pub(super) fn spread() -> Self {
        let mut cluster = Self::first_with(three_object_groups);
        for role in ["storage", "storage", "gateway"] {
            cluster.join(role);
        }
        cluster.until_settled();
        cluster.until_first_has_duty();
        cluster.create_spread_buckets();
        cluster
    }

    /// Creates the buckets [`SPREAD`] after the first one, which exists before the cluster. They are in the
    /// groups 1, 2 and 3.
    pub(super) fn create_spread_buckets(&self) {
        let client = self.client(FIRST);
        self.block_on(async {
            for bucket in &SPREAD[1..] {
                client.create_bucket(bucket).await.expect("made");
            }
        });
        assert_eq!(SPREAD.map(|bucket| self.group_of(bucket)), [1, 2, 3]);
    }

    /// The object group of a bucket without split keys.
    fn group_of(&self, bucket: &str) -> u64 {
        let words = ["bucket", "show", bucket, "--output", "json"];
        let (output, status) = self.member(FIRST).setup.command(&words);
        assert_eq!(status, Some(0), "{output}");
        let shown: serde_json::Value = serde_json::from_str(&output).expect("a bucket");
        shown["ranges"][0]["group"].as_u64().expect("a group")
    }

    /// Waits until three nodes vote in every group, and each group has the leader that it is assigned to.
    pub(super) fn until_settled(&self) {
        wait_until("three nodes vote in every group, and the assigned ones lead", || {
            self.group_ids().into_iter().all(|group| {
                let found = self.group(group);
                let is_assigned = |id| is_assigned(&self.storage, group, id);
                let found = found.filter(|of| of.leader.is_some_and(is_assigned));
                found.is_some_and(|found| found.with_part("voter").into_iter().eq(self.storage.clone()))
            })
        });
    }

    /// The duty node, as a running node describes it.
    pub(super) fn duty_at(&self, id: usize) -> Option<usize> {
        self.view(id).duty
    }

    /// The duty node, as the first running node describes it.
    pub(super) fn duty(&self) -> usize {
        self.duty_at(self.running()[0]).expect("a duty node is known")
    }

    /// Waits until the duty has returned to the first node. Right after a pause a node has the duty only in
    /// its own view.
    pub(super) fn until_first_has_duty(&self) {
        wait_until("the first node has the duty", || {
            let view = self.view(FIRST);
            view.duty == Some(FIRST)
                && view.duty_acts()
                && self.running().iter().all(|id| self.duty_at(*id) == view.duty)
                && self.has_whole_api(FIRST)
        });
    }

    /// True if the duty of this node has begun: only then it has the whole admin API.
    pub(super) fn has_whole_api(&self, id: usize) -> bool {
        let client = self.process(id).admin_client();
        self.block_on(client.call_admin(Method::GET, "/v1/datasets", &Value::Null)).is_ok()
    }

    /// Waits until every group is led by a running node.
    pub(super) fn until_led(&self) {
        wait_until("every group has a leader that runs", || {
            let running = self.running();
            let leader = |group: u32| self.group(group).and_then(|found| found.leader);
            self.group_ids().into_iter().all(|group| leader(group).is_some_and(|id| running.contains(&id)))
        });
    }

    /// Ids of all groups, from a running storage node.
    pub(super) fn group_ids(&self) -> Vec<u32> {
        let id = self.running().into_iter().find(|id| self.storage.contains(id));
        let id = id.expect("a storage node runs");
        self.view(id).groups.iter().map(|group| group.id).collect()
    }

    /// Ids of the groups that a running node leads.
    pub(super) fn groups_led_by(&self, id: usize) -> Vec<u32> {
        let groups = self.view(id).groups.into_iter().filter(|group| group.leader == Some(id));
        groups.map(|group| group.id).collect()
    }

    /// Asserts that every running storage node serves requests itself, and that the gateway forwards them to
    /// one of those.
    pub(super) fn assert_all_serve(&self) {
        let key = keys_before().next().expect("a key");
        for id in self.running() {
            let client = self.client(id);
            let read = self.block_on(client.get(BUCKET, &key));
            let served = node_of(&read.unwrap_or_else(|failure| panic!("through node {id}: {failure:?}")));
            let is_expected = if STORAGE.contains(&id) { served == id } else { STORAGE.contains(&served) };
            assert!(is_expected, "node {served} served a request to node {id}");
        }
    }

    /// Returns a further directory of this test.
    pub(super) fn new_member(&self, name: &str) -> TestMember {
        self.member_at(self.room.path(), name)
    }

    /// Returns a further directory of this test below `dir`.
    pub(super) fn member_at(&self, dir: &Path, name: &str) -> TestMember {
        TestMember::new(&dir.join(name), self.settings)
    }

    /// Makes a token for one node.
    pub(super) fn token(&self) -> String {
        let (output, status) = self.member(FIRST).setup.command(&["cluster", "token", "--output", "json"]);
        assert_eq!(status, Some(0), "{output}");
        let document: Value = serde_json::from_str(&output).expect("a document");
        document["token"].as_str().expect("a token").to_owned()
    }

    /// Runs `mlgw cluster join` for a directory; returns its output and its exit status.
    pub(super) fn run_join(&self, member: &TestMember, token: &str, role: &str) -> (String, Option<i32>) {
        member.join(self.member(FIRST).address, token, role)
    }

    /// Replaces the nodes of this cluster, which do not run, by the first node of another cluster.
    pub(super) fn begin_again(&mut self, first: TestMember) {
        assert!(self.running().is_empty(), "the former nodes do not run");
        self.members = vec![first];
    }

    /// Adds a node that has joined and does not run.
    pub(super) fn add(&mut self, member: TestMember) {
        self.members.push(member);
    }

    /// Adds a node with this role and does not start it.
    pub(crate) fn join_stopped(&mut self, role: &str) {
        let member = self.new_member(&format!("node-{}", self.members.len() + 1));
        let (output, status) = self.run_join(&member, &self.token(), role);
        assert_eq!(status, Some(0), "{output}");
        self.add(member);
    }

    /// Adds a storage node with its directory below `dir`, and starts it.
    pub(super) fn join_at(&mut self, dir: &Path) {
        self.join_stopped_at(dir);
        self.start(self.members.len());
    }

    /// Adds a storage node with its directory below `dir`, and does not start it.
    pub(super) fn join_stopped_at(&mut self, dir: &Path) {
        let name = format!("node-{}", self.members.len() + 1);
        let member = self.member_at(dir, &name);
        let (output, status) = self.run_join(&member, &self.token(), "storage");
        assert_eq!(status, Some(0), "{output}");
        self.add(member);
    }

    /// Adds a node with this role and starts it.
    pub(crate) fn join(&mut self, role: &str) {
        self.join_stopped(role);
        self.start(self.members.len());
    }

    pub(super) fn member(&self, id: usize) -> &TestMember {
        &self.members[id - 1]
    }

    fn member_mut(&mut self, id: usize) -> &mut TestMember {
        &mut self.members[id - 1]
    }

    /// Ids of all nodes.
    pub(super) fn ids(&self) -> Vec<usize> {
        (1..=self.members.len()).collect()
    }

    /// Ids of the three storage nodes that vote when the cluster is settled, in their order. In a cluster
    /// with sets of nodes those of all storage nodes.
    pub(super) fn storage(&self) -> &[usize] {
        &self.storage
    }

    /// A further storage node votes in groups of a cluster with sets of nodes.
    pub(super) fn add_storage(&mut self, new: usize) {
        self.storage.push(new);
        self.storage.sort_unstable();
    }

    /// A storage node takes the place of another one, which has left.
    pub(super) fn replace_storage(&mut self, old: usize, new: usize) {
        self.storage.retain(|id| *id != old);
        self.add_storage(new);
    }

    /// Ids of the running nodes.
    pub(super) fn running(&self) -> Vec<usize> {
        self.ids().into_iter().filter(|id| self.member(*id).process.is_some()).collect()
    }

    pub(crate) fn process(&self, id: usize) -> &ServerProcess {
        self.member(id).process.as_ref().unwrap_or_else(|| panic!("node {id} does not run"))
    }

    /// An S3 client of a running node.
    pub(crate) fn client(&self, id: usize) -> S3TestClient {
        self.process(id).client()
    }

    /// An S3 client of each running node.
    pub(super) fn clients(&self) -> Vec<S3TestClient> {
        self.running().into_iter().map(|id| self.client(id)).collect()
    }

    /// Starts a node and waits until it is ready.
    pub(crate) fn start(&mut self, id: usize) {
        self.spawn(id);
        self.until_ready(id);
    }

    /// Starts a node, which may wait for others.
    pub(super) fn spawn(&mut self, id: usize) {
        let member = self.member_mut(id);
        assert!(member.process.is_none(), "node {id} runs");
        member.process = Some(member.setup.spawn());
    }

    /// Waits until a node is ready.
    pub(super) fn until_ready(&mut self, id: usize) {
        let process = self.member_mut(id).process.as_mut().expect("it was started");
        if let Err(failure) = process.wait_ready() {
            panic!("node {id} did not start: {:?}\n{}", failure.status, failure.log);
        }
    }

    /// Waits until a node listens; it may not be ready.
    pub(super) fn until_listening(&mut self, id: usize) {
        let process = self.member_mut(id).process.as_mut().expect("it was started");
        if let Err(failure) = process.wait_listening() {
            panic!("node {id} did not start: {:?}\n{}", failure.status, failure.log);
        }
    }

    /// Waits until a node listens that waits for others at its start.
    pub(super) fn until_waiting(&mut self, id: usize) {
        let process = self.member_mut(id).process.as_mut().expect("it was started");
        if let Err(failure) = process.wait_waiting() {
            panic!("node {id} does not wait: {:?}\n{}", failure.status, failure.log);
        }
    }

    /// Stops these nodes and starts them again, one after the other. The stop of a node seals its segments.
    pub(super) fn restart(&mut self, ids: &[usize]) {
        for id in ids {
            self.stop(*id);
            self.start(*id);
        }
    }

    /// Waits until the first node describes a node as active.
    pub(crate) fn until_active(&self, id: usize) {
        wait_until(&format!("node {id} is active"), || {
            self.view(FIRST).node(id).is_some_and(|node| node.state == "active")
        });
    }

    /// Sends SIGTERM to a node, and expects that it ends with the exit status 0.
    pub(crate) fn stop(&mut self, id: usize) {
        self.member_mut(id).take_process().stop();
    }

    /// Sends SIGTERM to a node and returns at once.
    pub(super) fn send_stop(&self, id: usize) {
        self.process(id).send_sigterm();
    }

    /// Waits until a node has ended after SIGTERM, with the exit status 0.
    pub(super) fn until_stopped(&mut self, id: usize) {
        let mut process = self.member_mut(id).take_process();
        let status = process.wait_exit();
        assert_eq!(status.code(), Some(0), "{}", process.log());
    }

    /// Returns the log of a node that has ended by itself; `None` if it runs.
    pub(super) fn take_ended(&mut self, id: usize) -> Option<String> {
        let member = self.member_mut(id);
        let log = member.process.take_if(ServerProcess::has_ended)?.log();
        member.earlier_log.push_str(&log);
        Some(log)
    }

    /// Waits until a node that the others refuse has ended, with an error.
    pub(super) fn until_refused(&mut self, id: usize) {
        let mut process = self.member_mut(id).take_process();
        let status = process.wait_exit();
        assert!(!status.success(), "{status:?}\n{}", process.log());
    }

    /// `kill -9`: the process of the node has ended when this returns.
    pub(super) fn kill(&mut self, id: usize) {
        self.member_mut(id).take_process().kill();
    }

    /// SIGSTOP: the node answers nothing until [`TestCluster::resume`].
    pub(super) fn pause(&self, id: usize) {
        self.signal(id, Signal::STOP);
    }

    /// SIGCONT, after [`TestCluster::pause`].
    pub(super) fn resume(&self, id: usize) {
        self.signal(id, Signal::CONT);
    }

    fn signal(&self, id: usize, signal: Signal) {
        let pid = i32::try_from(self.process(id).pid()).expect("a pid");
        kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("our child");
    }

    /// Accepts the loss of the segments of a stopped node, as an operator does: an empty directory may be a
    /// disk that is not mounted.
    pub(super) fn adopt_segments(&self, id: usize) {
        let (setup, segments) = (&self.member(id).setup, self.segments_dir(id));
        let data_dir = setup.data_dir.to_str().expect("a test path");
        let words = ["repair", data_dir, "--adopt", segments.to_str().expect("a test path")];
        let (output, status) = setup.store(&words);
        assert_eq!(status, Some(0), "{output}");
    }

    /// True if another running node reaches a node, which lacks nothing of its groups.
    pub(super) fn is_caught_up(&self, id: usize) -> bool {
        let other = self.running().into_iter().find(|other| *other != id).expect("another node runs");
        let is_reached = self.view(other).node(id).is_some_and(|node| node.reachable == Some(true));
        let groups = if self.storage.contains(&id) { self.group_ids() } else { vec![SYSTEM_GROUP] };
        let lag = |group: u32| {
            let found = self.group(group)?;
            found.members.iter().find(|member| member.node == id).map(|member| member.lag_bytes)
        };
        is_reached && groups.into_iter().all(|group| lag(group) == Some(0))
    }

    /// Gives every node another address, at its next start. With `seeds` each gets those of all nodes.
    pub(super) fn change_addresses(&mut self) {
        for member in &mut self.members {
            member.address = unused_address();
        }
        let seeds: Vec<String> = self.members.iter().map(|member| member.address.to_string()).collect();
        for member in &mut self.members {
            let setup = member.setup.clone().with("cluster.listen", member.address);
            member.setup = setup.with("cluster.seeds", seeds.join(","));
        }
    }

    /// Gives every node another address, at its next start. Each of them gets that of one node only.
    pub(super) fn change_addresses_and_name(&mut self, id: usize) {
        self.change_addresses();
        let seed = self.member(id).address;
        for member in &mut self.members {
            member.setup = member.setup.clone().with("cluster.seeds", seed);
        }
    }

    /// Changes a setting of a node, at its next start.
    pub(super) fn set(&mut self, id: usize, key: &str, value: &str) {
        let member = self.member_mut(id);
        member.setup = member.setup.clone().with(key, value);
    }

    /// Gives these settings to nodes that are made from now on.
    pub(super) fn set_settings(&mut self, settings: NodeSettings) {
        self.settings = settings;
    }

    /// Adds an upstream to a node, at its next start: a bucket of another server.
    pub(super) fn add_upstream(&mut self, id: usize, name: &str, server: &ServerProcess, bucket: &str) {
        let member = self.member_mut(id);
        member.setup = member.setup.clone().with_upstream(name, server.s3, bucket, "5s");
    }

    /// Writes a file in the directory of this test, and returns its path.
    pub(super) fn file(&self, name: &str, text: &str) -> String {
        let path = self.room.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    /// The directory of the segments of a node.
    pub(crate) fn segments_dir(&self, id: usize) -> PathBuf {
        self.member(id).setup.data_dir.join("segments")
    }

    /// Leaves only the recorded addresses of other nodes to each node, at its next start.
    pub(super) fn remove_seeds(&mut self) {
        for member in &mut self.members {
            member.setup = member.setup.clone().with("cluster.seeds", "");
        }
    }

    /// Runs the work of clients. A view cannot be taken within it.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// The runtime of the clients.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The cluster as a running node describes it.
    pub(super) fn view(&self, id: usize) -> ClusterView {
        let client = self.process(id).admin_client();
        let document = self.block_on(client.call_admin(Method::GET, "/v1/cluster", &Value::Null));
        let document = document.unwrap_or_else(|failure| panic!("node {id}: {failure:?}"));
        serde_json::from_value(document).unwrap_or_else(|error| panic!("node {id}: {error}"))
    }

    /// A group as its leader describes it; `None` if no running node leads it.
    pub(super) fn group(&self, group: u32) -> Option<GroupView> {
        let mut groups = self.running().into_iter().flat_map(|id| self.view(id).groups);
        groups.find(|found| found.id == group && !found.members.is_empty())
    }
}
