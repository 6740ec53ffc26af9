//! Tests that generated traffic matches its labels and has no other irregularities.

use super::{LabelledJob, Traffic};
use crate::scene::{GeneratedRequest, Scene, StreamPattern};
use crate::workload::GeneratedWorkload;
use mlgw_policies::access::Op;
use mlgw_policies::language::{Phase, Word};
use std::collections::{BTreeMap, BTreeSet};

fn make(seed: u64, jobs: &[LabelledJob]) -> (Scene, Vec<GeneratedRequest>) {
    let GeneratedWorkload { scene, requests } =
        Traffic { jobs: jobs.to_vec(), ..Traffic::new(seed) }.generate();
    (scene, requests.collect())
}

#[test]
fn requests_are_ordered_by_time_and_stay_within_their_objects() {
    for seed in 0..20 {
        let GeneratedWorkload { scene, requests } = Traffic::new(seed).generate();
        let requests: Vec<_> = requests.collect();
        assert!(requests.is_sorted_by_key(|request| request.at_us));
        assert!(requests.iter().all(|request| {
            let access = scene.access(request);
            access.range.start < access.range.end && access.range.end <= access.size
        }));
        let patterns: BTreeSet<_> =
            requests.iter().map(|request| format!("{:?}", scene.stream(request).pattern)).collect();
        assert_eq!(patterns.len(), 8, "{patterns:?}");
        let names: BTreeSet<_> =
            (0..scene.keys.len() as u32).map(|key| (scene.keys.bucket(key), scene.keys.name(key))).collect();
        assert_eq!(names.len(), scene.keys.len());
        let again: Vec<_> = Traffic::new(seed).generate().requests.collect();
        assert_eq!(requests, again);
    }
}

/// Jobs are interleaved: most windows in the middle contain several.
#[test]
fn jobs_are_interleaved() {
    let GeneratedWorkload { requests, .. } = Traffic::new(3).generate();
    let requests: Vec<_> = requests.collect();
    let middle = &requests[requests.len() / 3..requests.len() * 2 / 3];
    let several = middle
        .chunks(100)
        .filter(|window| window.iter().map(|request| request.stream).collect::<BTreeSet<_>>().len() >= 4);
    assert!(several.count() * 100 > middle.len() / 2);
}

#[test]
fn epochs_cover_their_dataset() {
    let jobs = [
        LabelledJob::Sequential,
        LabelledJob::Shuffled,
        LabelledJob::ShardDirectories,
        LabelledJob::ShardPrefixes,
        LabelledJob::ShardObjects,
    ];
    for seed in 0..40 {
        for kind in jobs {
            let (scene, requests) = make(seed, &[kind]);
            let mut epochs = BTreeMap::<u32, BTreeMap<(u32, u64), u32>>::new();
            let mut last = 0;
            for request in &requests {
                assert!(request.epoch + 1 >= last, "epochs do not repeat");
                last = last.max(request.epoch);
                *epochs
                    .entry(request.epoch)
                    .or_default()
                    .entry((request.key, request.range.start))
                    .or_default() += 1;
            }
            assert!(epochs.len() >= 3);
            for ranges in epochs.values() {
                let keys: BTreeSet<_> = ranges.keys().map(|(key, _)| key).collect();
                // Up to 31 groups of each of four ranks are left out.
                let left_out = scene.keys.len() - keys.len();
                assert!(
                    left_out * 2 <= scene.keys.len(),
                    "{kind:?} {seed}: {left_out} of {}",
                    scene.keys.len()
                );
                let twice = ranges.values().filter(|count| **count > 1).count();
                assert!(twice * 20 <= ranges.len(), "{kind:?} {seed}: {twice} of {}", ranges.len());
            }
        }
    }
}

/// The fraction of requests of a rank that are for a key close to the previous one or for the same key.
fn follows(requests: &[GeneratedRequest]) -> f64 {
    let mut last = BTreeMap::new();
    let mut near = 0;
    for request in requests {
        let before = last.insert(request.caller, request.key);
        near += u32::from(before.is_some_and(|before| request.key.abs_diff(before) <= 16));
    }
    f64::from(near) / requests.len() as f64
}

#[test]
fn orders_match_their_labels() {
    let mean = |kind| (0..20).map(|seed| follows(&make(seed, &[kind]).1)).sum::<f64>() / 20.0;
    assert!(mean(LabelledJob::Sequential) > 0.9);
    assert!(mean(LabelledJob::Shuffled) < 0.15);
    let shards = mean(LabelledJob::ShardDirectories);
    assert!((0.3..0.95).contains(&shards), "{shards}");
}

#[test]
fn one_pass_reads_everything_once() {
    for seed in 0..20 {
        let (scene, requests) = make(seed, &[LabelledJob::OnePass]);
        let ranges: BTreeSet<_> = requests.iter().map(|request| (request.key, request.range.start)).collect();
        assert!(requests.len() - ranges.len() <= requests.len() / 50);
        let keys: BTreeSet<_> = requests.iter().map(|request| request.key).collect();
        assert!(keys.len() + 32 > scene.keys.len());
    }
}

#[test]
fn columnar_files_are_read_from_their_end_and_not_whole() {
    for seed in 0..20 {
        let (scene, requests) = make(seed, &[LabelledJob::Columnar]);
        let mut first = BTreeMap::new();
        let mut bytes = BTreeMap::<_, u64>::new();
        for request in &requests {
            first.entry((request.caller, request.key, request.epoch)).or_insert(request.range.clone());
            *bytes.entry((request.key, request.epoch)).or_default() +=
                request.range.end - request.range.start;
        }
        assert!(first.iter().all(|((_, key, _), range)| range.end == scene.keys.size(*key)));
        let part: u64 = bytes.values().sum();
        let whole: u64 = bytes.keys().map(|(key, _)| scene.keys.size(*key)).sum();
        assert!(part < whole * 9 / 10 && requests.len() >= bytes.len() * 5, "{part} of {whole}");
    }
}

#[test]
fn validation_follows_each_epoch_of_the_same_caller() {
    for seed in 0..20 {
        let (scene, requests) = make(seed, &[LabelledJob::Validation]);
        for caller in requests.iter().map(|request| request.caller).collect::<BTreeSet<_>>() {
            let mine: Vec<_> = requests.iter().filter(|request| request.caller == caller).collect();
            let patterns: Vec<_> = mine.iter().map(|request| scene.stream(request).pattern).collect();
            let mut runs = patterns.clone();
            runs.dedup();
            assert_eq!(runs.len(), 2 * (mine.last().unwrap().epoch as usize + 1));
            assert!(runs.chunks(2).all(|pair| pair == [StreamPattern::Shuffled, StreamPattern::Validation]));
        }
    }
}

#[test]
fn checkpoints_are_written_whole_before_they_are_read() {
    let mut reads = 0;
    for seed in 0..20 {
        let (scene, requests) = make(seed, &[LabelledJob::Checkpoint]);
        let mut written = BTreeMap::new();
        for request in &requests {
            if request.op == Op::Write {
                assert_eq!(request.range, 0..scene.keys.size(request.key));
                written.insert(request.key, request.epoch);
            } else {
                assert_eq!(written.get(&request.key), Some(&request.epoch));
                reads += 1;
            }
        }
        assert!(written.values().collect::<BTreeSet<_>>().len() >= 8 || written.len() < 40);
    }
    assert!(reads > 500);
}

#[test]
fn skewed_reads_are_skewed() {
    let (scene, requests) = make(5, &[LabelledJob::Skewed]);
    let mut counts = vec![0; scene.keys.len()];
    requests.iter().for_each(|request| counts[request.key as usize] += 1);
    counts.sort_unstable();
    let top: usize = counts.iter().rev().take(counts.len() / 10).sum();
    assert!(top * 100 > requests.len() * 40, "{top} of {}", requests.len());
}

#[test]
fn datasets_are_of_many_sizes() {
    let mut sizes = BTreeSet::new();
    for seed in 0..30 {
        let scene = Traffic::new(seed).generate().scene;
        sizes.extend((0..scene.keys.len() as u32).map(|key| scene.keys.size(key).ilog2()));
    }
    assert!(*sizes.first().unwrap() <= 12 && *sizes.last().unwrap() >= 28, "{sizes:?}");
}

#[test]
fn phases_match_the_requests_of_lifecycles() {
    for seed in 0..8 {
        let lives = super::lifecycles::LifecycleSettings {
            seed,
            naming: crate::naming::Naming::Plain,
            time_scale: 1.0,
        };
        let trace = lives.generate();
        assert!(trace.requests.is_sorted_by_key(|(request, _)| request.at_us));
        assert_eq!(trace.requests, lives.generate().requests);
        let mut begun = BTreeSet::new();
        for (request, phase) in &trace.requests {
            let access = trace.scene.access(request);
            assert!(access.range.start < access.range.end && access.range.end <= access.size);
            assert_eq!(request.op == Op::Write, *phase == Phase::CheckpointSave);
            // Every workload that loads a model reads it first.
            let is_first = begun.insert(request.stream);
            let has_none =
                trace.lifecycles[usize::from(request.stream)] == super::lifecycles::Lifecycle::Search;
            assert!(!is_first || has_none || *phase == Phase::Initialization, "{phase}");
        }
        let phases: BTreeSet<_> = trace.requests.iter().map(|(_, phase)| *phase).collect();
        assert_eq!(phases.len(), Phase::ALL.len());
    }
}
