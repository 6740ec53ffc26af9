//! Length of the log, its disk space, and what a start replays.

use super::model_tests::copy_dir;
use super::testing::{NOW, bucket, delete, do_put, key, options, put, version};
use super::{Catalogue, CatalogueOptions, Durability, ProposeError};
use mlgw_formats::command::{
    Command, CompleteUpload, CreateUpload, NamedPart, ObjectChange, PutPart, Reject, Reply,
};
use mlgw_formats::schema::{Bucket, Pair, PartRecord, Upload};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn bytes_under(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_under(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_frees_the_disk_space_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let small = CatalogueOptions { log_bytes_max: u64::MAX, ..options(dir.path()) };
    let catalogue = Catalogue::open(small).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    for i in 0..8_000 {
        // The same few keys: the state stays small, the log grows.
        do_put(&catalogue, &b, &format!("k{}", i % 10), 1).await;
    }
    let log = dir.path().join("log");
    let before = bytes_under(&log);
    assert!(before > 800 << 10, "{before} bytes of log");
    catalogue.inner.compact().await.unwrap();
    let after = bytes_under(&log);
    assert!(after < before / 10, "{after} of {before} bytes are left");
    assert_eq!(catalogue.metrics().log_bytes, 0);
    assert!(bytes_under(dir.path()) < 4 << 20);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_log_is_purged_automatically() {
    let dir = tempfile::tempdir().unwrap();
    let small = CatalogueOptions { log_bytes_max: 200_000, ..options(dir.path()) };
    let catalogue = Catalogue::open(small).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    let mut i = 0;
    while catalogue.metrics().snapshots == 0 {
        do_put(&catalogue, &b, &format!("k{}", i % 10), 1).await;
        i += 1;
        assert!(i < 1_000_000, "no snapshot after {i} commands");
    }
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_after_a_snapshot_is_kept_while_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let small = CatalogueOptions { log_bytes_max: 200_000, ..options(dir.path()) };
    let catalogue = Catalogue::open(small).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    let sent = catalogue.inner.groups.system().raft.get_snapshot().await.unwrap().unwrap();
    let before = catalogue.metrics();
    let mut i = 0;
    while catalogue.metrics().log_bytes < before.log_bytes + 500_000 {
        do_put(&catalogue, &b, &format!("k{}", i % 10), 1).await;
        i += 1;
    }
    assert_eq!(catalogue.metrics().snapshots, before.snapshots, "nothing is purged");
    while catalogue.metrics().snapshots == before.snapshots {
        do_put(&catalogue, &b, &format!("k{}", i % 10), 1).await;
        i += 1;
        assert!(i < 1_000_000, "the log has no limit");
    }
    drop(sent);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombstones_are_flushed_automatically() {
    let dir = tempfile::tempdir().unwrap();
    let often = CatalogueOptions { tombstone_check: Duration::from_millis(50), ..options(dir.path()) };
    let catalogue = Catalogue::open(CatalogueOptions { durability: Durability::Os, ..often }).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    // A first table: RocksDB would only move a table with nothing below it.
    catalogue.inner.compact().await.unwrap();
    for i in 0..5_000 {
        do_put(&catalogue, &b, &format!("k{i}"), 0).await;
        catalogue.propose(Command::object(&b, &key(&format!("k{i}")), NOW, delete())).await.unwrap();
    }
    let state = catalogue.inner.groups.system().state();
    let mut looks = 0;
    // The last few may stay unflushed.
    while state.unflushed_tombstones().unwrap() >= 5_000 {
        looks += 1;
        assert!(looks < 6_000, "they were not flushed");
        mlgw_common::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(state.tombstones_after_compaction().unwrap(), 0);
    drop(state);
    catalogue.shutdown().await;
}

/// After a start all bytes of the log's files count, purged or not; proposers must not wait forever for that.
#[tokio::test]
async fn proposals_after_reopening_a_purged_log_are_not_blocked() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    do_put(&catalogue, &b, "before", 1).await;
    catalogue.inner.compact().await.unwrap();
    assert_eq!(catalogue.inner.log_bytes(), 0);
    catalogue.shutdown().await;
    let catalogue =
        Catalogue::open(CatalogueOptions { log_bytes_max: 1, ..options(dir.path()) }).await.unwrap();
    assert!(catalogue.inner.log_bytes() > 100, "its files");
    for n in 0..5 {
        do_put(&catalogue, &b, &format!("after-{n}"), 1).await;
    }
    catalogue.shutdown().await;
}

/// Puts records of 2 KiB with 64 concurrent writers.
async fn put_many(catalogue: Catalogue, b: Arc<Bucket>, commands: usize) {
    let writers = (0..64).map(|w| {
        let (catalogue, b) = (catalogue.clone(), Arc::clone(&b));
        tokio::spawn(async move {
            for i in 0..commands / 64 {
                let body = catalogue.body_id().await.unwrap();
                let mut version = version(body, 1);
                version.metadata = vec![Pair::new("large", "x".repeat(2000))];
                let command = Command::object(&b, &key(&format!("{w}-{}", i % 100)), NOW, put(version));
                catalogue.propose(command).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

/// With `MLGW_LOG_COMMANDS=5000000` it tests the bound of a large disk, with at most 256 MiB of files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_on_disk_stays_within_its_bound_under_sustained_writes() {
    let long = std::env::var("MLGW_LOG_COMMANDS").ok().map(|text| text.parse::<usize>().unwrap());
    let (commands, log_bytes_max, files_max) = match long {
        Some(commands) => (commands, 128 << 20, 256 << 20),
        // A purge leaves write-ahead log of up to two memtables' size.
        None => (50_000, 4 << 20, 40 << 20),
    };
    let dir = tempfile::tempdir().unwrap();
    let options = CatalogueOptions { log_bytes_max, durability: Durability::Os, ..options(dir.path()) };
    let catalogue = Catalogue::open(options).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    let log = dir.path().join("log");
    let mut peak = 0;
    let work = put_many(catalogue.clone(), b, commands);
    tokio::pin!(work);
    while mlgw_common::time::timeout(Duration::from_millis(5), &mut work).await.is_err() {
        peak = peak.max(bytes_under(&log));
    }
    let appended = catalogue.metrics().log_bytes_appended;
    println!("{commands} commands, {appended} bytes appended, at most {peak} on the disk");
    assert!(peak <= files_max, "{peak} bytes of log");
    assert!(appended > 2 * files_max, "{appended} bytes are too few for this test");
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_commands_survive_a_killed_process() {
    for durability in [Durability::Full, Durability::Os] {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1"), dir.path().join("2"));
        let with = |dir: &Path| CatalogueOptions { durability, ..options(dir) };
        let catalogue = Catalogue::open(with(&one)).await.unwrap();
        let b = bucket(&catalogue, "data").await;
        for i in 0..300 {
            do_put(&catalogue, &b, &format!("k{i}"), 1).await;
            if i == 150 {
                catalogue.inner.compact().await.unwrap();
            }
        }
        copy_dir(&one, &two);
        catalogue.shutdown().await;
        let catalogue = Catalogue::open(with(&two)).await.unwrap();
        for i in 0..300 {
            assert!(catalogue.object(b.bucket_id(), &key(&format!("k{i}"))).unwrap().is_some(), "k{i}");
        }
        assert_eq!(catalogue.usage(b.bucket_id()).unwrap().objects, 300);
        assert!(catalogue.metrics().commands_applied >= 149, "the log was replayed");
        catalogue.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_ids_are_unique_across_kills() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("1"), dir.path().join("2"));
    let catalogue = Catalogue::open(options(&one)).await.unwrap();
    let last = catalogue.body_id().await.unwrap();
    copy_dir(&one, &two);
    catalogue.shutdown().await;
    let catalogue = Catalogue::open(options(&two)).await.unwrap();
    assert!(catalogue.body_id().await.unwrap() > last);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_of_ten_thousand_parts_completes_and_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    let body = catalogue.body_id().await.unwrap();
    let upload = Upload { body_id: body.0, key: "big".into(), ..Upload::default() };
    let object = |change| Command::object(&b, &key("big"), NOW, change);
    catalogue.propose(object(ObjectChange::CreateUpload(CreateUpload { upload }))).await.unwrap();
    let mut parts = Vec::new();
    for number in 1..=10_000 {
        let size = 5 << 20;
        let extents = vec![super::testing::extent(7, size)];
        let part = PartRecord { size, extents, ..PartRecord::default() };
        let put = ObjectChange::PutPart(PutPart { body_id: body.0, number, part });
        let Ok(Reply::Part { seq }) = catalogue.propose(object(put)).await else { panic!("part {number}") };
        parts.push(NamedPart { number, seq });
    }
    let before = catalogue.metrics().log_bytes_appended;
    let complete = CompleteUpload { body_id: body.0, parts, etag: "e-10000".into(), ..Default::default() };
    let done = catalogue.propose(object(ObjectChange::CompleteUpload(complete))).await;
    assert!(matches!(done, Ok(Reply::Written(_))), "{done:?}");
    assert!(catalogue.metrics().log_bytes_appended - before < 1 << 20);
    let version = catalogue.object(b.bucket_id(), &key("big")).unwrap().unwrap();
    assert_eq!((version.part_count, version.size), (10_000, 10_000 * (5 << 20)));
    catalogue.propose(object(super::testing::delete())).await.unwrap();
    catalogue.inner.release_all().await.unwrap();
    assert_eq!(catalogue.segment_usage(7.into()).unwrap().bytes, 0);
    assert_eq!(catalogue.reader().parts(b.bucket_id(), &key("big"), body, 0).count(), 0);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_future_neither_cancels_nor_blocks_other_commands() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    for i in 0..200 {
        let object = format!("k{i}");
        let dropped = tokio::spawn({
            let (catalogue, b, object) = (catalogue.clone(), Arc::clone(&b), object.clone());
            async move { do_put(&catalogue, &b, &object, 1).await }
        });
        tokio::task::yield_now().await;
        dropped.abort();
        do_put(&catalogue, &b, &object, 2).await;
    }
    assert_eq!(catalogue.usage(b.bucket_id()).unwrap().objects, 200);
    let clone = catalogue.clone();
    catalogue.shutdown().await;
    let late = Command::object(&b, &key("late"), NOW, super::testing::delete());
    assert_eq!(clone.propose(late).await, Err(ProposeError::Stopping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_put_twice_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    let put = || super::testing::put(super::testing::version(5.into(), 1));
    catalogue.propose(Command::object(&b, &key("k"), NOW, put())).await.unwrap();
    let again = catalogue.propose(Command::object(&b, &key("k"), NOW, put())).await;
    assert_eq!(again, Err(ProposeError::Rejected(Reject::BodyInUse)));
    catalogue.shutdown().await;
}
