//! Tests of compaction on real files and a real catalogue.

use super::bench::Bench;
use super::*;
use crate::hot::{SegmentReadError, segment_file_name};
use mlgw_common::PartNumber;
use mlgw_common::limits::MIB;
use mlgw_formats::command::{AbortUpload, CreateUpload, ObjectChange, PutPart, Reject};
use mlgw_formats::member_calls::{MemberAnswer, MemberCall, MemberReply, MemberRequest, ReadersCall};
use mlgw_formats::schema::{Encoding, PartRecord, SegmentState, Upload};
use mlgw_metadata::ProposeError;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwritten_and_deleted_bytes_are_freed_and_the_others_read_back() {
    let bench = Bench::new().await;
    let name = |n: usize| format!("object-{n}");
    for n in 0..150 {
        bench.put(&name(n), 10_000).await;
    }
    let mut bodies = BTreeMap::new();
    for n in 0..150 {
        match n % 10 {
            0 => bench.delete(&name(n)).await,
            1 => drop(bodies.insert(name(n), (bench.put(&name(n), 400_000).await, 400_000))),
            _ => drop(bodies.insert(name(n), (bench.put(&name(n), 9_000).await, 9_000))),
        }
    }
    let live: u64 = bodies.values().map(|(_, length)| *length as u64).sum();
    let before = bench.disk_bytes();
    assert!(before > live + 1_400_000, "{before} on the disk");
    bench.compact(1).await;
    bench.compact(1).await;
    let status = bench.tier.compaction();
    assert!(status.garbage_bytes < live / 50, "{status:?}");
    assert!(status.freed_segments > 4 && status.held_back_segments == 0, "{status:?}");
    assert!(bench.disk_bytes() < live + live / 20, "{} on the disk for {live}", bench.disk_bytes());
    let used = bench.tier.metrics().used_bytes;
    assert!(used < live + live / 20, "{used} used for {live}");
    let read = async |bench: &Bench| {
        for (object, (body, length)) in &bodies {
            bench.reads(object, *body, *length).await;
        }
    };
    read(&bench).await;
    let bench = bench.reopen().await;
    read(&bench).await;
    assert_eq!(bench.tier.stray_files(), [""; 0]);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_own_segment_is_released_without_moving() {
    let bench = Bench::new().await;
    let body = bench.catalogue.body_id().await.unwrap();
    let own = Chunk { placement: Placement::Own, ..chunk(body.0, vec![7; 100_000]) };
    let appended = bench.tier.append(own).await.unwrap();
    bench.name("large", body, vec![appended.extent.clone()]).await.unwrap();
    drop(appended);
    bench.put("small", 1_000).await;
    bench.tier.seal_own(body);
    bench.delete("large").await;
    while bench.files().len() > 1 {
        bench.compact(30).await;
    }
    assert_eq!(bench.tier.compaction().moved_bytes, 0);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_are_moved_in_uploads_too() {
    let bench = Bench::new().await;
    let upload = bench.catalogue.body_id().await.unwrap();
    let create = Upload { body_id: upload.0, key: "big".into(), ..Upload::default() };
    bench.on("big", ObjectChange::CreateUpload(CreateUpload { upload: create })).await.unwrap();
    for (number, length) in [(1u32, 30_000), (2, 500_000)] {
        let data = bytes_of(u64::from(number), length);
        let mut extents = Vec::new();
        for (index, piece) in data.chunks(30_000).enumerate() {
            let chunk = Chunk {
                key: ObjectKey::new("big").unwrap(),
                part: PartNumber::new(number),
                offset: (index * 30_000) as u64,
                bucket: bench.bucket.bucket_id(),
                ..chunk(upload.0, piece.to_vec())
            };
            extents.push(bench.tier.append(chunk).await.unwrap().extent);
            bench.put("dead", 20_000).await;
        }
        let part = PartRecord { size: length as u64, extents, ..PartRecord::default() };
        bench.on("big", ObjectChange::PutPart(PutPart { body_id: upload.0, number, part })).await.unwrap();
    }
    bench.delete("dead").await;
    bench.compact(1).await;
    assert!(bench.tier.compaction().moved_bytes >= 530_000, "{:?}", bench.tier.compaction());
    for (number, length) in [(1u32, 30_000), (2, 500_000)] {
        let (key, id) = (ObjectKey::new("big").unwrap(), bench.bucket.bucket_id());
        let part = bench.catalogue.part(id, &key, upload, PartNumber::new(number).unwrap()).unwrap().unwrap();
        let mut data = Vec::new();
        for extent in part.extents {
            data.extend(read_all(&bench.tier, &extent, upload.0).await);
        }
        assert!(data == bytes_of(u64::from(number), length), "part {number} reads back");
    }
    bench.on("big", ObjectChange::AbortUpload(AbortUpload { body_id: upload.0 })).await.unwrap();
    while bench.tier.compaction().garbage_bytes > 0 || bench.disk_bytes() > 1_000 {
        bench.compact(1).await;
    }
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_chunks_are_moved_without_recompression() {
    let bench = Bench::new().await;
    let body = bench.catalogue.body_id().await.unwrap();
    let text = text_of(body.0, 300_000);
    let chunk = Chunk {
        bucket: bench.bucket.bucket_id(),
        key: ObjectKey::new("text").unwrap(),
        ..packed(body.0, &text)
    };
    let first = bench.tier.append(chunk).await.unwrap();
    let before = first.extent.clone();
    let again = bench.tier.append_fenced(&before, body).await.unwrap();
    bench.name("text", body, vec![again.extent.clone()]).await.unwrap();
    drop((first, again));
    bench.put("dead", 100_000).await;
    bench.delete("dead").await;
    for _ in 0..3 {
        bench.compact(1).await;
    }
    let after = bench.extents("text").remove(0);
    assert_ne!((after.segment, after.offset), (before.segment, before.offset));
    let same =
        |extent: &Extent| (extent.head_bytes, extent.stored_bytes, extent.logical_bytes, extent.encoding);
    assert_eq!(same(&after), same(&before));
    assert!(after.encoding() == Encoding::Zstd && after.stored_bytes < 150_000, "{after:?}");
    assert_eq!(read_all(&bench.tier, &after, body.0).await, text);
    let usage = bench.catalogue.segment_usage(after.segment_id()).unwrap();
    assert_eq!(usage.bytes, after.record_bytes(), "live data counts with its stored size");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_segment_is_released_after_its_reader() {
    let bench = Bench::new().await;
    let body = bench.put("object", 50_000).await;
    let extent = bench.extents("object").remove(0);
    let pin = bench.tier.pin(vec![extent.segment_id()]).unwrap();
    bench.delete("object").await;
    bench.compact(1).await;
    assert_eq!(bench.tier.compaction().draining_segments, 1);
    assert_eq!(read_all(&bench.tier, &extent, body.0).await, bytes_of(body.0, 50_000));
    drop(pin);
    bench.compact(1).await;
    assert_eq!((bench.tier.compaction().draining_segments, bench.files().len()), (0, 0));
    assert!(bench.tier.pin(vec![extent.segment_id()]).is_none());
    let read = bench.tier.read(&extent, body, 0..1, Lane::Training).await;
    assert!(matches!(read, Err(SegmentReadError::Gone { .. })), "{read:?}");
    bench.close().await;
}

/// Those of `segments` that a node names as pinned to their owner, node 2.
async fn named_as_pinned(bench: &Bench, segments: &[SegmentId]) -> Vec<u64> {
    let segments = segments.iter().map(|segment| segment.0).collect();
    let call = MemberRequest::Readers(ReadersCall { segments, ..ReadersCall::default() });
    let call = MemberCall::encode_request(0, call);
    let answer = bench.catalogue.serve_call(NodeId(2), call).await.unwrap();
    let Ok(MemberReply::Readers(reply)) = MemberAnswer::read(answer) else { panic!("another answer") };
    reply.segments
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_is_not_named_as_pinned_cannot_be_pinned_after_the_answer() {
    let bench = Bench::new().await;
    bench.put("object", 50_000).await;
    let (segment, other) = (bench.extents("object")[0].segment_id(), SegmentId(1 << 40));
    let pin = bench.tier.pin(vec![segment]).unwrap();
    assert_eq!(named_as_pinned(&bench, &[other, segment]).await, [segment.0]);
    assert!(bench.tier.pin(vec![segment]).is_some(), "a pinned segment is not closed");
    drop(pin);
    assert_eq!(named_as_pinned(&bench, &[other, segment]).await, [] as [u64; 0]);
    assert!(bench.tier.pin(vec![segment]).is_none());
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_chunk_is_not_moved_and_the_others_are() {
    let bench = Bench::new().await;
    let sound = bench.put("sound", 20_000).await;
    let damaged = bench.put("damaged", 20_000).await;
    bench.put("dead", 20_000).await;
    let extent = bench.extents("damaged").remove(0);
    let path = bench.path(&segment_file_name(extent.segment_id()));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[(extent.offset + u64::from(extent.head_bytes) + 777) as usize] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    bench.delete("dead").await;
    for _ in 0..3 {
        bench.compact(1).await;
    }
    assert_eq!(bench.tier.compaction().held_back_segments, 1);
    assert_eq!(bench.extents("damaged"), std::slice::from_ref(&extent));
    assert_ne!(bench.extents("sound")[0].segment, extent.segment);
    bench.reads("sound", sound, 20_000).await;
    let read = bench.tier.read(&extent, damaged, 0..20_000, Lane::Training).await;
    assert!(matches!(read, Err(SegmentReadError::Corrupt { .. })), "{read:?}");
    bench.delete("damaged").await;
    bench.compact(1).await;
    assert!(!path.exists(), "the damaged data was removed with its segment");
    assert_eq!(bench.tier.compaction().held_back_segments, 0);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_files_of_removed_segments_are_swept() {
    let bench = Bench::new().await;
    bench.put("object", 20_000).await;
    let kept = bench.put("kept", 290_000).await;
    let removed = bench.files()[0].clone();
    let bytes = std::fs::read(bench.path(&removed)).unwrap();
    bench.delete("object").await;
    bench.compact(1).await;
    assert!(!bench.files().contains(&removed));
    // The state after a power loss before the directory was synced.
    std::fs::write(bench.path(&removed), bytes).unwrap();
    std::fs::write(bench.path("00000000000fffff.seg"), b"not ours").unwrap();
    let bench = bench.reopen().await;
    assert!(!bench.path(&removed).exists());
    assert_eq!(bench.tier.stray_files(), ["00000000000fffff.seg.aside-1"]);
    bench.reads("kept", kept, 290_000).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_append_is_appended_again_elsewhere() {
    let bench = Bench::new().await;
    let body = bench.catalogue.body_id().await.unwrap();
    let data = bytes_of(body.0, 5_000);
    let first = bench.append("key", body, &data, 60_000).await.remove(0);
    let segment = first.hold.segment();
    bench.catalogue.fence_segment(segment).await.unwrap();
    let refused = bench.name("key", body, vec![first.extent.clone()]).await;
    assert_eq!(refused, Err(ProposeError::Rejected(Reject::SegmentFenced { segment: segment.0 })));
    let again = bench.tier.append_fenced(&first.extent, body).await.unwrap();
    bench.name("key", body, vec![again.extent]).await.unwrap();
    bench.reads("key", body, 5_000).await;
    // The fenced segment accepts no more chunks.
    let next = bench.put("next", 1_000).await;
    bench.reads("next", next, 1_000).await;
    drop(first);
    bench.compact(30).await;
    assert!(bench.catalogue.segment(segment).is_none(), "it has no references");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_wrongly_known_as_dead_is_moved() {
    let bench = Bench::new().await;
    let body = bench.catalogue.body_id().await.unwrap();
    let appended = bench.append("key", body, &bytes_of(body.0, 5_000), 60_000).await.remove(0);
    let segment = appended.hold.segment();
    let name = || bench.name("key", body, vec![appended.extent.clone()]);
    name().await.unwrap();
    bench.delete("key").await;
    assert!(bench.catalogue.known_dead(segment).contains(appended.extent.offset));
    // The proposal arrives a second time.
    name().await.unwrap();
    drop(appended);
    bench.put("dead", 5_000).await;
    bench.delete("dead").await;
    bench.compact(1).await;
    assert!(bench.catalogue.segment(segment).is_none(), "{:?}", bench.tier.compaction());
    bench.reads("key", body, 5_000).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_segment_is_not_compacted() {
    let bench = Bench::new().await;
    let body = bench.catalogue.body_id().await.unwrap();
    let appended = bench.append("key", body, &bytes_of(body.0, 290_000), 60_000).await;
    let segment = appended[0].hold.segment();
    bench.put("next", 50_000).await;
    bench.compact(1).await;
    bench.compact(1).await;
    let summary = bench.catalogue.segment(segment).unwrap();
    assert_eq!(summary.state, SegmentState::Sealed);
    let extents = appended.iter().map(|one| one.extent.clone()).collect();
    bench.name("key", body, extents).await.unwrap();
    drop(appended);
    bench.compact(1).await;
    bench.reads("key", body, 290_000).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_scans_only_records_after_the_last_mark() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let mut extents = Vec::new();
    for body in 1..=100 {
        extents.push((body, append(&tier, chunk(body, bytes_of(body, 100_000))).await.unwrap()));
    }
    let marked = || map.marked.lock().get(&1).copied().unwrap_or(0);
    while marked() < 8 * MIB {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
    let left = map.copy();
    drop(tier);
    let tier = open(dir.path(), &left).await;
    let scanned = tier.recovered()[0].1;
    assert!(scanned.records <= 21, "{scanned:?} of 100");
    let end = extents.last().map(|(_, extent)| extent.offset + extent.record_bytes()).unwrap();
    assert_eq!(scanned.length, end);
    for (body, extent) in &extents {
        assert_eq!(read_all(&tier, extent, *body).await, bytes_of(*body, 100_000));
    }
}
