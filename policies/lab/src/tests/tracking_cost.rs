//! Cost of recording an access; run by hand: `cargo test --release -p mlgw-lab tracking_cost -- --ignored
//! --nocapture`.

use crate::workload::{SimulationProfile, WorkloadSettings, workload};
use mlgw_common::time::Instant;
use mlgw_policies::engine::{CacheEngine, Options};
use mlgw_policies::workloads::{AccessContext, WorkloadLimits, Workloads};

#[test]
#[ignore = "measures time"]
fn tracking_cost() {
    for (profile, workloads, objects) in [
        (SimulationProfile::Mix, None, 20_000),
        (SimulationProfile::KWorkloads, Some(3), 100_000),
        (SimulationProfile::Zipf, None, 40_000),
    ] {
        let settings = WorkloadSettings { workloads, objects: Some(objects), ..WorkloadSettings::default() };
        let made = workload(profile, &settings).unwrap();
        let requests: Vec<_> = made.requests.take(1_000_000).collect();
        let options = Options { capacity_bytes: 1 << 40, blocks_max: 1 << 20, block_bytes: 8 << 20, seed: 0 };
        let program = super::lifecycles::program();
        let run = |is_recorded: bool| {
            let (mut engine, mut known) =
                (CacheEngine::new(options), Workloads::new(WorkloadLimits::default()));
            let start = Instant::now();
            for request in &requests {
                let access = made.scene.access(request);
                let seen = engine.observe(&access);
                engine.read(seen, &access, 0);
                if is_recorded {
                    let what = AccessContext {
                        engine: &engine,
                        seen,
                        program: &program,
                        checkpoint: None,
                        is_validation: false,
                    };
                    known.record(&access, &what);
                }
            }
            start.elapsed().as_secs_f64() * 1e6 / requests.len() as f64
        };
        let best = |is_recorded| (0..3).map(|_| run(is_recorded)).fold(f64::INFINITY, f64::min);
        let (without, with) = (best(false), best(true));
        println!("{profile:?}: {:.3} us each, beside {without:.3} us of the engine", with - without);
    }
}
