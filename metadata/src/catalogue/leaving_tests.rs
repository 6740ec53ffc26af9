//! A group moves to other nodes of one process. A node that left it is of no use to a stale request, and
//! returns with its files.

use super::cluster_tests::{TestCluster, until};
use super::groups::SYSTEM_GROUP;
use super::testing::{bucket, key, options};
use super::{BarrierError, BarrierScope, Catalogue, CatalogueOptions, UsageOf};
use crate::store::behind::groups_behind;
use crate::store_error::StoreError;
use mlgw_common::NodeId;
use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, PutNode};
use mlgw_formats::member_calls::{CreateMemberCall, MemberCall, MemberRequest};
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{Bucket, Node};
use std::sync::Arc;

const GROUP: u32 = 1;

/// Four nodes with a bucket in a group of nodes 1 to 3.
async fn four_nodes() -> (TestCluster, Arc<Bucket>) {
    let mut cluster = TestCluster::new();
    let two_groups = CatalogueOptions { groups: 2, ..options(&cluster.dir(1)) };
    let catalogue = Catalogue::open(two_groups).await.unwrap();
    let bucket = bucket(&catalogue, "one").await;
    assert_eq!(catalogue.inner().groups_of(bucket.bucket_id()), [GROUP].into());
    catalogue.shutdown().await;
    for node in 1..=4 {
        cluster.start(node).await;
    }
    cluster.grow(SYSTEM_GROUP, &[1, 2, 3]).await;
    until(async || {
        let leader = cluster.node(cluster.leader(SYSTEM_GROUP).await);
        leader.add_learner(SYSTEM_GROUP, NodeId(4)).await.ok()
    })
    .await;
    cluster.grow(GROUP, &[1, 2, 3]).await;
    (cluster, bucket)
}

/// Moves the group to nodes 1, 2 and 4.
async fn replace_node_3(cluster: &TestCluster) {
    cluster.lead(GROUP, 1).await;
    cluster.grow(GROUP, &[1, 2, 4]).await;
}

async fn remove_node_3(cluster: &TestCluster) {
    until(async || {
        let leader = cluster.node(cluster.leader(GROUP).await);
        leader.remove_member(GROUP, NodeId(3)).await.ok()
    })
    .await;
}

/// Makes node 3 leave the group. Returns true if it has.
async fn leave(cluster: &TestCluster) -> bool {
    cluster.node(3).leave_group(GROUP, &[1, 2, 3, 4].map(NodeId)).await.unwrap()
}

/// True if node 3 has recorded that it may lack changes of the group.
fn is_behind(cluster: &TestCluster) -> bool {
    groups_behind(&cluster.dir(3)).unwrap().contains(&GROUP)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_behind_from_its_creation_until_a_barrier_of_its_group_has_passed() {
    let (cluster, _) = four_nodes().await;
    assert!(is_behind(&cluster));
    until(async || cluster.node(3).confirm_groups().await.unwrap().is_empty().then_some(())).await;
    assert!(!is_behind(&cluster));
    // A leader that removed this node without a trace here adds it again.
    let call = MemberRequest::CreateMember(CreateMemberCall {});
    cluster.node(3).serve_call(NodeId(1), MemberCall::encode_request(GROUP, call)).await.unwrap();
    assert!(is_behind(&cluster));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_member_stops_while_the_disk_is_full_and_none_is_created_until_it_has_stopped() {
    let (cluster, _) = four_nodes().await;
    replace_node_3(&cluster).await;
    remove_node_3(&cluster).await;
    let catalogue = cluster.node(3);
    let space = Arc::clone(catalogue.inner().log.space());
    let waits = Arc::clone(&space);
    let full = || Err::<(), _>(StoreError("No space left on device".to_owned()));
    let waiting = tokio::spawn(async move { waits.repeat_async("the test", usize::MAX, full).await });
    until(async || space.is_waiting().then_some(())).await;
    for _ in 0..5 {
        assert!(!leave(&cluster).await, "it would wait for space");
    }
    waiting.abort();
    until(async || (!space.is_waiting()).then_some(())).await;
    let stopping = catalogue.inner().groups.begin_stop(GROUP).unwrap();
    let refused = catalogue.reopen_group(GROUP).await.unwrap_err().to_string();
    assert!(refused.contains("is stopping"), "{refused}");
    stopping.shutdown().await.unwrap();
    drop(stopping);
    catalogue.inner().groups.end_stop(GROUP);
    until(async || catalogue.reopen_group(GROUP).await.ok()).await;
    until(async || leave(&cluster).await.then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_leaves_a_group_when_its_leader_confirms_it() {
    let (cluster, bucket) = four_nodes().await;
    cluster.put(3, &bucket, "before").await;
    assert!(!leave(&cluster).await, "it votes");
    replace_node_3(&cluster).await;
    assert!(!leave(&cluster).await, "it learns");
    remove_node_3(&cluster).await;
    cluster.put(4, &bucket, "moved").await;
    let (stale, key_before) = (cluster.node(3), key("before"));
    let scope = BarrierScope::Key(bucket.bucket_id(), &key_before);
    // A request that was routed by an old map gets no old answer.
    assert!(stale.barrier(scope).await.is_err(), "it does not receive the log any more");
    cluster.network.isolate(1);
    cluster.network.isolate(2);
    assert!(!leave(&cluster).await, "no leader confirms it");
    cluster.network.rejoin(1);
    cluster.network.rejoin(2);
    until(async || leave(&cluster).await.then_some(())).await;
    assert_eq!((stale.groups(), stale.left_groups()), (vec![SYSTEM_GROUP], vec![GROUP]));
    assert!(stale.object(bucket.bucket_id(), &key_before).is_err(), "also if it was cached");
    assert_eq!(stale.barrier(scope).await, Err(BarrierError::NotLeader { leader: None }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_leaves_a_group_whose_leader_is_none_of_the_nodes_of_its_set() {
    let (cluster, _) = four_nodes().await;
    replace_node_3(&cluster).await;
    remove_node_3(&cluster).await;
    cluster.lead(GROUP, 2).await;
    // Node 1, the last leader that node 3 knows, names node 2.
    until(async || cluster.node(3).leave_group(GROUP, &[]).await.unwrap().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_leaves_a_group_that_a_home_node_leads() {
    let (cluster, _) = four_nodes().await;
    let system = cluster.node(cluster.leader(SYSTEM_GROUP).await);
    until(async || system.raise_cluster_version(SETS_CLUSTER_VERSION).await.ok()).await;
    let node = Node { id: 2, ..Node::default() };
    let put = Command::from(Change::PutNode(PutNode { node }));
    until(async || system.propose(put.clone()).await.ok()).await;
    until(async || {
        // Seen in the rows of node 3.
        let _ = system.put_set(FIRST_SET, &[NodeId(2)], 0).await;
        (!cluster.node(3).sets().is_empty()).then_some(())
    })
    .await;
    replace_node_3(&cluster).await;
    remove_node_3(&cluster).await;
    cluster.network.isolate(1);
    until(async || cluster.node(3).leave_group(GROUP, &[]).await.unwrap().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_stored_elsewhere_once_the_nodes_of_another_set_vote_in_their_group() {
    let (cluster, bucket) = four_nodes().await;
    let object = key("one");
    let elsewhere = |node: u64| cluster.node(node).is_stored_elsewhere(bucket.bucket_id(), &object);
    assert!(!elsewhere(3), "there are no sets");
    let system = cluster.node(cluster.leader(SYSTEM_GROUP).await);
    until(async || system.raise_cluster_version(SETS_CLUSTER_VERSION).await.ok()).await;
    for id in [1, 2, 4] {
        let put = Command::from(Change::PutNode(PutNode { node: Node { id, ..Node::default() } }));
        until(async || system.propose(put.clone()).await.ok()).await;
    }
    until(async || {
        // Seen in the rows of node 3.
        let _ = system.put_set(FIRST_SET, &[1, 2, 4].map(NodeId), 0).await;
        (!cluster.node(3).sets().is_empty()).then_some(())
    })
    .await;
    assert!(!elsewhere(3), "it votes");
    replace_node_3(&cluster).await;
    until(async || elsewhere(3).then_some(())).await;
    assert!(!elsewhere(1), "it is in the set");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_returns_to_a_group_with_its_files() {
    let (mut cluster, bucket) = four_nodes().await;
    cluster.put(3, &bucket, "before").await;
    replace_node_3(&cluster).await;
    remove_node_3(&cluster).await;
    until(async || leave(&cluster).await.then_some(())).await;
    cluster.put(4, &bucket, "moved").await;
    cluster.stop(3).await;
    cluster.start(3).await;
    assert_eq!(cluster.node(3).groups(), [SYSTEM_GROUP, GROUP], "a start opens what has files");
    until(async || leave(&cluster).await.then_some(())).await;
    until(async || cluster.node(3).reopen_group(GROUP).await.ok()).await;
    assert_eq!(cluster.node(3).left_groups(), [0; 0]);
    assert!(cluster.node(3).confirm_groups().await.unwrap().contains(&GROUP), "it is no member");
    assert!(is_behind(&cluster));
    until(async || leave(&cluster).await.then_some(())).await;
    until(async || {
        let leader = cluster.node(cluster.leader(GROUP).await);
        leader.add_learner(GROUP, NodeId(3)).await.ok()
    })
    .await;
    assert!(!leave(&cluster).await, "it is a member again");
    assert!(is_behind(&cluster), "also after a power failure now");
    until(async || cluster.node(3).confirm_groups().await.unwrap().is_empty().then_some(())).await;
    assert!(!is_behind(&cluster));
    for object in ["before", "moved"] {
        cluster.check(&bucket, object).await;
    }
    cluster.put(3, &bucket, "after").await;
    cluster.check(&bucket, "after").await;
    cluster.compare(GROUP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_in_a_group_elsewhere_is_that_of_a_node_of_the_first_set_or_nothing() {
    let (cluster, bucket) = four_nodes().await;
    cluster.put(3, &bucket, "before").await;
    replace_node_3(&cluster).await;
    remove_node_3(&cluster).await;
    until(async || leave(&cluster).await.then_some(())).await;
    until(async || {
        let leader = cluster.node(cluster.leader(SYSTEM_GROUP).await);
        leader.raise_cluster_version(SETS_CLUSTER_VERSION).await.ok()?;
        let put = PutNode { node: Node { id: 1, ..Node::default() } };
        leader.propose(Command::from(Change::PutNode(put))).await.ok()?;
        leader.put_set(0, &[NodeId(1)], 0).await.ok()
    })
    .await;
    let (node, of) = (cluster.node(3), UsageOf::Bucket(bucket.bucket_id()));
    let asked = async || {
        node.ask_usage(of.clone()).await;
        node.quota_usage(&of).unwrap().objects
    };
    until(async || (asked().await == 1).then_some(())).await;
    assert!(node.usage(bucket.bucket_id()).is_err(), "this node cannot count it");
    assert_eq!(cluster.node(1).quota_usage(&of).unwrap().objects, 1, "node 1 has all groups");
    cluster.network.isolate(3);
    until(async || (asked().await == 0).then_some(())).await;
}
