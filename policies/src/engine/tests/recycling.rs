//! Tests: the engine continues when numbers of datasets run out.

use crate::access::{Access, Caller, Op};
use crate::engine::table::DATASETS_MAX;
use crate::engine::{Advice, CacheEngine, CachingRule, DatasetId, ObservedAccess, Options, PassProgress};

const BYTES: u64 = 1 << 20;
/// Number of objects in a small dataset, and in the one that is read throughout.
const SMALL: u64 = 24;
const LONG: u64 = 300;
/// Family that reads the latter.
const TRAINER: u64 = 1 << 40;

/// Returns a name that resembles no other in anything but numbers.
fn word(number: u64) -> String {
    let letters = (0..4).map(|place| (b'g' + (number / 16_u64.pow(place) % 16) as u8) as char);
    letters.collect()
}

struct RecyclingBench {
    engine: CacheEngine,
    at_us: u64,
    long_reads: u64,
}

impl RecyclingBench {
    fn new(room: u64, numbers_max: usize) -> Self {
        let options =
            Options { capacity_bytes: room * BYTES, blocks_max: 1 << 14, block_bytes: 8 << 20, seed: 3 };
        Self { engine: CacheEngine::with_numbers(options, numbers_max), at_us: 0, long_reads: 0 }
    }

    fn ask(&mut self, family: u64, key: &str) -> (ObservedAccess, bool) {
        self.ask_keeping(family, key, CachingRule::default())
    }

    fn ask_keeping(&mut self, family: u64, key: &str, keeping: CachingRule) -> (ObservedAccess, bool) {
        self.at_us += 1000;
        let caller = Caller { id: family, family };
        let (at_us, op, size) = (self.at_us, Op::Read, BYTES);
        let access = Access { at_us, caller, bucket: 1, key, op, size, range: 0..size };
        let seen = self.engine.observe(&access);
        let advice = self.engine.read_with_rule(seen, &access, 0, keeping);
        self.engine.take_evicted().for_each(drop);
        (seen, advice == Advice::Kept)
    }

    /// Reads the next object of the dataset that is read repeatedly, in another order each time.
    fn ask_long(&mut self) -> (ObservedAccess, bool) {
        let (pass, at) = (self.long_reads / LONG, self.long_reads % LONG);
        self.long_reads += 1;
        self.ask(TRAINER, &format!("trained/{:04}.jpg", (at * 7 + pass * 11) % LONG))
    }

    fn passes(&self, seen: ObservedAccess) -> PassProgress {
        self.engine.passes(seen).unwrap()
    }

    /// Lets a separate job read its own dataset twice while the other continues. Returns its access and the
    /// hits of both.
    fn small_job(&mut self, number: u64) -> (ObservedAccess, [u64; 2]) {
        let mut hits = [0; 2];
        let mut last = None;
        for at in 0..2 * SMALL {
            hits[1] += u64::from(self.ask_long().1);
            let (seen, is_hit) =
                self.ask(number + 1, &format!("{}/part-{:03}.bin", word(number), at % SMALL));
            hits[0] += u64::from(is_hit);
            last = Some(seen);
        }
        (last.unwrap(), hits)
    }
}

#[test]
fn ten_thousand_datasets_are_detected_without_disturbing_a_training_job() {
    // Room for both datasets, minus a part of the large one.
    for (room, small_hits) in [(400, 0.49), (200, 0.0)] {
        let mut bench = RecyclingBench::new(room, DATASETS_MAX);
        let mut long: Option<DatasetId> = None;
        let mut hits = Vec::new();
        for number in 0..10_000 {
            let (seen, its) = bench.small_job(number);
            hits.push(its);
            let name = bench.engine.dataset(seen);
            assert_eq!((&*name.folder, &*name.pattern), (&*format!("{}/", word(number)), "part-#.bin"));
            let passes = bench.passes(seen);
            assert_eq!((passes.over, passes.known), (2, SMALL as u32), "{number}: {passes:?}");
            if number % 97 == 0 {
                let (seen, _) = bench.ask_long();
                let id = bench.engine.dataset_id(seen);
                assert_eq!(*long.get_or_insert(id), id, "{number}");
                let whole = (bench.long_reads - 1) / LONG;
                assert!(u64::from(bench.passes(seen).completed).abs_diff(whole) <= 1, "{number}");
                bench.engine.check();
            }
        }
        // The cache was not full yet when the first of them was read.
        let of = |range: std::ops::Range<usize>, who: usize| {
            let requested = (range.len() as u64 * 2 * SMALL) as f64;
            hits[range].iter().map(|its| its[who]).sum::<u64>() as f64 / requested
        };
        for (who, least) in [(0, small_hits), (1, (room as f64 / LONG as f64).min(1.0) * 0.85)] {
            let (first, last) = (of(1500..3500, who), of(8000..10_000, who));
            assert!((first - last).abs() < 0.02 && last >= least, "{room} {who}: {first} {last}");
        }
    }
}

#[test]
fn invariants_hold_with_blocks_kept_in_many_datasets() {
    // All kept blocks belong to more datasets than there are numbers.
    let mut bench = RecyclingBench::new(4000, 64);
    for number in 0..1500 {
        for at in 0..3 {
            bench.ask(number + 1, &format!("{}/part-{at}.bin", word(number)));
        }
        bench.engine.check();
    }
    assert_eq!(bench.engine.kept_bytes(), 4000 * BYTES, "kept blocks stay, whichever dataset owned them");
}

#[test]
fn datasets_without_kept_blocks_or_repeats_are_dissolved_first() {
    let mut bench = RecyclingBench::new(4000, 64);
    // One third of the datasets has kept blocks, one third is read in passes, and one third was read once.
    let mut ids = Vec::new();
    for number in 0..63 {
        let keeping = if number % 3 == 0 { CachingRule::default() } else { CachingRule::Never };
        let passes = if number % 3 == 1 { 2 } else { 1 };
        for at in 0..passes * SMALL {
            let key = format!("{}/{}.bin", word(number), at % SMALL);
            let (seen, _) = bench.ask_keeping(number + 1, &key, keeping);
            if at == 0 {
                ids.push(bench.engine.dataset_id(seen));
            }
        }
    }
    let mut later = 100..;
    let mut gone = |bench: &mut RecyclingBench| {
        for number in later.by_ref().take(7) {
            bench.ask_keeping(number, &format!("{}/1.bin", word(number)), CachingRule::Never);
        }
        bench.engine.check();
        let is_gone = |number: &usize| bench.engine.dataset_name(ids[*number]).is_none();
        (0..63).filter(is_gone).collect::<Vec<_>>()
    };
    // An eighth of all numbers per batch, from the half that has been silent longest.
    assert_eq!(gone(&mut bench), [2, 5, 8, 11, 14, 17, 20, 23]);
    let all = gone(&mut bench);
    assert!(all.iter().all(|number| number % 3 == 2 || number % 3 == 1 && *number < 30), "{all:?}");
    let all = gone(&mut bench);
    assert!(all.len() == 24 && all.iter().all(|number| number % 3 > 0), "{all:?}");
}

#[test]
fn a_returning_reader_gets_a_new_dataset_with_its_blocks() {
    let mut bench = RecyclingBench::new(4000, 64);
    for number in 0..200 {
        for at in 0..SMALL / 2 {
            bench.ask(number + 1, &format!("{}/part-{at}.bin", word(number)));
        }
    }
    let mut hits = 0;
    for at in 0..SMALL / 2 {
        let (seen, is_hit) = bench.ask(1, &format!("{}/part-{at}.bin", word(0)));
        hits += u64::from(is_hit);
        assert_eq!(bench.engine.dataset(seen).folder, format!("{}/", word(0)));
    }
    assert_eq!(hits, SMALL / 2);
    bench.engine.check();
}

#[test]
fn an_id_of_a_dissolved_dataset_resolves_to_none() {
    let mut bench = RecyclingBench::new(100, 16);
    let (old, _) = bench.ask(1, "old/1.bin");
    let id = bench.engine.dataset_id(old);
    assert!(bench.engine.dataset_name(id).is_some());
    for number in 0..100 {
        let (seen, _) = bench.ask(1, &format!("{}/1.bin", word(number)));
        assert!(bench.engine.dataset_id(seen) != id, "no other dataset gets its id");
    }
    assert_eq!((bench.engine.dataset_name(id), bench.engine.dataset_now(id)), (None, id));
    assert!(bench.engine.passes(old).is_none() && bench.engine.dataset(old).folder.is_empty());
    // Reads in progress continue in the dataset that their key belongs to now.
    let (again, _) = bench.ask(1, "old/2.bin");
    let caller = Caller { id: 1, family: 1 };
    let (at_us, op, size) = (bench.at_us, Op::Read, BYTES);
    let access = Access { at_us, caller, bucket: 1, key: "old/1.bin", op, size, range: 0..size };
    bench.engine.read(old.at(at_us), &access, 0);
    bench.engine.check();
    assert_eq!(bench.passes(again).known, 2);
}

#[test]
fn numbers_of_united_parts_are_reclaimed_first() {
    let mut bench = RecyclingBench::new(4000, 256);
    let (first, _) = bench.ask(1, "first/1.bin");
    let id = bench.engine.dataset_id(first);
    // Each folder of a hundred is a dataset, until they are united.
    for round in 0..6_u64 {
        for number in 0..100 {
            bench.ask(2, &format!("{}/{}/1.bin", word(round), word(number)));
            bench.engine.check();
        }
    }
    assert_eq!(bench.engine.dataset_now(id), id);
    assert_eq!(bench.engine.dataset_name(id).unwrap().folder, "first/");
}

#[test]
fn the_same_accesses_give_the_same_answers_when_numbers_run_out() {
    let answers = || {
        let mut bench = RecyclingBench::new(60, 32);
        let mut rng = fastrand::Rng::with_seed(5);
        let mut answers = Vec::new();
        for _ in 0..20_000 {
            let (family, folder, at) = (rng.u64(..8), rng.u64(..150).min(rng.u64(..150)), rng.u64(..6));
            let (seen, is_hit) = bench.ask(family, &format!("{}/{at}.bin", word(folder)));
            answers.push((bench.engine.dataset_id(seen), is_hit, bench.engine.passes(seen)));
        }
        bench.engine.check();
        answers
    };
    assert_eq!(answers(), answers());
}

/// Measures the cost when numbers of datasets run out. Run by hand: `cargo test --release -p mlgw-policies
/// recycling_cost -- --ignored --nocapture`.
#[test]
#[ignore = "measures time"]
fn recycling_cost() {
    let mut engine = CacheEngine::new(Options {
        capacity_bytes: 100 << 30,
        blocks_max: 500_000,
        block_bytes: 8 << 20,
        seed: 0,
    });
    // Names without similar ones, with enough blocks each to fill the table.
    let key = |folder: u64, at: u64| {
        let letters = (0..4).map(|place| (b'g' + (folder >> (4 * place) & 15) as u8) as char);
        format!("{}/{at}.bin", letters.collect::<String>())
    };
    let (mut recycled, mut first, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for folder in 0..30_000_u64 {
        for at in 0..122 {
            let key = key(folder, at);
            let caller = Caller { id: folder + 1, family: folder + 1 };
            let (at_us, size) = ((folder * 122 + at) * 10, 1 << 20);
            let access = Access { at_us, caller, bucket: 1, key: &key, op: Op::Read, size, range: 0..size };
            let is_short = engine.names.is_short();
            let start = mlgw_common::time::Instant::now();
            let seen = engine.observe(&access);
            engine.read(seen, &access, 0);
            let us = start.elapsed().as_secs_f64() * 1e6;
            engine.take_evicted().for_each(drop);
            match (is_short, at) {
                _ if folder < 5000 => {}
                (true, _) => recycled.push(us),
                (false, 0) => first.push(us),
                _ => others.push(us),
            }
        }
    }
    for (what, mut took) in [("numbers are released", recycled), ("a new dataset", first), ("others", others)]
    {
        took.sort_by(f64::total_cmp);
        println!("{what}: {} times, median {:.2} us", took.len(), took[took.len() / 2]);
    }
}
