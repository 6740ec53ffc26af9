//! Tests of remote-backed buckets over an origin in memory: the requests that it receives, and that reads
//! return its objects.

mod ahead;
mod evicting;
mod keeping;
mod origin;
mod rebinding;
mod warming;
mod writing;

use super::{CacheState, CachedBucket, Freshness, OpenedObject, RemoteBackedBuckets};
use crate::copies::{Copies, CopiesOptions};
use crate::policy_driver::PolicyDriver;
use mlgw_common::clock::ManualClock;
use mlgw_common::limits::{COPY_BLOCK_BYTES as BLOCK, MIB};
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_formats::schema::{Binding, Bucket};
use mlgw_remote::origin::{ObjectPart, OriginError};
use mlgw_segments::decisions::Decisions;
use mlgw_segments::fair::DiskQueues;
use mlgw_segments::flash::{FlashBudget, FlashWriteCause};
use mlgw_segments::memory::MemoryTier;
use origin::{MemoryOrigin, MemoryOriginFault};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

struct Bench {
    room: tempfile::TempDir,
    origin: Arc<MemoryOrigin>,
    clock: Arc<ManualClock>,
    bound: RemoteBackedBuckets,
}

/// Opens the remote-backed buckets, as soon as the previous owner has closed the directory.
async fn open(
    dir: &Path,
    origin: Arc<MemoryOrigin>,
    clock: Arc<ManualClock>,
    capacity_bytes: u64,
    policy_driver: Option<PolicyDriver>,
) -> RemoteBackedBuckets {
    let options = CopiesOptions {
        dir: dir.to_owned(),
        lineage: mlgw_common::Lineage::default(),
        capacity_bytes,
        reserve_bytes: 0,
        memory_bytes: 1 << 20,
        clock: clock.clone(),
        decisions: Decisions::new(clock.clone()),
        queues: DiskQueues::default(),
        flash: FlashBudget::new(clock.clone()),
        open_files_max: 512,
        listener: policy_driver.as_ref().map(PolicyDriver::lost_block_listener),
    };
    // The previous owner is about to close the database.
    let mut tries = 0;
    let copies = loop {
        match Copies::open(options.clone(), MemoryTier::new(0)).await {
            Ok(copies) => break copies,
            Err(error) => assert!(tries < 10_000 && error.to_string().contains("lock"), "{error}"),
        }
        tries += 1;
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    };
    let origins = HashMap::from([("lake".to_owned(), origin as Arc<dyn mlgw_remote::origin::Origin>)]);
    policy_driver.iter().for_each(|driver| driver.start(&copies));
    RemoteBackedBuckets::new(origins, copies, policy_driver, Freshness::default(), clock)
}

impl Bench {
    async fn new() -> Self {
        Self::with_capacity(1 << 30).await
    }

    async fn with_capacity(capacity_bytes: u64) -> Self {
        let bench = Self::reopenable(capacity_bytes).await;
        leak(&bench.bound);
        bench
    }

    /// Creates a bench whose buckets are opened again later.
    async fn reopenable(capacity_bytes: u64) -> Self {
        let room = tempfile::tempdir().unwrap();
        let (origin, clock) = (Arc::new(MemoryOrigin::default()), Arc::new(ManualClock::default()));
        clock.set(Timestamp::from_secs(1_000_000));
        let bound = open(room.path(), origin.clone(), clock.clone(), capacity_bytes, None).await;
        Self { room, origin, clock, bound }
    }

    /// Reopens the buckets, as after a restart.
    async fn reopened(self) -> Self {
        self.bound.copies().unwrap().shutdown().await;
        let Self { room, origin, clock, bound } = self;
        drop(bound);
        let bound = open(room.path(), origin.clone(), clock.clone(), 1 << 30, None).await;
        leak(&bound);
        Self { room, origin, clock, bound }
    }

    fn bucket(&self) -> CachedBucket {
        let binding = Binding { upstream: "lake".into(), prefix: "p/".into(), ..Binding::default() };
        self.bound.bucket(&Bucket { id: 7, ..Bucket::default() }, &binding).unwrap()
    }

    /// Stores another version of the object `k`.
    fn put(&self, seed: u8, bytes: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..bytes).map(|at| (at / 251) as u8 ^ (at as u8) ^ seed).collect();
        self.origin.put("p/k", content.clone());
        content
    }

    async fn read(&self, part: ObjectPart) -> Result<(Vec<u8>, CacheState), OriginError> {
        let bucket = self.bucket();
        let opened = bucket.open(&key("k"), part).await?;
        let range = of(part, opened.object.size);
        Ok((drain(&bucket, &opened, range).await?, opened.state))
    }

    async fn whole(&self) -> Vec<u8> {
        self.read(ObjectPart::Whole).await.unwrap().0
    }

    fn advance(&self, secs: i64) {
        use mlgw_common::Clock as _;
        self.clock.set(Timestamp(self.clock.now().as_millis() + secs * 1000));
    }

    fn active_fetches(&self) -> usize {
        let fills = self.bound.inner.as_ref().unwrap().fetches.lock();
        fills.values().filter(|fill| !fill.is_waiting()).count()
    }

    /// Waits until no block is being fetched or kept.
    async fn wait_quiescent(&self) {
        while self.active_fetches() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Keeps the index open until the process ends: the last owner may be a writer thread, and the process must
/// not exit while that closes a database.
fn leak(bound: &RemoteBackedBuckets) {
    std::mem::forget(bound.clone());
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::from_bytes(name.as_bytes()).unwrap()
}

fn of(part: ObjectPart, size: u64) -> Range<u64> {
    match part {
        ObjectPart::Whole => 0..size,
        ObjectPart::Range { first, end } => first..end.min(size),
        ObjectPart::From(first) => first..size,
        ObjectPart::Last(bytes) => size.saturating_sub(bytes)..size,
    }
}

async fn drain(
    bucket: &CachedBucket,
    opened: &OpenedObject,
    range: Range<u64>,
) -> Result<Vec<u8>, OriginError> {
    let mut reader = bucket.read(&key("k"), opened, range, None);
    let mut read = Vec::new();
    while let Some(piece) = reader.next().await? {
        read.extend_from_slice(&piece);
    }
    Ok(read)
}

#[tokio::test]
async fn a_small_object_is_fetched_whole_once() {
    let bench = Bench::new().await;
    for bytes in [1, 5000, 3 * MIB as usize + 17] {
        let content = bench.put(1, bytes);
        bench.advance(60);
        assert!(
            bench.read(ObjectPart::Range { first: 0, end: 9 }).await.unwrap().0 == content[..bytes.min(9)]
        );
        bench.wait_quiescent().await;
        bench.origin.take_log();
        assert!(bench.whole().await == content);
        assert_eq!(
            bench.read(ObjectPart::Last(1)).await.unwrap(),
            (content[bytes - 1..].to_vec(), CacheState::Hit)
        );
        assert_eq!(bench.origin.take_log(), [""; 0]);
    }
}

#[tokio::test]
async fn reads_beyond_the_flash_budget_are_passed_through_and_not_kept() {
    let bench = Bench::new().await;
    let content = bench.put(1, 5000);
    let flash = bench.bound.copies().unwrap().flash().clone();
    flash.set_budget(24);
    flash.record_write(FlashWriteCause::Client, 100);
    for _ in 0..2 {
        assert!(bench.whole().await == content);
        bench.wait_quiescent().await;
        assert!(!bench.origin.take_log().is_empty(), "it is not cached");
    }
    let refused = bench.bound.copies().unwrap().metrics().refused_bytes;
    assert!(refused >= 10_000, "each time: {refused}");
    assert_eq!(flash.written()[FlashWriteCause::Copies as usize].1, 0);
    flash.set_budget(0);
    assert!(bench.whole().await == content);
    bench.wait_quiescent().await;
    bench.origin.take_log();
    assert!(bench.whole().await == content);
    assert_eq!(bench.origin.take_log(), [""; 0]);
    assert!(flash.written()[FlashWriteCause::Copies as usize].1 >= 5000);
}

#[tokio::test]
async fn each_block_of_a_large_object_is_fetched_once_however_many_read() {
    let bench = Arc::new(Bench::new().await);
    let content = Arc::new(bench.put(2, 2 * BLOCK as usize + 4321));
    let readers: Vec<_> = (0..64)
        .map(|_| {
            let (bench, content) = (bench.clone(), content.clone());
            tokio::spawn(async move { assert!(bench.whole().await == *content) })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    // One response carries the whole object.
    assert_eq!(bench.origin.take_log(), ["whole"]);
    bench.wait_quiescent().await;
    assert!(bench.whole().await == *content && bench.origin.take_log().is_empty());
}

#[tokio::test]
async fn of_two_responses_with_the_same_object_one_is_read_on_and_no_reader_waits_for_the_other() {
    let bench = Arc::new(Bench::new().await);
    let content = Arc::new(bench.put(2, 2 * BLOCK as usize + 4321));
    let (held, mut readers) = (Arc::new(Semaphore::new(0)), Vec::new());
    for requests in 1..=2 {
        bench.origin.fail(MemoryOriginFault::Hold(held.clone()));
        let (reading, content) = (bench.clone(), content.clone());
        readers.push(tokio::spawn(async move { assert!(reading.whole().await == *content) }));
        while bench.origin.keys_so_far().len() < requests {
            tokio::task::yield_now().await;
        }
        // As if a write of another key had ended: later lookups do not share earlier ones.
        bench.bound.inner.as_ref().unwrap().write_order.invalidate_all();
    }
    held.add_permits(2);
    for reader in readers {
        mlgw_common::time::timeout(Duration::from_secs(60), reader)
            .await
            .expect("it waits for ever")
            .unwrap();
    }
    assert_eq!(bench.origin.take_log(), ["whole", "whole"]);
}

#[tokio::test]
async fn more_cold_objects_than_memory_permits_are_still_read() {
    let bench = Arc::new(Bench::new().await);
    let bytes = 2 * MIB as usize;
    let content = |n: usize| vec![n as u8; bytes + n];
    let objects = 2 * mlgw_common::limits::FETCH_BLOCKS_MAX;
    (0..objects).for_each(|n| bench.origin.put(&format!("p/{n}"), content(n)));
    let readers: Vec<_> = (0..objects)
        .map(|n| {
            let bucket = bench.bucket();
            tokio::spawn(async move {
                let opened = bucket.open(&key(&n.to_string()), ObjectPart::Whole).await.unwrap();
                let mut reader = bucket.read(&key(&n.to_string()), &opened, 0..opened.object.size, None);
                let mut read = Vec::new();
                while let Some(piece) = reader.next().await.unwrap() {
                    read.extend_from_slice(&piece);
                }
                assert!(read == vec![n as u8; bytes + n]);
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(bench.origin.take_log().len(), objects);
}

#[tokio::test]
async fn a_range_fetches_the_blocks_that_it_touches_only() {
    let bench = Bench::new().await;
    let content = bench.put(3, 4 * BLOCK as usize);
    let (first, end) = (2 * BLOCK + 5, 2 * BLOCK + 9);
    let read = bench.read(ObjectPart::Range { first, end }).await.unwrap();
    assert_eq!(read, (content[first as usize..end as usize].to_vec(), CacheState::Miss));
    bench.wait_quiescent().await;
    let across = ObjectPart::Range { first: 3 * BLOCK - 2, end: 3 * BLOCK + 2 };
    assert_eq!(bench.read(across).await.unwrap().0, content[3 * BLOCK as usize - 2..][..4]);
    let blocks = [(2 * BLOCK, 3 * BLOCK), (3 * BLOCK, 4 * BLOCK)].map(|(a, b)| format!("{a}-{b}"));
    assert_eq!(bench.origin.take_log(), blocks);
}

#[tokio::test]
async fn the_end_of_an_unknown_object_is_one_request_and_then_it_is_known() {
    let bench = Bench::new().await;
    let content = bench.put(4, 2 * BLOCK as usize);
    assert_eq!(bench.read(ObjectPart::Last(8)).await.unwrap().0, content[content.len() - 8..]);
    assert_eq!(bench.origin.take_log(), ["-8"]);
    assert_eq!(bench.read(ObjectPart::Last(100)).await.unwrap().0, content[content.len() - 100..]);
    assert_eq!(bench.origin.take_log(), [format!("{BLOCK}-{}", 2 * BLOCK)]);
}

#[tokio::test]
async fn metadata_is_valid_for_a_while_and_then_revalidated_with_one_request() {
    let bench = Bench::new().await;
    let content = bench.put(5, 5000);
    bench.whole().await;
    bench.wait_quiescent().await;
    bench.advance(29);
    assert_eq!(bench.read(ObjectPart::Whole).await.unwrap(), (content.clone(), CacheState::Hit));
    assert_eq!(bench.origin.take_log(), ["whole"]);
    bench.advance(2);
    assert_eq!(
        bench.read(ObjectPart::Whole).await.unwrap(),
        (content, CacheState::Hit),
        "it has not changed"
    );
    assert_eq!(bench.origin.take_log(), ["whole"]);
    let changed = bench.put(6, 7000);
    bench.advance(31);
    assert_eq!(bench.read(ObjectPart::Whole).await.unwrap(), (changed, CacheState::Miss));
    assert_eq!(bench.origin.take_log(), ["whole"]);
    bench.origin.objects.lock().clear();
    bench.advance(31);
    for _ in 0..2 {
        assert_eq!(bench.read(ObjectPart::Whole).await, Err(OriginError::NoSuchKey));
    }
    assert_eq!(bench.origin.take_log(), ["whole"], "its absence is cached, too");
    let back = bench.put(7, 10);
    bench.advance(2);
    assert_eq!(bench.read(ObjectPart::Whole).await.unwrap().0, back);
}

#[tokio::test]
async fn an_expired_copy_is_served_only_while_the_origin_is_unreachable() {
    let bench = Bench::new().await;
    let content = bench.put(8, 5000);
    bench.whole().await;
    bench.wait_quiescent().await;
    let read_with = async |error: OriginError, secs| {
        bench.advance(secs);
        bench.origin.fail(MemoryOriginFault::Fail(error));
        bench.read(ObjectPart::Whole).await
    };
    assert_eq!(read_with(OriginError::TimedOut, 31).await, Ok((content.clone(), CacheState::Stale)));
    assert_eq!(read_with(OriginError::Failed(500), 31).await, Ok((content.clone(), CacheState::Stale)));
    let denied = OriginError::Denied("403".into());
    assert_eq!(read_with(denied.clone(), 31).await, Err(denied));
    assert_eq!(read_with(OriginError::TimedOut, 24 * 3600).await, Err(OriginError::TimedOut));
    assert_eq!(bench.read(ObjectPart::Whole).await.unwrap().0, content, "it is asked again");
}

#[tokio::test]
async fn a_change_midway_is_an_error_and_never_a_mix() {
    let bench = Bench::new().await;
    let old = bench.put(9, 6 * BLOCK as usize);
    let bucket = bench.bucket();
    let opened = bucket.open(&key("k"), ObjectPart::From(0)).await.unwrap();
    let mut reader = bucket.read(&key("k"), &opened, 0..opened.object.size, None);
    let first = reader.next().await.unwrap().unwrap();
    let new = bench.put(10, 6 * BLOCK as usize);
    let mut read = first.to_vec();
    let end = loop {
        match reader.next().await {
            Ok(Some(piece)) => read.extend_from_slice(&piece),
            end => break end,
        }
    };
    assert_eq!(end, Err(OriginError::Changed));
    assert!(read[..] == old[..read.len()], "the earlier bytes belong to the old version");
    bench.wait_quiescent().await;
    assert!(bench.whole().await == new);
}

#[tokio::test]
async fn a_connection_that_breaks_is_gone_on_with_where_it_broke() {
    let bench = Bench::new().await;
    let content = bench.put(11, 3_000_000);
    bench.origin.fail(MemoryOriginFault::Cut(900_000));
    bench.origin.fail(MemoryOriginFault::Cut(600_000));
    assert!(bench.whole().await == content);
    assert_eq!(bench.origin.take_log(), ["whole", "900000-3000000", "1500000-3000000"]);
    bench.put(12, 3_000_000);
    bench.advance(31);
    for _ in 0..4 {
        bench.origin.fail(MemoryOriginFault::Cut(0));
    }
    assert!(bench.read(ObjectPart::Whole).await.is_err(), "not forever");
}

#[tokio::test]
async fn an_empty_object_and_a_range_beyond_the_end_return_metadata() {
    let bench = Bench::new().await;
    bench.put(13, 0);
    assert_eq!(bench.whole().await, b"");
    bench.advance(31);
    assert_eq!(bench.whole().await, b"");
    bench.put(14, 10);
    bench.advance(31);
    let opened = bench.bucket().open(&key("k"), ObjectPart::From(BLOCK + 5)).await.unwrap();
    assert_eq!(opened.object.size, 10);
}

#[tokio::test]
async fn a_head_sends_one_request_and_reuses_the_metadata_of_a_get() {
    let bench = Bench::new().await;
    bench.put(15, 5000);
    let bucket = bench.bucket();
    for _ in 0..2 {
        assert_eq!(bucket.head(&key("k")).await.unwrap().object.size, 5000);
    }
    assert_eq!(bench.origin.take_log(), ["head"]);
    bench.advance(31);
    bench.read(ObjectPart::Range { first: 0, end: 1 }).await.unwrap();
    bucket.head(&key("k")).await.unwrap();
    assert_eq!(bench.origin.take_log().len(), 1);
    bench.origin.objects.lock().clear();
    bench.advance(31);
    assert_eq!(bucket.head(&key("k")).await.err(), Some(OriginError::NoSuchKey));
}

#[tokio::test]
async fn a_copy_that_goes_bad_is_fetched_again() {
    let bench = Bench::new().await;
    for bytes in [5000, BLOCK as usize + 5000] {
        let content = bench.put(16, bytes);
        bench.advance(31);
        bench.whole().await;
        bench.wait_quiescent().await;
        for file in std::fs::read_dir(bench.room.path().join("segments")).unwrap() {
            let path = file.unwrap().path();
            let mut found = std::fs::read(&path).unwrap();
            let at = found.len() - 100;
            found[at] ^= 1;
            std::fs::write(&path, found).unwrap();
        }
        bench.origin.take_log();
        assert!(bench.whole().await == content);
        // One block per segment.
        assert!((1..=2).contains(&bench.origin.take_log().len()));
        bench.wait_quiescent().await;
        assert!(bench.whole().await == content && bench.origin.take_log().is_empty());
    }
}

#[tokio::test]
async fn copies_survive_a_restart() {
    let bench = Bench::reopenable(1 << 30).await;
    let content = bench.put(17, BLOCK as usize + 5000);
    bench.whole().await;
    bench.wait_quiescent().await;
    bench.origin.take_log();
    let bench = bench.reopened().await;
    assert!(bench.whole().await == content && bench.origin.take_log().is_empty());
}

#[tokio::test]
async fn a_refresh_revalidates_everything() {
    let bench = Bench::new().await;
    let content = bench.put(18, 5000);
    bench.whole().await;
    bench.wait_quiescent().await;
    assert_eq!((bench.bucket().refresh("other"), bench.bucket().refresh("")), (0, 1));
    bench.origin.take_log();
    assert_eq!(bench.read(ObjectPart::Whole).await.unwrap(), (content, CacheState::Hit));
    assert_eq!(bench.origin.take_log(), ["whole"]);
}

#[tokio::test]
async fn copies_stay_within_their_room_and_what_is_read_stays() {
    let capacity = 24 * MIB;
    let bench = Bench::with_capacity(capacity).await;
    let bucket = bench.bucket();
    let hot: Vec<u8> = vec![7; 500_000];
    bench.origin.put("p/hot", hot.clone());
    let read = async |name: String| {
        let opened = bucket.open(&key(&name), ObjectPart::Whole).await.unwrap();
        let mut reader = bucket.read(&key(&name), &opened, 0..opened.object.size, None);
        let mut read = Vec::new();
        while let Some(piece) = reader.next().await.unwrap() {
            read.extend_from_slice(&piece);
        }
        read
    };
    for n in 0..160_u32 {
        let content = vec![n as u8; 700_000];
        bench.origin.put(&format!("p/{n}"), content.clone());
        assert!(read(format!("{n}")).await == content && read("hot".into()).await == hot);
        bench.wait_quiescent().await;
        while bench.bound.copies().unwrap().metrics().used_bytes > capacity / 100 * 94 {
            mlgw_common::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let metrics = bench.bound.copies().unwrap().metrics();
    assert!(metrics.evicted_bytes > 60_000_000 && metrics.used_bytes <= capacity, "{metrics:?}");
    let requests = bench.origin.take_log().len();
    assert!(requests < 160 + 20, "constantly read data was fetched repeatedly: {requests}");
}
