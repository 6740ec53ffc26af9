//! Complete lifecycles of workloads, each request labeled with its true phase.
//!
//! A trainer reads a model or an index, trains in epochs with pauses between batches, validates, writes
//! checkpoints and is tested at the end. Other workloads evaluate a model, serve it to replicas that start,
//! or search for hyperparameters. The number of ranks, sizes, frequencies and orders are drawn from the
//! seed. The length of a lifecycle scales with `time_scale`; the names depend on the naming.

use crate::naming::Naming;
use crate::scene::{GeneratedRequest, Scene, StreamPattern};
use crate::workload::DatasetOrder;
use mlgw_policies::access::Op;
use mlgw_policies::language::Phase;
use mlgw_policies::stable_hash::mix;
use std::ops::Range;

/// Kind of lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// A model, epochs with validation and checkpoints, a test set.
    Finetune,
    /// An index, epochs of shards, checkpoints that are written while reads continue.
    Pretrain,
    /// A model, then a test set once.
    Evaluate,
    /// Replicas that start and load a model.
    Serve,
    /// Several trainers on one dataset, with similar names.
    Search,
}

impl Lifecycle {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Finetune, Self::Pretrain, Self::Evaluate, Self::Serve, Self::Search];
}

/// Parameters of generated lifecycles.
#[derive(Clone, Copy, Debug)]
pub struct LifecycleSettings {
    /// Seed of all random values.
    pub seed: u64,
    /// Naming of the keys.
    pub naming: Naming,
    /// Factor for all durations.
    pub time_scale: f64,
}

/// Requests with the truth about them.
#[derive(Debug)]
pub struct LifecycleTrace {
    /// Tables that requests refer to; the stream of a request is the number of its lifecycle.
    pub scene: Scene,
    /// Requests in order of time, each with its phase.
    pub requests: Vec<(GeneratedRequest, Phase)>,
    /// Names that workloads announce, by caller family.
    pub names: Vec<(u64, String)>,
    /// Kind of each lifecycle, by number; a search has several entries.
    pub lifecycles: Vec<Lifecycle>,
}

/// Fraction of a training step in which the batch is read; computation takes the rest.
const READING_SHARE: f64 = 0.3;

impl LifecycleSettings {
    /// Generates one lifecycle of each kind; they overlap in time.
    #[must_use]
    pub fn generate(&self) -> LifecycleTrace {
        let mut writer = LifecycleBuilder {
            scene: Scene::new(self.naming, self.seed),
            random: fastrand::Rng::with_seed(mix(self.seed ^ 0x6c69_7665)),
            requests: Vec::new(),
            names: Vec::new(),
            lives: Vec::new(),
            callers: Vec::new(),
            at_us: 0.0,
            scale: self.time_scale,
        };
        for life in Lifecycle::ALL {
            writer.add_lifecycle(life);
        }
        let LifecycleBuilder { scene, mut requests, names, lives, .. } = writer;
        requests.sort_by_key(|(request, _)| request.at_us);
        LifecycleTrace { scene, requests, names, lifecycles: lives }
    }
}

struct LifecycleBuilder {
    scene: Scene,
    random: fastrand::Rng,
    requests: Vec<(GeneratedRequest, Phase)>,
    names: Vec<(u64, String)>,
    lives: Vec<Lifecycle>,
    /// Ranks of the lifecycle that is being generated; the next field is its current time.
    callers: Vec<u16>,
    at_us: f64,
    scale: f64,
}

type LifecycleItem = (u32, Range<u64>);

impl LifecycleBuilder {
    fn add_lifecycle(&mut self, life: Lifecycle) {
        let begin_us = 60e6 * self.random.f64();
        match life {
            Lifecycle::Search => self.search(begin_us),
            _ => {
                let ranks = if life == Lifecycle::Serve { 20 } else { [1, 2, 4, 8][self.random.usize(0..4)] };
                self.begin(life, &format!("{life:?}").to_lowercase(), ranks, begin_us);
                match life {
                    Lifecycle::Finetune => self.finetune(),
                    Lifecycle::Pretrain => self.pretrain(),
                    Lifecycle::Evaluate => self.evaluate(),
                    _ => self.serve(),
                }
            }
        }
    }

    fn begin(&mut self, life: Lifecycle, name: &str, ranks: usize, at_us: f64) {
        self.callers =
            (0..ranks).map(|rank| self.scene.add_caller(&format!("{name}-{rank}"), name)).collect();
        let family = self.scene.callers[usize::from(self.callers[0])].family;
        self.names.push((family, name.to_owned()));
        self.lives.push(life);
        self.scene.add_stream(StreamPattern::Shuffled, self.lives.len() as u16 - 1, 1);
        self.at_us = at_us * self.scale;
    }

    fn request(&mut self, after_us: f64, rank: usize, item: LifecycleItem, op: Op, phase: Phase) {
        let caller = self.callers[rank % self.callers.len()];
        let stream = self.lives.len() as u16 - 1;
        let at_us = (self.at_us + after_us * self.scale) as u64;
        self.requests.push((
            GeneratedRequest { at_us, range: item.1, key: item.0, epoch: 0, caller, stream, op },
            phase,
        ));
    }

    fn pass_time(&mut self, us: f64) {
        self.at_us += us * self.scale;
    }

    fn whole_object(&mut self, bucket: &str, name: &str, size: u64) -> LifecycleItem {
        (self.scene.add_key(bucket, name, size), 0..size)
    }

    /// A model of a few large files and a few small ones.
    fn model(&mut self, name: &str) -> Vec<LifecycleItem> {
        let files = self.random.u64(1..=6);
        let parts = [1, 4, 16][self.random.usize(0..3)];
        let mut items = vec![
            self.whole_object("models", &format!("{name}/config.json"), 700),
            self.whole_object("models", &format!("{name}/tokenizer.json"), 2 << 20),
        ];
        for file in 1..=files {
            let size = self.random.u64(1 << 30..4 << 30);
            let file = format!("{name}/model-{file:05}-of-{files:05}.safetensors");
            let (key, _) = self.whole_object("models", &file, size);
            items.extend((0..parts).map(|part| (key, size / parts * part..size / parts * (part + 1))));
        }
        items
    }

    fn load(&mut self, model: &[LifecycleItem], ranks: Range<usize>, phase: Phase) {
        let took_us = 20e6;
        for rank in ranks.clone() {
            let late_us = took_us * 0.1 * self.random.f64();
            for (at, item) in model.iter().enumerate() {
                let after_us = late_us + took_us * (at as f64 + self.random.f64()) / model.len() as f64;
                self.request(after_us, rank, item.clone(), Op::Read, phase);
            }
        }
        self.pass_time(took_us * 1.2);
    }

    /// Objects that are read in one request each.
    fn objects(&mut self, name: &str, count: u32) -> Vec<LifecycleItem> {
        let size = self.random.u64(10_000..2_000_000);
        let object = |at: u32| {
            self.whole_object("datasets", &format!("{name}/img_{at:06}.jpg"), size + u64::from(at % 7))
        };
        (0..count).map(object).collect()
    }

    /// Reads a dataset once, by all ranks in batches.
    fn epoch(
        &mut self,
        items: &[LifecycleItem],
        order: DatasetOrder,
        batch: usize,
        phase: Phase,
        save: Option<&mut CheckpointSchedule>,
    ) {
        let mut numbers: Vec<usize> = (0..items.len()).collect();
        if order != DatasetOrder::Sequential {
            self.random.shuffle(&mut numbers);
        }
        let step_us = 1e6;
        let ranks = self.callers.len();
        let mut save = save;
        for step in numbers.chunks(batch * ranks) {
            for (at, item) in step.iter().enumerate() {
                let share = (at as f64 + self.random.f64()) / step.len() as f64;
                self.request(
                    READING_SHARE * step_us * share,
                    at % ranks,
                    items[*item].clone(),
                    Op::Read,
                    phase,
                );
            }
            let us = step_us * (0.9 + 0.2 * self.random.f64());
            self.pass_time(us);
            if let Some(saving) = save.as_deref_mut() {
                saving.step += 1;
                if saving.step.is_multiple_of(saving.every) {
                    self.save(saving);
                }
            }
        }
    }

    fn save(&mut self, saving: &CheckpointSchedule) {
        let took_us = 5e6;
        let ranks = self.callers.len();
        let folder = format!("runs/{}/checkpoint-{}", saving.run, saving.step);
        let mut files: Vec<String> = match saving.is_dcp {
            true => (0..ranks).map(|rank| format!("{folder}/__{rank}_0.distcp")).collect(),
            false => ["model.safetensors", "optimizer.pt", "scheduler.pt"]
                .map(|it| format!("{folder}/{it}"))
                .into(),
        };
        files.push(format!("{folder}/{}", if saving.is_dcp { ".metadata" } else { "trainer_state.json" }));
        let count = files.len() as f64;
        for (at, file) in files.iter().enumerate() {
            let size = if at + 1 == files.len() { 50_000 } else { saving.bytes };
            let item = self.whole_object("checkpoints", file, size);
            let after_us = took_us * (at as f64 + 0.9 * self.random.f64()) / count;
            self.request(
                after_us,
                if saving.is_dcp { at } else { 0 },
                item,
                Op::Write,
                Phase::CheckpointSave,
            );
        }
        if !saving.is_concurrent {
            self.pass_time(took_us * 1.1);
        }
    }

    fn checkpoint_schedule(&mut self, run: &str, steps: u32) -> CheckpointSchedule {
        let every = (steps / self.random.u32(3..8)).max(20);
        let (bytes, is_dcp) = (self.random.u64(1 << 28..1 << 31), self.random.bool());
        CheckpointSchedule { run: run.to_owned(), every, step: 0, bytes, is_dcp, is_concurrent: false }
    }

    fn batch(&mut self) -> usize {
        [4, 8, 16][self.random.usize(0..3)]
    }

    fn finetune(&mut self) {
        let model = self.model("base");
        let ranks = self.callers.len();
        self.load(&model, 0..ranks, Phase::Initialization);
        let count = self.random.u32(1500..4000);
        let train = self.objects("set/train", count);
        let validation = self.objects("set/val", count / 10);
        let test = self.objects("set/test", count / 8);
        let batch = self.batch();
        let epochs = self.random.u32(3..6);
        let mut saving = self.checkpoint_schedule("finetune", count * epochs / (batch * ranks) as u32);
        for _ in 0..epochs {
            self.epoch(&train, DatasetOrder::Shuffled, batch, Phase::Training, Some(&mut saving));
            self.epoch(&validation, DatasetOrder::Sequential, batch, Phase::Validation, None);
        }
        self.epoch(&test, DatasetOrder::Sequential, batch, Phase::Evaluation, None);
    }

    fn pretrain(&mut self) {
        let index = self.whole_object("corpus", "web/index.json", 900_000);
        for rank in 0..self.callers.len() {
            let after_us = 1e6 * self.random.f64();
            self.request(after_us, rank, index.clone(), Op::Read, Phase::Initialization);
        }
        self.pass_time(2e6);
        let shards = self.random.u32(60..200);
        let size = self.random.u64(64 << 20..512 << 20);
        let parts = self.random.u64(8..24);
        let is_in_order = self.random.u32(0..4) == 0;
        let keys: Vec<u32> = (0..shards)
            .map(|at| self.whole_object("corpus", &format!("web/train-{at:05}-of-{shards:05}.tar"), size).0)
            .collect();
        let batch = self.batch();
        let epochs = self.random.u32(2..4);
        let steps = u64::from(shards * epochs) * parts / (batch * self.callers.len()) as u64;
        let mut saving = self.checkpoint_schedule("pretrain", steps as u32);
        saving.is_concurrent = true;
        for _ in 0..epochs {
            let mut order = keys.clone();
            if !is_in_order {
                self.random.shuffle(&mut order);
            }
            // Each rank reads its own shard from start to end.
            let ranks = self.callers.len();
            let mut items = Vec::new();
            for group in order.chunks(ranks) {
                for part in 0..parts {
                    items.extend(
                        group.iter().map(|key| (*key, size / parts * part..size / parts * (part + 1))),
                    );
                }
            }
            self.epoch(&items, DatasetOrder::Sequential, batch, Phase::Training, Some(&mut saving));
        }
    }

    fn evaluate(&mut self) {
        let model = self.model("candidate");
        let ranks = self.callers.len();
        self.load(&model, 0..ranks, Phase::Initialization);
        let count = self.random.u32(800..3000);
        let test = self.objects("benchmark", count);
        let batch = self.batch();
        self.epoch(&test, DatasetOrder::Sequential, batch, Phase::Evaluation, None);
    }

    fn serve(&mut self) {
        let model = self.model("product");
        let loads = self.random.usize(10..20);
        self.load(&model, 0..1, Phase::Initialization);
        let mut next = 1;
        while next < loads {
            let us = 100e6 * (1.0 + 3.0 * self.random.f64());
            self.pass_time(us);
            let together = self.random.usize(1..4);
            self.load(&model, next..next + together, Phase::Inference);
            next += together;
        }
    }

    fn search(&mut self, begin_us: f64) {
        let count = self.random.u32(600..1200);
        let train = self.objects("sweep/train", count);
        let trials = self.random.usize(4..7);
        let later_us = 30e6;
        let third_us = (begin_us + 2.0 * later_us) * self.scale;
        for trial in 0..trials {
            self.begin(Lifecycle::Search, &format!("sweep-{trial}"), 1, begin_us + later_us * trial as f64);
            let from = self.requests.len();
            for _ in 0..self.random.u32(3..6) {
                self.epoch(&train, DatasetOrder::Shuffled, 8, Phase::Training, None);
            }
            // A search is recognizable once the third trial has begun.
            for (request, phase) in &mut self.requests[from..] {
                if request.at_us as f64 >= third_us {
                    *phase = Phase::Tuning;
                }
            }
        }
    }
}

/// Parameters of checkpoint writes.
struct CheckpointSchedule {
    run: String,
    every: u32,
    step: u32,
    bytes: u64,
    is_dcp: bool,
    /// True if reads continue during the write.
    is_concurrent: bool,
}
