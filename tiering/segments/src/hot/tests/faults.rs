//! Tests of disk faults: the results of appends, the retry of a batch, and the failed files, which are never
//! written again.

use super::*;
use crate::hot::{AppendError, FileCall, HotOpenError, Intercept, InterceptAction};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Lets calls pass except those in its list, from which each entry is removed when it is used.
struct Script {
    steps: Mutex<Vec<(FileCall, InterceptAction)>>,
    calls: Mutex<Vec<(FileCall, Option<SegmentId>)>>,
}

impl Script {
    fn new(steps: &[(FileCall, InterceptAction)]) -> Arc<Self> {
        Arc::new(Self { steps: Mutex::new(steps.to_vec()), calls: Mutex::default() })
    }

    fn calls_on(&self, id: u64) -> Vec<FileCall> {
        let calls = self.calls.lock();
        calls.iter().filter(|(_, segment)| *segment == Some(SegmentId(id))).map(|&(call, _)| call).collect()
    }
}

impl Intercept for Script {
    fn before(&self, call: FileCall, segment: Option<SegmentId>) -> InterceptAction {
        self.calls.lock().push((call, segment));
        let mut steps = self.steps.lock();
        let due = steps.iter().position(|&(named, _)| named == call);
        due.map_or(InterceptAction::Go, |index| steps.remove(index).1)
    }
}

async fn open_scripted(dir: &Path, map: &Arc<MemoryMap>, script: &Arc<Script>) -> HotTier {
    let options = HotOptions { intercept: Some(script.clone()), ..options(dir) };
    HotTier::open_with(options, map.clone()).await.unwrap()
}

#[tokio::test]
async fn a_failed_write_or_sync_retries_the_batch_in_a_new_segment() {
    for call in [FileCall::Write, FileCall::Sync] {
        let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
        let script = Script::new(&[]);
        let tier = open_scripted(dir.path(), &map, &script).await;
        let first = append(&tier, chunk(1, bytes_of(1, 3000))).await.unwrap();
        script.steps.lock().push((call, InterceptAction::Fail(EIO)));
        let second = append(&tier, chunk(2, bytes_of(2, 3000))).await.unwrap();
        let third = append(&tier, chunk(3, bytes_of(3, 3000))).await.unwrap();
        assert_eq!((first.segment, second.segment, third.segment), (1, 2, 2), "{call:?}");
        for (body, extent) in [(1, &first), (2, &second), (3, &third)] {
            assert_eq!(read_all(&tier, extent, body).await, bytes_of(body, 3000));
        }
        assert_eq!(script.calls_on(1).last(), Some(&call), "the failed file is not touched again");
        assert_eq!(tier.metrics().batches_retried, 1);
        tier.shutdown().await;
        assert_eq!(map.sealed()[&1], Some(first.offset + first.record_bytes()));
    }
}

#[tokio::test]
async fn a_segment_that_cannot_be_created_is_sealed_empty_and_replaced() {
    for call in [FileCall::Create, FileCall::SyncNew, FileCall::SyncDirectory] {
        let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
        let script = Script::new(&[]);
        let tier = open_scripted(dir.path(), &map, &script).await;
        script.steps.lock().push((call, InterceptAction::Fail(EIO)));
        let extent = append(&tier, chunk(1, bytes_of(1, 3000))).await.unwrap();
        assert_eq!(extent.segment, 2, "{call:?}");
        tier.shutdown().await;
        assert_eq!(map.sealed()[&1], Some(0));
    }
}

#[tokio::test]
async fn a_disk_that_fails_twice_fails_the_append() {
    for (errno, error) in [(EIO, AppendError::Io), (ENOSPC, AppendError::Full)] {
        let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
        let script = Script::new(&[
            (FileCall::Write, InterceptAction::Fail(errno)),
            (FileCall::Sync, InterceptAction::Fail(errno)),
        ]);
        let tier = open_scripted(dir.path(), &map, &script).await;
        assert_eq!(append(&tier, chunk(1, vec![1; 3000])).await, Err(error));
        assert_eq!(
            append(&tier, chunk(2, vec![1; 3000])).await,
            Err(error),
            "a sick disk is let alone for a second"
        );
        tier.shutdown().await;
        assert_eq!(map.sealed().values().copied().collect::<Vec<_>>(), [Some(64), Some(64)]);
    }
}

#[tokio::test]
async fn short_writes_are_continued() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let script = Script::new(&[1, 63, 4, 100].map(|bytes| (FileCall::Write, InterceptAction::Short(bytes))));
    let tier = open_scripted(dir.path(), &map, &script).await;
    let extent = append(&tier, chunk(1, bytes_of(1, 3000))).await.unwrap();
    assert_eq!(read_all(&tier, &extent, 1).await, bytes_of(1, 3000));
}

/// A chunk of a body with a segment of its own, which is written with direct I/O.
fn own(body: u64, length: usize) -> Chunk {
    Chunk { placement: Placement::Own, ..chunk(body, bytes_of(body, length)) }
}

#[tokio::test]
async fn short_direct_writes_are_continued() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let script =
        Script::new(&[1, 63, 8192, 4095].map(|bytes| (FileCall::Write, InterceptAction::Short(bytes))));
    let tier = open_scripted(dir.path(), &map, &script).await;
    for length in [300_000, 5_000, 1] {
        let extent = append(&tier, own(1, length)).await.unwrap();
        assert_eq!(read_all(&tier, &extent, 1).await, bytes_of(1, length));
    }
    assert_eq!(script.steps.lock().len(), 0);
}

#[tokio::test]
async fn a_failed_direct_write_retries_the_batch_in_a_new_segment() {
    for call in [FileCall::Write, FileCall::Sync] {
        let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
        let script = Script::new(&[]);
        let tier = open_scripted(dir.path(), &map, &script).await;
        let first = append(&tier, own(1, 3000)).await.unwrap();
        script.steps.lock().push((call, InterceptAction::Fail(EIO)));
        let second = append(&tier, own(1, 300_000)).await.unwrap();
        let third = append(&tier, own(1, 3000)).await.unwrap();
        assert_eq!((first.segment, second.segment, third.segment), (1, 2, 2), "{call:?}");
        for (extent, length) in [(&first, 3000), (&second, 300_000), (&third, 3000)] {
            assert_eq!(read_all(&tier, extent, 1).await, bytes_of(1, length));
        }
        assert_eq!(script.calls_on(1).last(), Some(&call), "the failed file is not touched again");
    }
}

#[tokio::test]
async fn without_direct_io_the_page_cache_is_used() {
    const EINVAL: i32 = 22;
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let script = Script::new(&[(FileCall::Write, InterceptAction::Fail(EINVAL))]);
    let tier = open_scripted(dir.path(), &map, &script).await;
    for length in [3000, 300_000] {
        let extent = append(&tier, own(1, length)).await.unwrap();
        assert_eq!(read_all(&tier, &extent, 1).await, bytes_of(1, length));
        assert_eq!(extent.segment, 1);
    }
}

#[tokio::test]
async fn a_failed_sync_in_recovery_fails_the_start_but_not_the_next_one() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let extent = append(&tier, chunk(1, bytes_of(1, 3000))).await.unwrap();
    let map = map.copy();
    drop(tier);
    let script = Script::new(&[(FileCall::SyncRecovery, InterceptAction::Fail(EIO))]);
    let options = HotOptions { intercept: Some(script), ..options(dir.path()) };
    let opened = HotTier::open_with(options, map.clone()).await;
    assert!(matches!(opened.map(drop), Err(HotOpenError::Recover(_))));
    assert_eq!(map.sealed()[&1], None);
    let tier = open(dir.path(), &map).await;
    assert_eq!(read_all(&tier, &extent, 1).await, bytes_of(1, 3000));
}
