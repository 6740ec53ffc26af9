//! Simulates caches on a scenario: the mlgw engine, reference caches, and the offline optimum.
//!
//! The same simulation always gives the same rows. Requests are replayed once for each cache size and are
//! not in memory. Memory use is about 100 bytes for each requested block, and about 30 more for a second
//! engine; the caller sets the maximum number of blocks.

use super::scenario::{Scenario, SimulationError};
use super::sizes::{CacheSize, ResolvedCacheSize};
use crate::caller_plans::CallerPlan;
use crate::comparison::{
    AccessBatch, BlockTrace, CacheAlgorithm, EngineReplay, ObjectNumbers, Score, Scoring,
};
use crate::workload::DatasetOrder;
use mlgw_api::{EpochOrderName, SimulationRow};
use mlgw_policies::DecisionFingerprint;
use mlgw_policies::language::Program;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

/// Parameters of a simulation.
#[derive(Clone)]
pub struct Simulation {
    /// Accesses to replay.
    pub scenario: Scenario,
    /// Rules to apply; without a program the engine decides without rules.
    pub program: Option<Arc<Program>>,
    /// Sizes of the cache.
    pub caches: Vec<CacheSize>,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Algorithms to compare.
    pub algorithms: Vec<CacheAlgorithm>,
    /// First epoch of each job that is counted, from 1.
    pub from_epoch: u32,
    /// True if jobs announce their reads in access plans.
    pub plans: bool,
    /// Maximum number of blocks in all requests, less than 2^31.
    pub blocks_max: usize,
}

/// Progress of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct SimulationProgress {
    /// Current cache size as a fraction of the workload; `None` while the input is scanned, and at the end,
    /// when all accesses of the last cache are processed and the other thread is still running.
    pub share: Option<f64>,
    /// Number of processed accesses.
    pub done: u64,
    /// Total number of accesses; 0 until it is known.
    pub total: u64,
}

/// Returns the order for a word of the admin API.
#[must_use]
pub const fn parse_order(word: EpochOrderName) -> DatasetOrder {
    match word {
        EpochOrderName::Sequential => DatasetOrder::Sequential,
        EpochOrderName::Shuffled => DatasetOrder::Shuffled,
        EpochOrderName::ShardShuffled => DatasetOrder::ShardShuffled,
    }
}

/// The algorithms of `requested` in canonical order, or all algorithms if it is empty.
#[must_use]
pub fn algorithms(requested: &[CacheAlgorithm]) -> Vec<CacheAlgorithm> {
    CacheAlgorithm::ALL
        .iter()
        .copied()
        .filter(|algorithm| requested.is_empty() || requested.contains(algorithm))
        .collect()
}

/// Interval between checks of `watch` while only the other thread is running.
const WATCH_INTERVAL: Duration = Duration::from_millis(2);

/// Receives the progress of a simulation, and stops it by returning an error.
type ProgressWatch<'a> = &'a dyn Fn(SimulationProgress) -> Result<(), SimulationError>;

/// Result of an algorithm with one cache size.
struct SimulatedRun {
    score: Score,
    /// Fingerprint of the decisions of the mlgw engine.
    decided: Option<DecisionFingerprint>,
}

/// Input of the replay, as scanned before the first cache is simulated.
struct ReplayInput {
    trace: BlockTrace,
    accesses: u64,
    /// Base of relative cache sizes, in bytes.
    whole_bytes: u64,
    plans: Vec<CallerPlan>,
}

impl Simulation {
    /// Runs the simulation on this thread and one more. `watch` is called on this thread, every few dozen
    /// accesses.
    ///
    /// # Errors
    /// See [`SimulationError`]; errors of `watch` are returned.
    pub fn run(&self, watch: ProgressWatch<'_>) -> Result<Vec<SimulationRow>, SimulationError> {
        let known = self.scan_input(watch)?;
        let caches: Vec<_> = self.caches.iter().map(|cache| cache.resolve(known.whole_bytes)).collect();
        let results = self.run_all(&known, &caches, watch)?;
        assert_eq!(results.len(), caches.len(), "each cache size has its results");
        let rows = caches.iter().zip(&results).flat_map(|(cache, runs)| {
            runs.iter().map(|(algorithm, run)| self.row(*algorithm, cache.share, run))
        });
        Ok(rows.collect())
    }

    fn row(&self, algorithm: CacheAlgorithm, share: f64, run: &SimulatedRun) -> SimulationRow {
        let decided = run.decided.filter(|_| self.scenario.is_trace());
        SimulationRow {
            profile: self.scenario.name(),
            seed: self.scenario.seed(),
            cache_fraction: share,
            policy: algorithm,
            object_hit_ratio: run.score.object_hit_ratio(),
            byte_hit_ratio: run.score.byte_hit_ratio(),
            upstream_bytes: run.score.upstream_bytes(),
            flash_bytes_written: run.score.written_bytes,
            decisions_hash: decided.map(|decided| format!("{:016x}", decided.hash)),
        }
    }

    fn scoring(&self, epoch: u32) -> Scoring {
        Scoring::of_epoch(epoch + 1, self.from_epoch)
    }

    /// Passes all accesses to `take` in batches, with the number of accesses so far. Returns the base of
    /// relative cache sizes if the scenario has it.
    fn each_batch(
        &self,
        mut take: impl FnMut(&AccessBatch, u64) -> Result<(), SimulationError>,
    ) -> Result<Option<u64>, SimulationError> {
        let (mut batch, mut done) = (AccessBatch::default(), 0);
        let whole_bytes = self.scenario.for_each_access(|access, epoch| {
            done += 1;
            if batch.push(access, self.scoring(epoch)) {
                take(&batch, done)?;
                batch.clear();
            }
            Ok(())
        })?;
        if !batch.is_empty() {
            take(&batch, done)?;
        }
        Ok(whole_bytes)
    }

    fn scan_input(&self, watch: ProgressWatch<'_>) -> Result<ReplayInput, SimulationError> {
        let (mut trace, mut objects, mut accesses) =
            (BlockTrace::new(self.block_bytes), ObjectNumbers::default(), 0);
        let whole_bytes = self.each_batch(|batch, done| {
            self.check_blocks(done)?;
            let numbers = objects.numbers(batch);
            trace.prefetch_memory(&numbers);
            for ((access, scoring), number) in batch.iter().zip(numbers) {
                // The check precedes the addition, because the blocks of one object may exceed the range of
                // block numbers.
                self.check_blocks(access.size.div_ceil(u64::from(self.block_bytes)))?;
                trace.add(number, &access, scoring);
                self.check_blocks(trace.events().max(trace.blocks()) as u64)?;
            }
            accesses = done;
            watch(SimulationProgress { share: None, done, total: 0 })
        })?;
        let whole_bytes = whole_bytes.unwrap_or_else(|| trace.bytes());
        let plans = if self.plans { self.scenario.plans()? } else { Vec::new() };
        Ok(ReplayInput { trace, accesses, whole_bytes, plans })
    }

    fn check_blocks(&self, blocks: u64) -> Result<(), SimulationError> {
        if blocks <= self.blocks_max as u64 {
            return Ok(());
        }
        let (most, bytes) = (self.blocks_max, self.block_bytes);
        Err(SimulationError::InvalidRequest(format!(
            "more than {most} blocks of {bytes} bytes are requested: use a smaller workload or larger blocks"
        )))
    }

    /// Runs the mlgw engine on all accesses.
    fn run_engine(
        &self,
        known: &ReplayInput,
        cache: ResolvedCacheSize,
        watch: ProgressWatch<'_>,
    ) -> Result<SimulatedRun, SimulationError> {
        let ResolvedCacheSize { capacity_bytes, share } = cache;
        let blocks = known.trace.blocks();
        let mut runner = match &self.program {
            Some(program) => {
                EngineReplay::with_rules(capacity_bytes, self.block_bytes, blocks, Arc::clone(program))
            }
            None => EngineReplay::new(capacity_bytes, self.block_bytes, blocks),
        };
        runner
            .put_plans(&known.plans)
            .map_err(|error| SimulationError::InvalidRequest(format!("plans: {error}")))?;
        let of = known.accesses;
        self.each_batch(|batch, done| {
            runner.process_batch(batch);
            watch(SimulationProgress { share: Some(share), done, total: of })
        })?;
        Ok(SimulatedRun { score: runner.score(), decided: Some(runner.fingerprint()) })
    }

    /// Runs each algorithm with each cache size; the result is in the order of both. Each run of the mlgw
    /// engine is started by the next free thread. The second thread runs all references first, which take
    /// about as long as half of the engine's runs.
    fn run_all(
        &self,
        known: &ReplayInput,
        caches: &[ResolvedCacheSize],
        watch: ProgressWatch<'_>,
    ) -> Result<Vec<Vec<(CacheAlgorithm, SimulatedRun)>>, SimulationError> {
        // The first run belongs to this thread, which calls `watch`.
        let (begun, is_over) = (AtomicUsize::new(1), AtomicBool::new(false));
        let engine_caches = if self.algorithms.contains(&CacheAlgorithm::Mlgw) { caches } else { &[] };
        let ours = |first: usize, watch: ProgressWatch<'_>| {
            let (mut at, mut runs) = (first, Vec::new());
            while let Some(cache) = engine_caches.get(at) {
                runs.push((at, self.run_engine(known, *cache, watch)?));
                at = begun.fetch_add(1, Relaxed);
            }
            Ok::<_, SimulationError>(runs)
        };
        let go_on = || if is_over.load(Relaxed) { Err(SimulationError::Stopped) } else { Ok(()) };
        let others = || {
            let results = caches.iter().map(|cache| {
                let mut runs = Vec::new();
                for algorithm in &self.algorithms {
                    go_on()?;
                    let score = known.trace.score(*algorithm, cache.capacity_bytes);
                    runs.extend(score.map(|score| (*algorithm, SimulatedRun { score, decided: None })));
                }
                Ok::<_, SimulationError>(runs)
            });
            let results: Vec<_> = results.collect::<Result<_, _>>()?;
            Ok::<_, SimulationError>((results, ours(begun.fetch_add(1, Relaxed), &|_| go_on())?))
        };
        thread::scope(|scope| {
            let beside = scope.spawn(others);
            let mut here = ours(0, watch);
            while !beside.is_finished() {
                let step = SimulationProgress { share: None, done: known.accesses, total: known.accesses };
                here = here.and_then(|runs| watch(step).map(|()| runs));
                is_over.store(here.is_err(), Relaxed);
                mlgw_common::time::block_for(WATCH_INTERVAL);
            }
            let beside = beside.join();
            let here = here?;
            let (mut results, there) =
                beside.map_err(|_| SimulationError::Failed("a simulated cache failed".to_owned()))??;
            for (at, run) in here.into_iter().chain(there) {
                results[at].insert(0, (CacheAlgorithm::Mlgw, run));
            }
            Ok(results)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Simulation, SimulationError, SimulationProgress, algorithms};
    use crate::comparison::CacheAlgorithm;
    use crate::scenario::Scenario;
    use crate::workload::{SimulationProfile, WorkloadSettings};

    fn simulation(objects: u32) -> Simulation {
        let settings =
            WorkloadSettings { objects: Some(objects), epochs: Some(2), ..WorkloadSettings::default() };
        Simulation {
            scenario: Scenario::Profile(SimulationProfile::Epochs, settings),
            program: None,
            caches: vec![".5".parse().unwrap()],
            block_bytes: 1 << 20,
            algorithms: algorithms(&[CacheAlgorithm::Mlgw]),
            from_epoch: 1,
            plans: false,
            blocks_max: 20,
        }
    }

    #[test]
    fn blocks_are_limited() {
        assert_eq!(simulation(10).run(&|_| Ok(())).unwrap().len(), 1);
        let much = simulation(11).run(&|_| Ok(()));
        assert!(
            matches!(
                &much,
                Err(SimulationError::InvalidRequest(why)) if why.starts_with("more than 20 blocks of")
            ),
            "{much:?}"
        );
        // A single object exceeds the limit.
        let large = Simulation { block_bytes: 4096, ..simulation(1) }.run(&|_| Ok(()));
        assert!(matches!(large, Err(SimulationError::InvalidRequest(_))), "{large:?}");
    }

    #[test]
    fn rows_do_not_depend_on_other_cache_sizes_and_threads() {
        let all = Simulation { algorithms: algorithms(&[]), ..simulation(10) };
        let of = |caches: &[&str]| {
            let caches = caches.iter().map(|cache| cache.parse().unwrap()).collect();
            Simulation { caches, ..all.clone() }.run(&|_| Ok(())).unwrap()
        };
        let sizes = [".2", ".3", ".5", ".6", ".8"];
        let alone: Vec<_> = sizes.iter().flat_map(|size| of(&[size])).collect();
        assert_eq!(alone.len(), sizes.len() * CacheAlgorithm::ALL.len());
        for _ in 0..20 {
            assert_eq!(of(&sizes), alone);
        }
    }

    #[test]
    fn an_error_of_watch_stops_the_simulation() {
        let stop_at = |share: Option<f64>| {
            move |step: SimulationProgress| {
                if step.share == share && step.done >= 3 { Err(SimulationError::Stopped) } else { Ok(()) }
            }
        };
        for share in [None, Some(0.5)] {
            assert_eq!(simulation(10).run(&stop_at(share)), Err(SimulationError::Stopped), "{share:?}");
        }
    }
}
