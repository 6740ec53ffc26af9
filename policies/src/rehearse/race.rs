//! Several policies on the same requests: what each of them keeps, and what that brings.
//!
//! The engine is told what it is told in a server; the references are told blocks. All have the same room and
//! begin empty. What is counted is up to the caller, so that a race can leave out the epochs in which caches
//! fill.
//!
//! Requests need not fit into memory: what the references are told of is kept as a [`Course`] of twelve bytes
//! a block, and a [`Runner`] hears requests one at a time, again for each size of its cache.

mod batch;
mod course;
mod runner;

use super::scene::{Request, Scene};
use super::telling::Told;
use crate::engine::TooManyPlans;
pub use batch::Batch;
pub use course::{Course, Objects};
pub use runner::Runner;

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Racer {
    /// Our engine.
    Mlgw,
    /// Least recently used.
    Lru,
    /// S3-FIFO.
    S3Fifo,
    /// SIEVE.
    Sieve,
    /// Fill once and keep.
    NeverEvict,
    /// Belady's, which knows what comes.
    Optimum,
}

impl Racer {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Mlgw, Self::Lru, Self::S3Fifo, Self::Sieve, Self::NeverEvict, Self::Optimum];

    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mlgw => "mlgw",
            Self::Lru => "lru",
            Self::S3Fifo => "s3-fifo",
            Self::Sieve => "sieve",
            Self::NeverEvict => "never-evict",
            Self::Optimum => "optimum",
        }
    }

    /// The one of that word.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|racer| racer.name() == name)
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Blocks that were read.
    pub reads: u64,
    /// Of these, what was kept.
    pub hits: u64,
    /// Bytes of the blocks that were read.
    pub read_bytes: u64,
    /// Of these, what was kept.
    pub hit_bytes: u64,
    /// Bytes of copies that were written, from the begin on.
    pub written_bytes: u64,
}

impl Score {
    /// Bytes that had to come from upstream.
    #[must_use]
    pub const fn upstream_bytes(&self) -> u64 {
        self.read_bytes - self.hit_bytes
    }

    /// The share of reads that hit.
    #[must_use]
    pub fn object_hit_ratio(&self) -> f64 {
        self.hits as f64 / self.reads.max(1) as f64
    }

    /// The share of bytes that hit.
    #[must_use]
    pub fn byte_hit_ratio(&self) -> f64 {
        self.hit_bytes as f64 / self.read_bytes.max(1) as f64
    }

    fn count(&mut self, bytes: u32, is_hit: bool) {
        self.reads += 1;
        self.read_bytes += u64::from(bytes);
        self.hits += u64::from(is_hit);
        self.hit_bytes += u64::from(bytes) * u64::from(is_hit);
    }
}

/// A race on a generated workload: the blocks that were asked for, and what the engine made of them.
pub struct Race {
    capacity_bytes: u64,
    course: Course,
    engine: Score,
}

impl Race {
    /// Runs the engine on requests, each of which says whether it counts.
    pub fn run(
        scene: &Scene,
        requests: impl Iterator<Item = (Request, bool)>,
        block_bytes: u32,
        capacity_bytes: u64,
    ) -> Self {
        let runner = Runner::new(capacity_bytes, block_bytes, scene.keys.len() * 2);
        Self::run_with(runner, scene, requests, block_bytes, capacity_bytes)
    }

    /// The same with plans that the engine is told before.
    ///
    /// # Errors
    /// When there are too many.
    pub fn run_told(
        scene: &Scene,
        told: &[Told],
        requests: impl Iterator<Item = (Request, bool)>,
        block_bytes: u32,
        capacity_bytes: u64,
    ) -> Result<Self, TooManyPlans> {
        let mut runner = Runner::new(capacity_bytes, block_bytes, scene.keys.len() * 2);
        runner.tell(told)?;
        Ok(Self::run_with(runner, scene, requests, block_bytes, capacity_bytes))
    }

    fn run_with(
        mut runner: Runner,
        scene: &Scene,
        requests: impl Iterator<Item = (Request, bool)>,
        block_bytes: u32,
        capacity_bytes: u64,
    ) -> Self {
        let mut course = Course::new(block_bytes);
        for (request, counts) in requests {
            let access = scene.access(&request);
            runner.take(&access, counts);
            course.add(request.key, &access, counts);
        }
        Self { capacity_bytes, course, engine: runner.score() }
    }

    /// What a racer reaches.
    #[must_use]
    pub fn score(&self, racer: Racer) -> Score {
        self.course.score(racer, self.capacity_bytes).unwrap_or(self.engine)
    }
}
