//! Jobs on one dataset: those of MLPerf Storage, and plain ones.
//!
//! The numbers of files, samples, bytes and seconds are those of the MLPerf Storage benchmark (closed
//! division, H100; RetinaNet: B200). For a dataset of more than 10,000 files, a 64th of them is generated
//! unless the settings override it.

use super::jobs::shards;
use super::{
    DatasetOrder, DatasetSharing, EpochPass, GeneratedDataset, GeneratedWorkload, SimulationProfile,
    TrainingReader, WorkloadSettings,
};
use crate::scene::{MergedRequests, Scene, StreamPattern};
use mlgw_policies::stable_hash::mix;
use std::f64::consts::TAU;

/// Defaults of a profile.
struct ProfileDefaults {
    objects: u32,
    bytes: f64,
    /// Standard deviation of the bytes.
    spread: f64,
    /// Objects of a shard.
    shard: u32,
    /// Bytes that are read in one request.
    range_bytes: f64,
    open_max: usize,
    /// Bytes that an accelerator processes in a second.
    bytes_per_s: f64,
    order: DatasetOrder,
    workloads: u16,
    epochs: u32,
}

/// Defaults of plain workloads; the values are arbitrary.
const PLAIN: ProfileDefaults = ProfileDefaults {
    objects: 5000,
    bytes: 1048576.0,
    spread: 0.0,
    shard: 100,
    range_bytes: f64::INFINITY,
    open_max: 1,
    bytes_per_s: 100.0 * 1048576.0,
    order: DatasetOrder::Shuffled,
    workloads: 1,
    epochs: 10,
};

fn defaults(profile: SimulationProfile) -> ProfileDefaults {
    match profile {
        SimulationProfile::Resnet50 => ProfileDefaults {
            objects: 1024,
            bytes: 1251.0 * 114_660.0,
            shard: 1,
            // A reader requests 8 MiB at a time, and four files are interleaved.
            range_bytes: 8.0 * 1048576.0,
            open_max: 4,
            bytes_per_s: 400.0 * 114_660.0 / 0.224,
            epochs: 5,
            ..PLAIN
        },
        SimulationProfile::Unet3d => ProfileDefaults {
            objects: 168,
            bytes: 146.6e6,
            spread: 68.3e6,
            shard: 1,
            bytes_per_s: 7.0 * 146.6e6 / 0.323,
            epochs: 5,
            ..PLAIN
        },
        SimulationProfile::Cosmoflow => ProfileDefaults {
            objects: 524_288 / 64,
            bytes: 2.828e6,
            spread: 71e3,
            bytes_per_s: 2.828e6 / 0.0035,
            epochs: 5,
            ..PLAIN
        },
        SimulationProfile::Retinanet => ProfileDefaults {
            objects: 1_170_301 / 64,
            bytes: 322_957.0,
            bytes_per_s: 24.0 * 322_957.0 / 0.04755,
            epochs: 5,
            ..PLAIN
        },
        SimulationProfile::KWorkloads => ProfileDefaults { objects: 2000, workloads: 3, epochs: 14, ..PLAIN },
        SimulationProfile::Epochs | SimulationProfile::Mix | SimulationProfile::Zipf => PLAIN,
    }
}

pub(super) fn objects_and_epochs(profile: SimulationProfile) -> (u32, u32) {
    let ProfileDefaults { objects, epochs, .. } = defaults(profile);
    (objects, epochs)
}

/// Name of an object of `count`. Names are in the order of object numbers.
fn name(profile: SimulationProfile, object: u32, count: u32, shard: u32) -> String {
    match profile {
        SimulationProfile::Resnet50 => format!("imagenet/train/train-{object:05}-of-{count:05}.tfrecord"),
        SimulationProfile::Unet3d => format!("kits19/train/case_{object:05}.npz"),
        SimulationProfile::Cosmoflow => {
            format!("cosmo/train/univ_ics_2019-03_a{:07}_{object:06}.tfrecord", object / 100)
        }
        // Image names have 16 hexadecimal digits.
        SimulationProfile::Retinanet => {
            let step = u64::MAX / u64::from(count);
            let within = mix(u64::from(object)) % step;
            format!("open-images/train/data/{:016x}.jpg", u64::from(object) * step + within)
        }
        _ => format!("data/train/shard-{:05}/{object:07}.bin", object / shard),
    }
}

pub(super) fn workload(profile: SimulationProfile, settings: &WorkloadSettings) -> GeneratedWorkload {
    let defaults = defaults(profile);
    let mut scene = Scene::new(settings.naming, settings.seed);
    let dataset = dataset(profile, &defaults, settings, &mut scene);
    let order = settings.order.unwrap_or(defaults.order);
    let pattern = match order {
        DatasetOrder::Sequential => StreamPattern::Sequential,
        DatasetOrder::Shuffled => StreamPattern::Shuffled,
        DatasetOrder::ShardShuffled => StreamPattern::ShardShuffled,
    };
    let workloads = settings.workloads.unwrap_or(defaults.workloads);
    let readers = if settings.sharing == DatasetSharing::Independent { 1 } else { workloads.min(255) as u8 };
    let byte_us = settings.us(1e6 / defaults.bytes_per_s) / settings.size_scale;
    let epoch_us = byte_us * dataset.bytes() as f64;
    let mut random = settings.random(1);
    let mut requests = MergedRequests::default();
    for number in 0..workloads {
        let (order_seed, start_us) = match settings.sharing {
            DatasetSharing::Independent if workloads > 1 => (random.u64(..), random.f64() * epoch_us),
            DatasetSharing::Independent => (random.u64(..), 0.0),
            DatasetSharing::LockStep { lag } => (settings.seed, f64::from(number) * lag * epoch_us),
        };
        let phase = EpochPass {
            dataset: dataset.clone(),
            order,
            open_max: defaults.open_max,
            range_bytes: settings.bytes(defaults.range_bytes),
            request_us: 0.0,
            byte_us,
            stream: scene.add_stream(pattern, 0, readers),
        };
        let job = TrainingReader {
            passes: vec![phase],
            epochs: settings.epochs.unwrap_or(defaults.epochs),
            caller: scene.add_caller(&format!("trainer-{number}"), "trainer"),
            start_us,
            order_seed: mix(order_seed),
            pace_seed: random.u64(..),
        };
        requests.add(start_us as u64, job.requests());
    }
    GeneratedWorkload { scene, requests }
}

fn dataset(
    profile: SimulationProfile,
    defaults: &ProfileDefaults,
    settings: &WorkloadSettings,
    scene: &mut Scene,
) -> GeneratedDataset {
    let count = settings.objects.unwrap_or(defaults.objects);
    let mut random = settings.random(0);
    let first = scene.keys.len() as u32;
    let sizes = (0..count).map(|object| {
        // The minimum file size is a tenth of the mean.
        let bytes = normal(&mut random, defaults.bytes, defaults.spread).max(defaults.bytes / 10.0);
        let bytes = settings.bytes(bytes);
        scene.add_key("datasets", &name(profile, object, count, defaults.shard), bytes);
        bytes
    });
    let sizes = sizes.collect();
    GeneratedDataset { first, sizes, shards: shards(count, defaults.shard) }
}

/// Draws from a normal distribution (Box and Muller, "A Note on the Generation of Random Normal Deviates",
/// 1958).
fn normal(random: &mut fastrand::Rng, mean: f64, deviation: f64) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    mean + deviation * radius * (TAU * random.f64()).cos()
}
