//! Crash tests: copies of the files of a running tier, with torn unsynced tails, are opened again.

use super::*;
use crate::hot::{
    FileCall, Intercept, InterceptAction, ReadFault, ScanSummary, SegmentReadError, segment_file_name,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn segment_path(dir: &Path, segment: u64) -> std::path::PathBuf {
    dir.join("segments").join(segment_file_name(SegmentId(segment)))
}

/// Appends `count` chunks. Returns the acknowledged extents, with the files and the map as a kill at that
/// moment would leave them.
async fn killed_after(dir: &Path, count: u64) -> (Vec<(u64, Extent)>, Arc<MemoryMap>) {
    let running = tempfile::tempdir().unwrap();
    let map = Arc::new(MemoryMap::default());
    let tier = open(running.path(), &map).await;
    let mut extents = Vec::new();
    for body in 1..=count {
        let length = 10 + (body as usize * 7919) % 90_000;
        extents.push((body, append(&tier, chunk(body, bytes_of(body, length))).await.unwrap()));
    }
    copy_dir(&running.path().join("segments"), &dir.join("segments"));
    (extents, map.copy())
}

#[tokio::test]
async fn after_a_kill_acknowledged_chunks_read_back_and_the_segment_is_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let (extents, map) = killed_after(dir.path(), 20).await;
    let tier = open(dir.path(), &map).await;
    let end = extents.last().map(|(_, extent)| extent.offset + extent.record_bytes()).unwrap();
    let expected = ScanSummary { length: end, records: 20, damaged_bytes: 0 };
    assert_eq!(tier.recovered(), [(SegmentId(1), expected)]);
    for (body, extent) in &extents {
        assert_eq!(read_all(&tier, extent, *body).await, bytes_of(*body, extent.logical_bytes as usize));
    }
    assert_ne!(append(&tier, chunk(99, vec![1; 10])).await.unwrap().segment, 1);
    assert_eq!(std::fs::metadata(segment_path(dir.path(), 1)).unwrap().len(), end);
}

#[tokio::test]
async fn an_open_segment_without_a_file_is_sealed_at_zero() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let id = map.create(SegmentClass::Small, FIRST_SET, Vec::new(), 0).await.unwrap().id;
    let tier = open(dir.path(), &map).await;
    assert_eq!(tier.recovered(), [(id, ScanSummary::default())]);
    assert_eq!(map.sealed()[&id.0], Some(0));
    let extent = Extent {
        segment: id.0,
        offset: 64,
        head_bytes: 70,
        stored_bytes: 5,
        logical_bytes: 5,
        ..Extent::default()
    };
    assert!(matches!(
        tier.read(&extent, BodyId(1), 0..5, Lane::Training).await,
        Err(SegmentReadError::Gone { .. })
    ));
}

#[tokio::test]
async fn unknown_files_are_reported_and_kept() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    open(dir.path(), &map).await.shutdown().await;
    // The next id to be given out: the existing file must not be taken for the new segment.
    let next = segment_path(dir.path(), map.next().0);
    let at = |name: &str| dir.path().join("segments").join(name);
    std::fs::write(&next, b"1").unwrap();
    std::fs::write(at("notes.txt"), b"x").unwrap();
    // Left by a crash while the disk was probed.
    std::fs::write(at("probe"), b"").unwrap();
    let tier = open(dir.path(), &map).await;
    let name = next.file_name().unwrap().to_str().unwrap();
    assert_eq!(tier.stray_files(), [format!("{name}.aside-1"), "notes.txt".to_owned()]);
    append(&tier, chunk(1, "bytes")).await.unwrap();
    assert!(std::fs::metadata(&next).unwrap().len() > 5, "the new segment has the name");
    tier.shutdown().await;
    assert_eq!(std::fs::read(at(&format!("{name}.aside-1"))).unwrap(), b"1");
    assert!(at("notes.txt").exists() && !at("probe").exists());
}

#[tokio::test]
async fn damage_loses_only_the_records_it_hits() {
    let dir = tempfile::tempdir().unwrap();
    let (extents, map) = killed_after(dir.path(), 12).await;
    let path = segment_path(dir.path(), 1);
    for at in [extents[3].1.offset + 20, extents[7].1.offset + u64::from(extents[7].1.head_bytes)] {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at as usize] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
    }
    let tier = open(dir.path(), &map).await;
    assert_eq!(tier.recovered()[0].1.records, 10);
    for (body, extent) in &extents {
        let read = tier.read(extent, BodyId(*body), 0..extent.logical_bytes, Lane::Training).await;
        match body {
            4 => assert!(matches!(read, Err(SegmentReadError::Corrupt { fault: ReadFault::Head(_), .. }))),
            8 => assert!(matches!(read, Err(SegmentReadError::Corrupt { fault: ReadFault::Block(0), .. }))),
            _ => assert_eq!(read.unwrap(), bytes_of(*body, extent.logical_bytes as usize)),
        }
    }
}

/// Records the length that the last sync of a segment covered: the file's length at the call.
struct SyncedLength {
    path: std::path::PathBuf,
    synced: AtomicU64,
}

impl Intercept for SyncedLength {
    fn before(&self, call: FileCall, _: Option<SegmentId>) -> InterceptAction {
        if call == FileCall::Sync {
            self.synced.store(std::fs::metadata(&self.path).unwrap().len(), Ordering::SeqCst);
        }
        InterceptAction::Go
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_append_is_acknowledged_before_a_sync_that_covers_it() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let watch = Arc::new(SyncedLength { path: segment_path(dir.path(), 1), synced: AtomicU64::new(0) });
    let options = HotOptions { intercept: Some(watch.clone()), ..options(dir.path()) };
    let tier = HotTier::open_with(options, map.clone()).await.unwrap();
    let appends = (0..64u64).map(|body| {
        let (tier, watch) = (tier.clone(), watch.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                let extent = append(&tier, chunk(body, vec![1; 3000])).await.unwrap();
                assert!(watch.synced.load(Ordering::SeqCst) >= extent.offset + extent.record_bytes());
            }
        })
    });
    for append in appends.collect::<Vec<_>>() {
        append.await.unwrap();
    }
    assert!(tier.metrics().batches < 64 * 20, "batches form");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The synced part consists of the first `kept` records; each 512-byte sector after it is kept, lost
    /// (zeros) or garbage, and the file may be shorter.
    #[test]
    fn synced_chunks_read_back_after_any_power_loss(
        kept in 1usize..12,
        fate in proptest::collection::vec(0u8..3, 2000),
        cut in any::<prop::sample::Index>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (extents, map) = killed_after(dir.path(), 12).await;
            let path = segment_path(dir.path(), 1);
            let mut bytes = std::fs::read(&path).unwrap();
            let synced = (extents[kept - 1].1.offset + extents[kept - 1].1.record_bytes()) as usize;
            for (sector, fate) in bytes[synced..].chunks_mut(512).zip(fate) {
                match fate {
                    0 => {}
                    1 => sector.fill(0),
                    _ => sector.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31).wrapping_add(7)),
                }
            }
            bytes.truncate(synced + cut.index(bytes.len() - synced + 1));
            std::fs::write(&path, bytes).unwrap();
            let tier = open(dir.path(), &map).await;
            assert!(map.sealed()[&1].unwrap() >= synced as u64);
            for (index, (body, extent)) in extents.iter().enumerate() {
                match tier.read(extent, BodyId(*body), 0..extent.logical_bytes, Lane::Training).await {
                    Ok(read) => assert_eq!(read, bytes_of(*body, extent.logical_bytes as usize)),
                    Err(SegmentReadError::Corrupt { .. }) => assert!(index >= kept,
                        "an acknowledged chunk is lost"),
                    Err(other) => panic!("{other}"),
                }
            }
        });
    }

    #[test]
    fn no_file_content_makes_a_scan_fail(
        bytes in proptest::collection::vec(any::<u8>(), 0..3000),
        magic_at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = bytes;
        if bytes.len() > 8 {
            let at = magic_at.index(bytes.len() - 4);
            bytes[at..at + 4].copy_from_slice(&mlgw_formats::segment_record::MAGIC);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("any");
        std::fs::write(&path, &bytes).unwrap();
        let scanned = crate::hot::scan(std::fs::File::open(&path).unwrap(), SegmentId(1), SEED, 0).unwrap();
        prop_assert_eq!(scanned, ScanSummary::default());
    }
}
