//! Benchmark of the cost per access, run by hand: `cargo test --release -p mlgw-policies cost -- --ignored
//! --nocapture`.

use crate::access::{Access, Caller, Op};
use crate::engine::{CacheEngine, Options};
use crate::rehearse::workload::{Profile, WorkloadSettings, workload};
use mlgw_common::time::Instant;

#[test]
#[ignore = "measures time"]
fn cost() {
    let profiles = [
        (Profile::Mix, None, 20_000),
        (Profile::KWorkloads, Some(3), 100_000),
        (Profile::KWorkloads, Some(8), 50_000),
        (Profile::Zipf, None, 40_000),
    ];
    for (profile, workloads, objects) in profiles {
        let settings = WorkloadSettings { workloads, objects: Some(objects), ..WorkloadSettings::default() };
        let made = workload(profile, &settings).unwrap();
        let capacity_bytes = made.scene.keys.bytes() / 3;
        let requests: Vec<_> = made.requests.take(2_000_000).collect();
        let mut engine =
            CacheEngine::new(Options { capacity_bytes, blocks_max: 1 << 20, block_bytes: 8 << 20, seed: 0 });
        let start = Instant::now();
        for request in &requests {
            let access = made.scene.access(request);
            let seen = engine.observe(&access);
            engine.read(seen, &access, 0);
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / requests.len() as f64;
        println!("{profile:?} {workloads:?}: {} requests, {us:.3} us each", requests.len());
    }
}

/// Measures the cost when numbers of datasets run out.
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
            let start = Instant::now();
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
