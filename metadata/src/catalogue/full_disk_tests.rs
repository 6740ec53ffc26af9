//! A catalogue on a disk without a free byte: it answers reads, its writes wait for space, and nothing that
//! was acknowledged is lost. No test ends the process, as a failed write of the log would.

use super::testing::{NOW, bucket, do_put, key, options, put, version};
use super::{Catalogue, CatalogueOptions, ProposeError};
use crate::store::space_waits::SpaceWaits;
use crate::store::space_waits::tests::SmallDisk;
use mlgw_common::BodyId;
use mlgw_common::time::{sleep, timeout};
use mlgw_formats::command::Command;
use mlgw_formats::schema::{Bucket, ObjectVersion, Pair};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Longest wait for something that does not depend on the speed of the machine.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Bytes of each object's row, so that a few hundred of them fill the space that the log has already.
const ROW_BYTES: usize = 64 << 10;
const WRITERS: u64 = 4;

fn strict(dir: &Path) -> CatalogueOptions {
    CatalogueOptions { fatal: Arc::new(|why| panic!("{why}")), ..options(dir) }
}

fn large(body: u64) -> ObjectVersion {
    let metadata = vec![Pair::new("filler", "x".repeat(ROW_BYTES))];
    ObjectVersion { metadata, ..version(BodyId(body), 1) }
}

async fn put_large(catalogue: &Catalogue, bucket: &Bucket, object: &str) -> Result<(), ProposeError> {
    let body = catalogue.body_id().await?;
    catalogue.propose(Command::object(bucket, &key(object), NOW, put(large(body.0)))).await.map(drop)
}

/// Puts objects until `stop`. Returns the number of those that were stored.
async fn put_objects(catalogue: Catalogue, bucket: Arc<Bucket>, writer: u64, stop: Arc<AtomicU64>) -> u64 {
    let mut stored = 0;
    while stop.load(Ordering::Relaxed) == 0 {
        match put_large(&catalogue, &bucket, &format!("{writer}-{stored}")).await {
            Ok(()) => stored += 1,
            // The log may exceed its bound, because no purge ends while the disk is full.
            Err(ProposeError::Overloaded) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    stored
}

/// Ends the waits for space when a test fails: what waits keeps the test from ending.
struct EndedAtLast(Arc<SpaceWaits>);

impl Drop for EndedAtLast {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT_MAX, reached).await.unwrap_or_else(|_| panic!("not reached: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_wait_on_a_full_disk_while_reads_go_on_and_nothing_is_lost() {
    let disk = SmallDisk::new(96);
    let dir = disk.path().join("catalogue");
    let catalogue = Catalogue::open(strict(&dir)).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    do_put(&catalogue, &b, "before", 7).await;
    let stop = Arc::<AtomicU64>::default();
    let eaten = disk.fill();
    let space = Arc::clone(catalogue.inner.log.space());
    let _ended = EndedAtLast(Arc::clone(&space));
    let start = |writer| {
        let (catalogue, b, stop) = (catalogue.clone(), Arc::clone(&b), Arc::clone(&stop));
        tokio::spawn(put_objects(catalogue, b, writer, stop))
    };
    let writers: Vec<_> = (0..WRITERS).map(start).collect();
    // The log writes into the space that it has, and then needs more.
    until("a write waits", || space.is_waiting()).await;
    let read = catalogue.object(b.bucket_id(), &key("before")).unwrap().unwrap();
    assert_eq!(read.size, 7, "reads go on");
    until("a node with a full disk counts as slow", || catalogue.is_log_slow()).await;
    let of_sync = catalogue.clone();
    let syncing = tokio::task::spawn_blocking(move || of_sync.sync_log());

    std::fs::remove_file(eaten).unwrap();
    until("nothing waits any more", || !space.is_waiting()).await;
    timeout(WAIT_MAX, syncing).await.expect("a sync waits for space too").unwrap().unwrap();
    stop.store(1, Ordering::Relaxed);
    let mut stored = Vec::new();
    for writer in writers {
        stored.push(timeout(WAIT_MAX, writer).await.expect("writes go on").unwrap());
    }
    do_put(&catalogue, &b, "after", 8).await;
    // What a kill would leave.
    let copy = tempfile::tempdir().unwrap();
    while !is_copied(&dir, copy.path()) {
        std::fs::remove_dir_all(copy.path()).unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    check(copy.path(), &stored).await;
    catalogue.shutdown().await;
    check(&dir, &stored).await;
}

/// Copies a directory. Returns false if a file changed meanwhile.
fn is_copied(from: &Path, to: &Path) -> bool {
    let before = files_in(from);
    std::fs::create_dir_all(to).unwrap();
    let copy = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    copy.success() && before.is_ok_and(|before| files_in(from).is_ok_and(|after| after == before))
}

/// Paths, sizes and times of the files below a directory.
fn files_in(dir: &Path) -> std::io::Result<Vec<(PathBuf, u64, SystemTime)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let (path, found) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        match found.is_dir() {
            true => files.extend(files_in(&path)?),
            false => files.push((path, found.len(), found.modified()?)),
        }
    }
    files.sort();
    Ok(files)
}

async fn check(dir: &Path, stored: &[u64]) {
    let catalogue = Catalogue::open(strict(dir)).await.unwrap();
    let b = catalogue.bucket("data").unwrap();
    let size = |object: &str| {
        let found = catalogue.object(b.bucket_id(), &key(object)).unwrap();
        found.unwrap_or_else(|| panic!("{object} is lost")).size
    };
    assert_eq!([size("before"), size("after")], [7, 8]);
    for (writer, count) in stored.iter().enumerate() {
        for number in 0..*count {
            assert_eq!(size(&format!("{writer}-{number}")), 1);
        }
    }
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalogue_that_waits_for_space_can_be_stopped_and_goes_on_after_the_next_start() {
    let disk = SmallDisk::new(96);
    let dir = disk.path().join("catalogue");
    let catalogue = Catalogue::open(strict(&dir)).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    do_put(&catalogue, &b, "before", 7).await;
    let eaten = disk.fill();
    let space = Arc::clone(catalogue.inner.log.space());
    let _ended = EndedAtLast(Arc::clone(&space));
    let writer = {
        let (catalogue, b) = (catalogue.clone(), Arc::clone(&b));
        tokio::spawn(async move {
            let mut stored = 0;
            while put_large(&catalogue, &b, &format!("0-{stored}")).await.is_ok() {
                stored += 1;
            }
            stored
        })
    };
    until("a write waits", || space.is_waiting()).await;
    timeout(WAIT_MAX, catalogue.shutdown()).await.expect("a stop does not wait for space");
    let stored = timeout(WAIT_MAX, writer).await.expect("the waiting write fails").unwrap();
    std::fs::remove_file(eaten).unwrap();
    let catalogue = Catalogue::open(strict(&dir)).await.unwrap();
    do_put(&catalogue, &b, "after", 8).await;
    catalogue.shutdown().await;
    check(&dir, &[stored]).await;
}
