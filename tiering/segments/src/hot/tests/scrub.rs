//! Tests of the scrub on real files and a real catalogue: bad blocks are listed while they are referenced.

use super::bench::{Bench, clock};
use super::*;
use crate::hot::{
    OBJECT_PASSES, ObjectComparison, ObjectVerifier, Scrub, ScrubOptions, ScrubStatus, SegmentDirs,
    segment_file_name,
};
use mlgw_common::ObjectKey;
use mlgw_common::time::Instant;
use mlgw_formats::schema::ObjectVersion;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const LENGTH: usize = 150_000;

fn scrub(bench: &Bench) -> Scrub {
    scrub_with(bench, None)
}

fn scrub_with(bench: &Bench, proofs: Option<Arc<dyn ObjectVerifier>>) -> Scrub {
    let options = ScrubOptions {
        segments: SegmentDirs::new(bench.dir.path().join("segments"), vec![]),
        state: bench.dir.path().join("scrub.json"),
        bytes_per_second: 0,
        search_interval: Duration::from_millis(20),
        clock: clock(),
        proofs,
    };
    Scrub::start(options, bench.catalogue.clone(), bench.tier.clone()).unwrap()
}

/// Waits for a state that the scrub's thread reaches asynchronously.
fn until(scrub: &Scrub, reached: impl Fn(&ScrubStatus) -> bool) -> ScrubStatus {
    let begun = Instant::now();
    loop {
        let status = scrub.status();
        if reached(&status) {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{status:?}");
        mlgw_common::time::block_for(Duration::from_millis(5));
    }
}

fn pass(scrub: &Scrub) -> ScrubStatus {
    let passes = scrub.status().passes;
    scrub.start_pass();
    until(scrub, |status| status.passes > passes)
}

/// Returns a bench with objects in sealed segments, and the path of the segment with the first chunk of
/// `bad`.
async fn sealed() -> (Bench, BodyId, std::path::PathBuf) {
    let bench = Bench::new().await;
    let body = bench.put("bad", LENGTH).await;
    bench.put("sound", LENGTH).await;
    let bench = bench.reopen().await;
    let path = bench.path(&segment_file_name(bench.extents("bad")[0].segment_id()));
    (bench, body, path)
}

fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at as usize] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_block_found_by_a_read_is_listed_while_it_is_referenced() {
    let (bench, body, path) = sealed().await;
    let second = bench.extents("bad")[1].clone();
    flip(&path, second.offset + u64::from(second.head_bytes) + 10);
    let scrubbing = scrub(&bench);
    bench.tier.read(&second, body, 0..100, Lane::Training).await.unwrap_err();
    let listed = until(&scrubbing, |status| !status.bad.is_empty()).bad;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((listed[0].key.as_str(), listed[0].first, listed[0].last), ("bad", 60_000, 119_999));
    drop(scrubbing);

    let scrubbing = scrub(&bench);
    assert_eq!(scrubbing.status().bad, listed, "known after a restart");
    let met = bench.tier.metrics().corrupt_blocks;
    assert_eq!(pass(&scrubbing).bad, listed);
    assert_eq!(bench.tier.metrics().corrupt_blocks, met, "it is already known");
    bench.delete("bad").await;
    until(&scrubbing, |status| status.bad.is_empty());
    drop(scrubbing);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_block_of_a_compressed_chunk_is_listed_with_its_logical_range() {
    let bench = Bench::new().await;
    let body = bench.catalogue.body_id().await.unwrap();
    let key = ObjectKey::new("text").unwrap();
    let chunk = Chunk { bucket: bench.bucket.bucket_id(), key, ..packed(body.0, &text_of(body.0, LENGTH)) };
    let appended = bench.tier.append(chunk).await.unwrap();
    bench.name("text", body, vec![appended.extent.clone()]).await.unwrap();
    let extent = appended.extent;
    drop(appended.hold);
    let bench = bench.reopen().await;
    let at = extent.offset + extent.record_bytes() - 1;
    flip(&bench.path(&segment_file_name(extent.segment_id())), at);
    let scrubbing = scrub(&bench);
    let bad = pass(&scrubbing).bad;
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert_eq!((bad[0].first, bad[0].last), (2 * 65_536, LENGTH as u64 - 1));
    assert!(bad[0].offset > extent.offset && bad[0].offset <= at, "{bad:?} {extent:?}");
    drop(scrubbing);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_headers_and_truncated_or_missing_files_damage_whole_chunks() {
    type Damage = fn(&Path, &Extent);
    let damages: [Damage; 3] = [
        |path, extent| flip(path, extent.offset + 30),
        |path, extent| {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(extent.offset + 100).unwrap();
        },
        |path, _| std::fs::remove_file(path).unwrap(),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let (bench, _, path) = sealed().await;
        damage(&path, &bench.extents("bad")[0]);
        let scrubbing = scrub(&bench);
        let bad = pass(&scrubbing).bad;
        let first = bad.iter().find(|bad| bad.key == "bad" && bad.first == 0);
        assert!(first.is_some_and(|bad| bad.last == 59_999), "{number}: {bad:?}");
        assert!(bad.iter().all(|bad| !bad.what.is_empty()));
        drop(scrubbing);
        bench.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_verifies_again_is_delisted_by_the_next_pass() {
    let (bench, body, path) = sealed().await;
    let at = bench.extents("bad")[0].offset + 200;
    flip(&path, at);
    let scrubbing = scrub(&bench);
    assert_eq!(pass(&scrubbing).bad.len(), 1);
    flip(&path, at);
    assert_eq!(pass(&scrubbing).bad, []);
    bench.reads("bad", body, LENGTH).await;
    drop(scrubbing);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspects_survive_a_restart() {
    let (bench, _, path) = sealed().await;
    flip(&path, bench.extents("bad")[0].offset + 200);
    let segment = bench.extents("bad")[0].segment;
    // The state that is written when the segment was read and the catalogue not searched yet.
    let text = format!(
        "{{\"format\":1,\"running\":true,\"began_ms\":1,\"after\":{segment},\"read_bytes\":0,\"passes\":0,\
         \"ended_ms\":0,\"suspects\":[{segment}],\"bad\":[]}}"
    );
    std::fs::write(bench.dir.path().join("scrub.json"), text).unwrap();
    let scrubbing = scrub(&bench);
    let status = until(&scrubbing, |status| status.passes == 1);
    assert_eq!(status.bad.len(), 1, "{status:?}");
    drop(scrubbing);
    bench.close().await;
}

/// Counts the comparisons of each object, and reports some objects as wrong.
#[derive(Default)]
struct Counting {
    compared: parking_lot::Mutex<BTreeMap<String, u64>>,
    wrong: parking_lot::Mutex<BTreeSet<String>>,
}

impl ObjectVerifier for Counting {
    fn compare(
        &self,
        _: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        may_read: &(dyn Fn(u64) -> bool + Sync),
    ) -> ObjectComparison {
        *self.compared.lock().entry(key.as_str().to_owned()).or_default() += 1;
        if !may_read(object.size) {
            return ObjectComparison::Stopped;
        }
        match self.wrong.lock().contains(key.as_str()) {
            true => ObjectComparison::Wrong("its CRC64NVME is another".to_owned()),
            false => ObjectComparison::Right,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_object_is_compared_once_in_all_passes_and_listed_while_wrong() {
    let bench = Bench::new().await;
    let names: Vec<String> = (0..60).map(|number| format!("object-{number:02}")).collect();
    for name in &names {
        bench.put(name, 1000).await;
    }
    let counting = Arc::new(Counting::default());
    let running = scrub_with(&bench, Some(counting.clone()));
    for passed in 1..=OBJECT_PASSES {
        assert_eq!(pass(&running).passes, passed);
    }
    let compared = counting.compared.lock().clone();
    assert_eq!(compared.keys().collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
    assert!(compared.values().all(|times| *times == 1), "{compared:?}");
    assert_eq!(running.status().compared_objects, 60);

    counting.wrong.lock().extend([names[3].clone(), names[4].clone()]);
    for _ in 0..OBJECT_PASSES {
        pass(&running);
    }
    let listed = |status: &ScrubStatus| status.bad.iter().map(|bad| bad.key.clone()).collect::<BTreeSet<_>>();
    let found = running.status();
    assert_eq!(listed(&found), BTreeSet::from([names[3].clone(), names[4].clone()]));
    assert!(found.bad.iter().all(|bad| bad.whole && (bad.first, bad.last) == (0, 999)), "{:?}", found.bad);
    running.stop();
    drop(running);

    // The list survives a restart, and every pass compares listed objects again.
    let running = scrub_with(&bench, Some(counting.clone()));
    assert_eq!(listed(&pass(&running)).len(), 2);
    counting.wrong.lock().remove(&names[3]);
    assert_eq!(listed(&pass(&running)), BTreeSet::from([names[4].clone()]));
    bench.delete(&names[4]).await;
    until(&running, |status| status.bad.is_empty());
}
