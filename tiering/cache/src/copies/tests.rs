//! Tests of copies on real files: blocks are added, evicted and reclaimed, and compared with the accounts of
//! a listener.

mod churn;
mod model;

use super::{Copies, CopiesOptions, EvictedBlocks, KeptBlock, LostBlockListener, block_id, ok_or_log};
use bytes::Bytes;
use mlgw_common::ObjectKey;
use mlgw_common::clock::ManualClock;
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::{COPY_BLOCK_BYTES as BLOCK, MIB};
use mlgw_common::time::Instant;
use mlgw_formats::decision_words::{DecisionKind, DecisionReason};
use mlgw_formats::schema::{BlockName, CopyRecord, CopySegment, Extent, ObjectVersion};
use mlgw_metadata::{CleanBatch, CleanIndex};
use mlgw_segments::decisions::{DecisionFilter, Decisions};
use mlgw_segments::fair::{DiskQueues, Lane};
use mlgw_segments::flash::FlashBudget;
use mlgw_segments::hot::{FileCall, HotOptions, Intercept, InterceptAction};
use mlgw_segments::memory::MemoryTier;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BUCKET: BucketId = BucketId(7);
/// Limit of a wait for something that takes milliseconds.
const SOON: Duration = Duration::from_secs(30);
/// Error of a file system without holes.
const EOPNOTSUPP: i32 = 95;
/// Overhead of a segment besides its live records, where all edges are blocks of their own: header, trailer,
/// and the file system's metadata of a file with holes.
const SLACK_BYTES: u64 = 32 << 10;

/// Accounts of the kept blocks.
#[derive(Default)]
struct BlockAccounts(Mutex<BTreeSet<u64>>);

impl LostBlockListener for BlockAccounts {
    fn on_lost(&self, id: u64) {
        assert!(self.0.lock().remove(&id), "an absent block is not reported as lost");
    }
}

/// File system without holes.
struct NoHoles;

impl Intercept for NoHoles {
    fn before(&self, call: FileCall, _: Option<SegmentId>) -> InterceptAction {
        if call == FileCall::Punch { InterceptAction::Fail(EOPNOTSUPP) } else { InterceptAction::Go }
    }
}

/// Copies that stay open until the process ends unless they are taken: the last owner of the index may be a
/// writer thread, and the process must not exit while that closes a database.
struct LeakedCopies(Option<Copies>);

impl Drop for LeakedCopies {
    fn drop(&mut self) {
        std::mem::forget(self.0.take());
    }
}

impl std::ops::Deref for LeakedCopies {
    type Target = Copies;

    fn deref(&self) -> &Copies {
        self.0.as_ref().unwrap()
    }
}

struct Bench {
    room: tempfile::TempDir,
    decisions: Decisions,
    copies: LeakedCopies,
    accounts: Arc<BlockAccounts>,
    capacity_bytes: u64,
    holes: bool,
}

impl Bench {
    async fn new(capacity_bytes: u64) -> Self {
        Self::over(tempfile::tempdir().unwrap(), capacity_bytes, true).await
    }

    async fn over(room: tempfile::TempDir, capacity_bytes: u64, holes: bool) -> Self {
        let clock = Arc::new(ManualClock::default());
        let (decisions, book) = (Decisions::new(clock.clone()), Arc::<BlockAccounts>::default());
        let options = CopiesOptions {
            dir: room.path().to_owned(),
            lineage: mlgw_common::Lineage::default(),
            capacity_bytes,
            reserve_bytes: 0,
            memory_bytes: 1 << 20,
            clock: clock.clone(),
            decisions: decisions.clone(),
            queues: DiskQueues::default(),
            flash: FlashBudget::new(clock),
            open_files_max: 512,
            listener: Some(book.clone()),
        };
        let tuned = |options: &mut HotOptions| {
            if !holes {
                options.intercept = Some(Arc::new(NoHoles));
            }
        };
        // The previous owner is about to close the database.
        let mut tries = 0;
        let copies = loop {
            match Copies::open_tuned(options.clone(), MemoryTier::new(0), tuned).await {
                Ok(copies) => break LeakedCopies(Some(copies)),
                Err(error) => assert!(tries < 10_000 && error.to_string().contains("lock"), "{error}"),
            }
            tries += 1;
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        };
        for block in all(&copies) {
            book.0.lock().insert(block.id);
        }
        Self { room, decisions, copies, accounts: book, capacity_bytes, holes }
    }

    /// Closes the store, and returns the directory as soon as it is free.
    async fn end(mut self, is_orderly: bool) -> tempfile::TempDir {
        let copies = self.copies.0.take().unwrap();
        if is_orderly {
            copies.shutdown().await;
        }
        drop(copies);
        for _ in 0..10_000 {
            // The previous owner has closed the index when it opens.
            if CleanIndex::open(self.room.path(), 1 << 20).is_ok() {
                return self.room;
            }
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("the index is still in use");
    }

    async fn reopened(self) -> Self {
        let (capacity_bytes, holes) = (self.capacity_bytes, self.holes);
        Self::over(self.end(true).await, capacity_bytes, holes).await
    }

    /// Records an object of `size` bytes.
    fn record_object(&self, name: &str, version: u64, size: u64) -> ObjectVersion {
        let object = ObjectVersion { etag: format!("{version}"), size, ..ObjectVersion::default() };
        let copy = CopyRecord { object, validated_ms: 1, with_checksums: false, read_ms: 0 };
        self.copies.record_metadata(BUCKET, &key(name), copy).object
    }

    /// Keeps `bytes` bytes as a block; a block that is not read by offsets may have fewer bytes than its
    /// size.
    async fn keep(
        &self,
        name: &str,
        object: &ObjectVersion,
        number: u64,
        bytes: usize,
    ) -> Option<Vec<Extent>> {
        let content = Bytes::from(content(name, &object.etag, number, bytes));
        let key = key(name);
        let kept = self
            .copies
            .keep(BUCKET, &key, object, number, vec![content], DecisionReason::Read.into())
            .await?;
        self.accounts.0.lock().insert(block_id(BUCKET, &key, number));
        Some(kept)
    }

    /// Keeps a small object.
    async fn put(&self, name: &str, bytes: usize) -> ObjectVersion {
        let object = self.record_object(name, 1, bytes as u64);
        self.keep(name, &object, 0, bytes).await.unwrap();
        self.copies.find(BUCKET, &key(name)).unwrap().object
    }

    /// Returns the bytes of a block, if it is kept and can be read.
    async fn read(&self, name: &str, number: u64) -> Option<Vec<u8>> {
        let object = self.copies.find(BUCKET, &key(name))?.object;
        let extents = self.copies.block_extents(&object, number)?;
        let (mut read, mut first) = (Vec::new(), number * BLOCK);
        for extent in &extents {
            let range = 0..extent.logical_bytes;
            match self.copies.read(extent, object.body(), first, range, Lane::Training).await {
                Ok(piece) => read.extend_from_slice(&piece),
                Err(_) => {
                    self.copies.invalidate_block(BUCKET, &key(name), &object, number, &extents);
                    return None;
                }
            }
            first += extent.logical_bytes;
        }
        assert!(read == content(name, &object.etag, number, read.len()), "{name} {number}");
        Some(read)
    }

    async fn evict(&self, ids: &[u64]) -> EvictedBlocks {
        self.accounts.0.lock().retain(|id| !ids.contains(id));
        self.copies.evict_blocks(ids, DecisionReason::Policy.into()).await
    }

    fn segments(&self) -> impl Iterator<Item = std::path::PathBuf> {
        let files = std::fs::read_dir(self.room.path().join("segments")).unwrap();
        files.map(|file| file.unwrap().path())
    }

    /// Returns the disk space that the segments take.
    fn disk_bytes(&self) -> u64 {
        self.segments().filter_map(|file| file.metadata().ok()).map(|file| file.blocks() * 512).sum()
    }

    /// Checks that all accounts agree. The space of a removal in progress counts as used until it is freed,
    /// so a difference may go away.
    async fn check(&self) {
        let kept: BTreeSet<u64> = all(&self.copies).map(|block| block.id).collect();
        assert_eq!(*self.accounts.0.lock(), kept, "the accounts are correct");
        let inner = &self.copies.inner;
        let mut live = std::collections::BTreeMap::<u64, u64>::new();
        let mut from = None;
        loop {
            let (found, next) = super::scan::page(&inner.index, from).unwrap();
            for extent in found.iter().flat_map(|found| &found.extents) {
                *live.entry(extent.segment).or_default() +=
                    u64::from(extent.head_bytes) + extent.stored_bytes;
            }
            from = next;
            if from.is_none() {
                break;
            }
        }
        for (segment, known) in inner.map.all_sealed() {
            assert_eq!(known.live_bytes, live.get(&segment.0).copied().unwrap_or(0), "{segment}");
        }
        let until = Instant::now() + SOON;
        loop {
            let (used, disk) = (self.copies.metrics().used_bytes, self.disk_bytes());
            let slack = (self.segments().count() as u64 + 1) * SLACK_BYTES;
            if used.abs_diff(disk) <= slack {
                return;
            }
            assert!(Instant::now() < until, "{used} bytes are reported as used, the disk has {disk}");
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Returns everything that is kept, by a scan in pages.
fn all(copies: &Copies) -> impl Iterator<Item = KeptBlock> {
    let (mut blocks, mut from) = (Vec::new(), None);
    loop {
        let page = copies.kept_blocks(from);
        blocks.extend(page.blocks);
        from = page.next;
        if from.is_none() {
            return blocks.into_iter();
        }
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name).unwrap()
}

fn id(name: &str, number: u64) -> u64 {
    block_id(BUCKET, &key(name), number)
}

/// Returns the bytes of a block, which differ for each block and are never zero.
fn content(name: &str, etag: &str, number: u64, bytes: usize) -> Vec<u8> {
    let seed = mlgw_policies::block_id(number, etag.len() as u64, &format!("{name}/{etag}"), number);
    let word = |at: usize| (seed ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7] | 1;
    (0..bytes).map(word).collect()
}

/// Copies a directory that is in use; repeats until the copy is consistent.
fn copy_dir(from: &Path, to: &Path) {
    let files = || -> std::io::Result<std::collections::BTreeMap<_, _>> {
        let file = |file: std::io::Result<std::fs::DirEntry>| {
            let file = file?;
            Ok((file.file_name(), file.metadata()?.len()))
        };
        std::fs::read_dir(from)?.map(file).collect()
    };
    loop {
        drop(std::fs::remove_dir_all(to));
        std::fs::create_dir_all(to).unwrap();
        let Ok(before) = files() else { continue };
        let copied = before.keys().all(|name| std::fs::copy(from.join(name), to.join(name)).is_ok());
        if copied && files().is_ok_and(|after| after == before) {
            return;
        }
    }
}

#[tokio::test]
async fn evicted_blocks_release_their_disk_space_and_neighbours_stay() {
    let bench = Bench::new(256 * MIB).await;
    for n in 0..60 {
        bench.put(&format!("{n}"), 100_000 + n).await;
    }
    let before = bench.disk_bytes();
    let half: Vec<u64> = (0..60).step_by(2).map(|n| id(&format!("{n}"), 0)).collect();
    let gone = bench.evict(&half).await;
    assert_eq!((gone.blocks, gone.bytes), (30, (0..60).step_by(2).map(|n| 100_000 + n).sum()));
    // Except for two file system blocks at the edges of each.
    assert!(gone.freed_bytes >= 30 * (100_000 - 2 * 4096), "{gone:?}");
    assert!(before - bench.disk_bytes() >= gone.freed_bytes - SLACK_BYTES);
    for n in 0..60_u64 {
        assert_eq!(bench.read(&format!("{n}"), 0).await.is_some(), n % 2 == 1, "{n}");
    }
    bench.check().await;
    let again = bench.evict(&half).await;
    assert_eq!(again, EvictedBlocks::default(), "no block of it is cached");
    let rest: Vec<u64> = (0..60).map(|n| id(&format!("{n}"), 0)).collect();
    assert_eq!(bench.evict(&rest).await.blocks, 30);
    assert!(bench.disk_bytes() <= SLACK_BYTES && bench.copies.metrics().live_bytes == 0);
    bench.check().await;
    let wanted = DecisionFilter { limit: 1, kind: Some(DecisionKind::Evict), bucket: Some(BUCKET) };
    let decision = &bench.decisions.list(wanted)[0];
    assert_eq!((decision.reason, decision.count), (DecisionReason::Policy, 60));
}

#[tokio::test]
async fn blocks_of_a_large_object_are_evicted_one_by_one() {
    let bench = Bench::new(256 * MIB).await;
    let object = bench.record_object("large", 1, 5 * BLOCK);
    for number in 0..4 {
        bench.keep("large", &object, number, BLOCK as usize).await.unwrap();
    }
    assert_eq!(bench.evict(&[id("large", 1), id("large", 1), id("large", 4)]).await.bytes, BLOCK);
    for number in 0..4 {
        assert_eq!(bench.read("large", number).await.is_some(), number != 1);
    }
    bench.check().await;
}

#[tokio::test]
async fn without_holes_a_segment_is_removed_when_nothing_lives_in_it() {
    let bench = Bench::over(tempfile::tempdir().unwrap(), 32 * MIB, false).await;
    for n in 0..50 {
        bench.put(&format!("{n}"), 100_000).await;
    }
    assert_eq!(bench.evict(&[id("0", 0)]).await.freed_bytes, 0);
    let rest: Vec<u64> = (0..50).map(|n| id(&format!("{n}"), 0)).collect();
    bench.evict(&rest).await;
    bench.copies.inner.run_pass().await;
    assert!(bench.copies.metrics().used_bytes <= 2 * MIB, "two segments were full");
    bench.check().await;
}

#[tokio::test]
async fn after_a_crash_a_block_whose_disk_was_given_back_is_no_copy() {
    let bench = Bench::new(256 * MIB).await;
    for n in 0..20 {
        bench.put(&format!("{n}"), 100_000).await;
    }
    bench.put("tiny", 100).await;
    bench.copies.inner.flush().await.unwrap();
    let kept = tempfile::tempdir().unwrap();
    copy_dir(&bench.room.path().join("index"), kept.path());
    let gone: Vec<u64> = (0..20).step_by(2).map(|n| id(&format!("{n}"), 0)).collect();
    assert_eq!(bench.evict(&gone).await.blocks, 10);
    // The index is in the state of its last flush, and the holes exist.
    let room = bench.end(false).await;
    std::fs::remove_dir_all(room.path().join("index")).unwrap();
    copy_dir(kept.path(), &room.path().join("index"));
    let bench = Bench::over(room, 256 * MIB, true).await;
    assert_eq!(all(&bench.copies).count(), 21, "the index is not aware of the loss");
    for n in 0..20_u64 {
        assert_eq!(bench.read(&format!("{n}"), 0).await.is_some(), n % 2 == 1, "{n}");
    }
    assert!(bench.read("tiny", 0).await.is_some());
    assert_eq!(
        all(&bench.copies).count(),
        11,
        "blocks that fail verification are dropped with their accounts"
    );
    bench.put("0", 100_000).await;
    assert!(bench.read("0", 0).await.is_some());
}

#[tokio::test]
async fn the_listener_is_notified_of_every_block_removed_otherwise() {
    let bench = Bench::new(256 * MIB).await;
    for name in ["forgotten", "changed", "unreadable", "kept"] {
        bench.put(name, 5000).await;
    }
    let large = bench.record_object("large", 1, 3000 * BLOCK);
    for number in 0..2500 {
        bench.keep("large", &large, number, 10).await.unwrap();
    }
    bench.check().await;
    bench.copies.forget(BUCKET, &key("forgotten"));
    bench.record_object("changed", 2, 5000);
    let object = bench.copies.find(BUCKET, &key("unreadable")).unwrap().object;
    bench.copies.invalidate_block(BUCKET, &key("unreadable"), &object, 0, &object.extents);
    bench.record_object("large", 2, 3000 * BLOCK);
    assert_eq!(*bench.accounts.0.lock(), BTreeSet::from([id("kept", 0)]));
    bench.check().await;
}

#[tokio::test]
async fn a_failed_read_of_an_old_copy_does_not_invalidate_the_new_one() {
    let bench = Bench::new(256 * MIB).await;
    let old = bench.put("k", 5000).await;
    bench.evict(&[id("k", 0)]).await;
    let object = bench.copies.find(BUCKET, &key("k")).unwrap().object;
    bench.keep("k", &object, 0, 5000).await.unwrap();
    bench.copies.invalidate_block(BUCKET, &key("k"), &old, 0, &old.extents);
    assert!(bench.read("k", 0).await.is_some());
}

#[tokio::test]
async fn a_scan_returns_every_block_once_in_order() {
    let bench = Bench::new(256 * MIB).await;
    let object = bench.record_object("m", 1, 3000 * BLOCK + 5);
    for number in (0..3001).filter(|number| number % 3 != 1) {
        bench.keep("m", &object, number, 10).await.unwrap();
    }
    for n in 0..1500 {
        bench.put(&format!("s{n:05}"), 10).await;
        bench.record_object(&format!("t{n:05}"), 1, 10);
    }
    let blocks: Vec<KeptBlock> = all(&bench.copies).collect();
    let numbers: Vec<u64> = blocks.iter().take(2001).map(|block| block.number).collect();
    assert_eq!(numbers, (0..3001).filter(|number| number % 3 != 1).collect::<Vec<_>>());
    let last = &blocks[2000];
    assert_eq!((last.number, last.bytes, last.object_bytes), (3000, 5, 3000 * BLOCK + 5));
    assert!(blocks[2001..].iter().map(|block| block.key.as_str()).is_sorted() && blocks.len() == 3501);
    assert!(blocks.iter().all(|block| block.id == id(block.key.as_str(), block.number)));
    bench.check().await;
}

#[tokio::test]
async fn an_index_of_an_older_version_is_migrated() {
    let bench = Bench::new(256 * MIB).await;
    for n in 0..30 {
        bench.put(&format!("{n}"), 100_000).await;
    }
    let object = bench.record_object("large", 1, 3 * BLOCK);
    bench.keep("large", &object, 2, 2 * MIB as usize).await.unwrap();
    let live = bench.copies.metrics().live_bytes;
    let room = bench.end(true).await;
    {
        let index = CleanIndex::open(room.path(), 1 << 20).unwrap();
        let mut batch = CleanBatch::default();
        (0..30).for_each(|n| batch.name(id(&format!("{n}"), 0), None));
        batch.name(id("large", 2), None);
        for segment in index.segments().unwrap() {
            batch.segment(&CopySegment { live_bytes: None, ..segment });
        }
        index.write(&batch).unwrap();
        index.flush().unwrap();
    }
    let bench = Bench::over(room, 256 * MIB, true).await;
    assert_eq!((bench.copies.metrics().live_bytes, all(&bench.copies).count()), (live, 31));
    bench.check().await;
    assert_eq!(bench.evict(&[id("3", 0), id("large", 2)]).await.blocks, 2);
    assert!(bench.read("3", 0).await.is_none() && bench.read("4", 0).await.is_some());
    bench.check().await;
}

#[tokio::test]
async fn a_block_whose_id_belongs_to_another_one_is_not_kept() {
    let bench = Bench::new(256 * MIB).await;
    let mut batch = CleanBatch::default();
    batch.name(id("k", 0), Some(&BlockName { bucket: 9, key: "other".into(), number: 1 }));
    bench.copies.inner.index.write(&batch).unwrap();
    let object = bench.record_object("k", 1, 5000);
    assert_eq!(bench.keep("k", &object, 0, 5000).await, None);
    assert!(bench.copies.metrics().live_bytes == 0 && bench.read("k", 0).await.is_none());
}

#[tokio::test]
async fn an_unreadable_segment_is_removed_and_its_blocks_are_reported_lost() {
    let bench = Bench::new(32 * MIB).await;
    for n in 0..40 {
        bench.put(&format!("{n}"), 100_000).await;
    }
    let segment = bench.copies.inner.map.oldest_sealed(None).unwrap();
    let file = bench.segments().find(|file| file.to_string_lossy().contains(&format!("{:016x}", segment.0)));
    std::fs::remove_file(file.unwrap()).unwrap();
    bench.copies.inner.evict_segment(segment).await;
    let left = bench.accounts.0.lock().len();
    assert!(left < 40 && left > 0, "{left}");
    assert!(ok_or_log(bench.copies.inner.index.segments()).unwrap().iter().all(|row| row.id != segment.0));
    for n in 0..40 {
        let name = format!("{n}");
        assert_eq!(bench.read(&name, 0).await.is_some(), bench.accounts.0.lock().contains(&id(&name, 0)));
    }
}

#[tokio::test]
async fn when_the_disk_runs_out_the_oldest_segments_are_evicted() {
    let bench = Bench::new(24 * MIB).await;
    for n in 0..400 {
        let name = format!("{n}");
        let object = bench.record_object(&name, 1, 100_000);
        while bench.keep(&name, &object, 0, 100_000).await.is_none() {
            bench.copies.inner.run_pass().await;
        }
    }
    bench.check().await;
    let metrics = bench.copies.metrics();
    assert!(metrics.evicted_bytes >= 12_000_000 && metrics.used_bytes <= 24 * MIB, "{metrics:?}");
    assert!(bench.read("399", 0).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_of_a_block_that_is_being_kept_are_retained() {
    let bench = Bench::new(16 * MIB).await;
    let object = bench.record_object("large", 1, 2 * BLOCK);
    let keeping = async {
        for n in 0..40 {
            // The block spans several segments, in which nothing is named yet.
            assert!(bench.keep("large", &object, n % 2, 3 * MIB as usize).await.is_some());
            assert_eq!(bench.evict(&[id("large", n % 2)]).await.blocks, 1);
        }
    };
    let turning = async {
        loop {
            bench.copies.inner.run_pass().await;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = keeping => (),
        () = turning => unreachable!(),
    }
    bench.copies.inner.reclaim().await;
    bench.check().await;
}

#[tokio::test]
async fn live_records_of_a_cleaned_segment_are_moved_intact() {
    let bench = Bench::new(32 * MIB).await;
    let object = bench.record_object("large", 1, 3 * BLOCK);
    bench.keep("large", &object, 1, 100_000).await.unwrap();
    for n in 0..60 {
        bench.put(&format!("{n}"), 100_000).await;
    }
    let gone: Vec<u64> = (0..60).filter(|n| n % 20 != 3).map(|n| id(&format!("{n}"), 0)).collect();
    bench.evict(&gone).await;
    let before = bench.copies.metrics().segments;
    while bench.copies.inner.run_pass().await.is_some() {}
    let metrics = bench.copies.metrics();
    assert!(metrics.moved_by_cleaning_bytes > 0 && metrics.segments < before, "{metrics:?}");
    assert!(bench.read("large", 1).await.is_some());
    for n in [3, 23, 43] {
        assert!(bench.read(&format!("{n}"), 0).await.is_some());
    }
    bench.check().await;
    let bench = bench.reopened().await;
    bench.check().await;
    assert!(bench.read("large", 1).await.is_some());
}
