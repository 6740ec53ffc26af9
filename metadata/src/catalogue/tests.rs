//! The catalogue from outside: open, propose, read, reopen.

use super::testing::{NOW, bucket, delete, do_put, key, name, new_bucket, options, put, version};
use super::{Catalogue, CatalogueOptions, DeleteBucketError, NewBucket, ProposeError};
use crate::identity::ExpectedServer;
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeName};
use mlgw_formats::cluster_version::SERVING_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, PutUploadKey, Reply, SetClusterVersion};
use mlgw_formats::schema::{Binding, Bucket, ObjectVersion};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_readable_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    for i in 0..100 {
        do_put(&catalogue, &b, &format!("k{i:03}"), 10).await;
    }
    assert_eq!(catalogue.object(b.bucket_id(), &key("k042")).unwrap().unwrap().size, 10);
    assert_eq!(catalogue.usage(b.bucket_id()).unwrap().objects, 100);
    catalogue.shutdown().await;

    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    assert_eq!(catalogue.metrics().commands_applied, 0, "nothing was replayed");
    let b = catalogue.bucket("data").unwrap();
    let reader = catalogue.reader();
    let keys: Vec<String> =
        reader.scan(b.bucket_id(), Bound::Unbounded).map(|e| e.unwrap().0.as_str().to_owned()).collect();
    assert_eq!(keys, (0..100).map(|i| format!("k{i:03}")).collect::<Vec<_>>());
    assert_eq!(catalogue.delete_bucket(&name("data")).await, Err(DeleteBucketError::NotEmpty));
    for i in 0..100 {
        let command = Command::object(&b, &key(&format!("k{i:03}")), NOW, delete());
        assert_eq!(catalogue.propose(command).await, Ok(Reply::Deleted { existed: true }));
    }
    assert_eq!(catalogue.delete_bucket(&name("data")).await, Ok(()));
    assert!(catalogue.bucket("data").is_none());
    drop(reader);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_upload_id_key_is_permanent() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    // As in a directory of an earlier version: bodies were allocated before there was a key.
    let given = catalogue.body_id().await.unwrap();
    let first = catalogue.upload_key([1; 16]).await.unwrap();
    assert_eq!(first.key, [1; 16]);
    assert!(first.bodies_from > given.get(), "{first:?}");
    assert_eq!(catalogue.upload_key([2; 16]).await.unwrap(), first);
    let next = catalogue.body_id().await.unwrap();
    assert!(next.get() < first.bodies_from, "this range was leased before the key was made");
    catalogue.shutdown().await;

    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    assert_eq!(catalogue.upload_key([3; 16]).await.unwrap(), first);
    assert!(catalogue.body_id().await.unwrap().get() >= first.bodies_from);
    // Another member proposes its own key at the same time: nothing changes.
    let put = Change::PutUploadKey(PutUploadKey { key: vec![4; 16] });
    assert_eq!(catalogue.propose(Command::from(put)).await, Ok(Reply::Done));
    assert_eq!(catalogue.upload_key([5; 16]).await.unwrap(), first);
    let short = Change::PutUploadKey(PutUploadKey { key: vec![4; 15] });
    assert!(catalogue.propose(Command::from(short)).await.is_err());
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_catalogue_encrypts_every_upload_id() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    assert_eq!(catalogue.upload_key([1; 16]).await.unwrap().bodies_from, 1);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_timeline_records_where_the_one_before_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut ended: Vec<(u64, u64)> = Vec::new();
    for incarnation in [5, 6, 6, 7] {
        let own =
            Identity { cluster: ClusterId(1), node: NodeName(2), incarnation: Incarnation(incarnation) };
        let earlier = (5..incarnation).map(Incarnation).collect();
        let lineage = Lineage { own, earlier, marking: true, ..Lineage::default() };
        let expected = Some(ExpectedServer { lineage, floor: 0 });
        let catalogue = Catalogue::open(CatalogueOptions { expected, ..options(dir.path()) }).await.unwrap();
        let (timeline, earlier) = catalogue.timelines().unwrap().unwrap();
        assert_eq!((timeline.cluster, timeline.incarnation), (1, incarnation));
        let body = catalogue.body_id().await.unwrap().get();
        let found: Vec<_> = earlier.ended.iter().map(|of| (of.incarnation, of.bodies_before)).collect();
        assert_eq!(found.len() as u64, incarnation - 5);
        for ((of, before), (was, last)) in found.iter().zip(&ended) {
            assert!(of == was && last < before && *before < body, "{found:?}, {ended:?}, {body}");
        }
        ended.retain(|(of, _)| *of != incarnation);
        ended.push((incarnation, body));
        catalogue.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_objects_match_the_store() {
    const VERSIONS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    do_put(&catalogue, &b, "k", 0).await;
    let (k, listed) = (key("k"), |catalogue: &Catalogue| {
        let reader = catalogue.reader();
        reader
            .scan(b.bucket_id(), Bound::Unbounded)
            .map(|e| e.unwrap().1.summary().unwrap().size)
            .next()
            .unwrap()
    });
    let answered = AtomicU64::new(0);
    let runtime = tokio::runtime::Handle::current();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while answered.load(SeqCst) < VERSIONS {
                    let before = answered.load(SeqCst).max(listed(&catalogue));
                    let seen = catalogue.object(b.bucket_id(), &k).unwrap().unwrap().size;
                    assert!(seen >= before, "{seen} after {before} was returned or listed");
                }
            });
        }
        scope.spawn(|| {
            for size in 1..=VERSIONS {
                runtime.block_on(do_put(&catalogue, &b, "k", size));
                answered.store(size, SeqCst);
            }
        });
    });
    assert_eq!(catalogue.object(b.bucket_id(), &k).unwrap().unwrap().size, VERSIONS);
    let misses = catalogue.metrics().object_misses;
    assert_eq!(catalogue.object(b.bucket_id(), &k).unwrap().unwrap().size, VERSIONS);
    assert_eq!(catalogue.metrics().object_misses, misses, "it came from memory");
    let command = Command::object(&b, &k, NOW, delete());
    catalogue.propose(command).await.unwrap();
    assert_eq!(catalogue.object(b.bucket_id(), &k), Ok(None));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_in_the_background_bypass_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let bucket = bucket(&catalogue, "data").await;
    for i in 0..2000 {
        do_put(&catalogue, &bucket, &format!("k{i}"), 1).await;
    }
    // Rows in the memtable have no blocks.
    let state = catalogue.inner.groups.system().state();
    state.flush().unwrap();
    let bytes_after = |reader: super::Reader| {
        assert_eq!(reader.scan(bucket.bucket_id(), Bound::Unbounded).count(), 2000);
        state.cached_bytes().unwrap()
    };
    let before = state.cached_bytes().unwrap();
    assert!(bytes_after(catalogue.background_reader()) < before + 64_000, "data blocks are not kept");
    assert!(bytes_after(catalogue.reader()) > before + 64_000, "those of a request are");
    drop(state);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_build_does_not_open_a_catalogue_of_a_later_cluster_version() {
    let dir = tempfile::tempdir().unwrap();
    let build = |cluster_version| CatalogueOptions { cluster_version, ..options(dir.path()) };
    let catalogue = Catalogue::open(build(2)).await.unwrap();
    let bucket = bucket(&catalogue, "data").await;
    assert_eq!(catalogue.cluster_version(), 1);
    let later = Change::SetClusterVersion(SetClusterVersion { version: 2 });
    let refused = catalogue.propose(Command::from(later)).await;
    assert_eq!(refused, Err(ProposeError::NotFinalized { needs: 2, has: 1 }));
    assert!(catalogue.raise_cluster_version(3).await.is_err(), "this build does not know it");
    catalogue.raise_cluster_version(2).await.unwrap();
    assert_eq!(catalogue.cluster_version(), 2);
    assert!(catalogue.raise_cluster_version(1).await.is_err(), "it never falls");
    do_put(&catalogue, &bucket, "a", 1).await;
    catalogue.shutdown().await;

    let refused = Catalogue::open(build(1)).await.err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|why| why.contains("cluster has version 2")), "{refused:?}");
    let catalogue = Catalogue::open(build(2)).await.unwrap();
    assert_eq!(catalogue.cluster_version(), 2);
    assert!(catalogue.object(bucket.bucket_id(), &key("a")).unwrap().is_some());
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_modified_grows_from_cluster_version_4_on() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let local = bucket(&catalogue, "data").await;
    let binding = Some(Binding { upstream: "origin".into(), ..Binding::default() });
    let bound = catalogue.create_bucket(NewBucket { binding, ..new_bucket("bound") }).await.unwrap();
    let written_at = async |bucket: &Arc<Bucket>, seconds: i64| {
        let body = catalogue.body_id().await.unwrap();
        let modified_ms = NOW.0 + seconds * 1000;
        let change = put(ObjectVersion { modified_ms, ..version(body, 1) });
        let command = catalogue.object_command(bucket, &key("k"), NOW, change);
        let reply = catalogue.propose(command).await;
        let Ok(Reply::Written(written)) = reply else { panic!("{reply:?}") };
        let stored = catalogue.object(bucket.bucket_id(), &key("k")).unwrap().unwrap();
        assert_eq!(stored.modified_ms, written.modified_ms);
        (written.modified_ms - NOW.0) / 1000
    };
    assert_eq!(written_at(&local, 9).await, 9);
    assert_eq!(written_at(&local, 5).await, 5, "a build of version 3 stores it as it was sent");
    catalogue.raise_cluster_version(SERVING_CLUSTER_VERSION).await.unwrap();
    assert_eq!(written_at(&local, 3).await, 6);
    assert_eq!(written_at(&local, 4).await, 7);
    assert_eq!(written_at(&local, 8).await, 8);
    assert_eq!(written_at(&bound, 9).await, 9);
    assert_eq!(written_at(&bound, 5).await, 5, "write-back compares it with the times of the origin");
    catalogue.shutdown().await;
}
