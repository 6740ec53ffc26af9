//! Tests that workloads have the documented orders, proportions and reference hits, and are generated
//! lazily.

use super::{
    DatasetOrder, DatasetSharing, GeneratedWorkload, SimulationProfile, WorkloadSettings, Zipf, workload,
};
use crate::blocks::Blocks;
use crate::naming::Naming;
use crate::reference::{ClassAwareCache, EpochHazard, Event, OptimumOutcome, optimum};
use crate::scene::{GeneratedRequest, StreamPattern};
use mlgw_policies::access::Op;
use mlgw_policies::reference::{Lru, ReferenceCache, S3Fifo};
use std::collections::{BTreeMap, BTreeSet};

fn make(profile: SimulationProfile, settings: &WorkloadSettings) -> GeneratedWorkload {
    workload(profile, settings).unwrap()
}

fn all(profile: SimulationProfile, settings: &WorkloadSettings) -> Vec<GeneratedRequest> {
    make(profile, settings).requests.collect()
}

#[test]
fn workload_requests_are_ordered_by_time_and_stay_within_their_objects() {
    for profile in SimulationProfile::ALL.iter().copied() {
        let GeneratedWorkload { scene, requests } =
            make(profile, &WorkloadSettings { objects: Some(500), ..WorkloadSettings::default() });
        let mut before_us = 0;
        let mut count = 0;
        for request in requests {
            assert!(request.at_us >= before_us, "{}", profile.name());
            before_us = request.at_us;
            let access = scene.access(&request);
            assert!(access.range.start < access.range.end && access.range.end <= access.size);
            assert!(access.op == Op::Read || access.range == (0..access.size));
            count += 1;
        }
        assert!(count >= 500 * 5, "{}: {count}", profile.name());
    }
}

#[test]
fn the_seed_determines_the_workload() {
    for profile in SimulationProfile::ALL.iter().copied() {
        let settings = WorkloadSettings { objects: Some(200), ..WorkloadSettings::default() };
        let first = all(profile, &settings);
        assert_eq!(first, all(profile, &settings), "{}", profile.name());
        assert_ne!(first, all(profile, &WorkloadSettings { seed: 2, ..settings }), "{}", profile.name());
    }
}

#[test]
fn every_epoch_reads_every_byte_once_in_its_order() {
    for profile in [
        SimulationProfile::Resnet50,
        SimulationProfile::Unet3d,
        SimulationProfile::Cosmoflow,
        SimulationProfile::Retinanet,
        SimulationProfile::Epochs,
    ] {
        for order in [DatasetOrder::Sequential, DatasetOrder::Shuffled, DatasetOrder::ShardShuffled] {
            let settings = WorkloadSettings {
                objects: Some(300),
                epochs: Some(3),
                order: Some(order),
                ..WorkloadSettings::default()
            };
            let GeneratedWorkload { scene, requests } = make(profile, &settings);
            let mut ends: BTreeMap<(u32, u32), u64> = BTreeMap::new();
            let mut firsts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for request in requests {
                let end = ends.entry((request.epoch, request.key)).or_insert_with(|| {
                    firsts.entry(request.epoch).or_default().push(request.key);
                    0
                });
                assert_eq!(request.range.start, *end);
                *end = request.range.end;
            }
            assert_eq!(ends.len(), 900);
            assert!(ends.iter().all(|((_, key), end)| scene.keys.size(*key) == *end));
            let sorted = firsts.values().filter(|keys| keys.is_sorted()).count();
            assert_eq!(sorted, if order == DatasetOrder::Sequential { 3 } else { 0 });
            let follows = |keys: &Vec<u32>| keys.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            if profile == SimulationProfile::Epochs && order == DatasetOrder::ShardShuffled {
                assert!(firsts.values().all(|keys| follows(keys) >= 297));
            }
        }
    }
}

#[test]
fn names_are_in_the_order_of_numbers_and_distinct() {
    for profile in SimulationProfile::ALL.iter().copied() {
        let scene =
            make(profile, &WorkloadSettings { objects: Some(1000), ..WorkloadSettings::default() }).scene;
        let names: BTreeSet<_> =
            (0..scene.keys.len() as u32).map(|key| (scene.keys.bucket(key), scene.keys.name(key))).collect();
        assert_eq!(names.len(), scene.keys.len(), "{}", profile.name());
        if profile != SimulationProfile::Mix && profile != SimulationProfile::Zipf {
            assert!(
                (1..1000).all(|key| scene.keys.name(key - 1) < scene.keys.name(key)),
                "{}",
                profile.name()
            );
        }
    }
}

#[test]
fn scales_change_only_sizes_times_and_names() {
    for profile in SimulationProfile::ALL.iter().copied() {
        let plain = WorkloadSettings { objects: Some(300), ..WorkloadSettings::default() };
        let scaled = WorkloadSettings {
            size_scale: 3.0,
            time_scale: 10.0,
            naming: Naming::Renamed { seed: 5 },
            ..plain.clone()
        };
        let (plain, scaled) = (make(profile, &plain), make(profile, &scaled));
        let name = profile.name();
        let (one, other): (Vec<_>, Vec<_>) = (plain.requests.collect(), scaled.requests.collect());
        assert_eq!(one.len(), other.len());
        // Requests within one microsecond may be reordered when it becomes ten.
        let swapped = one.iter().zip(&other).filter(|(a, b)| (a.caller, a.key) != (b.caller, b.key)).count();
        assert!(swapped <= one.len() / 500, "{name}: {swapped} of {}", one.len());
        for (one, other) in one.iter().zip(&other).filter(|(a, b)| (a.caller, a.key) == (b.caller, b.key)) {
            assert_eq!((one.stream, one.epoch, one.op), (other.stream, other.epoch, other.op), "{name}");
            assert!(other.range.end.abs_diff(one.range.end * 3) <= 200, "{name}");
            assert!(other.at_us.abs_diff(one.at_us * 10) <= 10 + one.at_us / 1000, "{name}");
        }
        assert_ne!(plain.scene.keys.name(0), scaled.scene.keys.name(0));
    }
}

#[test]
fn jobs_share_a_dataset_as_configured() {
    let settings = WorkloadSettings {
        objects: Some(1000),
        epochs: Some(3),
        workloads: Some(3),
        ..WorkloadSettings::default()
    };
    let orders = |settings: &WorkloadSettings| {
        let mut orders = BTreeMap::<u16, Vec<u32>>::new();
        for request in make(SimulationProfile::KWorkloads, settings).requests {
            orders.entry(request.caller).or_default().push(request.key);
        }
        assert_eq!(orders.len(), 3);
        orders.into_values().collect::<Vec<_>>()
    };
    let apart = orders(&settings);
    assert!(apart[0] != apart[1] && apart[1] != apart[2] && apart[0].len() == 3000);
    let together = WorkloadSettings { sharing: DatasetSharing::LockStep { lag: 0.1 }, ..settings };
    let orders = orders(&together);
    assert!(orders[0] == orders[1] && orders[1] == orders[2]);
    // The second job is always a hundred objects behind the first.
    let mut done = [0_i64; 3];
    for request in make(SimulationProfile::KWorkloads, &together).requests {
        done[usize::from(request.caller)] += 1;
        if (200..3000).contains(&done[0]) {
            assert!((done[0] - done[1] - 100).abs() <= 2, "{done:?}");
        }
    }
}

/// Hit ratios of LRU, the optimum and the class-aware cache in the mixed workload; all objects are one
/// block.
fn mixed(settings: &WorkloadSettings, blocks: u64) -> [f64; 3] {
    let GeneratedWorkload { scene, requests } = make(SimulationProfile::Mix, settings);
    let bytes = scene.keys.size(0);
    let mut numbers = Blocks::new(bytes as u32);
    let (mut lru, mut class_aware) = (Lru::new(blocks * bytes), ClassAwareCache::new(blocks * bytes));
    let (mut events, mut hits, mut reads) = (Vec::new(), [0_u32; 3], 0);
    for request in requests {
        let is_read = request.op == Op::Read;
        for (block, bytes) in numbers.blocks_of(request.key, scene.keys.size(request.key), &request.range) {
            reads += u32::from(is_read);
            events.push(Event { block, bytes, op: request.op });
            hits[0] += u32::from(lru.access(block, bytes, request.op) && is_read);
            let class = scene.stream(&request).class(&request);
            hits[2] += u32::from(class_aware.access(block, bytes, class) && is_read);
        }
    }
    let outcomes = optimum(&events, blocks * bytes);
    hits[1] = outcomes.iter().filter(|outcome| **outcome == OptimumOutcome::Hit).count() as u32;
    hits.map(|hits| f64::from(hits) / f64::from(reads))
}

#[test]
fn the_mix_has_the_hit_ratios_of_the_reference_simulator() {
    let rows = [
        (1000, [0.313, 0.427, 0.381]),
        (2000, [0.334, 0.514, 0.457]),
        (3000, [0.364, 0.590, 0.533]),
        (5000, [0.445, 0.712, 0.654]),
    ];
    for (blocks, expected) in rows {
        let mut mean = [0.0; 3];
        for seed in 0..8 {
            let found = mixed(&WorkloadSettings { seed, ..WorkloadSettings::default() }, blocks);
            (0..3).for_each(|i| mean[i] += found[i] / 8.0);
        }
        // The mix of the reference simulator has 70 replicas; the expected number is 55, and each replica
        // contributes a thousandth of the hits.
        let close = mean.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.02);
        assert!(close, "{blocks}: {mean:.3?} and {expected:?}");
    }
}

/// The reference simulator's ratios of EPOCH-HAZARD to the optimum, .735 and .846, are means over seeds, as
/// here.
#[test]
fn several_jobs_have_the_hit_ratios_of_the_reference_simulator() {
    for (blocks, expected) in [(400, [0.138, 0.359, 0.488]), (800, [0.295, 0.575, 0.680])] {
        let mut mean = [0.0; 3];
        for seed in 0..8 {
            let settings = WorkloadSettings { seed, ..WorkloadSettings::default() };
            let reads: Vec<_> = make(SimulationProfile::KWorkloads, &settings).requests.collect();
            let mark = reads.len() / 2;
            let event = |read: &GeneratedRequest| Event { block: read.key, bytes: 1, op: Op::Read };
            let (mut lru, mut hazard) = (Lru::new(blocks), EpochHazard::new(2000, 3, blocks as u32));
            let best = optimum(&reads.iter().map(event).collect::<Vec<_>>(), blocks);
            for (at, read) in reads.iter().enumerate() {
                let hits = [
                    lru.access(read.key, 1, Op::Read),
                    hazard.access(usize::from(read.caller), read.key),
                    best[at] == OptimumOutcome::Hit,
                ];
                for (mean, hit) in mean.iter_mut().zip(hits).filter(|_| at >= mark) {
                    *mean += f64::from(u8::from(hit)) / (reads.len() - mark) as f64 / 8.0;
                }
            }
        }
        let close = mean.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.01);
        assert!(close, "{blocks}: {mean:.3?} and {expected:?}");
    }
}

/// Checks the purpose of this traffic: a scan-resistant cache does better than LRU, and the optimum better
/// than that.
#[test]
fn references_differ_on_non_training_traffic() {
    for alpha in [0.7, 1.0, 1.2] {
        let settings = WorkloadSettings { objects: Some(5000), alpha, ..WorkloadSettings::default() };
        let GeneratedWorkload { scene, requests } = make(SimulationProfile::Zipf, &settings);
        let mut numbers = Blocks::new(1 << 20);
        let mut events = Vec::new();
        for request in requests {
            let blocks = numbers.blocks_of(request.key, scene.keys.size(request.key), &request.range);
            events.extend(blocks.map(|(block, bytes)| Event { block, bytes, op: Op::Read }));
        }
        let capacity = scene.keys.bytes() / 20;
        let (mut lru, mut s3_fifo) = (Lru::new(capacity), S3Fifo::new(capacity));
        let lru = events.iter().filter(|e| lru.access(e.block, e.bytes, Op::Read)).count();
        let s3_fifo = events.iter().filter(|e| s3_fifo.access(e.block, e.bytes, Op::Read)).count();
        let best = optimum(&events, capacity).iter().filter(|o| **o == OptimumOutcome::Hit).count();
        assert!(lru + events.len() / 100 < s3_fifo && s3_fifo + events.len() / 100 < best, "{alpha}");
    }
}

#[test]
fn the_mix_has_the_documented_parts() {
    let GeneratedWorkload { scene, requests } = make(SimulationProfile::Mix, &WorkloadSettings::default());
    let mut counts = BTreeMap::<String, u32>::new();
    let mut generations = BTreeSet::new();
    for request in requests {
        let pattern = scene.stream(&request).pattern;
        *counts.entry(format!("{pattern:?} {:?}", request.op)).or_default() += 1;
        if pattern == StreamPattern::Checkpoint && scene.keys.name(request.key).ends_with("/.metadata") {
            generations.insert((request.epoch, request.op == Op::Read));
        }
    }
    assert_eq!(counts["Shuffled Read"], 2 * 6 * 4000 + 4 * 8 * 1500);
    assert_eq!(counts["Validation Read"], 2 * 6 * 200);
    assert_eq!(counts["OnePass Read"], 24_600);
    assert_eq!(counts["Checkpoint Write"], 61 * 150);
    assert_eq!(counts["Checkpoint Read"], 7 * 150);
    assert!((3000..9000).contains(&counts["Model Read"]));
    assert_eq!(generations.iter().filter(|(_, read)| *read).count(), 7);
}

#[test]
fn ranks_are_drawn_with_the_expected_frequencies() {
    for alpha in [0.0, 0.7, 1.0, 1.2] {
        let zipf = Zipf::new(1000, alpha);
        let mut random = fastrand::Rng::with_seed(3);
        let mut counts = vec![0_u32; 1001];
        (0..1_000_000).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
        let total: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-alpha)).sum();
        for rank in [1_u32, 2, 3, 10, 100, 1000] {
            let expected = 1e6 * f64::from(rank).powf(-alpha) / total;
            let error = f64::from(counts[rank as usize]) - expected;
            assert!(error.abs() < 5.0 * expected.sqrt() + 1.0, "alpha {alpha}, rank {rank}: {error}");
        }
    }
}

#[test]
fn popularity_drifts_and_new_objects_appear() {
    let GeneratedWorkload { scene, requests } = make(
        SimulationProfile::Zipf,
        &WorkloadSettings { objects: Some(2000), ..WorkloadSettings::default() },
    );
    let requests: Vec<_> = requests.filter(|r| scene.stream(r).pattern == StreamPattern::Skewed).collect();
    let popular = |part: &[GeneratedRequest]| {
        let mut counts = BTreeMap::<u32, u32>::new();
        part.iter().for_each(|request| *counts.entry(request.key).or_default() += 1);
        let mut counts: Vec<_> = counts.into_iter().map(|(key, count)| (count, key)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts.into_iter().take(100).map(|(_, key)| key).collect::<BTreeSet<_>>()
    };
    let parts: Vec<_> = requests.chunks(requests.len() / 10).map(popular).collect();
    let shared = |a: usize, b: usize| parts[a].intersection(&parts[b]).count();
    assert!(shared(0, 1) > shared(0, 9) + 10, "{} and {}", shared(0, 1), shared(0, 9));
    assert!(shared(0, 1) > 50, "{}", shared(0, 1));
    assert!(requests.iter().any(|request| request.key >= 2000));
}

#[test]
fn settings_out_of_bounds_are_reported() {
    let settings = WorkloadSettings { size_scale: f64::NAN, ..WorkloadSettings::default() };
    let error = workload(SimulationProfile::Mix, &settings).unwrap_err();
    assert_eq!(error.to_string(), "size_scale is NaN: it must be from 0.000001 to 1000000");
    let many =
        WorkloadSettings { objects: Some(1_000_000), epochs: Some(1000), ..WorkloadSettings::default() };
    assert!(
        workload(SimulationProfile::Mix, &many).is_err() && workload(SimulationProfile::Zipf, &many).is_err()
    );
    assert!(
        workload(
            SimulationProfile::Epochs,
            &WorkloadSettings { epochs: Some(0), ..WorkloadSettings::default() }
        )
        .is_err()
    );
    let of_name = |profile: &SimulationProfile| SimulationProfile::of(profile.name());
    assert!(SimulationProfile::ALL.iter().all(|profile| of_name(profile) == Some(*profile)));
    assert_eq!(SimulationProfile::of("resnet"), None);
}

#[test]
#[ignore = "takes seconds; prints the time of ten million requests"]
fn speed() {
    let many = [
        (SimulationProfile::Mix, 300_000, 6),
        (SimulationProfile::KWorkloads, 500_000, 7),
        (SimulationProfile::Zipf, 1_000_000, 10),
    ];
    for (profile, objects, epochs) in many {
        let settings =
            WorkloadSettings { objects: Some(objects), epochs: Some(epochs), ..WorkloadSettings::default() };
        let begin = mlgw_common::time::Instant::now();
        let GeneratedWorkload { scene, requests } = make(profile, &settings);
        let made = begin.elapsed().as_secs_f64();
        let bytes: u64 = requests.map(|request| scene.access(&request).key.len() as u64 + (1 << 32)).sum();
        let took = begin.elapsed().as_secs_f64();
        println!("{}: {:.2} s + {:.2} s for {} requests", profile.name(), made, took - made, bytes >> 32);
    }
}
