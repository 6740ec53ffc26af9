//! Tests: the hit ratios of the engine compared with references. The goals at full scale are in the
//! benchmark.

use crate::comparison::{CacheAlgorithm, CacheComparison, Score, Scoring};
use crate::reference::{ClassAwareCache, EpochHazard};
use crate::workload::{DatasetOrder, DatasetSharing, SimulationProfile, WorkloadSettings, workload};
use mlgw_policies::access::Op;

const BLOCK_BYTES: u32 = 8 << 20;

/// Runs a comparison that counts epochs from `from` on, with this share of all bytes as capacity.
pub(super) fn compare(
    profile: SimulationProfile,
    settings: &WorkloadSettings,
    share: f64,
    from: u32,
) -> CacheComparison {
    let made = workload(profile, settings).unwrap();
    let capacity = (made.scene.keys.bytes() as f64 * share) as u64;
    let requests = made.requests.map(|request| {
        let scoring = Scoring::of_epoch(request.epoch, from);
        (request, scoring)
    });
    CacheComparison::run(&made.scene, requests, BLOCK_BYTES, capacity)
}

pub(super) fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

#[test]
fn one_job_reaches_the_optimum_in_any_order_with_few_writes() {
    for order in [DatasetOrder::Sequential, DatasetOrder::Shuffled, DatasetOrder::ShardShuffled] {
        for share in [0.2, 0.5, 0.8] {
            let settings = WorkloadSettings {
                order: Some(order),
                epochs: Some(5),
                objects: Some(1000),
                ..WorkloadSettings::default()
            };
            let comparison = compare(SimulationProfile::Epochs, &settings, share, 2);
            let [ours, best, lru] = [CacheAlgorithm::Mlgw, CacheAlgorithm::Optimum, CacheAlgorithm::Lru]
                .map(|algorithm| comparison.score(algorithm));
            let reached = ours.byte_hit_ratio() / best.byte_hit_ratio();
            assert!(reached >= 0.98, "{order:?} {share}: {reached}");
            assert!(ours.written_bytes * 3 <= lru.written_bytes, "{order:?} {share}");
        }
    }
}

#[test]
fn jobs_that_share_a_dataset_reach_the_ratio_with_known_epochs() {
    for (jobs, share) in [(2, 0.4), (3, 0.2), (3, 0.4), (5, 0.4), (8, 0.2)] {
        let ratios = (1..=4_u64).map(|seed| {
            let settings = WorkloadSettings {
                seed,
                workloads: Some(jobs),
                epochs: Some(10),
                objects: Some(1000),
                ..WorkloadSettings::default()
            };
            let mut reference = EpochHazard::new(1000, usize::from(jobs), (1000.0 * share) as u32);
            let (mut hits, mut reads) = (0_u32, 0_u32);
            for request in workload(SimulationProfile::KWorkloads, &settings).unwrap().requests {
                let is_hit = reference.access(usize::from(request.caller), request.key);
                hits += u32::from(is_hit && request.epoch >= 5);
                reads += u32::from(request.epoch >= 5);
            }
            let comparison = compare(SimulationProfile::KWorkloads, &settings, share, 5);
            let [ours, never, lru] = [CacheAlgorithm::Mlgw, CacheAlgorithm::NeverEvict, CacheAlgorithm::Lru]
                .map(|algorithm| comparison.score(algorithm));
            assert!(ours.byte_hit_ratio() >= never.byte_hit_ratio(), "{jobs} {share} {seed}");
            assert!(ours.written_bytes * 3 <= lru.written_bytes, "{jobs} {share} {seed}");
            ours.byte_hit_ratio() / (f64::from(hits) / f64::from(reads))
        });
        let ratios: Vec<f64> = ratios.collect();
        let reached = mean(ratios.into_iter());
        assert!(reached >= 0.97, "{jobs} jobs, {share}: {reached}");
    }
}

#[test]
fn jobs_in_lock_step_hit_blocks_read_by_the_first() {
    let settings = WorkloadSettings {
        workloads: Some(4),
        epochs: Some(10),
        objects: Some(1000),
        sharing: DatasetSharing::LockStep { lag: 0.02 },
        ..WorkloadSettings::default()
    };
    let comparison = compare(SimulationProfile::KWorkloads, &settings, 0.2, 5);
    let [ours, best] = [CacheAlgorithm::Mlgw, CacheAlgorithm::Optimum]
        .map(|algorithm| comparison.score(algorithm).byte_hit_ratio());
    assert!(ours >= 0.95 * best, "{ours} of {best}");
}

#[test]
fn a_mix_reaches_the_ratio_of_a_cache_with_known_classes() {
    for share in [0.25, 1.25] {
        let settings = WorkloadSettings { objects: Some(2000), ..WorkloadSettings::default() };
        let made = workload(SimulationProfile::Mix, &settings).unwrap();
        let capacity = (2000.0 * share) as u64 * (1 << 20);
        let mut reference = ClassAwareCache::new(capacity);
        let mut score = Score::default();
        let scene = &made.scene;
        let requests = made.requests.map(|request| {
            let is_hit = reference.access(request.key, 1 << 20, scene.stream(&request).class(&request));
            if request.op == Op::Read {
                score.reads += 1;
                score.hits += u64::from(is_hit);
            }
            (request, Scoring::Counted)
        });
        let comparison = CacheComparison::run(scene, requests, BLOCK_BYTES, capacity);
        let [ours, best, lru] = [CacheAlgorithm::Mlgw, CacheAlgorithm::Optimum, CacheAlgorithm::Lru]
            .map(|algorithm| comparison.score(algorithm));
        let (ours_ratio, hit_ratio_with_plan) = (ours.object_hit_ratio(), score.object_hit_ratio());
        assert!(ours_ratio >= 0.97 * hit_ratio_with_plan, "{share}: {ours_ratio} {hit_ratio_with_plan}");
        assert!(ours_ratio >= 0.85 * best.object_hit_ratio(), "{share}: {ours_ratio}");
        assert!(ours.written_bytes * 3 <= lru.written_bytes, "{share}");
    }
}

#[test]
fn without_training_it_is_no_worse_than_s3_fifo() {
    for (seed, alpha) in [(1, 0.7), (2, 0.9), (3, 1.2)] {
        for share in [0.05, 0.2] {
            let settings =
                WorkloadSettings { seed, alpha, objects: Some(5000), ..WorkloadSettings::default() };
            let comparison = compare(SimulationProfile::Zipf, &settings, share, 0);
            let [ours, other] = [CacheAlgorithm::Mlgw, CacheAlgorithm::S3Fifo]
                .map(|algorithm| comparison.score(algorithm).byte_hit_ratio());
            assert!(ours >= other - 0.005, "{alpha} {share}: {ours} {other}");
        }
    }
}
