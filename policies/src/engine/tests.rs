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
    for (profile, workloads, objects) in [(Profile::Mix, None, Some(20_000)), (Profile::KWorkloads, Some(3), Some(100_000)), (Profile::KWorkloads, Some(8), Some(50_000)), (Profile::Zipf, None, Some(40_000)), (Profile::Resnet50, None, None)] {
        let settings = Settings { workloads, objects, ..Settings::default() };
        let made = workload(profile, &settings).unwrap();
        let capacity = made.scene.keys.bytes() / 3;
        let requests: Vec<_> = made.requests.take(2_000_000).collect();
        let mut engine = Engine::new(Options { capacity_bytes: capacity, blocks_max: 1 << 20, block_bytes: 8 << 20, seed: 0 });
        let start = std::time::Instant::now();
        for r in &requests {
            let access = made.scene.access(r);
            let seen = engine.observe(&access);
            engine.read(seen, &access, (access.range.start >> 23) as u32);
        }
        println!("{profile:?} {} requests {:.3} us each", requests.len(), start.elapsed().as_secs_f64() * 1e6 / requests.len() as f64);
    }
}
