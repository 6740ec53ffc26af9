//! Three nodes in one process: what one of them reads is freed by none.

use super::Catalogue;
use super::cluster_tests::{TestCluster, three_nodes, until};
use super::groups::SYSTEM_GROUP;
use super::jobs::ReleasePass;
use super::options::BarrierScope;
use super::readers::POLICY_PAUSE;
use super::testing::{NOW, bucket, delete, extent, key, options, version};
use crate::raft::peers::CallRefused;
use crate::view::RowReader as _;
use mlgw_common::time::sleep;
use mlgw_common::{BodyId, NodeId, SegmentId};
use mlgw_formats::command::{Change, Command, ObjectChange, PutCredential, PutNode, PutObject};
use mlgw_formats::key::Family;
use mlgw_formats::member_calls::{
    MemberAnswer, MemberCall, MemberReply, MemberRequest, READERS_BODIES_MAX, ReadersCall, ReadersReply,
};
use mlgw_formats::schema::meta::{LogPosition, MetaRow};
use mlgw_formats::schema::{Bucket, Credential, ExtentPage, Node, decode};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const OBJECT: &str = "long";

/// A limit that no test reaches, however slow the machine is.
const NEVER: Duration = Duration::from_hours(1000);

/// Three storage nodes, with the leader of the system group, another node and a bucket.
struct StorageNodes {
    cluster: TestCluster,
    bucket: Arc<Bucket>,
    leader: u64,
    other: u64,
}

impl StorageNodes {
    async fn new() -> Self {
        let (cluster, bucket) = three_nodes().await;
        let leader = cluster.leader(SYSTEM_GROUP).await;
        for id in 1..=3 {
            let put = Command::from(Change::PutNode(PutNode { node: Node { id, ..Node::default() } }));
            until(async || cluster.node(leader).propose(put.clone()).await.ok()).await;
        }
        for catalogue in cluster.nodes.values() {
            catalogue.inner().readers.set_limit(NEVER);
            until(async || (catalogue.nodes().len() == 3).then_some(())).await;
        }
        let other = (1..=3).find(|node| *node != leader).unwrap();
        Self { cluster, bucket, leader, other }
    }

    fn leader(&self) -> &Catalogue {
        self.cluster.node(self.leader)
    }

    fn other(&self) -> &Catalogue {
        self.cluster.node(self.other)
    }

    /// Puts a body with a page of extents, which every node then has.
    async fn put_long(&self) -> BodyId {
        // Again with another body if the outcome is unknown: an id is used once.
        let body = until(async || {
            let body = self.leader().body_id().await.ok()?;
            self.leader().propose(put_long(&self.bucket, body)).await.ok().map(|_| body)
        })
        .await;
        self.cluster.check(&self.bucket, OBJECT).await;
        body
    }

    async fn delete(&self) {
        let command = Command::object(&self.bucket, &key(OBJECT), NOW, delete());
        until(async || self.leader().propose(command.clone()).await.ok()).await;
    }

    /// Frees what the leader may free.
    async fn release(&self) -> ReleasePass {
        until(async || self.leader().inner().release_all().await.ok()).await
    }

    /// Number of pages of a body in the rows of a node.
    fn pages(&self, catalogue: &Catalogue, body: BodyId) -> usize {
        pages(catalogue, &self.bucket, body)
    }

    /// Waits until the body is freed without another call.
    async fn until_freed(&self, body: BodyId) {
        until(async || (self.pages(self.leader(), body) == 0).then_some(())).await;
    }

    /// Last entry that a node has applied, read after the queue as the leader does.
    fn applied(catalogue: &Catalogue) -> LogPosition {
        let state = catalogue.inner().groups.system().state();
        let queued = state.range(&Family::Release.start(), &Family::Release.end(), 10).unwrap();
        assert!(!queued.is_empty(), "the body is queued");
        decode(&state.get(&MetaRow::Applied.row()).unwrap().unwrap()).unwrap()
    }
}

fn put_long(bucket: &Bucket, body: BodyId) -> Command {
    let mut long = version(body, 6);
    long.extents.clear();
    let page = ExtentPage { extents: vec![extent(1, 1); 6], parts: vec![] };
    let put = ObjectChange::Put(PutObject { version: long, pages: vec![page], ..PutObject::default() });
    Command::object(bucket, &key(OBJECT), NOW, put)
}

fn pages(catalogue: &Catalogue, bucket: &Bucket, body: BodyId) -> usize {
    catalogue.reader().extent_pages(bucket.bucket_id(), &key(OBJECT), body, 0).count()
}

fn set(nodes: &[u64]) -> BTreeSet<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_another_node_reads_stays_until_its_pin_ends() {
    let nodes = StorageNodes::new().await;
    let body = nodes.put_long().await;
    let pin = nodes.other().pin(body);
    nodes.delete().await;
    let pass = nodes.release().await;
    assert_eq!((pass.read_elsewhere, pass.unanswered), (1, set(&[])));
    for catalogue in nodes.cluster.nodes.values() {
        assert_eq!(nodes.pages(catalogue, body), 1);
    }
    // The end of the pin is not reported to the leader, which asks again.
    drop(pin);
    nodes.until_freed(body).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_not_applied_the_deletion_delays_the_release() {
    let nodes = StorageNodes::new().await;
    let body = nodes.put_long().await;
    nodes.cluster.network.hold_entries(nodes.other);
    nodes.delete().await;
    let behind = set(&[nodes.other]);
    until(async || (nodes.release().await.behind == behind).then_some(())).await;
    assert_eq!(nodes.pages(nodes.leader(), body), 1);
    nodes.cluster.network.pass_entries(nodes.other);
    nodes.until_freed(body).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_wait_for_other_nodes_all_of_them_know_a_changed_access_key() {
    let nodes = StorageNodes::new().await;
    for number in 0..5 {
        let description = format!("version {number}");
        let credential =
            Credential { access_key: "AK".into(), description: description.clone(), ..Credential::default() };
        let put = Command::from(Change::PutCredential(PutCredential { credential }));
        let before = nodes.leader().applied_index();
        assert!(before.is_some(), "entries were applied");
        until(async || nodes.leader().propose(put.clone()).await.ok()).await;
        nodes.leader().until_applied_elsewhere().await;
        for (node, catalogue) in &nodes.cluster.nodes {
            let known = catalogue.credential("AK").map(|key| key.description.clone());
            assert_eq!(known.as_ref(), Some(&description), "node {node}");
            assert!(catalogue.applied_index() > before, "node {node} has applied the change");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_wait_for_a_policy_all_nodes_run_it() {
    let nodes = StorageNodes::new().await;
    let runs = Arc::new(AtomicU64::new(4));
    let running = Arc::clone(&runs);
    nodes.other().set_policy_check(Arc::new(move |version| running.load(Ordering::SeqCst) >= version));
    let waiting = |version| {
        let leader = nodes.leader().clone();
        tokio::spawn(async move { leader.until_policy_runs_elsewhere(version).await })
    };
    // Nothing on the third node uses the policy.
    waiting(4).await.unwrap();
    let later = waiting(5);
    sleep(3 * POLICY_PAUSE).await;
    assert!(!later.is_finished(), "the other node runs version 4");
    runs.store(6, Ordering::SeqCst);
    later.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_recent_after_a_barrier_and_grow_old_without_one() {
    const SHORT: Duration = Duration::from_millis(300);
    let mut nodes = StorageNodes::new().await;
    let (cluster, node) = (&mut nodes.cluster, nodes.other);
    cluster.stop(node).await;
    cluster.start(node).await;
    let is_within =
        |cluster: &TestCluster, age| cluster.node(node).inner().groups.system().has_rows_within(age);
    assert!(!is_within(cluster, NEVER), "no barrier has passed since its start");
    let pass = async |cluster: &TestCluster| cluster.node(node).barrier(BarrierScope::System).await.ok();
    until(async || pass(cluster).await).await;
    assert!(cluster.node(node).has_recent_system_rows());
    assert!(is_within(cluster, NEVER));

    cluster.network.isolate(node);
    until(async || (!is_within(cluster, SHORT)).then_some(())).await;
    assert_eq!(pass(cluster).await, None);
    assert!(!is_within(cluster, SHORT), "a barrier that did not pass confirms nothing");
    cluster.network.rejoin(node);
    until(async || pass(cluster).await).await;
    assert!(is_within(cluster, NEVER));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_age_of_rows_is_counted_from_the_begin_of_the_barrier() {
    const HELD: Duration = Duration::from_millis(250);
    let nodes = StorageNodes::new().await;
    let put = Command::from(Change::PutNode(PutNode { node: Node { id: 3, ..Node::default() } }));
    until(async || {
        nodes.cluster.network.hold_entries(nodes.other);
        nodes.leader().propose(put.clone()).await.ok()?;
        let other = nodes.other().clone();
        let passing = tokio::spawn(async move { other.barrier(BarrierScope::System).await });
        sleep(2 * HELD).await;
        nodes.cluster.network.pass_entries(nodes.other);
        passing.await.unwrap().ok()
    })
    .await;
    let group = nodes.other().inner().groups.system();
    assert!(!group.has_rows_within(HELD), "it waited for the held entry for longer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_reachable_delays_the_release_until_the_limit() {
    let nodes = StorageNodes::new().await;
    let body = nodes.put_long().await;
    nodes.cluster.network.isolate(nodes.other);
    nodes.delete().await;
    let pass = nodes.release().await;
    assert_eq!(pass.unanswered, set(&[nodes.other]));
    assert_eq!(nodes.pages(nodes.leader(), body), 1);
    nodes.leader().inner().readers.set_limit(Duration::ZERO);
    assert_eq!(nodes.release().await.unanswered, set(&[]));
    assert_eq!(nodes.pages(nodes.leader(), body), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_comes_after_the_answer_of_its_node_finds_that_the_body_is_being_released() {
    let nodes = StorageNodes::new().await;
    let body = nodes.put_long().await;
    // The body stays queued.
    let _own_pin = nodes.leader().pin(body);
    nodes.cluster.network.hold_entries(nodes.other);
    nodes.delete().await;
    let applied = StorageNodes::applied(nodes.leader());
    let read = until(async || {
        let asked = nodes.leader().inner().bodies_read_elsewhere(SYSTEM_GROUP, applied, vec![body.0]);
        let read = asked.await.ok()?;
        nodes.cluster.network.pass_entries(nodes.other);
        read.is_complete().then_some(read)
    })
    .await;
    assert!(read.bodies.is_empty(), "no other node reads it");
    let reader = nodes.other();
    let _pin = reader.pin(body);
    let bucket = nodes.bucket.bucket_id();
    assert!(reader.is_being_released(bucket, &key(OBJECT), body).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_duty_node_keeps_what_the_one_before_it_reads() {
    let mut nodes = StorageNodes::new().await;
    let body = nodes.put_long().await;
    let first = nodes.leader().clone();
    let pin = first.pin(body);
    nodes.delete().await;
    assert_eq!(nodes.release().await.read_elsewhere, 0, "the first one has the pin itself");
    nodes.cluster.lead(SYSTEM_GROUP, nodes.other).await;
    nodes.leader = nodes.other;
    until(async || (nodes.release().await.read_elsewhere == 1).then_some(())).await;
    assert_eq!(nodes.pages(nodes.leader(), body), 1);
    assert_eq!(nodes.pages(&first, body), 1);
    drop(pin);
    nodes.until_freed(body).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_are_in_use_while_another_node_reads_them_or_does_not_answer() {
    let nodes = StorageNodes::new().await;
    let used = async |segments: &[u64]| {
        let segments: Vec<SegmentId> = segments.iter().copied().map(SegmentId).collect();
        let used = until(async || nodes.leader().segments_in_use(segments.clone()).await.ok()).await;
        used.into_iter().map(|segment| segment.0).collect::<Vec<u64>>()
    };
    assert_eq!(used(&[7, 8]).await, [] as [u64; 0], "no segments are open anywhere");
    nodes.leader().set_segment_pins(Arc::new(|segment: SegmentId| segment.0 == 7));
    nodes.other().set_segment_pins(Arc::new(|segment: SegmentId| segment.0.is_multiple_of(2)));
    assert_eq!(used(&[7, 8]).await, [8], "own pins are not considered");
    let many: Vec<u64> = (0..2 * READERS_BODIES_MAX as u64 + 1).collect();
    let even: Vec<u64> = many.iter().copied().filter(|id| id % 2 == 0).collect();
    assert_eq!(used(&many).await, even, "several questions");

    let third = (1..=3).find(|node| ![nodes.leader, nodes.other].contains(node)).unwrap();
    nodes.cluster.network.isolate(third);
    assert_eq!(used(&[7, 8]).await, [7, 8], "its readers are unknown");
    nodes.leader().inner().readers.set_limit(Duration::ZERO);
    assert_eq!(used(&[7, 8]).await, [8], "it is not waited for any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_of_all_segments_is_known_elsewhere_and_closes_no_segment() {
    let nodes = StorageNodes::new().await;
    let pinned = async || until(async || nodes.leader().are_all_segments_pinned_elsewhere().await.ok()).await;
    assert!(!pinned().await, "no segments are open anywhere");
    let unasked = |segment: SegmentId| panic!("{segment} is asked about, which closes it");
    nodes.other().set_segment_pins(Arc::new(unasked));
    nodes.leader().set_pin_of_all_segments(Arc::new(|| true));
    assert!(!pinned().await, "the own pin is not considered");
    nodes.other().set_pin_of_all_segments(Arc::new(|| true));
    assert!(pinned().await);
    nodes.other().set_pin_of_all_segments(Arc::new(|| false));
    assert!(!pinned().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_peers_asks_no_node() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let bucket = bucket(&catalogue, "data").await;
    // The row of a node that no call reaches.
    let put = Change::PutNode(PutNode { node: Node { id: 2, ..Node::default() } });
    catalogue.propose(Command::from(put)).await.unwrap();
    let body = catalogue.body_id().await.unwrap();
    catalogue.propose(put_long(&bucket, body)).await.unwrap();
    catalogue.propose(Command::object(&bucket, &key(OBJECT), NOW, delete())).await.unwrap();
    let pass = catalogue.inner().release_all().await.unwrap();
    assert_eq!((pass.read_elsewhere, pass.unanswered), (0, set(&[])));
    assert_eq!(pages(&catalogue, &bucket, body), 0);
    assert_eq!(catalogue.segments_in_use(vec![SegmentId(1)]).await, Ok(BTreeSet::new()));
    assert_eq!(catalogue.are_all_segments_pinned_elsewhere().await, Ok(false));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_names_what_is_pinned_and_states_if_it_is_behind_the_question() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let asked = async |group: u32, index: u64| {
        let applied = Some(LogPosition { term: 1, node: 1, index });
        let (bodies, segments) = (vec![4, 5], vec![6, 7]);
        let call = ReadersCall { group, applied, bodies, segments, policy: None };
        let call = MemberCall::encode_request(SYSTEM_GROUP, MemberRequest::Readers(call));
        let answer = catalogue.serve_call(NodeId(2), call).await?;
        Ok::<_, CallRefused>(MemberAnswer::read(answer).unwrap())
    };
    let answer = |bodies: &[u64], segments: &[u64]| ReadersReply {
        bodies: bodies.to_vec(),
        segments: segments.to_vec(),
        ..ReadersReply::default()
    };
    let reply = |bodies: &[u64], segments: &[u64]| {
        Ok::<_, CallRefused>(MemberReply::Readers(answer(bodies, segments)))
    };
    assert_eq!(asked(SYSTEM_GROUP, 1).await, reply(&[], &[]));
    let pin = catalogue.pin(BodyId(5));
    catalogue.set_segment_pins(Arc::new(|segment: SegmentId| segment.0 == 6));
    assert_eq!(asked(SYSTEM_GROUP, 1).await, reply(&[5], &[6]));
    // Without a member of the group this node has no reader of it, and no entry to wait for.
    assert_eq!(asked(9, u64::MAX).await, reply(&[5], &[6]));
    let behind = ReadersReply { is_behind: true, ..answer(&[5], &[6]) };
    assert_eq!(asked(SYSTEM_GROUP, u64::MAX).await, Ok(MemberReply::Readers(behind)));
    drop(pin);
    assert_eq!(asked(SYSTEM_GROUP, 1).await, reply(&[], &[6]));
    catalogue.set_pin_of_all_segments(Arc::new(|| true));
    let all = ReadersReply { pins_all: true, ..answer(&[], &[6]) };
    assert_eq!(asked(SYSTEM_GROUP, 1).await, Ok(MemberReply::Readers(all)));
    catalogue.shutdown().await;
}
