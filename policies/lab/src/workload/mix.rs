//! A cluster's day on a small scale: training, validation, checkpoints, a scan, a model that replicas load,
//! and a hyperparameter search.
//!
//! Two training jobs run one after the other. Each reads a training set of its own in six shuffled epochs,
//! each followed by a pass over a validation set. A pipeline scans a data lake once at half their rate. A
//! checkpoint is written every 800 steps, and every eighth is read back by another process. Replicas start
//! at random times and load a model. Trainers of a hyperparameter search read a fourth dataset in
//! lock-step. An object is one block, so that object hits and byte hits are the same. If the number of
//! objects is changed, everything keeps its proportion to the training set.

use super::jobs::shards;
use super::{DatasetOrder, EpochPass, GeneratedDataset, GeneratedWorkload, TrainingReader, WorkloadSettings};
use crate::scene::{GeneratedRequest, MergedRequests, Scene, StreamPattern};
use mlgw_policies::access::Op;
use mlgw_policies::stable_hash::mix;
use std::sync::Arc;

/// Objects of a training set, which is the base of all other numbers.
const TRAIN: f64 = 4000.0;
const VALIDATION: f64 = 200.0;
const CHECKPOINT: f64 = 150.0;
const MODEL: f64 = 100.0;
const SEARCH: f64 = 1500.0;
const EPOCHS: u32 = 6;
pub(super) const OBJECTS_AND_EPOCHS: (u32, u32) = (TRAIN as u32, EPOCHS);
const SEARCH_EPOCHS: u32 = 8;
const SEARCH_TRAINERS: u16 = 4;
/// Steps between two checkpoints. One in `RESTORED_ONE_IN` is read back `RESTORE_STEPS` after its start.
const CHECKPOINT_STEPS: f64 = 800.0;
const RESTORED_ONE_IN: u32 = 8;
const RESTORE_STEPS: f64 = 300.0;
/// Mean number of steps between two replicas that load the model.
const REPLICA_STEPS: f64 = 900.0;
/// Start of the search, duration per object, and distance between one trainer and the next, in steps.
const SEARCH_BEGIN_STEPS: f64 = 6000.0;
const SEARCH_STEPS: f64 = 1.5;
const SEARCH_LAG_STEPS: f64 = 60.0;
/// Duration of a step, in which the training job reads one object of `OBJECT_BYTES`.
const STEP_US: f64 = 100_000.0;
const OBJECT_BYTES: f64 = 1048576.0;

/// Numbers of datasets.
const DATASET_LAKE: u16 = 2;
const DATASET_CHECKPOINTS: u16 = 3;
const DATASET_MODEL: u16 = 4;
const DATASET_SEARCH: u16 = 5;

struct MixBuilder<'a> {
    settings: &'a WorkloadSettings,
    /// Factor for the object counts above.
    scale: f64,
    scene: Scene,
    requests: MergedRequests,
    random: fastrand::Rng,
}

/// Bytes of a training set.
pub(super) fn training_bytes(settings: &WorkloadSettings) -> u64 {
    u64::from(count(TRAIN, scale(settings))) * settings.bytes(OBJECT_BYTES)
}

fn scale(settings: &WorkloadSettings) -> f64 {
    settings.objects.map_or(1.0, |objects| f64::from(objects) / TRAIN)
}

fn count(objects: f64, scale: f64) -> u32 {
    (objects * scale).round().max(1.0) as u32
}

pub(super) fn workload(settings: &WorkloadSettings) -> GeneratedWorkload {
    let mut mix = MixBuilder {
        settings,
        scale: scale(settings),
        scene: Scene::new(settings.naming, settings.seed),
        requests: MergedRequests::default(),
        random: settings.random(0),
    };
    let end = mix.training();
    mix.lake(end);
    mix.checkpoints(end);
    mix.replicas(end);
    mix.search();
    GeneratedWorkload { scene: mix.scene, requests: mix.requests }
}

/// Requests for all objects of a dataset, in order.
#[derive(Clone, Copy)]
struct Burst {
    begin_us: f64,
    /// Steps from one request to the next.
    steps: f64,
    caller: u16,
    stream: u16,
    epoch: u32,
    op: Op,
}

impl MixBuilder<'_> {
    /// Scales a number of objects.
    fn count(&self, objects: f64) -> u32 {
        count(objects, self.scale)
    }

    /// Converts a number of steps to microseconds, scaled by the number of objects.
    fn us(&self, steps: f64) -> f64 {
        self.step_us() * steps * self.scale
    }

    /// Duration of one step in microseconds. A step is one object and does not scale with the number of
    /// objects.
    fn step_us(&self) -> f64 {
        self.settings.us(STEP_US)
    }

    fn dataset(&mut self, bucket: &str, count: u32, name: impl Fn(u32) -> String) -> GeneratedDataset {
        let bytes = self.settings.bytes(OBJECT_BYTES);
        let first = self.scene.keys.len() as u32;
        for object in 0..count {
            self.scene.add_key(bucket, &name(object), bytes);
        }
        GeneratedDataset {
            first,
            sizes: Arc::from(vec![bytes; count as usize]),
            shards: shards(count, count),
        }
    }

    fn pass(&self, dataset: GeneratedDataset, order: DatasetOrder, steps: f64, stream: u16) -> EpochPass {
        let request_us = self.step_us() * steps;
        EpochPass { dataset, order, open_max: 1, range_bytes: u64::MAX, request_us, byte_us: 0.0, stream }
    }

    /// Adds two jobs, one after the other, and returns the end time of the second.
    fn training(&mut self) -> f64 {
        let mut start_us = 0.0;
        for (number, set) in [(0, "imagenet-21k"), (1, "laion-aesthetic")] {
            let (train, validation) = (self.count(TRAIN), self.count(VALIDATION));
            let classes = |object: u32| format!("{set}/train/n{:05}/{object:07}.jpg", object / 50);
            let train = self.dataset("datasets", train, classes);
            let validation =
                self.dataset("datasets", validation, |object| format!("{set}/val/{object:05}.jpg"));
            let stream = self.scene.add_stream(StreamPattern::Shuffled, number, 1);
            let train = self.pass(train, DatasetOrder::Shuffled, 1.0, stream);
            let stream = self.scene.add_stream(StreamPattern::Validation, number, 1);
            let validation = self.pass(validation, DatasetOrder::Sequential, 0.5, stream);
            let epochs = self.settings.epochs.unwrap_or(EPOCHS);
            let epoch_us = f64::from(train.dataset.len()) * train.request_us
                + f64::from(validation.dataset.len()) * validation.request_us;
            let caller = self.scene.add_caller(&format!("trainer-{number}"), "trainer");
            self.add(TrainingReader {
                passes: vec![train, validation],
                epochs,
                caller,
                start_us,
                order_seed: mix(self.settings.seed ^ u64::from(number) << 32),
                pace_seed: mix(self.settings.seed) ^ u64::from(number),
            });
            start_us += epoch_us * f64::from(epochs);
        }
        start_us
    }

    fn add(&mut self, job: TrainingReader) {
        self.requests.add(job.start_us as u64, job.requests());
    }

    fn lake(&mut self, end_us: f64) {
        let count = (end_us / (2.0 * self.step_us())).max(1.0) as u32;
        let name = |object| format!("crawl/2026-{:02}/part-{object:06}.parquet", object * 12 / count + 1);
        let dataset = self.dataset("lake", count, name);
        let stream = self.scene.add_stream(StreamPattern::OnePass, DATASET_LAKE, 1);
        let phase = self.pass(dataset, DatasetOrder::Sequential, 2.0, stream);
        let caller = self.scene.add_caller("pipeline", "pipeline");
        let pace_seed = mix(self.settings.seed ^ 2 << 32);
        self.add(TrainingReader {
            passes: vec![phase],
            epochs: 1,
            caller,
            start_us: 0.0,
            order_seed: 0,
            pace_seed,
        });
    }

    /// Adds checkpoints, written by the running trainer; the metadata file comes last.
    fn checkpoints(&mut self, end_us: f64) {
        let stream = self.scene.add_stream(StreamPattern::Checkpoint, DATASET_CHECKPOINTS, 1);
        let count = self.count(CHECKPOINT);
        for generation in 0.. {
            let begin_us = self.us(CHECKPOINT_STEPS) * f64::from(generation + 1);
            if begin_us >= end_us {
                break;
            }
            let trainer = u16::from(begin_us >= end_us / 2.0);
            let step = (generation + 1) * 800;
            let name = |object: u32| {
                let directory = format!("run-{trainer}/checkpoints/step-{step:08}");
                if object + 1 == count {
                    format!("{directory}/.metadata")
                } else {
                    format!("{directory}/__{}_{}.distcp", object / 10, object % 10)
                }
            };
            let dataset = self.dataset("checkpoints", count, name);
            let writes =
                Burst { begin_us, steps: 0.3, caller: trainer, stream, epoch: generation, op: Op::Write };
            self.burst(&dataset, writes);
            if generation % RESTORED_ONE_IN == RESTORED_ONE_IN - 1 {
                let reader = self.scene.add_caller(&format!("restore-{generation}"), "trainer");
                let begin_us = begin_us + self.us(RESTORE_STEPS);
                self.burst(&dataset, Burst { begin_us, steps: 0.1, caller: reader, op: Op::Read, ..writes });
            }
        }
    }

    fn burst(&mut self, dataset: &GeneratedDataset, burst: Burst) {
        let Burst { begin_us, steps, caller, stream, epoch, op } = burst;
        let (first, step_us) = (dataset.first, self.step_us() * steps);
        let requests = Arc::clone(&dataset.sizes);
        let requests = (0..dataset.len()).map(move |object| GeneratedRequest {
            at_us: (begin_us + step_us * f64::from(object)) as u64,
            range: 0..requests[object as usize],
            key: first + object,
            epoch,
            caller,
            stream,
            op,
        });
        self.requests.add(begin_us as u64, Box::new(requests));
    }

    fn replicas(&mut self, end_us: f64) {
        let count = self.count(MODEL);
        let name = |object| format!("llm-8b/model-{:05}-of-{count:05}.safetensors", object + 1);
        let dataset = self.dataset("models", count, name);
        let stream = self.scene.add_stream(StreamPattern::Model, DATASET_MODEL, 1);
        let mut at_us = 0.0;
        for number in 0.. {
            at_us += -(1.0 - self.random.f64()).ln() * self.us(REPLICA_STEPS);
            if at_us >= end_us {
                break;
            }
            let caller = self.scene.add_caller(&format!("replica-{number}"), "replica");
            self.burst(
                &dataset,
                Burst { begin_us: at_us, steps: 0.05, caller, stream, epoch: number, op: Op::Read },
            );
        }
    }

    fn search(&mut self) {
        let trainers = self.settings.workloads.unwrap_or(SEARCH_TRAINERS);
        let count = self.count(SEARCH);
        let dataset = self.dataset("datasets", count, |object| format!("cifar/train/batch-{object:05}.npy"));
        for number in 0..trainers {
            let stream =
                self.scene.add_stream(StreamPattern::Shuffled, DATASET_SEARCH, trainers.min(255) as u8);
            let phase = self.pass(dataset.clone(), DatasetOrder::Shuffled, SEARCH_STEPS, stream);
            let caller = self.scene.add_caller(&format!("search-{number}"), "search");
            let start_us = self.us(SEARCH_BEGIN_STEPS + SEARCH_LAG_STEPS * f64::from(number));
            self.add(TrainingReader {
                passes: vec![phase],
                epochs: SEARCH_EPOCHS,
                caller,
                start_us,
                order_seed: mix(self.settings.seed ^ 3 << 32),
                pace_seed: mix(self.settings.seed ^ 4 << 32) ^ u64::from(number),
            });
        }
    }
}
