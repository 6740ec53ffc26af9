//! Comparisons of the rows of three members: equal ones, rows that were changed behind Raft's back, and
//! members without a digest.

use super::cluster_tests::{TestCluster, three_nodes, until};
use super::groups::SYSTEM_GROUP;
use super::known_comparisons::RowComparisonCounts;
use super::row_comparisons::CompareRowsError;
use super::row_verdict::RowComparison;
use super::{Catalogue, ProposeError};
use crate::raft::members::ChangeMembersError;
use crate::raft::row_digests::RowDigest;
use crate::view::RowReader as _;
use mlgw_common::{BucketId, NodeId};
use mlgw_formats::cluster_version::COMPARISON_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, CompareRows};
use mlgw_formats::member_calls::{MemberCall, MemberRequest, RowVerdict};
use mlgw_formats::schema::{Bucket, ObjectVersion, decode, encode, object};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Three nodes that may compare their rows. A comparison writes nothing, so later comparisons of rows that
/// are equal stay equal.
async fn three() -> (TestCluster, Arc<Bucket>) {
    let (cluster, bucket) = three_nodes().await;
    until(async || {
        let leader = cluster.node(cluster.leader(SYSTEM_GROUP).await);
        leader.raise_cluster_version(COMPARISON_CLUSTER_VERSION).await.ok()
    })
    .await;
    (cluster, bucket)
}

/// Compares the rows of the system group at its leader.
async fn compare(cluster: &TestCluster) -> RowComparison {
    until(async || {
        let leader = cluster.node(cluster.leader(SYSTEM_GROUP).await);
        match leader.compare_rows(SYSTEM_GROUP).await {
            Ok(comparison) => Some(comparison.unwrap()),
            Err(CompareRowsError::Members(_) | CompareRowsError::Propose(_)) => None,
        }
    })
    .await
}

/// Changes one row of a node in its store, without a command.
fn damage(node: &Catalogue, bucket: BucketId) {
    let state = node.inner().groups.get(SYSTEM_GROUP).unwrap().state();
    let row = object::row(bucket, b"k0");
    let version: ObjectVersion = decode(&state.get(&row).unwrap().unwrap()).unwrap();
    let changed = encode(&ObjectVersion { size: version.size + 1, ..version });
    state.write(&[(row, Some(changed))].into()).unwrap();
}

fn nodes(of: &[u64]) -> BTreeSet<NodeId> {
    of.iter().copied().map(NodeId).collect()
}

/// Sums of the counts of all nodes.
fn counts(cluster: &TestCluster) -> RowComparisonCounts {
    cluster.nodes.values().map(Catalogue::row_comparison_counts).fold(
        RowComparisonCounts::default(),
        |sum, of| RowComparisonCounts {
            equal: sum.equal + of.equal,
            different: sum.different + of.different,
            incomplete: sum.incomplete + of.incomplete,
        },
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_not_compared_before_every_node_knows_comparisons() {
    let (cluster, _) = three_nodes().await;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let refused = cluster.node(leader).compare_rows(SYSTEM_GROUP).await;
    let needs = COMPARISON_CLUSTER_VERSION;
    let too_old = CompareRowsError::Propose(ProposeError::NotFinalized { needs, has: 1 });
    assert_eq!(refused, Err(too_old));
    assert!(!cluster.node(leader).has_row_comparisons());
    let other = cluster.node(if leader == 1 { 2 } else { 1 });
    let refused = other.compare_rows(SYSTEM_GROUP).await;
    let not_leader = matches!(refused, Err(CompareRowsError::Members(ChangeMembersError::NotLeader { .. })));
    assert!(not_leader, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_changed_behind_raft_names_its_node_on_all_nodes() {
    let (cluster, bucket) = three().await;
    let equal = compare(&cluster).await;
    assert_eq!((equal.differing, equal.without, equal.is_undecided), (nodes(&[]), nodes(&[]), false));
    for odd in 1..=3 {
        damage(cluster.node(odd), bucket.bucket_id());
        let found = compare(&cluster).await;
        // The first one alone is odd; with a second one of the same change, the third one is.
        let expected = match odd {
            1 => nodes(&[1]),
            2 => nodes(&[3]),
            _ => nodes(&[]),
        };
        assert_eq!((&found.differing, found.is_undecided), (&expected, false));
        assert_eq!(found.without, nodes(&[]));
        for node in cluster.nodes.values() {
            until(async || {
                let known = node.row_comparisons().remove(&SYSTEM_GROUP)?;
                (known.comparison == found).then_some(())
            })
            .await;
        }
    }
    let counts = counts(&cluster);
    assert!(counts.equal >= 2 && counts.different >= 2, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_between_comparisons_make_no_difference() {
    let (cluster, bucket) = three().await;
    for round in 0..3 {
        for number in 0..10 {
            cluster.put(1 + number % 3, &bucket, &format!("r{round}-{number}")).await;
        }
        let (found, ()) = tokio::join!(compare(&cluster), async {
            for number in 10..40 {
                cluster.put(1 + number % 3, &bucket, &format!("r{round}-{number}")).await;
            }
        });
        assert_eq!((found.differing, found.without), (nodes(&[]), nodes(&[])));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_answer_is_no_finding_and_hides_none() {
    let (mut cluster, bucket) = three().await;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let odd = (1..=3).find(|node| *node != leader).unwrap();
    let stopped = nodes(&[odd]);
    cluster.stop(odd).await;
    let found = compare(&cluster).await;
    assert_eq!((found.differing, &found.without), (nodes(&[]), &stopped));
    cluster.start(odd).await;
    damage(cluster.node(odd), bucket.bucket_id());
    let found = until(async || Some(compare(&cluster).await).filter(|found| found.without.is_empty())).await;
    assert_eq!(found.differing, stopped);
    cluster.stop(odd).await;
    let found = compare(&cluster).await;
    assert_eq!((&found.differing, &found.without), (&stopped, &stopped), "the finding stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_has_no_digest_after_a_restart_or_a_snapshot() {
    let (mut cluster, bucket) = three().await;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let other = (1..=3).find(|node| *node != leader).unwrap();
    let digest = |cluster: &TestCluster, index| {
        cluster.node(other).inner().groups.get(SYSTEM_GROUP).unwrap().row_digest(index)
    };
    let digested = async |cluster: &TestCluster| {
        let member = cluster.node(leader).inner().groups.get(SYSTEM_GROUP).unwrap();
        let command = Arc::new(Command::from(Change::CompareRows(CompareRows {})));
        let index = until(async || member.propose(Arc::clone(&command)).await.ok()).await.index;
        until(async || matches!(digest(cluster, index), RowDigest::Done(_)).then_some(())).await;
        index
    };
    let index = digested(&cluster).await;
    assert_eq!(digest(&cluster, index - 1), RowDigest::Absent);
    assert_eq!(digest(&cluster, index + 1000), RowDigest::Pending, "it may be applied later");
    cluster.stop(other).await;
    cluster.start(other).await;
    assert_eq!(digest(&cluster, index), RowDigest::Absent);

    let index = digested(&cluster).await;
    let installed = cluster.node(other).metrics().snapshots_installed;
    cluster.network.isolate(other);
    let last = until(async || {
        cluster.put(leader, &bucket, "later").await;
        let member = cluster.node(leader).inner().groups.get(SYSTEM_GROUP).unwrap();
        member.compact().await.ok()?;
        member.purged().filter(|purged| *purged > index)
    })
    .await;
    assert!(last > index);
    cluster.network.rejoin(other);
    until(async || (cluster.node(other).metrics().snapshots_installed > installed).then_some(())).await;
    assert_eq!(digest(&cluster, index), RowDigest::Absent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_recorded_if_the_leader_sent_it() {
    let (cluster, _) = three().await;
    let leader = cluster.leader(SYSTEM_GROUP).await;
    let others: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    let verdict = RowVerdict { index: 1 << 40, differing: vec![leader], ..RowVerdict::default() };
    let call = MemberCall::encode_request(SYSTEM_GROUP, MemberRequest::RowVerdict(verdict));
    let receiver = cluster.node(others[0]);
    assert!(receiver.serve_call(NodeId(others[1]), call.clone()).await.is_err());
    assert!(receiver.row_comparisons().is_empty());
    until(async || receiver.serve_call(NodeId(leader), call.clone()).await.ok()).await;
    let known = receiver.row_comparisons().remove(&SYSTEM_GROUP).unwrap();
    assert_eq!(known.comparison.differing, nodes(&[leader]));
    let earlier = RowVerdict { index: 5, ..RowVerdict::default() };
    let call = MemberCall::encode_request(SYSTEM_GROUP, MemberRequest::RowVerdict(earlier));
    receiver.serve_call(NodeId(leader), call).await.unwrap();
    let known = receiver.row_comparisons().remove(&SYSTEM_GROUP).unwrap();
    assert_eq!(known.comparison.index, 1 << 40, "a later one is known");
}
