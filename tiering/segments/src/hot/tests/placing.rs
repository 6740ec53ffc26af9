//! Tests of moves between local tiers: locations, reads, and the effects of crashes and faults.

use super::bench::{Bench, BenchOptions};
use super::*;
use crate::decisions::DecisionFilter;
use crate::hot::{
    FileCall, HotOpenError, Intercept, InterceptAction, PlacingOrder, PlacingSettings, segment_file_name,
};
use mlgw_common::SegmentTier;
use mlgw_formats::decision_entry::DecisionCause;
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
use mlgw_formats::schema::SegmentState;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

const EIO: i32 = 5;
pub(super) const OBJECTS: usize = 30;

/// Returns a bench with objects in segments that are all sealed.
pub(super) async fn filled(tuned: BenchOptions) -> (Bench, Vec<(String, BodyId, usize)>) {
    let bench = Bench::tuned(tuned).await;
    let mut objects = Vec::new();
    for n in 0..OBJECTS {
        let (name, length) = (format!("object-{n}"), 40_000 + 3_000 * n);
        objects.push((name.clone(), bench.put(&name, length).await, length));
    }
    (bench.reopen().await, objects)
}

pub(super) async fn reads_back(bench: &Bench, objects: &[(String, BodyId, usize)]) {
    for (object, body, length) in objects {
        bench.reads(object, *body, *length).await;
    }
}

pub(super) async fn run_order(bench: &Bench, order: PlacingOrder) {
    let until = bench.tier.order(order);
    while bench.tier.placing().orders_done < until {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns the non-empty sealed segments that are in a tier according to their records.
pub(super) fn segments_in(bench: &Bench, tier: SegmentTier) -> Vec<String> {
    let mut records = bench.catalogue.segments().unwrap();
    records.retain(|record| record.state() == SegmentState::Sealed && record.length > 64);
    let here = records.iter().filter(|record| record.replicas[0].tier() == Ok(tier));
    here.map(|record| segment_file_name(record.segment_id())).collect()
}

/// Returns the segment files in the hot directory and in the cold ones.
fn files(bench: &Bench) -> (Vec<String>, Vec<String>) {
    let cold = ["cold-1", "cold-2"].map(|dir| names_in(&bench.dir.path().join(dir)));
    (bench.files(), cold.concat())
}

pub(super) fn names_in(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_segments_read_back_and_can_be_promoted() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    let sealed = segments_in(&bench, SegmentTier::Hot);
    assert!(sealed.len() > 5, "{sealed:?}");
    let used = bench.tier.metrics().used_bytes;
    run_order(&bench, PlacingOrder::DrainHot).await;
    assert_eq!(segments_in(&bench, SegmentTier::Hot), [""; 0]);
    let (hot, mut cold) = files(&bench);
    cold.sort();
    assert!(cold == sealed && !hot.iter().any(|file| sealed.contains(file)), "{hot:?} {cold:?}");
    assert!(bench.tier.metrics().used_bytes < used / 10, "{} of {used}", bench.tier.metrics().used_bytes);
    let status = bench.tier.placing();
    assert!(status.spilled_bytes > used && status.failed == 0 && status.waiting_bytes == 0, "{status:?}");
    reads_back(&bench, &objects).await;
    let bench = bench.reopen().await;
    reads_back(&bench, &objects).await;
    assert_eq!(bench.tier.stray_files(), [""; 0]);
    let one =
        bench.catalogue.segments().unwrap().into_iter().find(|one| one.length > 64).unwrap().segment_id();
    run_order(&bench, PlacingOrder::Promote { segments: vec![one], why: DecisionCause::job(7) }).await;
    assert_eq!(segments_in(&bench, SegmentTier::Hot), [segment_file_name(one)]);
    let wanted = DecisionFilter { limit: 1, kind: Some(DecisionKind::Promote), bucket: None };
    let decision = bench.tier.inner.decisions.list(wanted).remove(0);
    assert_eq!(
        (decision.segment, decision.from, decision.to),
        (Some(one.0), DecisionPlace::Cold, DecisionPlace::Hot)
    );
    assert_eq!(
        (decision.reason, decision.job, decision.outcome),
        (DecisionReason::Job, Some(7), DecisionOutcome::Done)
    );
    run_order(&bench, PlacingOrder::DrainCold).await;
    assert_eq!((segments_in(&bench, SegmentTier::Hot), files(&bench).1), (sealed, vec![]));
    reads_back(&bench, &objects).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_succeed_while_segments_move_between_tiers() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    let bench = Arc::new(bench);
    let reader = {
        let bench = bench.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                reads_back(&bench, &objects).await;
            }
        })
    };
    while !reader.is_finished() {
        run_order(&bench, PlacingOrder::DrainHot).await;
        run_order(&bench, PlacingOrder::DrainCold).await;
    }
    reader.await.unwrap();
    assert_eq!(bench.tier.metrics().read_errors, 0);
    Arc::into_inner(bench).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_hot_tier_spills_the_segments_with_the_fewest_reads() {
    let placing = PlacingSettings { high_percent: 50, low_percent: 30, ..PlacingSettings::default() };
    // Below the default high watermark, so that nothing is spilled before the reads.
    let (bench, objects) =
        filled(BenchOptions { capacity_bytes: 4_000_000, ..BenchOptions::default() }).await;
    // Frequent reads make the last segments worth keeping.
    for _ in 0..20 {
        reads_back(&bench, &objects[OBJECTS - 4..]).await;
    }
    bench.tier.set_placing(placing);
    while bench.tier.placing().spilled_bytes == 0 || bench.tier.metrics().used_bytes > 2_000_000 {
        bench.compact(100).await;
    }
    bench.compact(100).await;
    let used = bench.tier.metrics().used_bytes;
    assert!((900_000..=1_200_000).contains(&used), "about 30 % of 4,000,000: {used}");
    let tier_of = |object: &str| {
        let segment = bench.extents(object)[0].segment_id();
        bench.catalogue.segment(segment).unwrap().tier
    };
    assert_eq!(
        (tier_of(&objects[0].0), tier_of(&objects[OBJECTS - 1].0)),
        (SegmentTier::Cold, SegmentTier::Hot)
    );
    reads_back(&bench, &objects).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_bytes_in_the_cold_tier_are_freed() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let before = files(&bench).1.len();
    for (object, _, _) in &objects[..OBJECTS - 3] {
        bench.delete(object).await;
    }
    bench.compact(50).await;
    bench.compact(50).await;
    assert!(files(&bench).1.len() + 3 < before, "{} of {before}", files(&bench).1.len());
    assert!(bench.tier.compaction().freed_bytes > 1_000_000, "{:?}", bench.tier.compaction());
    reads_back(&bench, &objects[OBJECTS - 3..]).await;
    let bench = bench.reopen().await;
    reads_back(&bench, &objects[OBJECTS - 3..]).await;
    bench.close().await;
}

/// The states that a crash leaves at each step of a move, and the state of a restored backup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_cleans_up_after_an_interrupted_move() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    let name = segments_in(&bench, SegmentTier::Hot).remove(0);
    let (hot, cold) = (bench.path(&name), bench.dir.path().join("cold-2").join(&name));
    // Copied, but not named by the record yet; and a partial copy.
    std::fs::copy(&hot, &cold).unwrap();
    std::fs::write(cold.with_extension("seg.copying"), "half").unwrap();
    let bench = bench.reopen().await;
    assert_eq!((hot.exists(), names_in(cold.parent().unwrap())), (true, vec![]));
    reads_back(&bench, &objects).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let (_, all_cold) = files(&bench);
    // Named by the record, and the old file not removed yet.
    let found = ["cold-1", "cold-2"].map(|dir| bench.dir.path().join(dir).join(&name));
    let cold = found.into_iter().find(|path| path.exists()).unwrap();
    std::fs::copy(&cold, &hot).unwrap();
    let bench = bench.reopen().await;
    assert_eq!((hot.exists(), cold.exists()), (false, true));
    reads_back(&bench, &objects).await;
    // Restored from a backup: in the hot directory, regardless of the record.
    std::fs::rename(&cold, &hot).unwrap();
    let bench = bench.reopen().await;
    assert!(hot.exists());
    reads_back(&bench, &objects).await;
    assert_eq!(files(&bench).1.len(), all_cold.len() - 1);
    assert_eq!(bench.tier.stray_files(), [""; 0]);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_cold_tier_fails_the_start_unless_accepted() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let Bench { dir, catalogue, tier, .. } = bench;
    tier.shutdown().await;
    let without = |start_without_missing| HotOptions { start_without_missing, ..options(dir.path()) };
    let refused = HotTier::open(without(false), catalogue.clone()).await.err();
    assert!(matches!(refused, Some(HotOpenError::Missing { segments, .. }) if segments > 5), "{refused:?}");
    let tier = HotTier::open(without(true), catalogue.clone()).await.unwrap();
    let object = catalogue.object(BucketId(1), &ObjectKey::new(&objects[0].0).unwrap()).unwrap().unwrap();
    let read = tier.read(&object.extents[0], objects[0].1, 0..10, Lane::Training).await;
    assert!(matches!(read, Err(crate::hot::SegmentReadError::Gone { .. })), "{read:?}");
    tier.shutdown().await;
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_chunks_stay_when_their_segment_is_spilled() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    let hot = [objects[3].1, objects[20].1];
    bench.tier.set_is_hot(Arc::new(move |body, first| hot.contains(&body) && first == 0));
    run_order(&bench, PlacingOrder::DrainHot).await;
    let tiers = |object: &str| -> Vec<SegmentTier> {
        let extents = bench.extents(object);
        extents.iter().map(|at| bench.catalogue.segment(at.segment_id()).unwrap().tier).collect()
    };
    assert_eq!(tiers(&objects[3].0), [SegmentTier::Hot], "one chunk");
    let long = tiers(&objects[20].0);
    assert_eq!(
        (long[0], &long[1..]),
        (SegmentTier::Hot, &vec![SegmentTier::Cold; long.len() - 1][..]),
        "its first chunk is hot"
    );
    assert_eq!(tiers(&objects[4].0), [SegmentTier::Cold]);
    reads_back(&bench, &objects).await;
    bench.close().await;
}

/// Fails or skips the calls of one kind while it is set.
#[derive(Default)]
struct Faulty(Mutex<Option<(FileCall, InterceptAction)>>);

impl Intercept for Faulty {
    fn before(&self, call: FileCall, _: Option<SegmentId>) -> InterceptAction {
        match *self.0.lock() {
            Some((faulty, step)) if faulty == call => step,
            _ => InterceptAction::Go,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_faulty_disk_leaves_the_segment_in_its_tier() {
    let faulty = Arc::new(Faulty::default());
    let (bench, objects) =
        filled(BenchOptions { intercept: Some(faulty.clone()), ..BenchOptions::default() }).await;
    let sealed = segments_in(&bench, SegmentTier::Hot);
    let faults = [
        (FileCall::Create, InterceptAction::Fail(EIO)),
        (FileCall::Write, InterceptAction::Fail(EIO)),
        // No byte is written, and success is reported.
        (FileCall::Write, InterceptAction::Skip),
        (FileCall::Sync, InterceptAction::Fail(EIO)),
        (FileCall::SyncNew, InterceptAction::Fail(EIO)),
        (FileCall::SyncDirectory, InterceptAction::Fail(EIO)),
    ];
    for (nth, fault) in faults.into_iter().enumerate() {
        *faulty.0.lock() = Some(fault);
        run_order(&bench, PlacingOrder::DrainHot).await;
        let failed = bench.tier.placing().failed;
        assert_eq!(failed, (sealed.len() * (nth + 1)) as u64, "{fault:?}");
        assert_eq!(segments_in(&bench, SegmentTier::Hot), sealed, "{fault:?}");
        reads_back(&bench, &objects).await;
    }
    *faulty.0.lock() = None;
    run_order(&bench, PlacingOrder::DrainHot).await;
    assert_eq!(segments_in(&bench, SegmentTier::Cold), sealed);
    reads_back(&bench, &objects).await;
    bench.close().await;
}

/// Damages each unfinished copy on the disk when the page cache is dropped, as a disk that stores other bytes
/// than those written; panics unless the copy was synced just before.
#[derive(Default)]
pub(super) struct LyingDisk {
    dirs: Mutex<Vec<PathBuf>>,
    last: Mutex<BTreeMap<SegmentId, FileCall>>,
}

impl LyingDisk {
    /// Damages the copies in these directories from now on.
    pub(super) fn lie_in(&self, dirs: &[PathBuf]) {
        *self.dirs.lock() = dirs.to_vec();
    }
}

impl Intercept for LyingDisk {
    fn before(&self, call: FileCall, segment: Option<SegmentId>) -> InterceptAction {
        let Some(segment) = segment else { return InterceptAction::Go };
        let last = self.last.lock().insert(segment, call);
        if call == FileCall::DropCache {
            assert_eq!(last, Some(FileCall::Sync), "only synced bytes are dropped");
            let name = format!("{}.copying", segment_file_name(segment));
            for path in self.dirs.lock().iter().map(|dir| dir.join(&name)).filter(|path| path.exists()) {
                let (file, mut byte) = (File::options().read(true).write(true).open(path).unwrap(), [0]);
                file.read_exact_at(&mut byte, 1000).unwrap();
                file.write_all_at(&[!byte[0]], 1000).unwrap();
            }
        }
        InterceptAction::Go
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_verified_on_the_disk_and_not_in_the_page_cache() {
    let disk = Arc::new(LyingDisk::default());
    let (bench, objects) =
        filled(BenchOptions { intercept: Some(disk.clone()), ..BenchOptions::default() }).await;
    let sealed = segments_in(&bench, SegmentTier::Hot);
    disk.lie_in(&["cold-1", "cold-2"].map(|dir| bench.dir.path().join(dir)));
    run_order(&bench, PlacingOrder::DrainHot).await;
    assert_eq!(bench.tier.placing().failed, sealed.len() as u64);
    assert_eq!((segments_in(&bench, SegmentTier::Hot), files(&bench).1), (sealed.clone(), vec![]));
    disk.lie_in(&[]);
    run_order(&bench, PlacingOrder::DrainHot).await;
    assert_eq!(segments_in(&bench, SegmentTier::Cold), sealed);
    reads_back(&bench, &objects).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_file_stays_while_all_segments_are_pinned() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    let sealed = segments_in(&bench, SegmentTier::Hot);
    let kept = bench.tier.pin_all();
    run_order(&bench, PlacingOrder::DrainHot).await;
    assert_eq!(segments_in(&bench, SegmentTier::Cold), sealed);
    assert!(sealed.iter().all(|name| files(&bench).0.contains(name)), "{:?}", files(&bench).0);
    assert_eq!(bench.tier.placing().draining_segments, sealed.len() as u64);
    drop(kept);
    bench.compact(100).await;
    while bench.tier.placing().draining_segments > 0 {
        bench.compact(100).await;
    }
    assert!(!sealed.iter().any(|name| files(&bench).0.contains(name)), "{:?}", files(&bench).0);
    reads_back(&bench, &objects).await;
    bench.close().await;
}
