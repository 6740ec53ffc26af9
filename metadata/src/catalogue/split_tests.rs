//! Buckets that are split into ranges when they are created: over three groups, after crashes between the
//! steps, and with one group.

use super::model_tests::copy_dir;
use super::testing::{NOW, bucket, delete, do_put, key, name, new_bucket, options};
use super::{Catalogue, CatalogueOptions, CreateBucketError, DeleteBucketError, NewBucket, read};
use crate::view::RowReader as _;
use mlgw_common::SplitKeys;
use mlgw_formats::cluster_version::SERVING_CLUSTER_VERSION;
use mlgw_formats::command::{
    Change, Command, CreateBucket, DropBucket, FreezeBucket, MirrorBucket, Reply, SetBucketState, SplitKey,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::usage::bucket_row;
use mlgw_formats::schema::{Bucket, BucketState, BucketUsage};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

const SPLITS: [&str; 5] = ["d", "h", "m", "p", "t"];

/// A key in each range of a bucket that is split at [`SPLITS`].
const KEYS: [&str; 6] = ["a", "d", "i", "m", "p\0", "z"];

fn three_groups(dir: &Path) -> CatalogueOptions {
    CatalogueOptions { groups: 3, ..options(dir) }
}

fn split(bucket: &str) -> NewBucket {
    NewBucket { split_keys: SplitKeys::new(&SPLITS).unwrap(), ..new_bucket(bucket) }
}

fn groups_of_keys(catalogue: &Catalogue, of: &Bucket) -> [u32; KEYS.len()] {
    KEYS.map(|key| catalogue.inner.resident.group_of(of.bucket_id(), key.as_bytes()))
}

/// Keys of a bucket in the order of a listing.
fn listed(catalogue: &Catalogue, of: &Bucket, from: Bound<&[u8]>) -> Vec<String> {
    let reader = catalogue.reader();
    reader.scan(of.bucket_id(), from).map(|entry| entry.unwrap().0.as_str().to_owned()).collect()
}

async fn put_all(catalogue: &Catalogue, of: &Bucket) {
    for object in KEYS {
        assert!(matches!(do_put(catalogue, of, object, 1).await, Reply::Written(_)), "{object:?}");
    }
}

async fn delete_object(catalogue: &Catalogue, of: &Bucket, object: &str) {
    let deleted = catalogue.propose(Command::object(of, &key(object), NOW, delete())).await;
    assert_eq!(deleted, Ok(Reply::Deleted { existed: true }), "{object:?}");
}

async fn step(catalogue: &Catalogue, group: u32, change: Change) -> Reply {
    catalogue.inner.propose_to(group, Arc::new(Command::from(change))).await.unwrap()
}

/// The catalogue as the next start finds it after a kill.
async fn kill_and_reopen(catalogue: Catalogue, dir: &Path, next: &Path) -> Catalogue {
    copy_dir(dir, next);
    catalogue.shutdown().await;
    Catalogue::open(three_groups(next)).await.unwrap()
}

/// The rows that assign ranges of keys to groups.
fn partition_rows(catalogue: &Catalogue) -> Vec<(Vec<u8>, Vec<u8>)> {
    let state = catalogue.inner.state_of_group(0).unwrap();
    state.range(&Family::Partition.start(), &Family::Partition.end(), usize::MAX).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ranges_of_a_split_bucket_are_spread_evenly_and_listed_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(three_groups(dir.path())).await.unwrap();
    let data = catalogue.create_bucket(split("data")).await.unwrap();
    // Group 0 has the rows of the whole server, so it is the last of its equals.
    assert_eq!(groups_of_keys(&catalogue, &data), [1, 2, 0, 1, 2, 0]);
    let whole = bucket(&catalogue, "whole").await;
    assert_eq!(groups_of_keys(&catalogue, &whole), [1; KEYS.len()]);
    put_all(&catalogue, &data).await;
    do_put(&catalogue, &whole, "h", 1).await;
    catalogue.shutdown().await;

    let catalogue = Catalogue::open(three_groups(dir.path())).await.unwrap();
    assert_eq!(groups_of_keys(&catalogue, &data), [1, 2, 0, 1, 2, 0]);
    for group in 0..3 {
        let state = catalogue.inner.state_of_group(group).unwrap();
        let usage: Option<BucketUsage> = read(&state, &bucket_row(data.bucket_id())).unwrap();
        assert_eq!(usage.unwrap_or_default().objects, 2, "group {group}");
    }
    assert_eq!(catalogue.usage(data.bucket_id()).unwrap().objects, 6);
    assert_eq!(listed(&catalogue, &data, Bound::Unbounded), KEYS);
    for (at, object) in KEYS.into_iter().enumerate() {
        assert_eq!(listed(&catalogue, &data, Bound::Included(object.as_bytes())), KEYS[at..]);
        assert_eq!(listed(&catalogue, &data, Bound::Excluded(object.as_bytes())), KEYS[at + 1..]);
        assert!(catalogue.object(data.bucket_id(), &key(object)).unwrap().is_some());
    }
    assert_eq!(listed(&catalogue, &whole, Bound::Unbounded), ["h"]);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_bucket_is_deleted_when_all_its_ranges_are_empty() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(three_groups(dir.path())).await.unwrap();
    let ranges = partition_rows(&catalogue);
    let data = catalogue.create_bucket(split("data")).await.unwrap();
    for object in KEYS {
        do_put(&catalogue, &data, object, 1).await;
        assert_eq!(catalogue.delete_bucket(&name("data")).await, Err(DeleteBucketError::NotEmpty));
        // Every range accepts writes again.
        put_all(&catalogue, &data).await;
        for object in KEYS {
            delete_object(&catalogue, &data, object).await;
        }
    }
    catalogue.delete_bucket(&name("data")).await.unwrap();
    assert!(catalogue.bucket("data").is_none());
    assert_eq!(partition_rows(&catalogue), ranges);
    for group in 0..3 {
        let state = catalogue.inner.state_of_group(group).unwrap();
        let mirrors = state.range(&Family::Mirror.start(), &Family::Mirror.end(), usize::MAX).unwrap();
        assert_eq!(mirrors, [], "group {group}");
    }
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_creation_is_finished_in_all_groups_of_a_split_bucket() {
    for mirrored in 0..=3 {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1"), dir.path().join("2"));
        let catalogue = Catalogue::open(three_groups(&one)).await.unwrap();
        catalogue.raise_cluster_version(SERVING_CLUSTER_VERSION).await.unwrap();
        let split = |(key, group): (&str, u32)| SplitKey { key: key.to_owned(), group };
        let (name, owner) = ("data".to_owned(), "o".to_owned());
        let splits = [("d", 2), ("m", 0)].map(split).to_vec();
        let create = CreateBucket { name, owner, group: Some(1), splits, ..CreateBucket::default() };
        let made = step(&catalogue, 0, Change::CreateBucket(create)).await;
        let Reply::Bucket(made) = made else { panic!("{made:?}") };
        for group in [1, 2, 0].into_iter().take(mirrored) {
            step(&catalogue, group, Change::MirrorBucket(MirrorBucket::from(&made))).await;
        }
        let catalogue = kill_and_reopen(catalogue, &one, &two).await;
        let data = catalogue.bucket("data").unwrap();
        assert_eq!(groups_of_keys(&catalogue, &data), [1, 2, 2, 0, 0, 0]);
        put_all(&catalogue, &data).await;
        assert_eq!(listed(&catalogue, &data, Bound::Unbounded), KEYS, "{mirrored} mirrors");
        catalogue.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_deletion_is_finished_in_all_groups_of_a_split_bucket() {
    for (frozen, dropped) in [(0, 0), (2, 0), (3, 0), (3, 1), (3, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1"), dir.path().join("2"));
        let catalogue = Catalogue::open(three_groups(&one)).await.unwrap();
        let ranges = partition_rows(&catalogue);
        let bucket_id = catalogue.create_bucket(split("data")).await.unwrap().id;
        let state = BucketState::Deleting as i32;
        let set = SetBucketState { name: "data".into(), bucket_id, state };
        step(&catalogue, 0, Change::SetBucketState(set)).await;
        for group in 0..frozen {
            step(&catalogue, group, Change::FreezeBucket(FreezeBucket { bucket_id, epoch: None })).await;
        }
        for group in 0..dropped {
            step(&catalogue, group, Change::DropBucket(DropBucket { bucket_id, rows_max: 10, run: None }))
                .await;
        }
        let catalogue = kill_and_reopen(catalogue, &one, &two).await;
        assert!(catalogue.bucket("data").is_none());
        assert_eq!(partition_rows(&catalogue), ranges);
        let again = catalogue.create_bucket(split("data")).await.unwrap();
        put_all(&catalogue, &again).await;
        catalogue.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_keys_have_no_effect_with_one_group() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let ranges = partition_rows(&catalogue);
    let data = catalogue.create_bucket(split("data")).await.unwrap();
    put_all(&catalogue, &data).await;
    assert_eq!(listed(&catalogue, &data, Bound::Unbounded), KEYS);
    assert_eq!(partition_rows(&catalogue), ranges);
    assert_eq!(catalogue.cluster_version(), 1);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_split_bucket_of_a_server_raises_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let needs = SERVING_CLUSTER_VERSION;
    let build = |cluster_version| CatalogueOptions { cluster_version, ..three_groups(dir.path()) };
    let catalogue = Catalogue::open(build(needs)).await.unwrap();
    let whole = bucket(&catalogue, "whole").await;
    let exists = catalogue.create_bucket(split("whole")).await;
    assert_eq!(exists, Err(CreateBucketError::Exists(Arc::clone(&whole))));
    assert_eq!(groups_of_keys(&catalogue, &whole), [1; KEYS.len()], "it is not split later");
    assert_eq!(catalogue.cluster_version(), 1);
    catalogue.create_bucket(split("data")).await.unwrap();
    assert_eq!(catalogue.cluster_version(), needs);
    catalogue.shutdown().await;
    assert!(Catalogue::open(build(needs - 1)).await.is_err(), "it would not find the keys");
}
