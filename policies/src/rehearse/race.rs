//! Several policies on the same requests: what each of them keeps, and what that brings.
//!
//! The engine is told what it is told in a server; the references are told blocks. All have the same room and begin empty. What is
//! counted is up to the caller, so that a race can leave out the epochs in which caches fill.

use super::blocks::Blocks;
use super::reference::{Event, Lru, NeverEvict, Outcome, Reference, S3Fifo, Sieve, optimum};
use super::scene::{Request, Scene};
use crate::access::Op;
use crate::engine::{Advice, Engine, Options};

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

/// A recorded race: the blocks that were asked for, and what the engine made of it.
pub struct Race {
    capacity_bytes: u64,
    events: Vec<Event>,
    /// Whether each of them counts.
    counts: Vec<bool>,
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
        let mut engine = Engine::new(Options {
            capacity_bytes,
            blocks_max: scene.keys.len() * 2 + BLOCKS_MIN,
            block_bytes: u64::from(block_bytes),
            seed: 0,
        });
        let mut blocks = Blocks::new(block_bytes);
        let mut race =
            Self { capacity_bytes, events: Vec::new(), counts: Vec::new(), engine: Score::default() };
        for (request, counts) in requests {
            let access = scene.access(&request);
            let seen = engine.observe(&access);
            let is_read = request.op == Op::Read;
            let first = (request.range.start / u64::from(block_bytes)) as u32;
            for (number, (block, bytes)) in (first..).zip(blocks.of(request.key, access.size, &request.range))
            {
                let advice = engine.read(seen, &access, number);
                race.engine.written_bytes += u64::from(bytes) * u64::from(is_read && advice == Advice::Keep);
                if is_read && counts {
                    race.engine.count(bytes, advice == Advice::Kept);
                }
                race.events.push(Event { block, bytes, is_read });
                race.counts.push(counts);
            }
        }
        race
    }

    /// What a racer reaches.
    #[must_use]
    pub fn score(&self, racer: Racer) -> Score {
        match racer {
            Racer::Mlgw => self.engine,
            Racer::Lru => self.replay(&mut Lru::new(self.capacity_bytes)),
            Racer::S3Fifo => self.replay(&mut S3Fifo::new(self.capacity_bytes)),
            Racer::Sieve => self.replay(&mut Sieve::new(self.capacity_bytes)),
            Racer::NeverEvict => self.replay(&mut NeverEvict::new(self.capacity_bytes)),
            Racer::Optimum => self.best(),
        }
    }

    fn replay(&self, reference: &mut impl Reference) -> Score {
        let mut score = Score::default();
        for (event, counts) in self.events.iter().zip(&self.counts) {
            let is_hit = reference.access(event.block, event.bytes, event.is_read);
            if event.is_read && *counts {
                score.count(event.bytes, is_hit);
            }
        }
        score.written_bytes = reference.bytes_written();
        score
    }

    fn best(&self) -> Score {
        let mut score = Score::default();
        let outcomes = optimum(&self.events, self.capacity_bytes);
        for ((event, outcome), counts) in self.events.iter().zip(outcomes).zip(&self.counts) {
            if event.is_read && *counts {
                score.count(event.bytes, outcome == Outcome::Hit);
            }
            let is_written = event.is_read && outcome == Outcome::Admitted;
            score.written_bytes += u64::from(event.bytes) * u64::from(is_written);
        }
        score
    }
}

/// Blocks that an engine remembers at least.
const BLOCKS_MIN: usize = 1 << 16;
