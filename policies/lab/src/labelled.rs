//! Traffic of several concurrent callers with the truth about each request, to score pattern detection.
//!
//! Each job has a [`LabelledJob`]; everything else is drawn from the seed: number and sizes of objects, names
//! and layout, number of ranks and loader workers, regularity of the timing. The traffic has the
//! imperfections of real clients: workers reorder requests slightly, an incomplete last batch is dropped,
//! ranks that get one object too few read another one twice, and some requests are repeated. The truth about
//! a request is its stream ([`Scene::stream`]) and its `epoch`.

mod checkpoints;
mod layout;
pub mod lifecycles;
mod reads;

use super::naming::Naming;
use super::scene::{MergedRequests, Scene, StreamPattern};
use super::workload::{DatasetOrder, GeneratedWorkload};
use layout::{GeneratedKeyName, KeyLayout};
use mlgw_policies::stable_hash::mix;
use reads::{LabelledReader, ReadGroups, ReadItem};

/// Behaviour of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelledJob {
    /// Epochs in the order of keys.
    Sequential,
    /// Epochs in random orders.
    Shuffled,
    /// Epochs by shards in random orders, a shard being a directory.
    ShardDirectories,
    /// Epochs by shards in random orders, a shard being the objects with a common name prefix.
    ShardPrefixes,
    /// Epochs by shards in random orders, a shard being one large object that is read in ranges.
    ShardObjects,
    /// For each columnar file, the footer, then selected columns of each row group.
    Columnar,
    /// Every object once.
    OnePass,
    /// A few objects, read often.
    Skewed,
    /// Checkpoints, some of them read back.
    Checkpoint,
    /// Shuffled epochs, each followed by a pass over a validation set.
    Validation,
}

impl LabelledJob {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Sequential,
        Self::Shuffled,
        Self::ShardDirectories,
        Self::ShardPrefixes,
        Self::ShardObjects,
        Self::Columnar,
        Self::OnePass,
        Self::Skewed,
        Self::Checkpoint,
        Self::Validation,
    ];

    /// The label of the job's requests; requests for a validation set have their own label.
    #[must_use]
    pub fn pattern(self) -> StreamPattern {
        match self {
            Self::Sequential => StreamPattern::Sequential,
            Self::Shuffled | Self::Validation => StreamPattern::Shuffled,
            Self::ShardDirectories | Self::ShardPrefixes | Self::ShardObjects => StreamPattern::ShardShuffled,
            Self::Columnar => StreamPattern::Columnar,
            Self::OnePass => StreamPattern::OnePass,
            Self::Skewed => StreamPattern::Skewed,
            Self::Checkpoint => StreamPattern::Checkpoint,
        }
    }
}

/// Parameters of generated traffic.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Seed of all random values.
    pub seed: u64,
    /// The jobs; several may be of one kind.
    pub jobs: Vec<LabelledJob>,
    /// Minimum number of objects in a dataset; the actual number is less than twice as large. Values below
    /// 100 count as 100.
    pub objects_min: u32,
    /// Naming of the keys.
    pub naming: Naming,
}

impl Traffic {
    /// Traffic with one job of each kind, and three more that the seed selects.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(mix(seed ^ 0x6c61_6265_6c6c_6564));
        let more = (0..3).map(|_| LabelledJob::ALL[random.usize(0..LabelledJob::ALL.len())]);
        Self {
            seed,
            jobs: LabelledJob::ALL.into_iter().chain(more).collect(),
            objects_min: 300,
            naming: Naming::Plain,
        }
    }

    /// Generates the traffic.
    #[must_use]
    pub fn generate(&self) -> GeneratedWorkload {
        let mut build = TrafficBuilder {
            scene: Scene::new(self.naming, self.seed),
            requests: MergedRequests::default(),
            random: fastrand::Rng::with_seed(mix(self.seed)),
            objects_min: self.objects_min.max(100),
            datasets: 0,
        };
        for (number, kind) in self.jobs.iter().enumerate() {
            build.job(number, *kind);
        }
        GeneratedWorkload { scene: build.scene, requests: build.requests }
    }
}

/// Parts in which the objects of a dataset are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectParts {
    /// Each object in one request.
    Whole,
    /// Each object in one request or in ranges, as drawn for the dataset.
    Drawn,
}

/// Length of the traffic in microseconds.
const LENGTH_US: f64 = 3.6e9;

/// Traffic under construction.
struct TrafficBuilder {
    scene: Scene,
    requests: MergedRequests,
    random: fastrand::Rng,
    objects_min: u32,
    datasets: u16,
}

impl TrafficBuilder {
    fn job(&mut self, number: usize, kind: LabelledJob) {
        match kind {
            LabelledJob::Checkpoint => self.checkpoints(number),
            LabelledJob::Skewed => self.skewed(number),
            _ => self.reader(number, kind),
        }
    }

    fn dataset_number(&mut self) -> u16 {
        self.datasets += 1;
        self.datasets - 1
    }

    /// Adds the callers of one job: its ranks.
    fn ranks(&mut self, job: usize, count: usize) -> Vec<u16> {
        let family = format!("job-{job}");
        (0..count).map(|rank| self.scene.add_caller(&format!("{family}-{rank}"), &family)).collect()
    }

    fn reader(&mut self, number: usize, kind: LabelledJob) {
        let count = self.random.u32(self.objects_min..self.objects_min * 2);
        let dataset = self.dataset_number();
        let groups = match kind {
            LabelledJob::Columnar => self.columnar(number, count / 10),
            LabelledJob::ShardObjects => self.shard_objects(number, count / 10),
            LabelledJob::ShardDirectories | LabelledJob::ShardPrefixes => self.shards(number, kind, count),
            LabelledJob::Sequential | LabelledJob::OnePass => {
                self.objects(&format!("set-{number}"), count, ObjectParts::Drawn)
            }
            _ => self.objects(&format!("set-{number}"), count, ObjectParts::Whole),
        };
        let stream = self.scene.add_stream(kind.pattern(), dataset, 1);
        let epochs = match kind {
            LabelledJob::OnePass => 1,
            LabelledJob::Columnar => self.random.u32(1..=3),
            _ => self.random.u32(3..=6),
        };
        let order = match kind {
            LabelledJob::Sequential => DatasetOrder::Sequential,
            LabelledJob::OnePass | LabelledJob::Columnar if self.random.u32(0..4) != 0 => {
                DatasetOrder::Sequential
            }
            _ => DatasetOrder::Shuffled,
        };
        let validation = (kind == LabelledJob::Validation).then(|| {
            let dataset = self.dataset_number();
            let groups = self.objects(&format!("set-{number}-val"), count / 10, ObjectParts::Whole);
            let stream = self.scene.add_stream(StreamPattern::Validation, dataset, 1);
            ReadGroups { stream, groups: groups.into() }
        });
        let ranks = if kind == LabelledJob::OnePass { 1 } else { [1, 1, 2, 4][self.random.usize(0..4)] };
        let callers = self.ranks(number, ranks);
        let reader = self.with_irregularities(LabelledReader::new(groups, stream, epochs, order, validation));
        self.add(reader, &callers);
    }

    /// Draws the irregularities of a reader.
    fn with_irregularities(&mut self, mut reader: LabelledReader) -> LabelledReader {
        let random = &mut self.random;
        reader.open_max = [1, 1, 2, 4, 8][random.usize(0..5)];
        reader.batch = [1, 1, 8, 32][random.usize(0..4)];
        reader.retried = [0.0, 0.001, 0.005][random.usize(0..3)];
        reader.burst = [1, 4, 16][random.usize(0..3)];
        reader.start_us = LENGTH_US * 0.3 * random.f64();
        reader.length_us = LENGTH_US * (0.4 + 0.3 * random.f64());
        reader.order_seed = random.u64(..);
        reader
    }

    fn add(&mut self, reader: LabelledReader, callers: &[u16]) {
        let start_us = reader.start_us as u64;
        for (rank, caller) in callers.iter().enumerate() {
            let seed = self.random.u64(..);
            self.requests.add(start_us, reader.clone().requests(*caller, rank, callers.len(), seed));
        }
    }

    /// Adds the objects of a dataset.
    fn objects(&mut self, set: &str, count: u32, parts: ObjectParts) -> Vec<Vec<ReadItem>> {
        let layout = KeyLayout::ALL[self.random.usize(0..KeyLayout::ALL.len())];
        let sizes = self.sizes(4096.0, 64e6);
        let range_bytes = match parts {
            ObjectParts::Drawn if self.random.bool() => 8 << 20,
            ObjectParts::Drawn | ObjectParts::Whole => u64::MAX,
        };
        let objects = (0..count).map(|object| {
            let named = GeneratedKeyName { set, layout, object, count };
            let size = sizes(&mut self.random);
            let key = self.scene.add_key("datasets", &named.to_string(), size);
            ranges(key, size, range_bytes)
        });
        objects.collect()
    }

    fn shards(&mut self, number: usize, kind: LabelledJob, count: u32) -> Vec<Vec<ReadItem>> {
        let sizes = self.sizes(4096.0, 4e6);
        let each = self.random.u32(15..40).min(count / 5);
        let separator = if kind == LabelledJob::ShardDirectories {
            '/'
        } else {
            ['.', '_', '-'][self.random.usize(0..3)]
        };
        let shard = |shard: u32| {
            let item = |object: u32| {
                let name = format!("set-{number}/train/shard-{shard:05}{separator}{object:05}.npy");
                let size = sizes(&mut self.random);
                (self.scene.add_key("datasets", &name, size), 0..size)
            };
            (0..each).map(item).collect()
        };
        (0..count / each).map(shard).collect()
    }

    fn shard_objects(&mut self, number: usize, count: u32) -> Vec<Vec<ReadItem>> {
        let sizes = self.sizes(48e6, 400e6);
        // Readers request parts of one length.
        let parts = self.random.u64(12..=48);
        let count = count.max(20);
        let shard = |shard: u32| {
            let size = sizes(&mut self.random);
            let name = format!("set-{number}/train-{shard:05}-of-{count:05}.tar");
            let key = self.scene.add_key("datasets", &name, size);
            ranges(key, size, (48e6 as u64 / parts) >> 16 << 16)
        };
        (0..count).map(shard).collect()
    }

    /// Adds files of a few row groups; the same columns are read in each epoch.
    fn columnar(&mut self, number: usize, count: u32) -> Vec<Vec<ReadItem>> {
        let sizes = self.sizes(20e6, 300e6);
        let columns = self.random.usize(8..30);
        let shares: Vec<f64> = (0..columns).map(|_| 0.2 + self.random.f64()).collect();
        let total: f64 = shares.iter().sum();
        let mut selected: Vec<bool> = (0..columns).map(|_| self.random.u32(0..4) == 0).collect();
        // At least two columns are read and at least one is not.
        (selected[0], selected[2], selected[columns - 1]) = (true, false, true);
        let mut layout =
            ColumnLayout { row_groups: self.random.u32(2..7), shares, total, selected, footer_bytes: 0 };
        layout.footer_bytes = 1 << self.random.u32(13..18);
        let file = |object: u32| {
            let named =
                GeneratedKeyName { set: &format!("set-{number}"), layout: KeyLayout::Dated, object, count };
            let size = sizes(&mut self.random);
            let key = self.scene.add_key("lake", &named.to_string(), size);
            layout.items(key, size)
        };
        (0..count.max(20)).map(file).collect()
    }

    /// Returns a distribution of object sizes for a dataset: either within 30 % of a mean that is drawn
    /// between `min` and `max`, or all equal to it.
    fn sizes(&mut self, min: f64, max: f64) -> impl Fn(&mut fastrand::Rng) -> u64 + use<> {
        let around = min * (self.random.f64() * (max / min).ln()).exp();
        let spread = if self.random.bool() { 0.0 } else { 0.6 };
        move |random| (around * (1.0 + spread * (random.f64() - 0.5))) as u64
    }

    fn skewed(&mut self, number: usize) {
        let count = self.objects_min * 2;
        let groups = self.objects(&format!("set-{number}"), count, ObjectParts::Whole);
        let dataset = self.dataset_number();
        let stream = self.scene.add_stream(StreamPattern::Skewed, dataset, 1);
        let callers = self.ranks(number, 3);
        let alpha = 0.8 + 0.4 * self.random.f64();
        let reader =
            self.with_irregularities(LabelledReader::new(groups, stream, 1, DatasetOrder::Shuffled, None));
        let seed = self.random.u64(..);
        self.requests.add(reader.start_us as u64, reader.skewed(callers, alpha, seed));
    }
}

/// Layout of columns in a file.
struct ColumnLayout {
    row_groups: u32,
    shares: Vec<f64>,
    total: f64,
    selected: Vec<bool>,
    footer_bytes: u64,
}

impl ColumnLayout {
    /// Ranges that a reader requests: the footer, then in each row group the selected columns, adjacent
    /// columns as one range.
    fn items(&self, key: u32, size: u64) -> Vec<ReadItem> {
        let mut items = vec![(key, size - self.footer_bytes.min(size / 2)..size)];
        let body = (size - self.footer_bytes.min(size / 2)) as f64;
        let group_bytes = body / f64::from(self.row_groups);
        for group in 0..self.row_groups {
            let mut at = f64::from(group) * group_bytes;
            let mut before = false;
            for (share, wanted) in self.shares.iter().zip(&self.selected) {
                let end = at + share / self.total * group_bytes;
                match items.last_mut() {
                    Some(last) if *wanted && before => last.1.end = end as u64,
                    _ if *wanted => items.push((key, at as u64..end as u64)),
                    _ => {}
                }
                (before, at) = (*wanted, end);
            }
        }
        items
    }
}

/// Splits an object into ranges of at most `bytes` bytes.
fn ranges(key: u32, size: u64, bytes: u64) -> Vec<ReadItem> {
    if size <= bytes {
        return vec![(key, 0..size)];
    }
    (0..size.div_ceil(bytes)).map(|part| (key, part * bytes..((part + 1) * bytes).min(size))).collect()
}

#[cfg(test)]
mod tests;
