//! Measures the engine on generated workloads against its goals and prints a line of JSON for each goal, for
//! `make bench ONLY=ml`.
//!
//! usage: goals [SEEDS] [FIRST-SEED]     8 seeds from 1 on by default

use GoalBound::{AtLeast, AtMost};
use mlgw_common::time::Instant;
use mlgw_lab::caller_plans::build_caller_plans;
use mlgw_lab::comparison::{CacheAlgorithm, CacheComparison, Score, Scoring};
use mlgw_lab::detection::Detection;
use mlgw_lab::labelled::Traffic;
use mlgw_lab::latency::{self, LatencyResult, LatencySetup};
use mlgw_lab::reference::{ClassAwareCache, EpochHazard};
use mlgw_lab::workload::{DatasetOrder, GeneratedWorkload, SimulationProfile, WorkloadSettings, workload};
use mlgw_policies::access::Op;
use mlgw_policies::engine::{CacheEngine, Options, ReadAheadLimits, ReadAheadOrder};
use std::ops::Range;

const BLOCK_BYTES: u32 = 8 << 20;
const SHARES: [f64; 5] = [0.2, 0.35, 0.5, 0.65, 0.8];
const OBJECTS: u32 = 2000;
const SEED_FACTOR: u64 = 8;
/// Epochs of runs with several jobs. Only the second half is counted.
const EPOCHS: u32 = 14;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let count: u64 = arguments.next().unwrap_or(8);
    let first: u64 = arguments.next().unwrap_or(1);
    let seeds = first..first + count;
    one_job(&seeds);
    several_jobs(&seeds);
    planned(&seeds);
    mixes(&seeds);
    detected(&seeds);
    costs(&seeds);
    unordered(&seeds);
    first_epoch_ahead(&seeds);
}

/// Bound of a goal's result.
#[derive(Clone, Copy)]
enum GoalBound {
    AtLeast(f64),
    AtMost(f64),
}

/// Prints a goal.
fn print(name: &str, result: f64, bound: GoalBound, note: &str) {
    let (at_least, target) = match bound {
        AtLeast(target) => (true, target),
        AtMost(target) => (false, target),
    };
    println!(
        "{{\"goal\": \"{name}\", \"result\": {result:.4}, \"at_least\": {at_least}, \"target\": {target}, \
         \"note\": \"{note}\"}}"
    );
}

fn generate(profile: SimulationProfile, settings: &WorkloadSettings) -> GeneratedWorkload {
    workload(profile, settings).expect("settings within their bounds")
}

/// First counted request: by epoch, or by number.
#[derive(Clone, Copy)]
enum CountedFrom {
    Epoch(u32),
    Request(usize),
}

fn compare(
    profile: SimulationProfile,
    settings: &WorkloadSettings,
    share: f64,
    from: CountedFrom,
) -> CacheComparison {
    let made = generate(profile, settings);
    let capacity = (made.scene.keys.bytes() as f64 * share) as u64;
    let requests = made.requests.enumerate().map(|(number, request)| {
        let scoring = match from {
            CountedFrom::Epoch(epoch) => Scoring::of_epoch(request.epoch, epoch),
            CountedFrom::Request(first) => Scoring::of_number(number, first),
        };
        (request, scoring)
    });
    CacheComparison::run(&made.scene, requests, BLOCK_BYTES, capacity)
}

/// Sums over seeds.
#[derive(Default)]
struct GoalSums {
    ours: f64,
    best: f64,
    lru: f64,
    never: f64,
    reference: f64,
    written: f64,
    lru_written: f64,
}

impl GoalSums {
    fn add(&mut self, comparison: &CacheComparison, reference: f64) {
        let ratio = |algorithm| comparison.score(algorithm).byte_hit_ratio();
        let (ours, lru) = (comparison.score(CacheAlgorithm::Mlgw), comparison.score(CacheAlgorithm::Lru));
        self.ours += ours.byte_hit_ratio();
        self.best += ratio(CacheAlgorithm::Optimum);
        self.lru += lru.byte_hit_ratio();
        self.never += ratio(CacheAlgorithm::NeverEvict);
        self.reference += reference;
        self.written += ours.written_bytes as f64;
        self.lru_written += lru.written_bytes as f64;
    }

    fn print_flash(&self, name: &str) {
        let note =
            format!("of the bytes that LRU writes; {:.2} times as many hits", self.ours / self.lru.max(1e-9));
        print(&format!("{name}-flash"), self.written / self.lru_written, AtMost(0.3333), &note);
    }
}

/// A single job reads each object once per epoch.
fn one_job(seeds: &Range<u64>) {
    let orders = [
        ("sequential", DatasetOrder::Sequential),
        ("shuffled", DatasetOrder::Shuffled),
        ("shard-shuffled", DatasetOrder::ShardShuffled),
    ];
    for (name, order) in orders {
        let mut worst = f64::INFINITY;
        let mut all = GoalSums::default();
        for share in SHARES {
            let mut sums = GoalSums::default();
            for seed in seeds.clone() {
                let settings = WorkloadSettings {
                    seed,
                    order: Some(order),
                    epochs: Some(6),
                    objects: Some(OBJECTS),
                    ..WorkloadSettings::default()
                };
                let comparison = compare(SimulationProfile::Epochs, &settings, share, CountedFrom::Epoch(2));
                sums.add(&comparison, 0.0);
                all.add(&comparison, 0.0);
            }
            worst = worst.min(sums.ours / sums.best);
        }
        print(&format!("g1-{name}"), worst, AtLeast(0.98), "of the optimum, worst of five sizes");
        all.print_flash(&format!("g1-{name}"));
    }
}

/// Several jobs read one dataset, each with its own shuffle.
fn several_jobs(seeds: &Range<u64>) {
    for jobs in 2..=8 {
        for share in [0.2, 0.4] {
            let mut sums = GoalSums::default();
            // The distance between the jobs is random and determines how close a cache can come to the
            // optimum, so the run with a goal against the optimum takes more seeds.
            let times = if jobs == 3 { SEED_FACTOR } else { 1 };
            for seed in seeds.start..seeds.start + (seeds.end - seeds.start) * times {
                let settings = WorkloadSettings {
                    seed,
                    workloads: Some(jobs),
                    epochs: Some(EPOCHS),
                    objects: Some(OBJECTS),
                    ..WorkloadSettings::default()
                };
                let half = OBJECTS as usize * EPOCHS as usize * usize::from(jobs) / 2;
                let reference = hazard(&settings, jobs, share, half);
                sums.add(
                    &compare(SimulationProfile::KWorkloads, &settings, share, CountedFrom::Request(half)),
                    reference,
                );
            }
            let name = format!("g2-{jobs}-jobs-{share}");
            if jobs == 3 {
                let target = if share < 0.3 { 0.72 } else { 0.83 };
                print(&name, sums.ours / sums.best, AtLeast(target), "of the optimum");
                let beside = sums.ours / sums.never;
                print(&format!("{name}-never-evict"), beside, AtLeast(1.0), "of never-evict");
            }
            let beside = sums.ours / sums.reference;
            print(
                &format!("{name}-hazard"),
                beside,
                AtLeast(0.97),
                "of EPOCH-HAZARD with known jobs and epochs",
            );
            sums.print_flash(&name);
        }
    }
}

/// Jobs that announce their reads in access plans: one job, and three with their own shuffles.
fn planned(seeds: &Range<u64>) {
    for jobs in [1, 3] {
        let (mut worst, mut worst_share) = (f64::INFINITY, 0.0);
        for share in SHARES {
            let mut sums = GoalSums::default();
            for seed in seeds.clone() {
                let settings = WorkloadSettings {
                    seed,
                    workloads: Some(jobs),
                    epochs: Some(8),
                    objects: Some(OBJECTS),
                    ..WorkloadSettings::default()
                };
                let made = || generate(SimulationProfile::KWorkloads, &settings);
                let plans =
                    build_caller_plans(&made().scene, made().requests).expect("plans within their limits");
                let (workload, half) = (made(), OBJECTS as usize * 4 * usize::from(jobs));
                let capacity = (workload.scene.keys.bytes() as f64 * share) as u64;
                let requests = workload
                    .requests
                    .enumerate()
                    .map(|(number, request)| (request, Scoring::of_number(number, half)));
                let comparison =
                    CacheComparison::run_with_plans(&workload.scene, &plans, requests, BLOCK_BYTES, capacity);
                sums.add(&comparison.expect("few plans"), 0.0);
            }
            if sums.ours / sums.best < worst {
                (worst, worst_share) = (sums.ours / sums.best, share);
            }
        }
        let note = format!("of the optimum with plans, worst of five sizes ({worst_share})");
        print(&format!("g3-{jobs}-jobs"), worst, AtLeast(0.95), &note);
    }
}

/// First epoch with an upstream of 20 ms: the share of requests that do not wait, and useless read-ahead.
fn first_epoch_ahead(seeds: &Range<u64>) {
    let setup = LatencySetup {
        latency_us: 20_000,
        bytes_per_us: 2500.0,
        work_us: 0.0,
        work_byte_us: 1e6 / 204e6,
        block_bytes: BLOCK_BYTES,
        capacity_bytes: 4 << 30,
        memory_bytes: 2 << 30,
        ahead: Some(ReadAheadLimits { blocks_max: 2048, bytes_max: 256 << 20, order: ReadAheadOrder::Any }),
    };
    let shards = [
        (SimulationProfile::Resnet50, 128),
        (SimulationProfile::Cosmoflow, 4000),
        (SimulationProfile::Epochs, 5000),
    ];
    let orders = [DatasetOrder::Sequential, DatasetOrder::ShardShuffled];
    let shuffled = [DatasetOrder::Sequential, DatasetOrder::ShardShuffled, DatasetOrder::Shuffled];
    for (name, orders, announcement) in [
        ("g6-in-order", &orders[..], Announcement::Nothing),
        ("g6-planned", &shuffled[..], Announcement::Plans),
        ("g6-shuffled", &shuffled[2..], Announcement::Nothing),
    ] {
        let (mut prompt, mut wasted) = (f64::INFINITY, 0.0_f64);
        for ((profile, objects), order) in
            shards.iter().flat_map(|shard| orders.iter().map(move |order| (*shard, *order)))
        {
            for seed in seeds.clone() {
                let settings = WorkloadSettings {
                    seed,
                    order: Some(order),
                    objects: Some(objects),
                    epochs: Some(1),
                    ..WorkloadSettings::default()
                };
                let waits = first_epoch(profile, &settings, &setup, announcement);
                // Without a plan a shard is unknown before its first request. If shards are single objects of
                // a folder, that is one request in a hundred.
                let is_shard =
                    profile == SimulationProfile::Resnet50 && announcement == Announcement::Nothing;
                prompt =
                    prompt.min(if is_shard { waits.prompt_share_within() } else { waits.prompt_share() });
                wasted = wasted.max(waits.wasted_share());
            }
        }
        if name != "g6-shuffled" {
            print(name, prompt, AtLeast(0.95), "of requests wait at most 1 ms for upstream, worst case");
        }
        print(&format!("{name}-wasted"), wasted, AtMost(0.05), "of blocks from upstream, worst case");
    }
}

/// Announcement of reads by the jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Announcement {
    Nothing,
    Plans,
}

fn first_epoch(
    profile: SimulationProfile,
    settings: &WorkloadSettings,
    setup: &LatencySetup,
    announcement: Announcement,
) -> LatencyResult {
    let plans = match announcement {
        Announcement::Nothing => Vec::new(),
        Announcement::Plans => {
            build_caller_plans(&generate(profile, settings).scene, generate(profile, settings).requests)
                .expect("plans within their limits")
        }
    };
    let made = generate(profile, settings);
    latency::run(&made.scene, made.requests, &plans, setup).expect("few plans")
}

/// Returns the hit ratio of a cache that knows the readers and the length of an epoch.
fn hazard(settings: &WorkloadSettings, jobs: u16, share: f64, half: usize) -> f64 {
    let mut cache = EpochHazard::new(OBJECTS, usize::from(jobs), (f64::from(OBJECTS) * share) as u32);
    let (mut hits, mut reads) = (0_u32, 0_u32);
    for (number, request) in generate(SimulationProfile::KWorkloads, settings).requests.enumerate() {
        let is_hit = cache.access(usize::from(request.caller), request.key);
        hits += u32::from(is_hit && number >= half);
        reads += u32::from(number >= half);
    }
    f64::from(hits) / f64::from(reads)
}

/// A scaled-down day of a cluster.
fn mixes(seeds: &Range<u64>) {
    for (objects, trainers) in [(4000, 4), (2000, 3), (6000, 6)] {
        for share in [0.25, 0.5, 0.75, 1.25] {
            let mut sums = GoalSums::default();
            for seed in seeds.clone() {
                let settings = WorkloadSettings {
                    seed,
                    objects: Some(objects),
                    workloads: Some(trainers),
                    ..WorkloadSettings::default()
                };
                let made = generate(SimulationProfile::Mix, &settings);
                let capacity = (f64::from(objects) * share) as u64 * (1 << 20);
                let mut reference = ClassAwareCache::new(capacity);
                let mut score = Score::default();
                let scene = &made.scene;
                let requests = made.requests.map(|request| {
                    let is_hit =
                        reference.access(request.key, 1 << 20, scene.stream(&request).class(&request));
                    score.reads += u64::from(request.op == Op::Read);
                    score.hits += u64::from(is_hit && request.op == Op::Read);
                    (request, Scoring::Counted)
                });
                let comparison = CacheComparison::run(scene, requests, BLOCK_BYTES, capacity);
                sums.add(&comparison, score.object_hit_ratio());
            }
            let name = format!("g4-{objects}-{share}");
            let note = format!("of a cache with known classes; {:.3} of the optimum", sums.ours / sums.best);
            print(&name, sums.ours / sums.reference, AtLeast(0.97), &note);
            sums.print_flash(&name);
        }
    }
}

/// Detected read patterns of labeled traffic. No parameter was tuned on its seeds.
fn detected(seeds: &Range<u64>) {
    let found = Detection::from_seeds(999 + seeds.start..999 + seeds.end.max(seeds.start + 8));
    let (mean, (pattern, score)) = found.f1_of_all();
    let streams = found.verdicts.len();
    let note = format!("F1 over eight patterns and {streams} streams; worst: {pattern:?}, {score:.3}");
    print("g5-patterns", mean, AtLeast(0.95), &note);
    let begins = found.missed.len();
    let note = format!(
        "of an epoch, mean of {begins} epoch starts; median {:.4}, ninth decile {:.4}",
        found.missed_quantile(0.5),
        found.missed_quantile(0.9)
    );
    print("g5-begins-missed", found.missed_mean(), AtMost(0.02), &note);
    print(
        "g5-begins-near",
        found.within(0.02),
        AtLeast(0.95),
        "of epoch starts are found within .02 of an epoch",
    );
}

/// Cost of the engine: time on labeled traffic, and memory for many objects.
fn costs(seeds: &Range<u64>) {
    let options = |blocks_max| Options {
        capacity_bytes: 1 << 34,
        blocks_max,
        block_bytes: u64::from(BLOCK_BYTES),
        seed: 0,
    };
    let (mut seconds, mut accesses) = (0.0, 0);
    for seed in seeds.clone() {
        let made = Traffic::new(seed).generate();
        let requests: Vec<_> = made.requests.collect();
        let mut engine = CacheEngine::new(options(1 << 18));
        let began = Instant::now();
        for request in &requests {
            let access = made.scene.access(request);
            let seen = engine.observe(&access);
            engine.read(seen, &access, (access.range.start / u64::from(BLOCK_BYTES)) as u32);
        }
        seconds += began.elapsed().as_secs_f64();
        accesses += requests.len();
    }
    let note = format!("µs per access, {accesses} accesses of one block each");
    print("g5-time", seconds * 1e6 / accesses as f64, AtMost(1.0), &note);
    const MANY: u32 = 1 << 19;
    let settings = WorkloadSettings {
        seed: seeds.start,
        objects: Some(MANY),
        epochs: Some(1),
        ..WorkloadSettings::default()
    };
    let mut engine = CacheEngine::new(options(2 * MANY as usize));
    let made = generate(SimulationProfile::Epochs, &settings);
    for request in made.requests {
        let access = made.scene.access(&request);
        let seen = engine.observe(&access);
        engine.read(seen, &access, 0);
    }
    let bytes = engine.memory_bytes() as f64 / f64::from(MANY);
    print("g5-memory", bytes, AtMost(32.0), &format!("bytes per object, {MANY} objects"));
}

/// Skewed reads without training.
fn unordered(seeds: &Range<u64>) {
    let mut worst = f64::INFINITY;
    for alpha in [0.7, 0.8, 0.9, 1.0, 1.1, 1.2] {
        for share in [0.05, 0.2] {
            let count = (seeds.end - seeds.start) as f64;
            let difference = seeds.clone().map(|seed| {
                let comparison = compare(
                    SimulationProfile::Zipf,
                    &WorkloadSettings { seed, alpha, ..WorkloadSettings::default() },
                    share,
                    CountedFrom::Epoch(0),
                );
                let [ours, other] = [CacheAlgorithm::Mlgw, CacheAlgorithm::S3Fifo]
                    .map(|algorithm| comparison.score(algorithm).byte_hit_ratio());
                ours - other
            });
            worst = worst.min(difference.sum::<f64>() / count);
        }
    }
    print("g10-unordered", worst, AtLeast(-0.005), "hit ratio minus that of S3-FIFO, worst of twelve points");
}
