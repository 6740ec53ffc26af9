//! Repeated reads without passes have no epochs, and their workload serves; irregular passes are still
//! passes.

use super::program;
use crate::access::{Access, Caller, Op};
use crate::engine::Options;
use crate::language::{Fact, NoFacts, Phase, Property};
use crate::policy_engine::PolicyEngine;
use crate::workloads::WorkloadIdentity;
use std::sync::Arc;

/// An engine with a clock; each request is sent a millisecond after the previous one.
struct ServingBench {
    decider: PolicyEngine,
    at_us: u64,
    random: fastrand::Rng,
    /// Last number of epochs of all workloads; the next field is true if it ever decreased.
    counted: u64,
    fell: bool,
}

/// State of a workload after an access.
#[derive(Debug, PartialEq)]
struct ServingResult {
    epochs: u32,
    passes: u32,
    phase: Option<Phase>,
    /// Epoch count in the facts for rules at its last read.
    epoch_count: f64,
    pattern: String,
}

impl ServingBench {
    fn new(seed: u64) -> Self {
        let options = Options { capacity_bytes: 1 << 30, blocks_max: 1 << 14, block_bytes: 8 << 20, seed: 0 };
        let decider = PolicyEngine::new(options, Arc::new(program()));
        Self { decider, at_us: 0, random: fastrand::Rng::with_seed(seed), counted: 0, fell: false }
    }

    fn send(&mut self, family: u64, id: u64, op: Op, key: &str) -> ServingResult {
        self.at_us += 1000;
        let caller = Caller { id, family };
        let access = Access { at_us: self.at_us, caller, bucket: 1, key, op, size: 1000, range: 0..1000 };
        let seen = self.decider.observe(&access, WorkloadIdentity::default);
        self.decider.engine.read(seen, &access, 0);
        let epochs = self.decider.workloads.totals(&self.decider.engine, self.at_us, 0).epochs;
        self.fell |= epochs < self.counted;
        self.counted = epochs;
        let (epoch_count, pattern) = self.decider.with_facts(seen, &access, &NoFacts, |facts| {
            let count = facts.fact(Property::EpochCount, "").and_then(|fact| fact.size());
            let Some(Fact::Text(pattern)) = facts.fact(Property::Pattern, "") else { panic!("no pattern") };
            (count.unwrap_or(0.0), pattern.to_owned())
        });
        let workload =
            self.decider.workloads.get(family).unwrap().with_current_epochs(&self.decider.engine, self.at_us);
        let passes = workload.datasets.iter().map(|set| set.epochs).max().unwrap_or(0);
        ServingResult { epochs: workload.epochs, passes, phase: workload.phase, epoch_count, pattern }
    }

    /// Reads objects by `callers` callers of a family, selected at random; returns the final state.
    fn read(&mut self, family: u64, callers: u64, objects: impl IntoIterator<Item = usize>) -> ServingResult {
        let mut last = None;
        for object in objects {
            let id = 100 * family + self.random.u64(0..callers);
            last = Some(self.send(family, id, Op::Read, &format!("set/{object:05}.jpg")));
        }
        last.unwrap()
    }

    /// The given number of passes over `count` objects, each in a new order and truncated to the fraction
    /// `share`.
    fn passes(&mut self, count: usize, passes: usize, share: f64) -> Vec<usize> {
        let pass = |_| {
            let mut order: Vec<usize> = (0..count).collect();
            self.random.shuffle(&mut order);
            order.truncate((count as f64 * share) as usize);
            order
        };
        (0..passes).flat_map(pass).collect()
    }
}

/// Reads by Zipf's law, with replacement; with the exponent 0, all objects are equally likely.
fn zipf(count: usize, exponent: f64, reads: usize, seed: u64) -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut names: Vec<usize> = (0..count).collect();
    random.shuffle(&mut names);
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=count)
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect();
    let draw = |_| {
        let drawn = random.f64() * sum;
        names[sums.partition_point(|at| *at < drawn).min(count - 1)]
    };
    (0..reads).map(draw).collect()
}

#[test]
fn skewed_and_random_reads_have_no_epochs_and_count_as_serving() {
    for (count, exponent, reads) in
        [(2000, 1.0, 6000), (300, 0.6, 2400), (300, 1.0, 2400), (300, 1.4, 2400), (300, 0.0, 2400)]
    {
        for (seed, callers) in [(1, 1), (2, 1), (3, 8)] {
            let mut bench = ServingBench::new(seed);
            let detected = bench.read(1, callers, zipf(count, exponent, reads, seed));
            let case = format!("{count} {exponent} {seed}: {detected:?}");
            assert_eq!((detected.epochs, detected.passes, detected.epoch_count), (0, 0, 0.0), "{case}");
            assert_eq!(detected.phase, Some(Phase::Inference), "{case}");
            assert!(["skewed", "random"].contains(&&*detected.pattern), "{case}");
            assert!(!bench.fell, "counts from before the detection are kept: {case}");
            let set = &bench.decider.workloads.get(1).unwrap().datasets[0];
            let an_hour = set.reads_an_hour(bench.at_us).unwrap();
            let expected = 1000.0 * 3600.0 / count as f64;
            assert!((0.7..2.5).contains(&(an_hour / expected)), "{case}: {an_hour} beside {expected}");
        }
    }
}

#[test]
fn reads_of_several_datasets_without_passes_count_as_serving() {
    let mut bench = ServingBench::new(1);
    let mut last = None;
    for object in zipf(600, 1.0, 8000, 5) {
        let key = format!("{}/{object:05}.jpg", if object % 2 == 0 { "even" } else { "odd" });
        last = Some(bench.send(1, 1, Op::Read, &key));
    }
    let detected = last.unwrap();
    assert_eq!((detected.epochs, detected.phase), (0, Some(Phase::Inference)), "{detected:?}");
}

#[test]
fn a_workload_that_writes_checkpoints_trains_in_any_order() {
    let mut bench = ServingBench::new(1);
    let reads = zipf(300, 1.0, 4000, 7);
    bench.read(1, 1, reads[..200].iter().copied());
    bench.send(1, 1, Op::Write, "runs/a/checkpoint-5/model.safetensors");
    let detected = bench.read(1, 1, reads[200..].iter().copied());
    assert_eq!((detected.epochs, detected.phase), (0, Some(Phase::Training)), "{detected:?}");
}

#[test]
fn passes_are_counted_as_epochs() {
    // Whole passes, passes with a few objects left out, and passes with a tenth left out, which have no
    // detectable order.
    for (count, share, callers) in
        [(300, 1.0, 1), (300, 1.0, 4), (100, 1.0, 8), (2000, 0.97, 2), (300, 0.9, 1), (400, 0.9, 1)]
    {
        for seed in 0..3 {
            let mut bench = ServingBench::new(seed);
            let order = bench.passes(count, 6, share);
            let detected = bench.read(1, callers, order);
            let case = format!("{count} {share} {callers} {seed}: {detected:?}");
            // With that many objects left out, the last pass may not be recognized.
            let least = if share < 0.95 { 5 } else { 6 };
            assert!((least..=6).contains(&detected.epochs), "{case}");
            assert_eq!(detected.epoch_count, f64::from(detected.epochs), "{case}");
            assert_eq!(detected.phase, Some(Phase::Training), "{case}");
            assert_eq!(bench.counted, u64::from(detected.epochs), "{case}");
        }
    }
}

#[test]
fn training_and_serving_on_one_dataset_are_distinguished() {
    let mut bench = ServingBench::new(1);
    let (order, served) = (bench.passes(300, 10, 1.0), zipf(300, 1.0, 3000, 1));
    let mut last = None;
    for (trained, served) in order.into_iter().zip(served) {
        last = Some([bench.read(1, 1, [trained]), bench.read(2, 1, [served])]);
    }
    let [trains, serves] = last.unwrap();
    assert_eq!((trains.epochs, trains.phase), (10, Some(Phase::Training)), "{trains:?}");
    assert_eq!((serves.epochs, serves.phase), (0, Some(Phase::Inference)), "{serves:?}");
}

#[test]
fn training_after_serving_counts_epochs_from_then_on() {
    let mut bench = ServingBench::new(1);
    bench.read(1, 1, zipf(300, 1.0, 3000, 1));
    let order = bench.passes(300, 10, 1.0);
    let detected = bench.read(1, 1, order);
    assert!((8..=10).contains(&detected.epochs), "{detected:?}");
    assert_eq!(detected.phase, Some(Phase::Training), "{detected:?}");
}
