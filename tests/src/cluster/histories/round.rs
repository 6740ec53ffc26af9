//! One round: clients load a cluster under faults, then everything is healed, read once more and checked.
//!
//! Checks: the history of each key is linearizable; each storage node leads groups, and stored bytes of
//! objects; every segment has its copies, and they are equal; no disk has damage, and the members of a group
//! have the same rows. With sets of nodes (`sets`) the nodes of each set vote in its groups, stored bytes of
//! objects, and have the copies of its segments. The seed and the faults are printed, and if a check fails,
//! the shortest history of the key and the place of the logs.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, sleep};
use serde_json::Value;

use super::due_work::DueWork;
use super::faults::{FaultKind, FaultMix, schedule};
use super::faulty_disk::FaultyDisk;
use super::linearize::{check, shortest_violation};
use super::links::NodeLinks;
use super::load::{HistoryLoad, NodeEndpoints};
use super::nemesis::{Nemesis, NemesisTrace, between};
use super::recorder::{HistoryRecorder, KeySlot, ObjectName};
use super::register::{KeyAction, KeyOperation, KeyOutcome};
use super::requests::{RecordedClient, RequestEnd, SlotObject};
use super::sets;
use super::stored::{assert_sound, assert_sound_in_sets};
use crate::cluster::access_keys::TestKey;
use crate::cluster::clocks::with_own_clock;
use crate::cluster::five::rebalance;
use crate::cluster::segment_files::{is_equal_on, segment_files};
use crate::cluster::testbed::{
    BUCKET, FIRST, NodeSettings, SPREAD, STORAGE, SYSTEM_GROUP, TestCluster, keys_before, node_of, put,
    until_run, wait_at_most, wait_until,
};
use crate::cluster::view::GroupView;
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::seed::{Rng, mix};
use crate::server::{ServerSetup, get_text};

/// Longest wait until all copies are complete.
const HEALED_MAX: Duration = Duration::from_secs(180);
/// Longest wait for the response to a read after the faults.
const READ_MAX: Duration = Duration::from_secs(60);
const READ_PAUSE: Duration = Duration::from_millis(100);
/// Changes that are done in a round, at least.
const CHANGES_MIN: usize = 50;

/// Settings of nodes with many segments, and a group for each bucket.
fn round_settings(setup: ServerSetup) -> ServerSetup {
    setup.with("catalogue.object_groups", 3).with("hot.segment_bytes", "4MiB")
}

/// The same, and leaders read by lease.
fn lease_settings(setup: ServerSetup) -> ServerSetup {
    round_settings(setup).with("cluster.lease_reads", true)
}

/// The same as [`round_settings`], with a clock of its own for each node.
fn clock_settings(setup: ServerSetup) -> ServerSetup {
    with_own_clock(round_settings(setup))
}

/// The same as [`lease_settings`], with a clock of its own for each node.
fn lease_and_clock_settings(setup: ServerSetup) -> ServerSetup {
    with_own_clock(lease_settings(setup))
}

/// A cluster with relays between its nodes.
pub(super) struct RelayedCluster {
    pub(super) cluster: TestCluster,
    pub(super) links: NodeLinks,
    endpoints: Arc<NodeEndpoints>,
    /// Unmounted after the processes have ended.
    disk: Option<FaultyDisk>,
}

/// A round to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundPlan {
    /// Determines the requests of the clients and the faults.
    pub(super) seed: u64,
    pub(super) mix: FaultMix,
    /// Time of the load.
    pub(super) load: Duration,
}

/// Numbers of a round that passed.
pub(super) struct RoundSummary {
    plan: RoundPlan,
    keys: usize,
    operations: usize,
    unknown: usize,
    faults: usize,
}

impl fmt::Display for RoundSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan: RoundPlan { seed, mix, .. }, keys, operations, unknown, faults } = self;
        write!(
            f,
            "seed {seed}, {}: {operations} operations on {keys} keys, {unknown} of unknown outcome, {faults} \
             faults",
            mix.name
        )
    }
}

impl RelayedCluster {
    /// Makes a cluster of three storage nodes and a gateway with three object groups. Each of the buckets
    /// [`SPREAD`] is created on another node and is in another group.
    pub(super) fn new() -> Self {
        Self::with_settings(round_settings, None)
    }

    /// Like [`RelayedCluster::new`], with leaders that read by lease.
    pub(super) fn with_lease_reads() -> Self {
        Self::with_settings(lease_settings, None)
    }

    /// Like [`RelayedCluster::new`], with a faulty disk below one node.
    pub(super) fn with_disk() -> Self {
        Self::with_settings(round_settings, Some(FaultyDisk::new(2)))
    }

    /// Like [`RelayedCluster::with_lease_reads`], with a clock of its own for each node.
    pub(super) fn with_clocks() -> Self {
        Self::with_settings(lease_and_clock_settings, None)
    }

    /// Makes a cluster on which all faults are possible. With the number, the node with the faulty disk and
    /// the kind of reads take turns.
    pub(super) fn for_all_faults(number: u64) -> Self {
        let node = STORAGE[usize::try_from(number % STORAGE.len() as u64).expect("small")];
        let settings = if number.is_multiple_of(2) { clock_settings } else { lease_and_clock_settings };
        Self::with_settings(settings, Some(FaultyDisk::new(node)))
    }

    /// Like [`RelayedCluster::new`], with two further storage nodes, and sets of all five.
    pub(super) fn in_sets() -> Self {
        let mut relayed = Self::new();
        let Self { cluster, links, .. } = &mut relayed;
        wait_until("the cluster has the newest version", || cluster.view(FIRST).upgrade.is_none());
        for _ in 0..2 {
            cluster.join_stopped("storage");
            let node = cluster.ids().len();
            start_behind_relay(cluster, links, node);
            cluster.until_active(node);
            cluster.add_storage(node);
        }
        rebalance(cluster, FIRST);
        relayed
    }

    /// Makes a cluster for a round in which its nodes get into sets. With the number, the kind of reads takes
    /// turns.
    pub(super) fn for_sets(number: u64) -> Self {
        if number.is_multiple_of(2) { Self::new() } else { Self::with_lease_reads() }
    }

    fn with_settings(settings: NodeSettings, disk: Option<FaultyDisk>) -> Self {
        let place = |node| disk.as_ref().filter(|disk| disk.node == node).map(FaultyDisk::path);
        let mut cluster = TestCluster::first_at(place(FIRST), settings);
        let links = NodeLinks::new();
        cluster.stop(FIRST);
        start_behind_relay(&mut cluster, &links, FIRST);
        for role in ["storage", "storage", "gateway"] {
            let node = cluster.ids().len() + 1;
            match place(node) {
                Some(dir) => cluster.join_stopped_at(dir),
                None => cluster.join_stopped(role),
            }
            start_behind_relay(&mut cluster, &links, node);
        }
        cluster.until_settled();
        let endpoints = Arc::new(NodeEndpoints::default());
        for node in cluster.ids() {
            endpoints.set(node, cluster.client(node));
        }
        for (bucket, node) in SPREAD.iter().zip(STORAGE).skip(1) {
            let client = cluster.client(node);
            cluster.block_on(client.create_bucket(bucket)).expect("made");
        }
        Self { cluster, links, endpoints, disk }
    }

    /// Runs a round. Panics with its seed if a check fails.
    pub(super) fn run(&mut self, plan: &RoundPlan) -> RoundSummary {
        let mut trace = NemesisTrace::new();
        let ended = catch_unwind(AssertUnwindSafe(|| self.try_run(plan, &mut trace)));
        trace.lines.iter().for_each(|line| eprintln!("    {line}"));
        ended.unwrap_or_else(|panic| {
            self.keep_logs(plan, &trace);
            resume_unwind(panic)
        })
    }

    fn try_run(&mut self, plan: &RoundPlan, trace: &mut NemesisTrace) -> RoundSummary {
        let mut rng = Rng::new(plan.seed);
        let planned = schedule(&mut rng, &plan.mix, plan.load);
        // Ids of values differ between rounds, so that no round takes a value of another one for its own.
        let first_value = (mix(plan.seed) & !u64::from(u32::MAX)) | 1;
        let recorder = Arc::new(HistoryRecorder::new(&format!("{:x}", mix(plan.seed)), first_value));
        let has_clock_jumps = plan.mix.kinds.contains(&FaultKind::ClockJump);
        let due = has_clock_jumps.then(|| DueWork::begin(&self.cluster, plan.seed));
        let load = HistoryLoad::start(&self.cluster, &rng, &recorder, &self.endpoints);
        until_changes(&recorder, CHANGES_MIN / 2);
        let (cluster, links, endpoints) = (&mut self.cluster, &self.links, &*self.endpoints);
        let (recorder_of, disk) = (&*recorder, self.disk.as_mut());
        let mut nemesis = Nemesis { cluster, links, endpoints, recorder: recorder_of, disk, trace };
        planned.iter().for_each(|fault| nemesis.carry_out(fault));
        until_changes(&recorder, CHANGES_MIN);
        if plan.mix.has_sets() {
            sets::until_all_used(&self.cluster, &recorder);
        }
        load.end(&self.cluster);
        self.until_healed(&plan.mix);
        self.read_everything(&recorder);
        assert_eq!(recorder.failures(), Vec::<String>::new(), "responses that no state of a key allows");
        if let Some(due) = due {
            due.end(&self.cluster);
        }
        let histories = recorder.histories();
        histories.iter().for_each(|(name, history)| assert_linearizable(name, history));
        if plan.mix.has_sets() {
            sets::until_copied(&self.cluster);
            assert_sound_in_sets(&mut self.cluster, &self.links);
        } else {
            self.assert_all_used(histories.values().flatten(), &recorder);
            self.until_copied(trace);
            assert_sound(&mut self.cluster, &self.links);
        }
        for node in self.cluster.running() {
            self.endpoints.set(node, self.cluster.client(node));
        }
        let unknown = histories.values().flatten().filter(|one| one.is_unknown()).count();
        RoundSummary {
            plan: *plan,
            keys: histories.len(),
            operations: histories.values().map(Vec::len).sum(),
            unknown,
            faults: planned.len(),
        }
    }

    /// Waits until every node has caught up, and each group has the leader that it is assigned to.
    fn until_healed(&self, mix: &FaultMix) {
        if mix.has_sets() {
            return sets::until_healed(&self.cluster);
        }
        for node in self.cluster.storage() {
            wait_until(&format!("node {node} catches up"), || self.cluster.is_caught_up(*node));
        }
        self.cluster.until_settled();
        for node in self.cluster.storage() {
            assert!(!self.cluster.groups_led_by(*node).is_empty(), "node {node} leads nothing");
        }
    }

    /// Reads all keys through all nodes, until each read has a certain outcome.
    fn read_everything(&self, recorder: &HistoryRecorder) {
        let names = recorder.names();
        let all = self.cluster.running().into_iter().map(|node| {
            let (client, names) = (self.cluster.client(node), &names);
            async move {
                let reader = RecordedClient { recorder, number: 0, node, client };
                for name in names {
                    read_all_ways(&reader, name).await;
                }
            }
        });
        self.cluster.block_on(futures_util::future::join_all(all));
    }

    /// Asserts that requests through every node had an effect, and that every storage node was the primary of
    /// a segment.
    fn assert_all_used<'a>(
        &self,
        operations: impl Iterator<Item = &'a KeyOperation> + Clone,
        recorder: &HistoryRecorder,
    ) {
        for node in self.cluster.running() {
            let mut done = operations.clone().filter(|one| one.node == node && is_done_change(one));
            assert!(done.next().is_some(), "node {node} changed nothing");
        }
        let primaries = recorder.primaries();
        let storage = self.cluster.storage();
        let is_each = storage.iter().all(|node| primaries.contains(node));
        assert!(is_each, "of the nodes {storage:?} only {primaries:?} stored bytes of objects");
    }

    /// Waits until every segment has its copies without known damage, and all copies of sealed segments are
    /// equal. Those of open ones may differ.
    fn until_copied(&self, trace: &NemesisTrace) {
        wait_at_most(HEALED_MAX, "every segment has its copies, and they are equal", || {
            let copies = self.cluster.view(FIRST).copies;
            (copies.wanted, copies.below_segments, copies.suspect_segments) == (3, 0, 0)
                && copies.segments > 0
                && trace.is_removed_file_back(&self.cluster)
                && self.segments_that_differ() <= copies.open_segments
        });
    }

    /// Number of segments that every storage node has with bytes of its own.
    fn segments_that_differ(&self) -> usize {
        let storage = self.cluster.storage();
        let on: Vec<_> = storage.iter().map(|id| segment_files(&self.cluster, *id)).collect();
        let everywhere = on[0].keys().filter(|name| on.iter().all(|files| files.contains_key(*name)));
        everywhere.filter(|name| !is_equal_on(&self.cluster, storage, name)).count()
    }

    fn keep_logs(&self, plan: &RoundPlan, trace: &NemesisTrace) {
        let RoundPlan { seed, mix, .. } = plan;
        eprintln!("the round of seed {seed} failed, with {}", mix.name);
        let dir = log_dir(*seed);
        match trace.keep_logs(&self.cluster, &dir) {
            Ok(()) => eprintln!("the logs of the nodes are in {}", dir.display()),
            Err(error) => eprintln!("the logs of the nodes cannot be kept in {}: {error}", dir.display()),
        }
    }
}

#[test]
fn a_node_without_connections_refuses_requests_until_it_has_them_again() {
    const NODE: usize = 3;
    let RelayedCluster { cluster, links, .. } = RelayedCluster::new();
    let (client, key) = (cluster.client(NODE), keys_before().next().expect("a key"));
    let status = || match cluster.block_on(client.get(BUCKET, &key)) {
        Ok(_) => Some(200),
        Err(failure) => failure.status(),
    };
    assert_eq!(status(), Some(200));
    links.block(between(NODE, &[1, 2, 4]));
    wait_until("the node refuses reads", || status() == Some(503));
    links.open();
    wait_until("the node serves reads", || status() == Some(200));
}

#[test]
fn a_node_that_does_not_reach_the_leader_of_the_system_group_grants_no_right_that_was_revoked() {
    const NODE: usize = 3;
    let RelayedCluster { cluster, links, .. } = RelayedCluster::new();
    // It leads the system group then.
    cluster.until_first_has_duty();
    let (root, key) = (cluster.client(NODE), TestKey::with_role(&cluster, "admin"));
    let (former, former_at_api) = (key.client(&cluster, NODE), key.admin_client(&cluster, NODE));
    let read = |client: &S3TestClient, bucket: &str| cluster.block_on(client.get(bucket, "there"));
    let call_api = || cluster.block_on(former_at_api.call_admin(Method::GET, "/v1/config", &Value::Null));
    for bucket in SPREAD {
        cluster.block_on(root.put(bucket, "there", full_body("there"))).expect("stored");
        read(&former, bucket).unwrap_or_else(|failure| panic!("{bucket}: {failure:?}"));
    }
    call_api().expect("the key is one of an administrator");
    let leads_elsewhere =
        |group: &GroupView| group.id != SYSTEM_GROUP && group.leader.is_some_and(|leader| leader != FIRST);
    assert!(cluster.view(NODE).groups.iter().any(leads_elsewhere), "reads need not reach the first node");

    links.block(between(NODE, &[FIRST]));
    // The node may lead a group that has a row of the key. It hands the group over when its rows are old.
    let words = ["--yes", "access", "key", "delete", &key.id];
    until_run(&cluster, FIRST, &words);
    // Nothing is waited for: the command has returned.
    for bucket in SPREAD {
        assert_refused(read(&former, bucket), bucket);
    }
    assert_refused(call_api(), "the admin API");
    for bucket in SPREAD {
        let refused = read(&root, bucket).err().map(|failure| format!("{failure:?}")).unwrap_or_default();
        assert!(refused.contains("503") && refused.contains("<Reason>No"), "{bucket}: {refused}");
    }
    let ready = get_text(cluster.process(NODE).admin, "/readyz").expect("an answer");
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("no majority has confirmed"), "{ready}");
    // The key of the commands on its host shows its state.
    assert!(cluster.view(NODE).node(FIRST).is_some());

    links.open();
    wait_until("the node serves reads", || SPREAD.iter().all(|bucket| read(&root, bucket).is_ok()));
    for bucket in SPREAD {
        let refused = format!("{:?}", read(&former, bucket).err());
        assert!(refused.contains("<Code>InvalidAccessKeyId</Code>"), "{bucket}: {refused}");
    }
    wait_until("the node is ready", || {
        get_text(cluster.process(NODE).admin, "/readyz").is_ok_and(|ready| ready.starts_with("HTTP/1.1 200"))
    });
}

/// Asserts that a node did not grant a revoked right: it refused that, or could not confirm its
/// rows.
fn assert_refused<T>(answer: Result<T, CallFailure>, what: &str) {
    let status = answer.err().and_then(|failure| failure.status());
    assert!(matches!(status, Some(403 | 503)), "{what}: {status:?}");
}

#[test]
fn a_node_that_another_one_reaches_is_not_removed_as_lost() {
    const NODE: usize = 3;
    let RelayedCluster { cluster, links, .. } = RelayedCluster::new();
    links.block(between(NODE, &[FIRST]));
    wait_until("the first node does not reach the other one", || {
        cluster.view(FIRST).node(NODE).is_some_and(|node| node.reachable == Some(false))
    });
    wait_until("the removal is refused", || {
        let words = ["cluster", "remove", "3", "--lost", "--yes"];
        let (output, status) = cluster.member(FIRST).setup.command(&words);
        // A node that has lost the leader of the system group answers so until it finds the next one.
        let is_refused = status == Some(4) && output.contains("it answers node");
        assert!(is_refused || output.contains("NotCurrent"), "{status:?} {output}");
        is_refused
    });
    links.open();
    wait_until("the first node reaches it", || {
        cluster.view(FIRST).node(NODE).is_some_and(|node| node.reachable == Some(true))
    });
}

#[test]
fn a_node_that_waits_for_the_leader_forwards_to_a_node_that_serves() {
    const NODE: usize = 3;
    let RelayedCluster { mut cluster, links, .. } = RelayedCluster::new();
    // It leads the system group then.
    cluster.until_first_has_duty();
    cluster.stop(NODE);
    links.block(between(NODE, &[FIRST]));
    links.spawn(&mut cluster, NODE);
    cluster.until_waiting(NODE);
    let (client, key) = (cluster.client(NODE), keys_before().next().expect("a key"));
    wait_until("a write through the node is stored", || {
        cluster.block_on(put(&client, "while-it-waits")).is_ok()
    });
    for key in [key.as_str(), "while-it-waits"] {
        let read = cluster.block_on(client.get(BUCKET, key)).expect("read");
        assert_eq!(node_of(&read), 2, "{key}");
    }
    links.open();
    // It has other ports when it serves.
    cluster.until_ready(NODE);
    let client = cluster.client(NODE);
    wait_until("the node serves", || {
        let read = cluster.block_on(client.get(BUCKET, "while-it-waits"));
        read.is_ok_and(|read| node_of(&read) == NODE)
    });
}

/// Starts a node, which has joined and does not run, behind a relay.
fn start_behind_relay(cluster: &mut TestCluster, links: &NodeLinks, node: usize) {
    links.serve(cluster, node);
    links.spawn(cluster, node);
    cluster.until_ready(node);
}

/// The directory for logs of a round that failed.
fn log_dir(seed: u64) -> PathBuf {
    let cache = std::env::var_os("MLGW_CACHE").map_or_else(std::env::temp_dir, PathBuf::from);
    cache.join("logs").join(format!("nemesis-{seed}"))
}

pub(super) fn is_done_change(operation: &KeyOperation) -> bool {
    operation.outcome == KeyOutcome::Done
        && matches!(operation.action, KeyAction::Write(..) | KeyAction::Delete)
}

/// Waits until this many changes are done in each bucket.
fn until_changes(recorder: &HistoryRecorder, count: usize) {
    wait_until(&format!("{count} changes are done in each bucket"), || {
        let histories = recorder.histories();
        SPREAD.iter().all(|bucket| {
            let of_bucket = histories.iter().filter(|(name, _)| name.bucket == *bucket);
            of_bucket.flat_map(|(_, history)| history).filter(|one| is_done_change(one)).count() >= count
        })
    });
}

/// GET, HEAD and LIST of a key, each until it has a certain outcome.
async fn read_all_ways(reader: &RecordedClient<'_>, name: &ObjectName) {
    // No client of the load is left to which a slot would matter.
    let object = SlotObject { slot: KeySlot::new(0), name: name.clone() };
    let begun = Instant::now();
    for way in [Some(Method::GET), Some(Method::HEAD), None] {
        loop {
            let end = match &way {
                Some(method) => reader.read(method.clone(), &object).await,
                None => reader.list(name).await,
            };
            if end == RequestEnd::Answered {
                break;
            }
            assert!(begun.elapsed() < READ_MAX, "no node answers reads of {name}");
            sleep(READ_PAUSE).await;
        }
    }
}

/// Panics with the shortest history if that of a key is not linearizable.
fn assert_linearizable(name: &ObjectName, history: &[KeyOperation]) {
    let Err(error) = check(history) else { return };
    let mut shortest = shortest_violation(history);
    shortest.sort_by_key(|operation| operation.begun);
    let lines: Vec<String> = shortest.iter().map(|operation| format!("    {operation}")).collect();
    panic!("the history of {name} is not linearizable: {error}\n{}", lines.join("\n"));
}
