//! The catalogue from outside: open, propose, read, reopen.

use super::testing::{bucket, delete, do_put, key, name, options};
use super::{Catalogue, DeleteBucketError};
use crate::command::{Command, Reply};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_put_is_read_also_after_reopening() {
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
        let command = Command::object(&b, &key(&format!("k{i:03}")), super::testing::NOW, delete());
        assert_eq!(catalogue.propose(command).await, Ok(Reply::Deleted { existed: true }));
    }
    assert_eq!(catalogue.delete_bucket(&name("data")).await, Ok(()));
    assert!(catalogue.bucket("data").is_none());
    drop(reader);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_in_memory_is_what_the_store_has() {
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
                    assert!(seen >= before, "{seen} after {before} was answered or listed");
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
    let command = Command::object(&b, &k, super::testing::NOW, delete());
    catalogue.propose(command).await.unwrap();
    assert_eq!(catalogue.object(b.bucket_id(), &k), Ok(None));
    catalogue.shutdown().await;
}
