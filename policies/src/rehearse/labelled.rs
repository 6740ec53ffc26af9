//! Traffic of several callers at once with the truth about each request, to score what finds patterns in it.
//!
//! Each job is of a [`Kind`] and otherwise drawn from the seed: how many objects of what size, how they are
//! called and laid out, how many ranks and loader workers read them, how regular the times are. It has the
//! imperfections of real clients: workers make a little disorder, a last batch that is not full is left out,
//! ranks that get one object too few read another twice, and some requests come twice. What the truth of a
//! request is, its stream says ([`Scene::stream`]) and its `epoch`.

mod checkpoints;
mod layout;
pub mod lives;
mod reads;

use super::naming::{Naming, mix};
use super::scene::{Pattern, Requests, Scene};
use super::workload::Workload;
use layout::{Layout, Named};
use reads::{Item, Reader};

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Epochs in the order of keys.
    Sequential,
    /// Epochs in random orders.
    Shuffled,
    /// Epochs by shards in random orders, a shard being a directory.
    ShardDirectories,
    /// The same, a shard being what has a common beginning of its name.
    ShardPrefixes,
    /// The same, a shard being one large object that is read in ranges.
    ShardObjects,
    /// Footer, then chosen columns of each row group, of columnar files.
    Columnar,
    /// Everything once.
    OnePass,
    /// Few objects often.
    Skewed,
    /// Checkpoints, some of them read back.
    Checkpoint,
    /// Shuffled epochs with a pass over a validation set after each.
    Validation,
}

impl Kind {
    /// All of them.
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

    /// The label of its requests; those of the validation set have their own.
    #[must_use]
    pub fn pattern(self) -> Pattern {
        match self {
            Self::Sequential => Pattern::Sequential,
            Self::Shuffled | Self::Validation => Pattern::Shuffled,
            Self::ShardDirectories | Self::ShardPrefixes | Self::ShardObjects => Pattern::ShardShuffled,
            Self::Columnar => Pattern::Columnar,
            Self::OnePass => Pattern::OnePass,
            Self::Skewed => Pattern::Skewed,
            Self::Checkpoint => Pattern::Checkpoint,
        }
    }
}

/// What traffic is made with.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Another seed gives other traffic.
    pub seed: u64,
    /// The jobs; several may be of one kind.
    pub jobs: Vec<Kind>,
    /// Objects of a dataset: at least so many, and less than twice as many. At least 100.
    pub objects_min: u32,
    /// How keys are called.
    pub naming: Naming,
}

impl Traffic {
    /// One job of each kind, and three more that the seed chooses.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(mix(seed ^ 0x6c61_6265_6c6c_6564));
        let more = (0..3).map(|_| Kind::ALL[random.usize(0..Kind::ALL.len())]);
        Self {
            seed,
            jobs: Kind::ALL.into_iter().chain(more).collect(),
            objects_min: 300,
            naming: Naming::Plain,
        }
    }

    /// The traffic.
    #[must_use]
    pub fn generate(&self) -> Workload {
        let mut build = Build {
            scene: Scene::new(self.naming, self.seed),
            requests: Requests::default(),
            random: fastrand::Rng::with_seed(mix(self.seed)),
            objects_min: self.objects_min.max(100),
            datasets: 0,
        };
        for (number, kind) in self.jobs.iter().enumerate() {
            build.job(number, *kind);
        }
        Workload { scene: build.scene, requests: build.requests }
    }
}

/// How long all of it takes, in microseconds.
const LENGTH_US: f64 = 3.6e9;

/// What is put together.
struct Build {
    scene: Scene,
    requests: Requests,
    random: fastrand::Rng,
    objects_min: u32,
    datasets: u16,
}

impl Build {
    fn job(&mut self, number: usize, kind: Kind) {
        match kind {
            Kind::Checkpoint => self.checkpoints(number),
            Kind::Skewed => self.skewed(number),
            _ => self.reader(number, kind),
        }
    }

    fn dataset_number(&mut self) -> u16 {
        self.datasets += 1;
        self.datasets - 1
    }

    /// Callers of one job: its ranks.
    fn ranks(&mut self, job: usize, count: usize) -> Vec<u16> {
        let family = format!("job-{job}");
        (0..count).map(|rank| self.scene.add_caller(&format!("{family}-{rank}"), &family)).collect()
    }

    fn reader(&mut self, number: usize, kind: Kind) {
        let count = self.random.u32(self.objects_min..self.objects_min * 2);
        let dataset = self.dataset_number();
        let groups = match kind {
            Kind::Columnar => self.columnar(number, count / 10),
            Kind::ShardObjects => self.shard_objects(number, count / 10),
            Kind::ShardDirectories | Kind::ShardPrefixes => self.shards(number, kind, count),
            _ => self.objects(
                &format!("set-{number}"),
                count,
                kind == Kind::Sequential || kind == Kind::OnePass,
            ),
        };
        let stream = self.scene.add_stream(kind.pattern(), dataset, 1);
        let epochs = match kind {
            Kind::OnePass => 1,
            Kind::Columnar => self.random.u32(1..=3),
            _ => self.random.u32(3..=6),
        };
        let shuffled = match kind {
            Kind::Sequential => false,
            Kind::OnePass | Kind::Columnar => self.random.u32(0..4) == 0,
            _ => true,
        };
        let validation = (kind == Kind::Validation).then(|| {
            let dataset = self.dataset_number();
            let groups = self.objects(&format!("set-{number}-val"), count / 10, false);
            (self.scene.add_stream(Pattern::Validation, dataset, 1), groups)
        });
        let ranks = if kind == Kind::OnePass { 1 } else { [1, 1, 2, 4][self.random.usize(0..4)] };
        let callers = self.ranks(number, ranks);
        let reader = self.imperfect(Reader::new(groups, stream, epochs, shuffled, validation));
        self.add(reader, &callers);
    }

    /// Draws how regular it is.
    fn imperfect(&mut self, mut reader: Reader) -> Reader {
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

    fn add(&mut self, reader: Reader, callers: &[u16]) {
        let start_us = reader.start_us as u64;
        for (rank, caller) in callers.iter().enumerate() {
            let seed = self.random.u64(..);
            self.requests.add(start_us, reader.clone().requests(*caller, rank, callers.len(), seed));
        }
    }

    /// Objects of a dataset, each read at once; now and then, large ones in several ranges.
    fn objects(&mut self, set: &str, count: u32, in_ranges: bool) -> Vec<Vec<Item>> {
        let layout = Layout::ALL[self.random.usize(0..Layout::ALL.len())];
        let sizes = self.sizes(4096.0, 64e6);
        let range_bytes = if in_ranges && self.random.bool() { 8 << 20 } else { u64::MAX };
        let objects = (0..count).map(|object| {
            let named = Named { set, layout, object, count };
            let size = sizes(&mut self.random);
            let key = self.scene.add_key("datasets", &named.to_string(), size);
            ranges(key, size, range_bytes)
        });
        objects.collect()
    }

    fn shards(&mut self, number: usize, kind: Kind, count: u32) -> Vec<Vec<Item>> {
        let sizes = self.sizes(4096.0, 4e6);
        let each = self.random.u32(15..40).min(count / 5);
        let separator =
            if kind == Kind::ShardDirectories { '/' } else { ['.', '_', '-'][self.random.usize(0..3)] };
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

    fn shard_objects(&mut self, number: usize, count: u32) -> Vec<Vec<Item>> {
        let sizes = self.sizes(48e6, 400e6);
        // Readers ask for parts of one length.
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

    /// Files of a few row groups, of which the same columns are read each time.
    fn columnar(&mut self, number: usize, count: u32) -> Vec<Vec<Item>> {
        let sizes = self.sizes(20e6, 300e6);
        let columns = self.random.usize(8..30);
        let shares: Vec<f64> = (0..columns).map(|_| 0.2 + self.random.f64()).collect();
        let total: f64 = shares.iter().sum();
        let mut wanted: Vec<bool> = (0..columns).map(|_| self.random.u32(0..4) == 0).collect();
        // Some column is read and some is not.
        (wanted[0], wanted[2], wanted[columns - 1]) = (true, false, true);
        let mut layout =
            Columns { row_groups: self.random.u32(2..7), shares, total, wanted, footer_bytes: 0 };
        layout.footer_bytes = 1 << self.random.u32(13..18);
        let file = |object: u32| {
            let named = Named { set: &format!("set-{number}"), layout: Layout::Dated, object, count };
            let size = sizes(&mut self.random);
            let key = self.scene.add_key("lake", &named.to_string(), size);
            layout.items(key, size)
        };
        (0..count.max(20)).map(file).collect()
    }

    /// Sizes of the objects of a dataset: around one that is drawn between the two, each within a third of
    /// it; or all the same.
    fn sizes(&mut self, min: f64, max: f64) -> impl Fn(&mut fastrand::Rng) -> u64 + use<> {
        let around = min * (self.random.f64() * (max / min).ln()).exp();
        let spread = if self.random.bool() { 0.0 } else { 0.6 };
        move |random| (around * (1.0 + spread * (random.f64() - 0.5))) as u64
    }

    fn skewed(&mut self, number: usize) {
        let count = self.objects_min * 2;
        let groups = self.objects(&format!("set-{number}"), count, false);
        let dataset = self.dataset_number();
        let stream = self.scene.add_stream(Pattern::Skewed, dataset, 1);
        let callers = self.ranks(number, 3);
        let alpha = 0.8 + 0.4 * self.random.f64();
        let reader = self.imperfect(Reader::new(groups, stream, 1, true, None));
        let seed = self.random.u64(..);
        self.requests.add(reader.start_us as u64, reader.skewed(callers, alpha, seed));
    }
}

/// How columns lie in a file.
struct Columns {
    row_groups: u32,
    shares: Vec<f64>,
    total: f64,
    wanted: Vec<bool>,
    footer_bytes: u64,
}

impl Columns {
    /// The footer, then in each row group the columns that are wanted, neighbours at once.
    fn items(&self, key: u32, size: u64) -> Vec<Item> {
        let mut items = vec![(key, size - self.footer_bytes.min(size / 2)..size)];
        let body = (size - self.footer_bytes.min(size / 2)) as f64;
        let group_bytes = body / f64::from(self.row_groups);
        for group in 0..self.row_groups {
            let mut at = f64::from(group) * group_bytes;
            let mut before = false;
            for (share, wanted) in self.shares.iter().zip(&self.wanted) {
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

/// An object in ranges of so many bytes.
fn ranges(key: u32, size: u64, bytes: u64) -> Vec<Item> {
    if size <= bytes {
        return vec![(key, 0..size)];
    }
    (0..size.div_ceil(bytes)).map(|part| (key, part * bytes..((part + 1) * bytes).min(size))).collect()
}

#[cfg(test)]
mod tests;
