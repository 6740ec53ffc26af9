//! Benchmark of the cost per access, run by hand: `cargo test --release -p mlgw-lab cost -- --ignored
//! --nocapture`.

use crate::workload::{SimulationProfile, WorkloadSettings, workload};
use mlgw_common::time::Instant;
use mlgw_policies::engine::{CacheEngine, Options};

#[test]
#[ignore = "measures time"]
fn cost() {
    let profiles = [
        (SimulationProfile::Mix, None, 20_000),
        (SimulationProfile::KWorkloads, Some(3), 100_000),
        (SimulationProfile::KWorkloads, Some(8), 50_000),
        (SimulationProfile::Zipf, None, 40_000),
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
