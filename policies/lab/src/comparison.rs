//! Compares several cache algorithms on the same requests: hits, misses and bytes written of each.
//!
//! The engine receives the same calls as in a server; the references receive blocks. All have the same
//! capacity and start empty. The caller decides which requests are counted, so that a comparison can leave
//! out the epochs in which caches fill.
//!
//! Requests need not fit into memory: the input of the references is kept as a [`BlockTrace`] of twelve bytes
//! a block, and a [`EngineReplay`] receives requests one at a time, and again for each cache size.

mod batch;
mod block_trace;
mod runner;

use super::caller_plans::CallerPlan;
use super::scene::{GeneratedRequest, Scene};
pub use batch::AccessBatch;
pub use block_trace::{BlockTrace, ObjectNumbers};
pub use mlgw_api::CacheAlgorithm;
use mlgw_policies::engine::TooManyPlans;
pub use runner::EngineReplay;

/// Part of an access in the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// The access warms the cache up and does not count.
    WarmUp,
    /// The access counts.
    Counted,
}

impl Scoring {
    /// Returns the part of an access of this epoch if `from` is the first one that counts.
    #[must_use]
    pub fn of_epoch(epoch: u32, from: u32) -> Self {
        if epoch >= from { Self::Counted } else { Self::WarmUp }
    }

    /// Returns the part of the access with this number if `from` is the first one that counts.
    #[must_use]
    pub fn of_number(number: usize, from: usize) -> Self {
        if number >= from { Self::Counted } else { Self::WarmUp }
    }
}

/// Result of one algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Block reads.
    pub reads: u64,
    /// Block reads that hit.
    pub hits: u64,
    /// Bytes of the blocks that were read.
    pub read_bytes: u64,
    /// Bytes of the blocks that hit.
    pub hit_bytes: u64,
    /// Bytes written to the cache since the start, including requests that are not counted.
    pub written_bytes: u64,
}

impl Score {
    /// Bytes that were fetched from upstream.
    #[must_use]
    pub const fn upstream_bytes(&self) -> u64 {
        assert!(self.hit_bytes <= self.read_bytes, "hits are reads");
        self.read_bytes - self.hit_bytes
    }

    /// The fraction of reads that hit.
    #[must_use]
    pub fn object_hit_ratio(&self) -> f64 {
        self.hits as f64 / self.reads.max(1) as f64
    }

    /// The fraction of bytes that hit.
    #[must_use]
    pub fn byte_hit_ratio(&self) -> f64 {
        self.hit_bytes as f64 / self.read_bytes.max(1) as f64
    }

    fn count_hit(&mut self, bytes: u32) {
        self.count_miss(bytes);
        self.hits += 1;
        self.hit_bytes += u64::from(bytes);
    }

    fn count_miss(&mut self, bytes: u32) {
        self.reads += 1;
        self.read_bytes += u64::from(bytes);
    }
}

/// A comparison on a generated workload: the blocks that were requested, and the score of the engine.
pub struct CacheComparison {
    capacity_bytes: u64,
    trace: BlockTrace,
    engine: Score,
}

impl CacheComparison {
    /// Runs the engine on requests.
    pub fn run(
        scene: &Scene,
        requests: impl Iterator<Item = (GeneratedRequest, Scoring)>,
        block_bytes: u32,
        capacity_bytes: u64,
    ) -> Self {
        let runner = EngineReplay::new(capacity_bytes, block_bytes, scene.keys.len() * 2);
        Self::run_with(runner, scene, requests, block_bytes, capacity_bytes)
    }

    /// Like [`CacheComparison::run`], with access plans that the engine receives before the first request.
    ///
    /// # Errors
    /// If there are too many plans.
    pub fn run_with_plans(
        scene: &Scene,
        plans: &[CallerPlan],
        requests: impl Iterator<Item = (GeneratedRequest, Scoring)>,
        block_bytes: u32,
        capacity_bytes: u64,
    ) -> Result<Self, TooManyPlans> {
        let mut runner = EngineReplay::new(capacity_bytes, block_bytes, scene.keys.len() * 2);
        runner.put_plans(plans)?;
        Ok(Self::run_with(runner, scene, requests, block_bytes, capacity_bytes))
    }

    fn run_with(
        mut runner: EngineReplay,
        scene: &Scene,
        requests: impl Iterator<Item = (GeneratedRequest, Scoring)>,
        block_bytes: u32,
        capacity_bytes: u64,
    ) -> Self {
        let mut trace = BlockTrace::new(block_bytes);
        for (request, scoring) in requests {
            let access = scene.access(&request);
            runner.process(&access, scoring);
            trace.add(request.key, &access, scoring);
        }
        Self { capacity_bytes, trace, engine: runner.score() }
    }

    /// Returns the score of an algorithm.
    #[must_use]
    pub fn score(&self, algorithm: CacheAlgorithm) -> Score {
        self.trace.score(algorithm, self.capacity_bytes).unwrap_or(self.engine)
    }
}
