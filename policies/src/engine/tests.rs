//! The engine against references, on generated workloads. For the goals themselves see the benchmark.

use crate::rehearse::race::{Race, Racer};
use crate::rehearse::reference::{Class, EpochHazard, Told};
use crate::rehearse::workload::{Order, Profile, Settings, Sharing, workload};

const BLOCK: u32 = 8 << 20;

#[test]
#[ignore]
fn g1() {
    for order in [Order::Sequential, Order::Shuffled, Order::ShardShuffled] {
        for c in [0.2, 0.35, 0.5, 0.65, 0.8] {
            let settings =
                Settings { order: Some(order), epochs: Some(6), objects: Some(2000), ..Settings::default() };
            let made = workload(Profile::Epochs, &settings).unwrap();
            let capacity = (made.scene.keys.bytes() as f64 * c) as u64;
            let race = Race::run(
                &made.scene,
                made.requests.map(|r| {
                    let c = r.epoch >= 2;
                    (r, c)
                }),
                BLOCK,
                capacity,
            );
            let (ours, best, lru) =
                (race.score(Racer::Mlgw), race.score(Racer::Optimum), race.score(Racer::Lru));
            println!(
                "{order:?} c={c} ours {:.3} min {:.3} ratio {:.3} lru {:.3} written/lru {:.3}",
                ours.byte_hit_ratio(),
                best.byte_hit_ratio(),
                ours.byte_hit_ratio() / best.byte_hit_ratio(),
                lru.byte_hit_ratio(),
                ours.written_bytes as f64 / lru.written_bytes as f64
            );
        }
    }
}

#[test]
#[ignore]
fn g2() {
    for k in [2, 3, 4, 5, 6, 8] {
        for c in [0.1, 0.2, 0.4, 0.6, 0.8] {
            let mut sums = [0.0; 6];
            for seed in 0..4 {
                let settings = Settings {
                    seed,
                    workloads: Some(k),
                    epochs: Some(14),
                    objects: Some(2000),
                    ..Settings::default()
                };
                let made = workload(Profile::KWorkloads, &settings).unwrap();
                let capacity = (made.scene.keys.bytes() as f64 * c) as u64;
                let mut hazard = EpochHazard::new(2000, usize::from(k), (2000.0 * c) as u32);
                let (mut hits, mut reads) = (0, 0);
                let requests = made.requests.map(|r| {
                    let counts = r.epoch >= 7;
                    let hit = hazard.access(usize::from(r.caller), r.key);
                    hits += u32::from(hit && counts);
                    reads += u32::from(counts);
                    (r, counts)
                });
                let race = Race::run(&made.scene, requests, BLOCK, capacity);
                let (ours, best, lru, never) = (
                    race.score(Racer::Mlgw),
                    race.score(Racer::Optimum),
                    race.score(Racer::Lru),
                    race.score(Racer::NeverEvict),
                );
                let row = [
                    ours.byte_hit_ratio(),
                    best.byte_hit_ratio(),
                    f64::from(hits) / f64::from(reads),
                    lru.byte_hit_ratio(),
                    never.byte_hit_ratio(),
                    ours.written_bytes as f64 / lru.written_bytes as f64,
                ];
                sums.iter_mut().zip(row).for_each(|(s, r)| *s += r / 4.0);
            }
            let [ours, best, hazard, lru, never, written] = sums;
            println!(
                "k={k} c={c} ours {ours:.3} /min {:.3} /hazard {:.3} lru {lru:.3} never {never:.3} written/lru {written:.3}",
                ours / best,
                ours / hazard
            );
        }
    }
}

#[test]
#[ignore]
fn g4() {
    for (objects, trainers) in [(4000, 4), (2000, 3), (6000, 6)] {
        for c in [0.25, 0.5, 0.75, 1.25] {
            let mut sums = [0.0; 5];
            for seed in 0..4 {
                let settings = Settings {
                    seed,
                    objects: Some(objects),
                    workloads: Some(trainers),
                    ..Settings::default()
                };
                let made = workload(Profile::Mix, &settings).unwrap();
                let capacity = (f64::from(objects) * c) as u64 * (1 << 20);
                let mut told = Told::new(capacity);
                let (mut hits, mut reads) = (0, 0);
                let scene = &made.scene;
                let requests = made.requests.map(|r| {
                    let class: Class = scene.stream(&r).class(&r);
                    let hit = told.access(r.key, 1 << 20, class);
                    let is_read = r.op == crate::access::Op::Read;
                    hits += u32::from(hit && is_read);
                    reads += u32::from(is_read);
                    (r, true)
                });
                let race = Race::run(scene, requests, BLOCK, capacity);
                let (ours, best, lru) =
                    (race.score(Racer::Mlgw), race.score(Racer::Optimum), race.score(Racer::Lru));
                let row = [
                    ours.byte_hit_ratio(),
                    best.byte_hit_ratio(),
                    f64::from(hits) / f64::from(reads),
                    lru.byte_hit_ratio(),
                    ours.written_bytes as f64 / lru.written_bytes as f64,
                ];
                sums.iter_mut().zip(row).for_each(|(s, r)| *s += r / 4.0);
            }
            let [ours, best, told, lru, written] = sums;
            println!(
                "objects {objects} c={c} ours {ours:.3} min {best:.3} ({:.3}) told {told:.3} ({:.3}) lru {lru:.3} written/lru {written:.3}",
                ours / best,
                ours / told
            );
        }
    }
}

#[test]
#[ignore]
fn g10() {
    for alpha in [0.7, 0.8, 0.9, 1.0, 1.1, 1.2] {
        for c in [0.05, 0.2] {
            let mut sums = [0.0; 4];
            for seed in 0..3 {
                let settings = Settings { seed, alpha, ..Settings::default() };
                let made = workload(Profile::Zipf, &settings).unwrap();
                let capacity = (made.scene.keys.bytes() as f64 * c) as u64;
                let race = Race::run(&made.scene, made.requests.map(|r| (r, true)), BLOCK, capacity);
                let (ours, best, lru) =
                    (race.score(Racer::Mlgw), race.score(Racer::S3Fifo), race.score(Racer::Lru));
                let row = [
                    ours.byte_hit_ratio(),
                    best.byte_hit_ratio(),
                    lru.byte_hit_ratio(),
                    ours.written_bytes as f64 / lru.written_bytes as f64,
                ];
                sums.iter_mut().zip(row).for_each(|(s, r)| *s += r / 3.0);
            }
            let [ours, fifo, lru, written] = sums;
            println!(
                "alpha {alpha} c={c} ours {ours:.3} s3-fifo {fifo:.3} ({:+.3}) lru {lru:.3} written/lru {written:.3}",
                ours - fifo
            );
        }
    }
}

#[test]
#[ignore]
fn lock_step() {
    for (k, lag) in [(2, 0.02), (2, 0.1), (4, 0.02), (4, 0.1), (8, 0.02)] {
        for c in [0.1, 0.2, 0.4] {
            let settings = Settings {
                workloads: Some(k),
                epochs: Some(14),
                objects: Some(2000),
                sharing: Sharing::LockStep { lag },
                ..Settings::default()
            };
            let made = workload(Profile::KWorkloads, &settings).unwrap();
            let capacity = (made.scene.keys.bytes() as f64 * c) as u64;
            let race = Race::run(
                &made.scene,
                made.requests.map(|r| {
                    let c = r.epoch >= 7;
                    (r, c)
                }),
                BLOCK,
                capacity,
            );
            let [ours, best, lru] =
                [Racer::Mlgw, Racer::Optimum, Racer::Lru].map(|racer| race.score(racer).byte_hit_ratio());
            println!("k={k} lag={lag} c={c} ours {ours:.3} min {best:.3} lru {lru:.3}");
        }
    }
}

#[test]
#[ignore]
fn pool_alone() {
    use super::{Advice, Engine, Options};
    let settings = Settings { seed: 1, alpha: 1.0, ..Settings::default() };
    let made = workload(Profile::Zipf, &settings).unwrap();
    let capacity = (made.scene.keys.bytes() as f64 * 0.05) as u64;
    let mut engine =
        Engine::new(Options { capacity_bytes: capacity, blocks_max: 1 << 20, block_bytes: 8 << 20, seed: 0 });
    let mut at = 0;
    let mut kinds = std::collections::BTreeMap::<&str, u64>::new();
    for r in made.requests {
        let access = made.scene.access(&r);
        let seen = engine.observe(&access);
        let advice = engine.read(seen, &access, 0);
        let scan = access.key.starts_with("export");
        *kinds
            .entry(match (scan, advice) {
                (true, Advice::Keep) => "scan keep",
                (true, _) => "scan bypass",
                (_, Advice::Keep) => "keep",
                (_, Advice::Kept) => "kept",
                (_, Advice::Bypass) => "bypass",
            })
            .or_default() += 1;
        at += 1;
        if at % 100_000 == 0 {
            let grouped: u64 = engine.datasets.values().map(|d| d.grouped_bytes).sum();
            println!(
                "{at} {kinds:?} pool {} grouped {} of {capacity} worth {} tempo {} table {}",
                engine.pool.kept_bytes(),
                grouped,
                engine.pool.worth(),
                engine.tempo_us,
                engine.table.len()
            );
            engine.pool.print();
        }
    }
}

#[test]
#[ignore]
fn speed() {
    use super::{Engine, Options};
    for (profile, workloads, objects) in [
        (Profile::Mix, None, Some(20_000)),
        (Profile::KWorkloads, Some(3), Some(100_000)),
        (Profile::KWorkloads, Some(8), Some(50_000)),
        (Profile::Zipf, None, Some(40_000)),
        (Profile::Resnet50, None, None),
    ] {
        let settings = Settings { workloads, objects, ..Settings::default() };
        let made = workload(profile, &settings).unwrap();
        let capacity = made.scene.keys.bytes() / 3;
        let requests: Vec<_> = made.requests.take(2_000_000).collect();
        let mut engine = Engine::new(Options {
            capacity_bytes: capacity,
            blocks_max: 1 << 20,
            block_bytes: 8 << 20,
            seed: 0,
        });
        let start = std::time::Instant::now();
        for r in &requests {
            let access = made.scene.access(r);
            let seen = engine.observe(&access);
            engine.read(seen, &access, (access.range.start >> 23) as u32);
        }
        println!(
            "{profile:?} {} requests {:.3} us each",
            requests.len(),
            start.elapsed().as_secs_f64() * 1e6 / requests.len() as f64
        );
    }
}

#[test]
#[ignore]
fn g5() {
    use super::{Engine, Options, Order as Found, Pattern as Told};
    use crate::rehearse::labelled::Traffic;
    use crate::rehearse::scene::Pattern;
    use std::collections::HashMap;
    let label = |pattern: Told| match pattern {
        Told::Epochs(Found::Sequential) => Pattern::Sequential,
        Told::Epochs(Found::Shuffled) => Pattern::Shuffled,
        Told::Epochs(Found::ShardShuffled) => Pattern::ShardShuffled,
        Told::Epochs(Found::Ranged) => Pattern::Columnar,
        Told::OnePass => Pattern::OnePass,
        Told::Skewed => Pattern::Skewed,
        Told::Checkpoint => Pattern::Checkpoint,
        Told::Validation => Pattern::Validation,
    };
    let mut confusion: HashMap<(Pattern, String), u32> = HashMap::new();
    for seed in (0..std::env::var("SEEDS").map_or(20, |s| s.parse().unwrap()))
        .map(|s| s + std::env::var("FROM").map_or(1000_u64, |s| s.parse().unwrap()))
    {
        let made = Traffic::new(seed).generate();
        let requests: Vec<_> = made.requests.collect();
        // By stream: requests of the first epoch, and where its second begins.
        let mut first: HashMap<u16, (usize, usize)> = HashMap::new();
        for r in &requests {
            let e = first.entry(r.stream).or_default();
            if r.epoch == 0 {
                e.0 += 1
            } else if r.epoch == 1 {
                e.1 += 1
            }
        }
        let mut engine = Engine::new(Options {
            capacity_bytes: 1 << 34,
            blocks_max: 1 << 18,
            block_bytes: 8 << 20,
            seed: 0,
        });
        let mut counts: HashMap<u16, (usize, usize)> = HashMap::new();
        let mut last = HashMap::new();
        let mut told: HashMap<u16, Option<Told>> = HashMap::new();
        let end = requests.last().unwrap().at_us;
        for r in &requests {
            let access = made.scene.access(r);
            let seen = engine.observe(&access);
            let block_bytes = 8 << 20;
            for block in r.range.start / block_bytes..=(r.range.end.max(1) - 1) / block_bytes {
                engine.read(seen, &access, block as u32);
            }
            if r.at_us % 256 == 0 {
                engine.check(access.key);
            }
            let c = counts.entry(r.stream).or_default();
            if r.epoch == 0 {
                c.0 += 1
            } else if r.epoch == 1 {
                c.1 += 1
            }
            let pattern = made.scene.stream(r).pattern;
            let due = match pattern {
                Pattern::Validation => r.epoch == 1 && c.1 == (first[&r.stream].1 / 10).max(1),
                Pattern::OnePass => false,
                Pattern::Checkpoint => r.epoch == 1 && c.1 == 1,
                _ => r.epoch == 0 && c.0 == (first[&r.stream].0 / 10).max(1),
            };
            if due {
                let found = engine.pattern(seen, r.at_us).map(label);
                if found != Some(pattern) && std::env::var_os("SHOW").is_some() {
                    println!("seed {seed} {pattern:?} {found:?} {}", engine.dbg(seen));
                }
                told.insert(r.stream, engine.pattern(seen, r.at_us));
            }
            last.insert(r.stream, (seen, r.at_us));
        }
        for (stream, (seen, at)) in &last {
            let truth = made.scene.streams[*stream as usize].pattern;
            if truth == Pattern::OnePass {
                let _ = at;
                told.insert(*stream, engine.pattern(*seen, end + 400_000_000));
            }
        }
        for (stream, found) in told {
            let truth = made.scene.streams[stream as usize].pattern;
            let found_label = found.map(label);
            if found_label != Some(truth) && std::env::var_os("SHOW").is_some() {
                let r = requests.iter().find(|r| r.stream == stream).unwrap();
                println!(
                    "seed {seed} {truth:?} told {found:?} first {:?} {:?}",
                    first[&stream],
                    made.scene.keys.name(r.key)
                );
            }
            *confusion.entry((truth, format!("{found_label:?}"))).or_default() += 1;
        }
    }
    let truths: std::collections::BTreeSet<String> =
        confusion.keys().map(|(t, _)| format!("{t:?}")).collect();
    let (mut sum, mut n) = (0.0, 0.0);
    for truth in truths {
        let name = format!("Some({truth})");
        let hit: u32 = confusion
            .iter()
            .filter(|((t, f), _)| format!("{t:?}") == truth && *f == name)
            .map(|(_, c)| c)
            .sum();
        let actual: u32 =
            confusion.iter().filter(|((t, _), _)| format!("{t:?}") == truth).map(|(_, c)| c).sum();
        let said: u32 = confusion.iter().filter(|((_, f), _)| *f == name).map(|(_, c)| c).sum();
        let f1 = 2.0 * f64::from(hit) / f64::from(actual + said);
        let wrong: Vec<_> = confusion
            .iter()
            .filter(|((t, f), _)| format!("{t:?}") == truth && *f != name)
            .map(|((_, f), c)| (f.clone(), *c))
            .collect();
        println!("{truth} {hit} of {actual}, said {said}: F1 {f1:.3} {wrong:?}");
        sum += f1;
        n += 1.0;
    }
    println!("mean F1 {:.3}", sum / n);
}
