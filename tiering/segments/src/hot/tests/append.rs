//! Tests of appends: chunks read back, their segments, and the number of syncs.

use super::*;
use crate::hot::{AppendError, SegmentDirs, log_floor, segment_file_name};
use mlgw_common::Incarnation;
use mlgw_common::limits::{CHUNK_BYTES_MAX, MIB};
use mlgw_formats::segment_header::SegmentHeader;
use mlgw_metadata::Durability;
use proptest::prelude::*;

#[tokio::test]
async fn a_chunk_reads_back_immediately_and_after_a_restart() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let extent = append(&tier, chunk(1, bytes_of(1, 5000))).await.unwrap();
    assert_eq!(read_all(&tier, &extent, 1).await, bytes_of(1, 5000));
    tier.shutdown().await;
    let tier = open(dir.path(), &map).await;
    assert_eq!(read_all(&tier, &extent, 1).await, bytes_of(1, 5000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_read_back_their_own_bytes_from_many_segments() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let options = HotOptions { segment_bytes: 2 * MIB, ..options(dir.path()) };
    let tier = HotTier::open_with(options, map.clone()).await.unwrap();
    let writers = (0..24u64).map(|writer| {
        let tier = tier.clone();
        tokio::spawn(async move {
            let mut extents = Vec::new();
            for round in 0..20u64 {
                let body = writer * 1000 + round;
                let length = [100, 4096, 70_000, 300_000][((writer + round) % 4) as usize];
                let extent = append(&tier, chunk(body, bytes_of(body, length))).await.unwrap();
                assert_eq!(read_all(&tier, &extent, body).await, bytes_of(body, length));
                extents.push((body, extent));
            }
            extents
        })
    });
    let mut extents = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        extents.extend(writer.await.unwrap());
    }
    tier.clone().shutdown().await;
    let sealed = map.sealed();
    assert!(sealed.len() > 10, "{sealed:?}");
    for (body, extent) in &extents {
        let end = extent.offset + extent.record_bytes();
        assert!(sealed[&extent.segment].unwrap() >= end, "an acknowledged chunk is after the sealed length");
        assert_eq!(read_all(&tier, extent, *body).await, bytes_of(*body, extent.logical_bytes as usize));
    }
    for length in sealed.values() {
        assert!(length.unwrap() <= 2 * MIB);
    }
    let metrics = tier.metrics();
    assert_eq!(metrics.appends, extents.len() as u64);
    assert!(metrics.batches <= metrics.appends);
}

#[tokio::test]
async fn a_tier_that_was_not_shut_down_leaves_no_writer_behind() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    for body in 0..20 {
        let tier = open(dir.path(), &map).await;
        append(&tier, chunk(body, vec![1; 100])).await.unwrap();
        let shared = Arc::downgrade(&tier.inner.shared);
        drop(tier);
        assert_eq!(shared.strong_count(), 0, "a writer still holds the catalogue");
    }
}

#[tokio::test]
async fn after_a_clean_shutdown_nothing_is_scanned() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    append(&tier, chunk(1, vec![1; 100])).await.unwrap();
    tier.clone().shutdown().await;
    assert_eq!(append(&tier, chunk(2, vec![1; 100])).await, Err(AppendError::Stopping));
    assert!(map.sealed().values().all(Option::is_some));
    assert_eq!(open(dir.path(), &map).await.recovered(), []);
}

#[tokio::test]
async fn small_large_and_own_chunks_are_in_separate_segments() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let own = |body| Chunk { placement: Placement::Own, ..chunk(body, vec![7; 1000]) };
    let small = append(&tier, chunk(1, vec![7; 1000])).await.unwrap();
    let large = append(&tier, chunk(2, vec![7; CHUNK_BYTES_MAX as usize])).await.unwrap();
    let mine = append(&tier, own(3)).await.unwrap();
    let mine_too = append(&tier, own(3)).await.unwrap();
    let theirs = append(&tier, own(4)).await.unwrap();
    assert_eq!(
        map.classes(),
        [SegmentClass::Small, SegmentClass::Large, SegmentClass::Own, SegmentClass::Own]
    );
    assert_eq!(mine.segment, mine_too.segment);
    let mut segments = vec![small.segment, large.segment, mine.segment, theirs.segment];
    segments.dedup();
    assert_eq!(segments.len(), 4);
    tier.seal_own(BodyId(3));
    assert_ne!(append(&tier, own(3)).await.unwrap().segment, mine.segment);
    tier.shutdown().await;
    assert!(map.sealed().values().all(Option::is_some));
}

#[tokio::test]
async fn an_own_segment_is_written_in_blocks_and_trimmed_to_its_records() {
    for direct_writes in [true, false] {
        let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
        let options = HotOptions { direct_writes, ..options(dir.path()) };
        let tier = HotTier::open_with(options, map.clone()).await.unwrap();
        let mut end = 0;
        for length in [1000, CHUNK_BYTES_MAX as usize, 70] {
            let own = Chunk { placement: Placement::Own, ..chunk(3, bytes_of(3, length)) };
            let extent = append(&tier, own.clone()).await.unwrap();
            assert_eq!(read_all(&tier, &extent, 3).await, *own.data.stored());
            end = extent.offset + extent.record_bytes();
        }
        let path = dir.path().join("segments").join(segment_file_name(SegmentId(1)));
        let bytes = || std::fs::metadata(&path).unwrap().len();
        let blocks = if direct_writes { end.next_multiple_of(4096) } else { end };
        assert_eq!(bytes(), blocks);
        tier.shutdown().await;
        assert_eq!((map.sealed()[&1], bytes()), (Some(end), end));
    }
}

#[tokio::test]
async fn an_idle_own_segment_is_sealed_and_replaced() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let own = Chunk { placement: Placement::Own, ..chunk(3, vec![7; 1000]) };
    let first = append(&tier, own.clone()).await.unwrap();
    tier.inner.writer_queues.seal_idle(std::time::Duration::from_secs(3600));
    assert_eq!(append(&tier, own.clone()).await.unwrap().segment, first.segment);
    tier.inner.writer_queues.seal_idle(std::time::Duration::ZERO);
    assert_ne!(append(&tier, own).await.unwrap().segment, first.segment);
    tier.shutdown().await;
    assert_eq!(map.sealed()[&first.segment], Some(first.offset + 2 * first.record_bytes()));
}

#[tokio::test]
async fn bodies_beyond_the_limit_of_own_segments_share_one() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    for body in 0..mlgw_common::limits::DEDICATED_SEGMENTS_OPEN_MAX as u64 + 3 {
        append(&tier, Chunk { placement: Placement::Own, ..chunk(body, vec![7; 1000]) }).await.unwrap();
    }
    let own = map.classes().iter().filter(|&&class| class == SegmentClass::Own).count();
    assert_eq!(own, mlgw_common::limits::DEDICATED_SEGMENTS_OPEN_MAX);
}

#[tokio::test]
async fn a_file_begins_with_the_segment_header() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let extent = append(&tier, chunk(1, vec![1; 100])).await.unwrap();
    let file =
        std::fs::read(dir.path().join("segments").join(segment_file_name(extent.segment_id()))).unwrap();
    let header = SegmentHeader::decode(&file).unwrap();
    assert_eq!((header.id, header.seed), (extent.segment_id(), SEED));
    assert_eq!(file.len() as u64, extent.offset + extent.record_bytes());
}

#[tokio::test]
async fn with_durability_os_nothing_is_ever_synced() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let options = HotOptions { durability: Durability::Os, ..options(dir.path()) };
    let tier = HotTier::open_with(options, map.clone()).await.unwrap();
    append(&tier, chunk(1, vec![1; 100])).await.unwrap();
    let syncs: u64 = tier.metrics().syncs.iter().map(|(_, took)| took.count()).sum();
    assert_eq!(syncs, 0);
}

#[tokio::test]
async fn a_full_disk_refuses_appends_and_serves_reads() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let extent = append(&tier, chunk(1, vec![1; 100])).await.unwrap();
    tier.shutdown().await;
    let options = HotOptions { reserve_bytes: 1 << 60, ..options(dir.path()) };
    let tier = HotTier::open_with(options, map.clone()).await.unwrap();
    assert!(!tier.has_room(1));
    assert_eq!(append(&tier, chunk(2, vec![1; 100])).await, Err(AppendError::Full));
    assert_eq!(read_all(&tier, &extent, 1).await, vec![1; 100]);
}

#[tokio::test]
async fn the_capacity_includes_segments_of_earlier_processes() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let capacity_bytes = 10_000;
    let limited = || HotOptions { capacity_bytes, ..options(dir.path()) };
    let tier = HotTier::open_with(limited(), map.clone()).await.unwrap();
    append(&tier, chunk(1, vec![1; 6000])).await.unwrap();
    assert_eq!(append(&tier, chunk(2, vec![1; 6000])).await, Err(AppendError::Full));
    tier.shutdown().await;
    let tier = HotTier::open_with(limited(), map.clone()).await.unwrap();
    assert_eq!(append(&tier, chunk(3, vec![1; 6000])).await, Err(AppendError::Full));
    append(&tier, chunk(4, vec![1; 2000])).await.unwrap();
    let used = tier.metrics().used_bytes;
    assert!((8000..capacity_bytes).contains(&used), "{used}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_append_frees_its_room_in_the_queue() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let data = Bytes::from(vec![1; CHUNK_BYTES_MAX as usize]);
    // Three times the queue's limit: if dropped appends kept their permits, the last one would block.
    for _ in 0..3 * mlgw_common::limits::LARGE_QUEUE_BYTES_MAX / CHUNK_BYTES_MAX as usize {
        let mut append = Box::pin(append(&tier, chunk(1, data.clone())));
        std::future::poll_fn(|cx| {
            let _ = append.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
    }
    append(&tier, chunk(2, data)).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_sequence_of_chunks_reads_back_and_fills_segments_without_gaps(
        lengths in proptest::collection::vec(1usize..200_000, 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
            let options = HotOptions { segment_bytes: MIB, ..options(dir.path()) };
            let tier = HotTier::open_with(options, map.clone()).await.unwrap();
            let mut ends = BTreeMap::new();
            for (body, &length) in (1u64..).zip(&lengths) {
                let extent = append(&tier, chunk(body, bytes_of(body, length))).await.unwrap();
                let end = ends.insert(extent.segment, extent.offset + extent.record_bytes());
                assert_eq!(extent.offset, end.unwrap_or(64));
                assert_eq!(read_all(&tier, &extent, body).await, bytes_of(body, length));
            }
            tier.shutdown().await;
            for (segment, length) in map.sealed() {
                assert_eq!(length.unwrap(), ends.get(&segment).copied().unwrap_or(64));
            }
        });
    }
}

/// Mounts a file system of 256 MiB at `dir` until it is dropped.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    fn mount(dir: &'a Path) -> Self {
        let args = ["-t", "tmpfs", "-o", "size=256m", "tmpfs"];
        assert!(std::process::Command::new("mount").args(args).arg(dir).status().unwrap().success());
        Self(dir)
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(self.0).status().ok();
    }
}

#[tokio::test]
#[ignore = "mounts a file system, so it needs root"]
async fn a_disk_of_256_mib_is_filled_only_to_its_reserve() {
    let dir = tempfile::tempdir().unwrap();
    let _mounted = Tmpfs::mount(dir.path());
    let map = Arc::new(MemoryMap::default());
    let clock = Arc::new(ManualClock::default());
    let options = || HotOptions::new(dir.path().join("segments"), 256 * MIB, clock.clone());
    let free = || rustix::fs::statvfs(dir.path()).map(|found| found.f_bavail * found.f_frsize).unwrap();
    let tier = HotTier::open_with(options(), map.clone()).await.unwrap();
    let mut extents = Vec::new();
    let refused = loop {
        let body = extents.len() as u64;
        match append(&tier, chunk(body, vec![body as u8; 1 << 20])).await {
            Ok(extent) => extents.push(extent),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, AppendError::Full);
    assert!(extents.len() > 200 && free() >= 15 * MIB, "{} {}", extents.len(), free());
    let reserve = 16 * MIB;
    let eater = std::fs::File::create(dir.path().join("eater")).unwrap();
    let more = free() - reserve / 2 + MIB;
    rustix::fs::fallocate(&eater, rustix::fs::FallocateFlags::empty(), 0, more).unwrap();
    let before = free();
    tier.inner.shared.space.refresh();
    assert_eq!(free(), before + 4 * MIB, "the ballast was allocated again");
    tier.shutdown().await;
    let tier = HotTier::open_with(options(), map.clone()).await.unwrap();
    for (body, extent) in (0u64..).zip(&extents) {
        assert_eq!(read_all(&tier, extent, body).await, vec![body as u8; 1 << 20]);
    }
    assert_eq!(append(&tier, chunk(0, vec![1; 100])).await, Err(AppendError::Full));
    drop(eater);
    std::fs::remove_file(dir.path().join("eater")).unwrap();
    tier.inner.shared.space.refresh();
    append(&tier, chunk(0, vec![1; 100])).await.unwrap();
}

#[tokio::test]
async fn batches_carry_the_log_floor_and_a_start_finds_the_highest() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let dirs = SegmentDirs::new(dir.path().join("segments"), Vec::new());
    let own = Incarnation(0);
    let tier = open(dir.path(), &map).await;
    let mut appended = Vec::new();
    for (body, synced) in [(1, 0), (2, 7), (3, 7), (4, 90), (5, 1_000_000)] {
        map.synced.store(synced, Ordering::Relaxed);
        appended.push((body, append(&tier, chunk(body, vec![body as u8; 5000])).await.unwrap()));
        assert_eq!(log_floor(&dirs, own).unwrap(), synced);
        assert_eq!(log_floor(&dirs, Incarnation(9)).unwrap(), 0, "segments of another timeline do not count");
    }
    let used = tier.metrics().used_bytes;
    for (body, extent) in &appended {
        assert_eq!(read_all(&tier, extent, *body).await, vec![*body as u8; 5000]);
    }
    drop(tier);
    let tier = open(dir.path(), &map.copy()).await;
    assert_eq!(tier.metrics().used_bytes, used, "the floor takes room that is counted");
    for (body, extent) in &appended {
        assert_eq!(read_all(&tier, extent, *body).await, vec![*body as u8; 5000]);
    }
}
