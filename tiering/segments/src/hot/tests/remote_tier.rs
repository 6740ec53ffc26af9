//! Tests of the remote tier: segments at upstreams, reads from there, and the effects of faults and crashes.

use super::bench::{Bench, BenchOptions, remote_tier_options};
use super::placing::{LyingDisk, OBJECTS, filled, reads_back, run_order, segments_in};
use super::*;
use crate::hot::{
    HotOpenError, PlacingOrder, PlacingSettings, ReadFault, SegmentReadError, Upstreams, segment_file_name,
};
use mlgw_common::ids::NodeId;
use mlgw_common::{Lineage, SegmentTier};
use mlgw_formats::decision_entry::DecisionCause;
use mlgw_formats::decision_words::DecisionReason;
use mlgw_remote::upstream::fake::{FakeS3Call, FakeS3Effect, FakeStore, encrypting_lake, lake};
use std::time::Duration;

pub(super) fn with_upstream(store: &FakeStore, encrypt: bool) -> BenchOptions {
    let lake = if encrypt { encrypting_lake(store) } else { lake(store) };
    let upstreams: Upstreams = Arc::new([("lake".to_owned(), lake)].into());
    BenchOptions { cold_dirs: &[], remote_tier: Some((upstreams, "lake")), ..BenchOptions::default() }
}

/// File names of the segments whose objects are in the store.
fn stored_segments(store: &FakeStore) -> Vec<String> {
    let names = store.names().into_iter();
    names.map(|name| format!("{}.seg", &name["pre/segments/".len()..][..16])).collect()
}

/// The list of leftovers.
fn leftovers_list(bench: &Bench) -> String {
    std::fs::read_to_string(bench.dir.path().join("leftovers.json")).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_spilled_to_an_upstream_read_back_and_can_be_promoted() {
    for encrypt in [false, true] {
        let store = FakeStore::default();
        let (bench, objects) = filled(with_upstream(&store, encrypt)).await;
        let sealed = segments_in(&bench, SegmentTier::Hot);
        let content = std::fs::read(bench.path(&sealed[0])).unwrap();
        run_order(&bench, PlacingOrder::DrainHot).await;
        assert_eq!(
            (segments_in(&bench, SegmentTier::Upstream), stored_segments(&store)),
            (sealed.clone(), sealed.clone())
        );
        assert!(!bench.files().iter().any(|file| sealed.contains(file)), "{:?}", bench.files());
        let object = store.object(&store.names()[0]).unwrap();
        assert_eq!(object == content, !encrypt, "the file, or that encrypted");
        let status = bench.tier.placing();
        assert!(status.stored_bytes > 0 && status.failed == 0 && status.spilled_bytes == 0, "{status:?}");
        reads_back(&bench, &objects).await;
        let bench = bench.reopen().await;
        reads_back(&bench, &objects).await;
        assert!(bench.tier.metrics().remote_reads as usize >= OBJECTS);
        assert_eq!(bench.tier.stray_files(), [""; 0]);
        let one = bench.catalogue.segments().unwrap().into_iter().find(|one| one.length > 64).unwrap();
        run_order(
            &bench,
            PlacingOrder::Promote { segments: vec![one.segment_id()], why: DecisionCause::job(7) },
        )
        .await;
        assert_eq!(segments_in(&bench, SegmentTier::Hot), [segment_file_name(one.segment_id())]);
        run_order(&bench, PlacingOrder::DrainUpstream).await;
        assert_eq!(
            (segments_in(&bench, SegmentTier::Hot), stored_segments(&store)),
            (sealed.clone(), vec![])
        );
        assert!(std::fs::read(bench.path(&sealed[0])).unwrap() == content);
        assert!(leftovers_list(&bench).contains("\"objects\":[]"), "{}", leftovers_list(&bench));
        reads_back(&bench, &objects).await;
        bench.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_at_an_upstream_is_read_on_nodes_that_do_not_own_it() {
    let store = FakeStore::default();
    let tuned = with_upstream(&store, true);
    let (bench, objects) = filled(tuned.clone()).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let dir = bench.dir.path().join("node-2");
    let lineage = Lineage { node: NodeId(2), ..Lineage::default() };
    let mut remote_tier = remote_tier_options(&dir, tuned.remote_tier).unwrap();
    remote_tier.spill_to = None;
    let on_two = HotOptions { lineage, ..options(&dir) };
    let connected = HotOptions { remote_tier: Some(remote_tier), ..on_two.clone() };
    let second = HotTier::open(connected, bench.catalogue.clone()).await.unwrap();
    for (object, body, length) in &objects[..3] {
        let mut data = Vec::new();
        for extent in bench.extents(object) {
            data.extend(read_all(&second, &extent, body.0).await);
        }
        assert!(data == bytes_of(body.0, *length), "{object} is read");
    }
    second.shutdown().await;
    // Without the upstream it starts as well: the owner of the segments reads them.
    let second = HotTier::open(on_two, bench.catalogue.clone()).await.unwrap();
    second.shutdown().await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_chunks_are_read_from_an_upstream_whole_and_in_ranges() {
    for encrypt in [false, true] {
        let store = FakeStore::default();
        let bench = Bench::tuned(with_upstream(&store, encrypt)).await;
        let body = bench.catalogue.body_id().await.unwrap();
        let text = text_of(body.0, 500_000);
        let (bucket, key) = (bench.bucket.bucket_id(), ObjectKey::new("text").unwrap());
        let appended = bench.tier.append(Chunk { bucket, key, ..packed(body.0, &text) }).await.unwrap();
        bench.name("text", body, vec![appended.extent.clone()]).await.unwrap();
        drop(appended);
        // Fills the segment, so that it is sealed.
        bench.put("behind", 300_000).await;
        let extent = bench.extents("text").remove(0);
        run_order(&bench, PlacingOrder::DrainHot).await;
        assert_eq!(bench.catalogue.segment(extent.segment_id()).unwrap().tier, SegmentTier::Upstream);
        let bench = bench.reopen().await;
        assert_eq!(read_all(&bench.tier, &extent, body.0).await, text);
        for range in [0..1, 65_535..65_537, 100_000..131_072, 130_000..400_000, 499_999..500_000] {
            let read =
                bench.tier.read(&extent, body, range.start as u64..range.end as u64, Lane::Training).await;
            assert!(read.unwrap() == text[range.clone()], "{range:?}");
        }
        assert!(bench.tier.metrics().remote_reads > 0);
        bench.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_succeed_while_segments_move_to_an_upstream_and_back() {
    let store = FakeStore::default();
    let (bench, objects) = filled(with_upstream(&store, false)).await;
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
        run_order(&bench, PlacingOrder::DrainUpstream).await;
    }
    reader.await.unwrap();
    Arc::into_inner(bench).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tier_spills_to_the_next_one() {
    let store = FakeStore::default();
    let placing = PlacingSettings { high_percent: 50, low_percent: 30, ..PlacingSettings::default() };
    let tuned = BenchOptions { cold_dirs: &["cold-1"], placing, ..with_upstream(&store, false) };
    let (bench, objects) = filled(tuned).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    assert!(
        !segments_in(&bench, SegmentTier::Cold).is_empty() && store.names().is_empty(),
        "the disk comes first"
    );
    reads_back(&bench, &objects).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_upstream_segments_are_removed_and_mostly_dead_ones_emptied() {
    let store = FakeStore::default();
    let (bench, objects) = filled(with_upstream(&store, true)).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let before = store.names().len();
    // An eighth of its segment is live.
    let (kept, gone) = objects.split_at(1);
    for (object, ..) in gone {
        bench.delete(object).await;
    }
    for _ in 0..100 {
        bench.compact(30).await;
    }
    assert_eq!((store.names(), before > 5), (vec![], true));
    assert!(bench.tier.placing().fetched_bytes > 0);
    reads_back(&bench, kept).await;
    assert_eq!(bench.tier.placing().leftover_objects, 0);
    let bench = bench.reopen().await;
    reads_back(&bench, kept).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_faulty_upstream_leaves_the_segment_local_and_no_object_behind() {
    let store = FakeStore::default();
    let (bench, objects) = filled(with_upstream(&store, false)).await;
    let sealed = segments_in(&bench, SegmentTier::Hot);
    let faults = [
        (FakeS3Call::Put, FakeS3Effect::Status(403, "AccessDenied")),
        (FakeS3Call::Put, FakeS3Effect::Status(503, "SlowDown")),
        (FakeS3Call::Put, FakeS3Effect::Break),
        (FakeS3Call::Put, FakeS3Effect::Flip),
        (FakeS3Call::Put, FakeS3Effect::Discard),
        (FakeS3Call::Get, FakeS3Effect::Short(100)),
        (FakeS3Call::Get, FakeS3Effect::Status(500, "InternalError")),
    ];
    for (nth, (call, effect)) in faults.into_iter().enumerate() {
        store.fail(call, usize::MAX, effect);
        run_order(&bench, PlacingOrder::DrainHot).await;
        store.heal();
        assert_eq!(bench.tier.placing().failed, (sealed.len() * (nth + 1)) as u64, "{call:?} {effect:?}");
        assert_eq!(segments_in(&bench, SegmentTier::Hot), sealed, "{call:?} {effect:?}");
        reads_back(&bench, &objects).await;
    }
    let bench = bench.reopen().await;
    bench.compact(100).await;
    bench.compact(100).await;
    assert_eq!(
        (stored_segments(&store), segments_in(&bench, SegmentTier::Hot)),
        (vec![], sealed.clone()),
        "nothing is left over"
    );
    run_order(&bench, PlacingOrder::DrainHot).await;
    assert_eq!(stored_segments(&store), sealed);
    reads_back(&bench, &objects).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_from_an_upstream_is_correct_or_returns_the_right_error() {
    let store = FakeStore::default();
    let (bench, objects) = filled(with_upstream(&store, false)).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let (name, body, length) = &objects[0];
    let extent = bench.extents(name).remove(0);
    let read = || bench.tier.read(&extent, *body, 0..extent.logical_bytes, Lane::Training);
    let faults = [
        (FakeS3Effect::Short(100), "truncated"),
        (FakeS3Effect::Status(503, "SlowDown"), "unreachable"),
        (FakeS3Effect::Status(403, "AccessDenied"), "unreachable"),
        (FakeS3Effect::Break, "unreachable"),
    ];
    for (effect, expected) in faults {
        store.fail(FakeS3Call::Get, usize::MAX, effect);
        let failed = read().await.expect_err("not read");
        let found = match &failed {
            SegmentReadError::Corrupt { fault: ReadFault::Truncated, .. } => "truncated",
            SegmentReadError::Unreachable { .. } => "unreachable",
            other => panic!("{other}"),
        };
        assert_eq!(found, expected, "{effect:?}: {failed}");
        store.heal();
        bench.reads(name, *body, *length).await;
    }
    // Damages the stored object.
    let object =
        store.names().into_iter().find(|name| name.contains(&format!("{:016x}-", extent.segment))).unwrap();
    let (stored, mut rotten) = (store.object(&object).unwrap(), store.object(&object).unwrap());
    rotten[extent.offset as usize + extent.head_bytes as usize + 5] ^= 1;
    store.set_object(&object, rotten);
    let failed = read().await.expect_err("rotten");
    assert!(matches!(failed, SegmentReadError::Corrupt { fault: ReadFault::Block(0), .. }), "{failed}");
    run_order(
        &bench,
        PlacingOrder::Promote { segments: vec![extent.segment_id()], why: DecisionReason::Requested.into() },
    )
    .await;
    assert_eq!(bench.tier.placing().failed, 1, "an incomplete segment is not moved back");
    store.set_object(&object, stored);
    store.fail(FakeS3Call::Get, 2, FakeS3Effect::Status(503, "SlowDown"));
    bench.reads(name, *body, *length).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetched_segment_is_verified_on_the_disk_and_not_in_the_page_cache() {
    let (store, disk) = (FakeStore::default(), Arc::new(LyingDisk::default()));
    let tuned = BenchOptions { intercept: Some(disk.clone()), ..with_upstream(&store, false) };
    let (bench, objects) = filled(tuned).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let stored = segments_in(&bench, SegmentTier::Upstream);
    disk.lie_in(&[bench.dir.path().join("segments")]);
    run_order(&bench, PlacingOrder::DrainUpstream).await;
    assert!(bench.tier.placing().failed > 0);
    assert_eq!(segments_in(&bench, SegmentTier::Upstream), stored);
    disk.lie_in(&[]);
    run_order(&bench, PlacingOrder::DrainUpstream).await;
    assert_eq!(segments_in(&bench, SegmentTier::Hot), stored);
    reads_back(&bench, &objects).await;
    bench.close().await;
}

/// Three fetches fail, after which the order is given up: the bytes of the first two delay the next fetch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fetch_is_charged_to_the_rate_of_moves() {
    let (store, disk) = (FakeStore::default(), Arc::new(LyingDisk::default()));
    let tuned = BenchOptions { intercept: Some(disk.clone()), ..with_upstream(&store, false) };
    let (bench, _) = filled(tuned).await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let lengths = bench.catalogue.segments().unwrap().into_iter().map(|record| record.length);
    let shortest = lengths.filter(|length| *length > 64).min().unwrap();
    // At this rate the shortest segment takes 200 ms.
    let rate = 5 * shortest;
    bench.tier.set_placing(PlacingSettings { bytes_per_second: rate, ..PlacingSettings::default() });
    disk.lie_in(&[bench.dir.path().join("segments")]);
    let begun = mlgw_common::time::Instant::now();
    run_order(&bench, PlacingOrder::DrainUpstream).await;
    let elapsed = begun.elapsed();
    assert!(bench.tier.placing().failed >= 3, "{:?}", bench.tier.placing());
    assert!(elapsed >= 2 * Duration::from_millis(200), "{elapsed:?}");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leftovers_of_an_interrupted_move_are_removed() {
    let store = FakeStore::default();
    let (bench, objects) = filled(with_upstream(&store, false)).await;
    let sealed = segments_in(&bench, SegmentTier::Hot);
    // The object arrives, and the response never does.
    store.fail(FakeS3Call::Head, usize::MAX, FakeS3Effect::Hang);
    bench.tier.order(PlacingOrder::DrainHot);
    store.wait_for(FakeS3Call::Head, 1).await;
    let orphan = "pre/segments/0000000000000001-00000000000000ff.seg";
    let bench = bench.reopen().await;
    store.heal();
    // The state after a crash: an object that is listed, stored, and named by no record.
    let list = leftovers_list(&bench);
    assert!(list.contains("lake"), "{list}");
    let (begin, end) = list.split_once('[').unwrap();
    let more = "{\"upstream\":\"lake\",\"segment\":1,\"copy\":255},";
    std::fs::write(bench.dir.path().join("leftovers.json"), format!("{begin}[{more}{end}")).unwrap();
    store.set_object(orphan, vec![1, 2, 3]);
    let other = "pre/segments/0000000000000001-00000000000000fe.seg";
    store.set_object(other, vec![4]);
    let bench = bench.reopen().await;
    bench.compact(100).await;
    bench.compact(100).await;
    assert_eq!(store.names(), [other], "only the listed leftovers were removed");
    assert_eq!(segments_in(&bench, SegmentTier::Hot), sealed);
    reads_back(&bench, &objects).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumable_upload_of_the_same_bytes_is_kept_for_a_day() {
    let store = FakeStore::default();
    let (bench, objects) = filled(with_upstream(&store, false)).await;
    let record = bench.catalogue.segments().unwrap().into_iter().find(|one| one.length > 64).unwrap();
    let (segment, generation, bytes) = (record.id, record.generation, record.length);
    let now = mlgw_common::Clock::now(&*super::bench::clock()).as_millis();
    let days_ago = |days: i64| now - days * 24 * 60 * 60 * 1000;
    let object = |copy: u64| format!("{{\"upstream\":\"lake\",\"segment\":{segment},\"copy\":{copy}}}");
    let upload = |copy: u64, bytes: u64, begun_ms: i64| {
        let of = format!(
            "{{\"upload\":\"u\",\"generation\":{generation},\"bytes\":{bytes},\"sealed_key\":[],\
             \"begun_ms\":{begun_ms}}}"
        );
        format!("[{},{of}]", object(copy))
    };
    let uploads =
        [upload(1, bytes, days_ago(0)), upload(2, bytes, days_ago(2)), upload(3, bytes + 1, days_ago(0))];
    let listed_objects = [1, 2, 3, 4].map(object).join(",");
    let list = format!("{{\"format\":1,\"objects\":[{listed_objects}],\"uploads\":[{}]}}", uploads.join(","));
    let name = |copy: u64| format!("pre/segments/{segment:016x}-{copy:016x}.seg");
    (1..=4).for_each(|copy| store.set_object(&name(copy), vec![copy as u8]));
    std::fs::write(bench.dir.path().join("leftovers.json"), list).unwrap();
    let bench = bench.reopen().await;
    bench.compact(100).await;
    bench.compact(100).await;
    assert_eq!(store.names(), [name(1)]);
    assert!(leftovers_list(&bench).contains("\"upload\":\"u\""), "{}", leftovers_list(&bench));
    // The next attempt to store the segment uses that name.
    run_order(&bench, PlacingOrder::DrainHot).await;
    assert!(store.names().contains(&name(1)), "{:?}", store.names());
    assert!(leftovers_list(&bench).contains("\"uploads\":[]"), "{}", leftovers_list(&bench));
    reads_back(&bench, &objects).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_upstream_does_not_cause_removal_of_local_copies() {
    let store = FakeStore::default();
    let (bench, objects) = filled(with_upstream(&store, false)).await;
    let extent = bench.extents(&objects[0].0).remove(0);
    let name = segment_file_name(extent.segment_id());
    let file = std::fs::read(bench.path(&name)).unwrap();
    run_order(&bench, PlacingOrder::DrainHot).await;
    let here = bench.path(&name);
    let Bench { dir, catalogue, tier, .. } = bench;
    tier.shutdown().await;
    // The state after a crash before the removal of the file.
    std::fs::write(&here, file).unwrap();
    let refused = HotTier::open(options(dir.path()), catalogue.clone()).await.err();
    let expected = matches!(
        &refused,
        Some(HotOpenError::NoUpstream { upstream, segments }) if upstream == "lake" && *segments > 5
    );
    assert!(expected && here.exists(), "{refused:?}");
    let lost = HotOptions { start_without_missing: true, ..options(dir.path()) };
    let tier = HotTier::open(lost, catalogue.clone()).await.unwrap();
    assert!(here.exists(), "it is the only copy now");
    let read = tier.read(&extent, objects[0].1, 0..10, Lane::Training).await.unwrap();
    assert_eq!(read, bytes_of(objects[0].1.0, objects[0].2)[..10]);
    tier.shutdown().await;
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_fetched_once_for_all_pieces_and_readers_unless_a_small_range_is_read() {
    let store = FakeStore::default();
    let (bench, _) = filled(with_upstream(&store, false)).await;
    let body = bench.catalogue.body_id().await.unwrap();
    let data = bytes_of(body.0, 1 << 20);
    let appended = bench.append("long", body, &data, 1 << 20).await;
    bench.name("long", body, appended.into_iter().map(|one| one.extent).collect()).await.unwrap();
    let bench = bench.reopen().await;
    run_order(&bench, PlacingOrder::DrainHot).await;
    let extent = bench.extents("long").remove(0);
    store.forget_calls();
    const PIECE: u64 = 256 << 10;
    let piece = |n: u64| bench.tier.read(&extent, body, n * PIECE..(n + 1) * PIECE, Lane::Training);
    bench.tier.read_ahead(std::iter::once(&extent));
    let (one, other) = tokio::join!(piece(0), piece(0));
    assert!(one.unwrap() == data[..PIECE as usize] && other.unwrap() == data[..PIECE as usize]);
    for n in 1..4 {
        assert!(piece(n).await.unwrap() == data[(n * PIECE) as usize..((n + 1) * PIECE) as usize]);
    }
    assert_eq!(store.calls(FakeS3Call::Get), 1);
    let small = bench.tier.read(&extent, body, 700_000..700_010, Lane::Training).await.unwrap();
    assert_eq!(small, &data[700_000..700_010]);
    let fetched: usize = store.ranges().iter().skip(1).map(|(first, last)| last + 1 - first).sum();
    assert!(store.calls(FakeS3Call::Get) == 3 && fetched < 100_000, "{:?}", store.ranges());
    bench.close().await;
}
