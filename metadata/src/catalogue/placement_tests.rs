//! Buckets spread over the groups of a server without peers, and groups whose directories are lost.

use super::model_tests::random_commands;
use super::testing::{bucket, do_put, key, name, options};
use super::{Catalogue, CatalogueOptions, read};
use crate::offline::{CheckpointDir, Offline, RebuildLog, ignore_progress, rebuild};
use mlgw_common::NodeId;
use mlgw_formats::schema::{Bucket, BucketUsage, Mirror, Payer, Quota};
use mlgw_formats::schema::{bucket as bucket_schema, quota::payer_row, usage::bucket_row};
use std::path::Path;
use std::sync::Arc;

/// An id that no bucket of a test has.
const BEYOND_ALL_BUCKETS: u64 = 1 << 40;

fn groups(dir: &Path, groups: u32) -> CatalogueOptions {
    CatalogueOptions { groups, ..options(dir) }
}

fn three_groups(dir: &Path) -> CatalogueOptions {
    groups(dir, 3)
}

/// The groups with objects of a bucket.
fn groups_with(catalogue: &Catalogue, of: &Bucket) -> Vec<u32> {
    let has = |state: &crate::store::state::StateDb| {
        let usage: Option<BucketUsage> = read(state, &bucket_row(of.bucket_id())).unwrap();
        usage.is_some_and(|usage| usage.objects > 0)
    };
    let all = catalogue.inner.groups.all();
    all.iter().filter(|group| has(&group.state())).map(|group| group.id).collect()
}

async fn with_an_object(catalogue: &Catalogue, name: &str) -> Arc<Bucket> {
    let made = bucket(catalogue, name).await;
    do_put(catalogue, &made, "a", 0).await;
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_buckets_are_spread_over_all_groups_and_old_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(groups(dir.path(), 1)).await.unwrap();
    let old = with_an_object(&catalogue, "old").await;
    assert_eq!(catalogue.inner.resident.ranges_by_group(), [(0, 1)].into());
    catalogue.shutdown().await;

    let catalogue = Catalogue::open(three_groups(dir.path())).await.unwrap();
    let mut made = Vec::new();
    for i in 0..6 {
        made.push(with_an_object(&catalogue, &format!("new-{i}")).await);
    }
    let found: Vec<_> = made.iter().map(|of| groups_with(&catalogue, of)).collect();
    assert_eq!(found, [[1], [2], [1], [2], [0], [1]]);
    assert_eq!(groups_with(&catalogue, &old), [0]);
    assert_eq!(catalogue.delete_bucket(&name("new-0")).await, Err(super::DeleteBucketError::NotEmpty));
    catalogue.shutdown().await;

    let catalogue = Catalogue::open(groups(dir.path(), 1)).await.unwrap();
    for of in made.iter().chain([&old]) {
        assert!(catalogue.object(of.bucket_id(), &key("a")).unwrap().is_some(), "{}", of.name);
    }
    let later = with_an_object(&catalogue, "later").await;
    assert_eq!(groups_with(&catalogue, &later), [2], "all groups stay");
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_buckets_are_in_groups_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    // A range that no bucket uses, like the one at the beginning of a divided catalogue.
    let partitions = vec![(BEYOND_ALL_BUCKETS, Vec::new(), 2)];
    let catalogue =
        Catalogue::open(CatalogueOptions { partitions, ..three_groups(dir.path()) }).await.unwrap();
    assert_eq!(catalogue.inner.resident.ranges_by_group(), [].into(), "no bucket has a range");
    let mut found = Vec::new();
    for name in ["a", "b", "c"] {
        let made = with_an_object(&catalogue, &format!("bucket-{name}")).await;
        found.extend(groups_with(&catalogue, &made));
    }
    assert_eq!(found, [1, 2, 0]);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_is_in_the_groups_of_its_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(three_groups(dir.path())).await.unwrap();
    let made = with_an_object(&catalogue, "data").await;
    let quota = Quota { bytes: Some(5), objects: None };
    catalogue.change_bucket_quota("data", |_| quota).await.unwrap();
    catalogue.shutdown().await;
    let catalogue = Catalogue::open(groups(dir.path(), 4)).await.unwrap();
    let known = |group: u32| -> Option<Mirror> {
        let state = catalogue.inner.state_of_group(group).unwrap();
        read(&state, &bucket_schema::mirror_row(made.bucket_id())).unwrap()
    };
    assert_eq!(known(1).unwrap().quota, Some(quota));
    assert!([0, 2, 3].into_iter().all(|group| known(group).is_none()));
    assert_eq!(catalogue.bucket("data").unwrap().quota, Some(quota));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_group_gets_the_quotas_of_access_keys() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(groups(dir.path(), 1)).await.unwrap();
    super::quota_tests::credential(&catalogue, "AK").await;
    let quota = Quota { bytes: Some(5), objects: None };
    catalogue.change_key_quota("AK", |_| quota).await.unwrap();
    catalogue.shutdown().await;
    let catalogue = Catalogue::open(groups(dir.path(), 2)).await.unwrap();
    let payer: Option<Payer> = read(&catalogue.inner.state_of_group(1).unwrap(), &payer_row("AK")).unwrap();
    assert_eq!(payer.unwrap_or_default().quota, Some(quota));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_do_what_the_model_does_in_placed_buckets() {
    for seed in 20..23 {
        random_commands(seed, 6, three_groups).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_group_is_refused_and_reported() {
    for lost in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(three_groups(dir.path())).await.unwrap();
        for i in 0..3 {
            with_an_object(&catalogue, &format!("b-{i}")).await;
        }
        catalogue.inner.compact().await.unwrap();
        catalogue.shutdown().await;
        std::fs::remove_dir_all(dir.path().join(format!("group-{lost}"))).unwrap();
        for setting in [1, 3] {
            let refused = Catalogue::open(groups(dir.path(), setting)).await;
            assert!(refused.is_err(), "group {lost} with {setting} groups set");
        }
        let (scratch, mut findings) = (dir.path().join("scratch"), Vec::new());
        let opened =
            Offline::open(dir.path(), &scratch, NodeId::SINGLE, None, &mut findings, &ignore_progress);
        assert!(opened.unwrap().is_none());
        assert!(findings.iter().any(|finding| finding.is_damage()), "{findings:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_younger_than_the_checkpoint_is_rebuilt_from_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (live, checkpoints) = (dir.path().join("catalogue"), dir.path().join("checkpoints"));
    let with = |groups| CatalogueOptions {
        groups,
        checkpoints: Some(super::CheckpointOptions {
            dir: checkpoints.clone(),
            every: std::time::Duration::from_secs(3600),
        }),
        ..options(&live)
    };
    let catalogue = Catalogue::open(with(1)).await.unwrap();
    with_an_object(&catalogue, "old").await;
    catalogue.inner.checkpoint().await.unwrap();
    catalogue.shutdown().await;
    let catalogue = Catalogue::open(with(2)).await.unwrap();
    let young = with_an_object(&catalogue, "young").await;
    assert_eq!(groups_with(&catalogue, &young), [1]);
    catalogue.shutdown().await;

    for group in ["group-0", "group-1"] {
        std::fs::remove_dir_all(live.join(group)).unwrap();
    }
    let from = CheckpointDir { path: &checkpoints, is_marked: false };
    let scratch = dir.path().join("scratch");
    rebuild(&live, from, RebuildLog::Own, None, &scratch, &mut Vec::new(), &ignore_progress).unwrap();
    let catalogue = Catalogue::open(with(1)).await.unwrap();
    assert!(catalogue.object(young.bucket_id(), &key("a")).unwrap().is_some());
    assert!(catalogue.bucket("old").is_some());
    catalogue.shutdown().await;
}
