//! Tests of the benefit of read-ahead, and of its cost where nothing can be predicted.

use super::{Setup, Waits, run};
use crate::engine::{Ahead, Beyond};
use crate::rehearse::scene::Request;
use crate::rehearse::telling::told;
use crate::rehearse::workload::{Order, Profile, Settings, workload};

const SETUP: Setup = Setup {
    latency_us: 20_000,
    bytes_per_us: 2500.0,
    work_us: 0.0,
    work_byte_us: 1e6 / 204e6,
    block_bytes: 8 << 20,
    capacity_bytes: 4 << 30,
    memory_bytes: 2 << 30,
    ahead: Some(Ahead { blocks_max: 2048, bytes_max: 256 << 20, beyond: Beyond::Any }),
};

fn waits(profile: Profile, settings: &Settings, setup: &Setup, tells: bool) -> Waits {
    let made = || workload(profile, settings).unwrap();
    let plans = if tells { told(&made().scene, made().requests).unwrap() } else { Vec::new() };
    let made = made();
    run(&made.scene, made.requests, &plans, setup).unwrap()
}

fn settings(order: Order, objects: u32, epochs: u32) -> Settings {
    Settings { order: Some(order), objects: Some(objects), epochs: Some(epochs), ..Settings::default() }
}

#[test]
fn sequential_and_sharded_readers_do_not_wait() {
    for (profile, objects) in [(Profile::Resnet50, 64), (Profile::Cosmoflow, 4000), (Profile::Epochs, 5000)] {
        for order in [Order::Sequential, Order::ShardShuffled] {
            let found = waits(profile, &settings(order, objects, 1), &SETUP, false);
            // The first request of a shard cannot be predicted if a shard is one object. If a shard is a
            // folder, such requests are few.
            let prompt = if profile == Profile::Resnet50 { found.prompt_within() } else { found.prompt() };
            assert!(prompt >= 0.95 && found.wasted() <= 0.05, "{profile:?} {order:?}: {prompt} {found:?}");
            let setup = Setup { ahead: None, ..SETUP };
            let without = waits(profile, &settings(order, objects, 1), &setup, false);
            assert!(without.prompt() <= 0.05, "there is something to gain: {without:?}");
        }
    }
    let found = waits(Profile::Resnet50, &settings(Order::Sequential, 64, 1), &SETUP, false);
    assert!(found.prompt() >= 0.95, "first requests of shards too: {found:?}");
}

#[test]
fn readers_with_a_plan_do_not_wait_in_any_order() {
    for (profile, objects) in [(Profile::Resnet50, 64), (Profile::Cosmoflow, 4000), (Profile::Epochs, 5000)] {
        for order in [Order::Sequential, Order::ShardShuffled, Order::Shuffled] {
            let found = waits(profile, &settings(order, objects, 1), &SETUP, true);
            assert!(found.prompt() >= 0.95 && found.wasted() <= 0.05, "{profile:?} {order:?}: {found:?}");
        }
    }
}

#[test]
fn shuffled_reads_without_a_plan_cause_no_read_ahead() {
    for (profile, objects) in [(Profile::Unet3d, 168), (Profile::Cosmoflow, 4000), (Profile::Epochs, 5000)] {
        for capacity_bytes in [SETUP.capacity_bytes, 1] {
            let setup = Setup { capacity_bytes, memory_bytes: 512 << 20, ..SETUP };
            let found = waits(profile, &settings(Order::Shuffled, objects, 1), &setup, false);
            assert!(found.wasted() <= 0.05, "{profile:?} {capacity_bytes}: {found:?}");
        }
    }
}

/// Runs a workload with each request changed by `change`.
fn changed(
    settings: &Settings,
    profile: Profile,
    setup: &Setup,
    change: impl FnMut(Request) -> Request,
) -> Waits {
    let made = workload(profile, settings).unwrap();
    run(&made.scene, made.requests.map(change), &[], setup).unwrap()
}

#[test]
fn random_ranges_cause_no_read_ahead() {
    let mut random = fastrand::Rng::with_seed(5);
    let setup = Setup { capacity_bytes: 1, memory_bytes: 512 << 20, ..SETUP };
    let found = changed(&settings(Order::Sequential, 64, 1), Profile::Resnet50, &setup, |request| {
        let begin = random.u64(..17) * (8 << 20);
        Request { key: random.u32(..64), range: begin..begin + (4 << 20), ..request }
    });
    assert!(found.wasted() <= 0.05, "{found:?}");
}

#[test]
fn ranks_that_share_out_keys_are_distinguished() {
    let settings = Settings { workloads: Some(4), ..settings(Order::Sequential, 4000, 1) };
    let found = changed(&settings, Profile::KWorkloads, &SETUP, |request| {
        let key = request.key / 4 * 4 + u32::from(request.caller);
        Request { key, ..request }
    });
    assert!(found.prompt() >= 0.95 && found.wasted() <= 0.05, "{found:?}");
}

#[test]
fn identical_requests_have_identical_waits() {
    let once = || waits(Profile::Epochs, &settings(Order::ShardShuffled, 1000, 2), &SETUP, true);
    assert_eq!(once(), once());
}
