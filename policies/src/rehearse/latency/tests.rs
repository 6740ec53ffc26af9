//! What reading ahead brings, and what it costs where there is nothing to read ahead.

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
fn who_reads_on_in_shards_or_in_the_order_of_keys_does_not_wait() {
    for (profile, objects) in [(Profile::Resnet50, 64), (Profile::Cosmoflow, 4000), (Profile::Epochs, 5000)] {
        for order in [Order::Sequential, Order::ShardShuffled] {
            let found = waits(profile, &settings(order, objects, 1), &SETUP, false);
            // Where a shard is one object its first request is not known before; where it is a folder, few
            // are.
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
fn who_follows_a_plan_does_not_wait_in_any_order() {
    for (profile, objects) in [(Profile::Resnet50, 64), (Profile::Cosmoflow, 4000), (Profile::Epochs, 5000)] {
        for order in [Order::Sequential, Order::ShardShuffled, Order::Shuffled] {
            let found = waits(profile, &settings(order, objects, 1), &SETUP, true);
            assert!(found.prompt() >= 0.95 && found.wasted() <= 0.05, "{profile:?} {order:?}: {found:?}");
        }
    }
}

#[test]
fn shuffles_without_a_plan_are_not_read_ahead_of() {
    for (profile, objects) in [(Profile::Unet3d, 168), (Profile::Cosmoflow, 4000), (Profile::Epochs, 5000)] {
        for capacity_bytes in [SETUP.capacity_bytes, 1] {
            let setup = Setup { capacity_bytes, memory_bytes: 512 << 20, ..SETUP };
            let found = waits(profile, &settings(Order::Shuffled, objects, 1), &setup, false);
            assert!(found.wasted() <= 0.05, "{profile:?} {capacity_bytes}: {found:?}");
        }
    }
}

/// Requests of a workload, made otherwise.
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
fn ranges_that_are_chosen_are_not_read_ahead_of() {
    let mut random = fastrand::Rng::with_seed(5);
    let setup = Setup { capacity_bytes: 1, memory_bytes: 512 << 20, ..SETUP };
    let found = changed(&settings(Order::Sequential, 64, 1), Profile::Resnet50, &setup, |request| {
        let begin = random.u64(..17) * (8 << 20);
        Request { key: random.u32(..64), range: begin..begin + (4 << 20), ..request }
    });
    assert!(found.wasted() <= 0.05, "{found:?}");
}

#[test]
fn ranks_that_share_out_keys_are_told_apart() {
    let settings = Settings { workloads: Some(4), ..settings(Order::Sequential, 4000, 1) };
    let found = changed(&settings, Profile::KWorkloads, &SETUP, |request| {
        let key = request.key / 4 * 4 + u32::from(request.caller);
        Request { key, ..request }
    });
    assert!(found.prompt() >= 0.95 && found.wasted() <= 0.05, "{found:?}");
}

#[test]
fn the_same_requests_wait_alike_every_time() {
    let once = || waits(Profile::Epochs, &settings(Order::ShardShuffled, 1000, 2), &SETUP, true);
    assert_eq!(once(), once());
}
