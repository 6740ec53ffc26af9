//! Tests: decisions depend on the sequence of requests, not on names, sizes or speed.

use super::retention::compare;
use crate::comparison::CacheAlgorithm;
use crate::naming::Naming;
use crate::workload::{SimulationProfile, WorkloadSettings, workload};
use mlgw_policies::engine::{CacheEngine, Options};

#[test]
fn other_names_sizes_and_speeds_change_nothing() {
    for (profile, objects, share) in [
        (SimulationProfile::Mix, 1500, 0.2),
        (SimulationProfile::KWorkloads, 1000, 0.3),
        (SimulationProfile::Epochs, 1000, 0.5),
    ] {
        let plain =
            WorkloadSettings { objects: Some(objects), epochs: Some(6), ..WorkloadSettings::default() };
        let ratio = |settings: &WorkloadSettings| {
            compare(profile, settings, share, 0).score(CacheAlgorithm::Mlgw).byte_hit_ratio()
        };
        let expected = ratio(&plain);
        let others = [
            WorkloadSettings { naming: Naming::Renamed { seed: 5 }, ..plain.clone() },
            WorkloadSettings { size_scale: 3.0, ..plain.clone() },
            WorkloadSettings { time_scale: 10.0, ..plain.clone() },
        ];
        for other in others {
            let found = ratio(&other);
            assert!((found - expected).abs() <= 0.01, "{profile:?} {found} {expected} {other:?}");
        }
    }
}

#[test]
fn the_same_accesses_give_the_same_answers() {
    let answers = || {
        let made = workload(
            SimulationProfile::Mix,
            &WorkloadSettings { objects: Some(400), ..WorkloadSettings::default() },
        )
        .unwrap();
        let mut engine = CacheEngine::new(Options {
            capacity_bytes: 200 << 20,
            blocks_max: 4096,
            block_bytes: 8 << 20,
            seed: 3,
        });
        let mut answers = Vec::new();
        for request in made.requests {
            let access = made.scene.access(&request);
            let seen = engine.observe(&access);
            answers.push((engine.read(seen, &access, 0), engine.take_evicted().collect::<Vec<_>>()));
        }
        answers
    };
    assert_eq!(answers(), answers());
}
