//! Quotas of several groups: what is left when a group does not confirm a change.

use super::cluster_tests::{TestCluster, until, with_two_groups};
use super::groups::SYSTEM_GROUP;
use super::quota_tests::credential;
use super::{Catalogue, read};
use mlgw_common::NodeId;
use mlgw_formats::command::{Change, Command, SetKeyQuota};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::{Payer, Quota};
use std::path::Path;
use std::sync::Arc;

const GROUP: u32 = 1;
const QUOTA: Quota = Quota { bytes: Some(8), objects: None };

/// A server without peers with two groups, and an access key with a quota.
async fn with_limited_key(dir: &Path) -> Catalogue {
    let (catalogue, _) = with_two_groups(dir).await;
    credential(&catalogue, "AK").await;
    catalogue.change_key_quota("AK", |_| QUOTA).await.unwrap();
    catalogue
}

/// Quota of the key in a group, by the rows of a node.
fn quota_in_group(catalogue: &Catalogue) -> Option<Quota> {
    let state = catalogue.inner().state_of_group(GROUP).unwrap();
    read::<Payer>(&state, &payer_row("AK")).unwrap().unwrap_or_default().quota
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_deleted_although_a_group_does_not_confirm_it_and_its_quota_follows() {
    let mut cluster = TestCluster::new();
    with_limited_key(&cluster.dir(1)).await.shutdown().await;
    for node in 1..=3 {
        cluster.start(node).await;
    }
    cluster.grow(SYSTEM_GROUP, &[1, 2, 3]).await;
    for learner in [2, 3] {
        cluster.node(1).add_learner(GROUP, NodeId(learner)).await.unwrap();
    }
    cluster.lead(SYSTEM_GROUP, 2).await;
    let leader = cluster.node(2);
    until(async || leader.credential("AK").filter(|key| key.quota == Some(QUOTA))).await;

    // Only this node votes in the other group.
    cluster.network.isolate(1);
    leader.delete_credential("AK").await.unwrap();
    assert!(leader.credential("AK").is_none(), "the key is deleted");
    assert_eq!(quota_in_group(cluster.node(1)), Some(QUOTA), "its quota is not");
    cluster.network.rejoin(1);
    until(async || quota_in_group(cluster.node(1)).is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_that_differ_between_groups_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = with_limited_key(dir.path()).await;
    assert!(!catalogue.inner().has_missing_quotas());
    // The first step of a change that removes the quota.
    let set = SetKeyQuota { access_key: "AK".into(), quota: None };
    let set = Arc::new(Command::from(Change::SetKeyQuota(set)));
    catalogue.inner().propose_to(SYSTEM_GROUP, set).await.unwrap();
    assert!(catalogue.inner().has_missing_quotas());
    catalogue.inner().resume_quotas().await.unwrap();
    assert!(!catalogue.inner().has_missing_quotas());
    catalogue.shutdown().await;
}
