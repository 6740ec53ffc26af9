//! Tests of the benefit of read-ahead, and of its cost where nothing can be predicted.

use super::{LatencyResult, LatencySetup, run};
use crate::caller_plans::build_caller_plans;
use crate::scene::GeneratedRequest;
use crate::workload::{DatasetOrder, SimulationProfile, WorkloadSettings, workload};
use mlgw_policies::engine::{ReadAheadLimits, ReadAheadOrder};

const SETUP: LatencySetup = LatencySetup {
    latency_us: 20_000,
    bytes_per_us: 2500.0,
    work_us: 0.0,
    work_byte_us: 1e6 / 204e6,
    block_bytes: 8 << 20,
    capacity_bytes: 4 << 30,
    memory_bytes: 2 << 30,
    ahead: Some(ReadAheadLimits { blocks_max: 2048, bytes_max: 256 << 20, order: ReadAheadOrder::Any }),
};

fn waits(
    profile: SimulationProfile,
    settings: &WorkloadSettings,
    setup: &LatencySetup,
    tells: bool,
) -> LatencyResult {
    let made = || workload(profile, settings).unwrap();
    let plans = if tells { build_caller_plans(&made().scene, made().requests).unwrap() } else { Vec::new() };
    let made = made();
    run(&made.scene, made.requests, &plans, setup).unwrap()
}

fn settings(order: DatasetOrder, objects: u32, epochs: u32) -> WorkloadSettings {
    WorkloadSettings {
        order: Some(order),
        objects: Some(objects),
        epochs: Some(epochs),
        ..WorkloadSettings::default()
    }
}

#[test]
fn sequential_and_sharded_readers_do_not_wait() {
    for (profile, objects) in [
        (SimulationProfile::Resnet50, 64),
        (SimulationProfile::Cosmoflow, 4000),
        (SimulationProfile::Epochs, 5000),
    ] {
        for order in [DatasetOrder::Sequential, DatasetOrder::ShardShuffled] {
            let found = waits(profile, &settings(order, objects, 1), &SETUP, false);
            // The first request of a shard cannot be predicted if a shard is one object. If a shard is a
            // folder, such requests are few.
            let prompt = if profile == SimulationProfile::Resnet50 {
                found.prompt_share_within()
            } else {
                found.prompt_share()
            };
            assert!(
                prompt >= 0.95 && found.wasted_share() <= 0.05,
                "{profile:?} {order:?}: {prompt} {found:?}"
            );
            let setup = LatencySetup { ahead: None, ..SETUP };
            let without = waits(profile, &settings(order, objects, 1), &setup, false);
            assert!(without.prompt_share() <= 0.05, "read-ahead can improve this: {without:?}");
        }
    }
    let found = waits(SimulationProfile::Resnet50, &settings(DatasetOrder::Sequential, 64, 1), &SETUP, false);
    assert!(found.prompt_share() >= 0.95, "first requests of shards too: {found:?}");
}

#[test]
fn readers_with_a_plan_do_not_wait_in_any_order() {
    for (profile, objects) in [
        (SimulationProfile::Resnet50, 64),
        (SimulationProfile::Cosmoflow, 4000),
        (SimulationProfile::Epochs, 5000),
    ] {
        for order in [DatasetOrder::Sequential, DatasetOrder::ShardShuffled, DatasetOrder::Shuffled] {
            let found = waits(profile, &settings(order, objects, 1), &SETUP, true);
            assert!(
                found.prompt_share() >= 0.95 && found.wasted_share() <= 0.05,
                "{profile:?} {order:?}: {found:?}"
            );
        }
    }
}

#[test]
fn shuffled_reads_without_a_plan_cause_no_read_ahead() {
    for (profile, objects) in [
        (SimulationProfile::Unet3d, 168),
        (SimulationProfile::Cosmoflow, 4000),
        (SimulationProfile::Epochs, 5000),
    ] {
        for capacity_bytes in [SETUP.capacity_bytes, 1] {
            let setup = LatencySetup { capacity_bytes, memory_bytes: 512 << 20, ..SETUP };
            let found = waits(profile, &settings(DatasetOrder::Shuffled, objects, 1), &setup, false);
            assert!(found.wasted_share() <= 0.05, "{profile:?} {capacity_bytes}: {found:?}");
        }
    }
}

/// Runs a workload with each request changed by `change`.
fn changed(
    settings: &WorkloadSettings,
    profile: SimulationProfile,
    setup: &LatencySetup,
    change: impl FnMut(GeneratedRequest) -> GeneratedRequest,
) -> LatencyResult {
    let made = workload(profile, settings).unwrap();
    run(&made.scene, made.requests.map(change), &[], setup).unwrap()
}

#[test]
fn random_ranges_cause_no_read_ahead() {
    let mut random = fastrand::Rng::with_seed(5);
    let setup = LatencySetup { capacity_bytes: 1, memory_bytes: 512 << 20, ..SETUP };
    let found =
        changed(&settings(DatasetOrder::Sequential, 64, 1), SimulationProfile::Resnet50, &setup, |request| {
            let begin = random.u64(..17) * (8 << 20);
            GeneratedRequest { key: random.u32(..64), range: begin..begin + (4 << 20), ..request }
        });
    assert!(found.wasted_share() <= 0.05, "{found:?}");
}

#[test]
fn ranks_that_share_out_keys_are_distinguished() {
    let settings = WorkloadSettings { workloads: Some(4), ..settings(DatasetOrder::Sequential, 4000, 1) };
    let found = changed(&settings, SimulationProfile::KWorkloads, &SETUP, |request| {
        let key = request.key / 4 * 4 + u32::from(request.caller);
        GeneratedRequest { key, ..request }
    });
    assert!(found.prompt_share() >= 0.95 && found.wasted_share() <= 0.05, "{found:?}");
}

#[test]
fn identical_requests_have_identical_waits() {
    let once =
        || waits(SimulationProfile::Epochs, &settings(DatasetOrder::ShardShuffled, 1000, 2), &SETUP, true);
    assert_eq!(once(), once());
}
