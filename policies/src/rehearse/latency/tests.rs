//! What reading ahead brings, and what it costs where there is nothing to read ahead.

use super::{Setup, Waits, run};
use crate::engine::Ahead;
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
    ahead: Some(Ahead { blocks_max: 2048, bytes_max: 256 << 20 }),
};

fn waits(profile: Profile, settings: &Settings, setup: &Setup, tells: bool) -> Waits {
    let made = || workload(profile, settings).unwrap();
    let plans = if tells { told(&made().scene, made().requests).unwrap() } else { Vec::new() };
    let made = made();
    let waits = run(&made.scene, made.requests, &plans, setup).unwrap();
    println!(
        "{profile:?} {:?} {tells}: prompt {:.4}, within {:.4}, wasted {:.4}, ahead {:.3} {waits:?}",
        settings.order,
        waits.prompt(),
        waits.prompt_within(),
        waits.wasted(),
        waits.ahead_bytes as f64 / waits.upstream_bytes as f64,
    );
    waits
}

fn settings(order: Order, objects: u32, epochs: u32) -> Settings {
    Settings { order: Some(order), objects: Some(objects), epochs: Some(epochs), ..Settings::default() }
}

#[test]
fn look() {
    for (profile, objects) in
        [(Profile::Resnet50, 64), (Profile::Unet3d, 168), (Profile::Cosmoflow, 4000), (Profile::Epochs, 5000)]
    {
        for order in [Order::Sequential, Order::ShardShuffled, Order::Shuffled] {
            for tells in [false, true] {
                waits(profile, &settings(order, objects, 1), &SETUP, tells);
            }
        }
    }
}
