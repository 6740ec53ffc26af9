//! Tests of appends without space: when space is freed for them, and when they are refused.

use super::bench::{Bench, BenchOptions};
use super::placing::{reads_back, segments_in};
use super::*;
use crate::hot::{AppendError, PlacingSettings};
use mlgw_common::SegmentTier;

const LENGTH: usize = 50_000;

/// Puts an object, with retries while space is being freed; `Full` if there is none.
async fn put(bench: &Bench, object: &str) -> Result<BodyId, AppendError> {
    let body = bench.catalogue.body_id().await.unwrap();
    loop {
        let chunk = Chunk {
            key: ObjectKey::new(object).unwrap(),
            bucket: bench.bucket.bucket_id(),
            ..chunk(body.0, bytes_of(body.0, LENGTH))
        };
        match bench.tier.append(chunk).await {
            Ok(appended) => {
                bench.name(object, body, vec![appended.extent]).await.unwrap();
                return Ok(body);
            }
            Err(AppendError::NoRoomYet) => {}
            Err(error) => return Err(error),
        }
    }
}

/// No pass is requested, and passes run once an hour: waiting appends wake the workers that free space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwrites_get_space_while_the_cold_tier_has_some() {
    let placing = PlacingSettings { high_percent: 40, low_percent: 30, ..PlacingSettings::default() };
    let bench =
        Bench::tuned(BenchOptions { placing, capacity_bytes: 3_000_000, ..BenchOptions::default() }).await;
    let mut bodies = BTreeMap::new();
    for n in 0..300_usize {
        // 100 keys of 50,000 bytes: more live bytes than the hot tier holds.
        let object = format!("object-{}", n * 37 % 100);
        bodies.insert(object.clone(), put(&bench, &object).await.expect("there is room in the cold tier"));
    }
    assert!(!segments_in(&bench, SegmentTier::Cold).is_empty() && bench.tier.placing().failed == 0);
    let objects: Vec<_> = bodies.into_iter().map(|(object, body)| (object, body, LENGTH)).collect();
    reads_back(&bench, &objects).await;
    bench.close().await;
}

/// The fill level is below the high watermark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_larger_than_the_free_space_causes_a_spill() {
    let bench = Bench::tuned(BenchOptions { capacity_bytes: 3_000_000, ..BenchOptions::default() }).await;
    for n in 0..40 {
        put(&bench, &format!("object-{n}")).await.unwrap();
    }
    let (used, room) = bench.tier.fill();
    assert!(used < 3_000_000 / 100 * 85 && room < 2_000_000, "{used} {room}");
    while let Err(error) = bench.tier.wait_for_body_room(2_000_000).await {
        assert_eq!(error, AppendError::NoRoomYet);
    }
    assert!(!segments_in(&bench, SegmentTier::Cold).is_empty());
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tier_without_lower_tiers_gets_full_and_accepts_writes_after_deletes() {
    let tuned = BenchOptions { capacity_bytes: 3_000_000, cold_dirs: &[], ..BenchOptions::default() };
    let bench = Bench::tuned(tuned).await;
    let mut stored = 0_usize;
    let refused = loop {
        match put(&bench, &format!("object-{stored}")).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, AppendError::Full);
    assert!((50..60).contains(&stored), "{stored} of 50,000 bytes in 3,000,000");
    assert_eq!(bench.tier.wait_for_body_room(1_000_000_000).await, Err(AppendError::Full));
    for n in 0..stored / 2 {
        bench.delete(&format!("object-{n}")).await;
    }
    for n in 0..stored / 4 {
        put(&bench, &format!("again-{n}")).await.expect("deleted data becomes free space within seconds");
    }
    assert!(bench.tier.compaction().freed_bytes > 500_000);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_cold_tier_frees_no_space_and_loses_no_data() {
    let placing = PlacingSettings { high_percent: 40, low_percent: 30, ..PlacingSettings::default() };
    let bench =
        Bench::tuned(BenchOptions { placing, capacity_bytes: 3_000_000, ..BenchOptions::default() }).await;
    for dir in ["cold-1", "cold-2"] {
        let dir = bench.dir.path().join(dir);
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::write(&dir, "").unwrap();
    }
    let mut objects = Vec::new();
    let refused = loop {
        let object = format!("object-{}", objects.len());
        let body = bench.catalogue.body_id().await.unwrap();
        let chunk = Chunk {
            key: ObjectKey::new(&object).unwrap(),
            bucket: bench.bucket.bucket_id(),
            ..chunk(body.0, bytes_of(body.0, LENGTH))
        };
        match bench.tier.append(chunk).await {
            Ok(appended) => {
                bench.name(&object, body, vec![appended.extent]).await.unwrap();
                objects.push((object, body, LENGTH));
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused, AppendError::NoRoomYet, "the shortage is temporary, and the client may retry");
    assert!(bench.tier.placing().failed > 0);
    reads_back(&bench, &objects).await;
    bench.close().await;
}
