//! Tests of moves of bytes to the set of their group, on real files and a real catalogue. One node is in all
//! sets.

use super::bench::{Bench, BenchOptions};
use super::*;
use crate::decisions::DecisionFilter;
use crate::hot::relocating::driver::RelocatingDriver;
use crate::hot::{MoveStepError, RelocatingStatus, SegmentReadError, segment_file_name};
use mlgw_common::PartNumber;
use mlgw_common::limits::MOVE_BATCH_CHUNKS_MAX;
use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
use mlgw_formats::command::{CreateUpload, ObjectChange, PutPart, Reject};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionReason};
use mlgw_formats::schema::{GroupSet, PartRecord, Upload};
use mlgw_metadata::ProposeError;

/// The group that has the keys of the bucket.
const GROUP: u32 = 1;

/// A node in the sets 0 to 2.
async fn in_all_sets() -> Bench {
    let bench = Bench::tuned(BenchOptions { groups: 2, ..BenchOptions::default() }).await;
    bench.catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
    for set in 0..3 {
        bench.catalogue.put_set(set, &[NodeId::SINGLE], 0).await.unwrap();
    }
    bench
}

/// Assigns the group, whose set was changed `changes` times, to another set.
async fn assign(bench: &Bench, set: u32, changes: u64) {
    bench.catalogue.assign_group(GROUP, set, changes).await.unwrap();
}

async fn pass(bench: &Bench) -> RelocatingStatus {
    RelocatingDriver::default().run_pass(&bench.tier.inner, &bench.catalogue).await.unwrap();
    bench.tier.relocating()
}

fn group_set(bench: &Bench) -> GroupSet {
    let group_sets = bench.catalogue.group_sets();
    GroupSet::clone(group_sets.iter().find(|of| of.group == GROUP).unwrap())
}

/// The sets of the segments that an object has bytes in.
fn sets_of(bench: &Bench, object: &str) -> BTreeSet<u32> {
    let extents = bench.extents(object);
    extents.iter().map(|extent| bench.catalogue.segment(extent.segment_id()).unwrap().set).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_a_group_follow_it_and_it_ceases_to_be_a_guest() {
    let bench = in_all_sets().await;
    assert_eq!(pass(&bench).await, RelocatingStatus::default(), "nothing is due");
    let mut bodies = BTreeMap::new();
    let mut put = async |object: &'static str, length| {
        bodies.insert(object, (bench.put(object, length).await, length));
    };
    put("first", 20_000).await;
    put("first-long", 400_000).await;
    assign(&bench, 1, 0).await;
    put("second", 30_000).await;
    put("second-long", 500_000).await;
    assert_eq!(sets_of(&bench, "second-long"), [1].into());
    assign(&bench, 2, 1).await;
    let objects = ["first", "first-long", "second", "second-long"];
    let extents = objects.iter().flat_map(|object| bench.extents(object));
    let former: BTreeSet<SegmentId> = extents.map(|extent| extent.segment_id()).collect();
    put("third", 10_000).await;
    let status = pass(&bench).await;
    assert_eq!(status.moved_bytes, 950_000);
    assert!(status.left_bytes >= 950_000 && status.ended_guests == 0, "as it was before: {status:?}");
    for (object, (body, length)) in &bodies {
        assert_eq!(sets_of(&bench, object), [2].into(), "{object}");
        bench.reads(object, *body, *length).await;
    }
    let filter = DecisionFilter { limit: 100, kind: Some(DecisionKind::Relocate), bucket: None };
    let listed = bench.tier.inner.decisions.list(filter);
    assert!(listed.iter().all(|one| one.reason == DecisionReason::Rebalance), "{listed:?}");
    assert_eq!(listed.iter().map(|one| one.bytes).sum::<u64>(), 950_000, "{listed:?}");
    let status = pass(&bench).await;
    assert_eq!((status.left_bytes, status.moved_bytes, status.ended_guests), (0, 950_000, 1));
    assert_eq!(group_set(&bench), GroupSet { group: GROUP, set: 2, guest_of: vec![], changes: 3 });
    assert_eq!(pass(&bench).await, status, "nothing is left to do");

    // The space of the former sets becomes free.
    let bench = bench.reopen().await;
    bench.compact(1).await;
    bench.compact(1).await;
    assert!(former.iter().all(|segment| bench.catalogue.segment(*segment).is_none()), "{former:?}");
    for (object, (body, length)) in &bodies {
        bench.reads(object, *body, *length).await;
    }
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_uploads_follow_their_group_too() {
    let bench = in_all_sets().await;
    assign(&bench, 1, 0).await;
    let upload = bench.catalogue.body_id().await.unwrap();
    let create = Upload { body_id: upload.0, key: "big".into(), ..Upload::default() };
    bench.on("big", ObjectChange::CreateUpload(CreateUpload { upload: create })).await.unwrap();
    let (key, id) = (ObjectKey::new("big").unwrap(), bench.bucket.bucket_id());
    let data = bytes_of(7, 500_000);
    let mut extents = Vec::new();
    for (index, piece) in data.chunks(30_000).enumerate() {
        let (key, part, offset) = (key.clone(), PartNumber::new(3), (index * 30_000) as u64);
        let chunk = Chunk { key, part, offset, bucket: id, ..chunk(upload.0, piece.to_vec()) };
        extents.push(bench.tier.append(chunk).await.unwrap().extent);
    }
    let part = PartRecord { size: data.len() as u64, extents, ..PartRecord::default() };
    bench.on("big", ObjectChange::PutPart(PutPart { body_id: upload.0, number: 3, part })).await.unwrap();
    assign(&bench, 2, 1).await;
    assert_eq!(pass(&bench).await.moved_bytes, 500_000);
    let part = bench.catalogue.part(id, &key, upload, PartNumber::new(3).unwrap()).unwrap().unwrap();
    let mut read = Vec::new();
    for extent in part.extents {
        assert_eq!(bench.catalogue.segment(extent.segment_id()).unwrap().set, 2);
        read.extend(read_all(&bench.tier, &extent, upload.0).await);
    }
    assert!(read == data, "the part reads back");
    assert_eq!(pass(&bench).await.ended_guests, 1);
    bench.close().await;
}

/// A client's bytes were stored before the group moved, and its record comes after the end of the guest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_began_before_the_move_is_stored_again_in_the_new_set() {
    let bench = in_all_sets().await;
    assign(&bench, 1, 0).await;
    let body = bench.catalogue.body_id().await.unwrap();
    let early = bench.append("late", body, &bytes_of(body.0, 5_000), 60_000).await.remove(0);
    let segment = early.hold.segment();
    assign(&bench, 2, 1).await;
    assert_eq!(pass(&bench).await.ended_guests, 1, "no row refers to the set");
    let refused = bench.name("late", body, vec![early.extent.clone()]).await;
    assert_eq!(refused, Err(ProposeError::Rejected(Reject::SegmentFenced { segment: segment.0 })));
    let again = bench.tier.append_fenced(&early.extent, body).await.unwrap();
    bench.name("late", body, vec![again.extent]).await.unwrap();
    drop(early);
    bench.compact(1).await;
    bench.compact(1).await;
    assert!(bench.catalogue.segment(segment).is_none(), "nothing refers to it");
    assert_eq!(sets_of(&bench, "late"), [2].into());
    bench.reads("late", body, 5_000).await;

    // It returns to the set whose segments are fenced in it.
    assign(&bench, 1, 3).await;
    let body = bench.put("returned", 5_000).await;
    assert_eq!(sets_of(&bench, "returned"), [1].into());
    bench.reads("returned", body, 5_000).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_chunk_stays_and_its_group_remains_a_guest() {
    let bench = in_all_sets().await;
    assign(&bench, 1, 0).await;
    let sound = bench.put("sound", 20_000).await;
    bench.put("damaged", 20_000).await;
    let extent = bench.extents("damaged").remove(0);
    let path = bench.path(&segment_file_name(extent.segment_id()));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[(extent.offset + u64::from(extent.head_bytes) + 777) as usize] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assign(&bench, 2, 1).await;
    for _ in 0..2 {
        let status = pass(&bench).await;
        assert!(status.damaged_chunks > 0 && status.ended_guests == 0, "{status:?}");
        assert_eq!(status.moved_bytes, 20_000);
    }
    assert_eq!((sets_of(&bench, "sound"), sets_of(&bench, "damaged")), ([2].into(), [1].into()));
    bench.reads("sound", sound, 20_000).await;
    assert_eq!(group_set(&bench).guest_of, [1]);
    bench.delete("damaged").await;
    assert_eq!(pass(&bench).await.ended_guests, 1);
    bench.close().await;
}

/// More chunks than a batch cannot be read, and one behind them can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_that_cannot_be_read_delay_none_behind_them() {
    let bench = in_all_sets().await;
    assign(&bench, 1, 0).await;
    let mut early = BTreeMap::new();
    for number in 0..MOVE_BATCH_CHUNKS_MAX + 40 {
        let object = format!("a-{number:04}");
        early.insert(object.clone(), bench.put(&object, 3_000).await);
    }
    // It seals the segments.
    let bench = bench.reopen().await;
    let last = bench.put("z", 400_000).await;
    assign(&bench, 2, 1).await;
    let segments = |object: &str| -> BTreeSet<SegmentId> {
        bench.extents(object).iter().map(|extent| extent.segment_id()).collect()
    };
    let readable = segments("z");
    let broken: BTreeSet<SegmentId> =
        early.keys().flat_map(|object| segments(object)).filter(|id| !readable.contains(id)).collect();
    let unreadable = early.keys().filter(|object| segments(object).is_subset(&broken)).count();
    assert!(unreadable > MOVE_BATCH_CHUNKS_MAX, "{unreadable}");
    let files = broken.iter().map(|segment| bench.path(&segment_file_name(*segment)));
    let files: Vec<_> = files.map(|path| (path.with_extension("kept"), path)).collect();
    // A directory in the place of a file cannot be read.
    for (kept, path) in &files {
        std::fs::rename(path, kept).unwrap();
        std::fs::create_dir(path).unwrap();
    }
    bench.tier.inner.reader.invalidate_all();
    let passed = RelocatingDriver::default().run_pass(&bench.tier.inner, &bench.catalogue).await;
    let Err(MoveStepError::Unreadable(skipped)) = passed else { panic!("{passed:?}") };
    assert_eq!(skipped.count, unreadable as u64, "{skipped}");
    assert!(matches!(*skipped.first, SegmentReadError::Io { .. }), "{skipped}");
    assert_eq!(sets_of(&bench, "z"), [2].into());
    bench.reads("z", last, 400_000).await;

    for (kept, path) in &files {
        std::fs::remove_dir(path).unwrap();
        std::fs::rename(kept, path).unwrap();
    }
    bench.tier.inner.reader.invalidate_all();
    pass(&bench).await;
    for (object, body) in &early {
        assert_eq!(sets_of(&bench, object), [2].into(), "{object}");
        bench.reads(object, *body, 3_000).await;
    }
    assert_eq!(pass(&bench).await.ended_guests, 1);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_wait_for_the_flash_budget() {
    let bench = in_all_sets().await;
    bench.put("object", 20_000).await;
    assign(&bench, 1, 0).await;
    let flash = bench.tier.flash();
    flash.set_budget(24 * 1000);
    flash.record_write(crate::flash::FlashWriteCause::Client, 1 << 40);
    let status = pass(&bench).await;
    assert!(status.moved_bytes == 0 && status.left_bytes >= 20_000, "{status:?}");
    let filter = DecisionFilter { limit: 100, kind: Some(DecisionKind::Relocate), bucket: None };
    let listed = bench.tier.inner.decisions.list(filter);
    assert_eq!(listed[0].outcome, DecisionOutcome::OverBudget);
    bench.tier.flash().set_budget(0);
    assert_eq!(pass(&bench).await.moved_bytes, 20_000);
    bench.close().await;
}
