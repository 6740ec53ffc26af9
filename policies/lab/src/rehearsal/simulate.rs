//! Simulates caches on a scenario: the mlgw engine, reference caches, and the offline optimum.
//!
//! The same simulation always gives the same rows. Requests are replayed once for each cache size and are
//! not in memory. Memory use is about 100 bytes for each requested block, and about 30 more for a second
//! engine; the caller sets the maximum number of blocks.

use super::RehearsalError;
use super::scenario::Scenario;
use super::sizes::CacheSize;
use mlgw_api::{OrderWord, Simulated};
use mlgw_policies::Fingerprint;
use mlgw_policies::language::Program;
use mlgw_policies::rehearse::race::{Batch, Course, Objects, Racer, Runner, Score};
use mlgw_policies::rehearse::telling::Told;
use mlgw_policies::rehearse::workload::Order;
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
    /// Policies to compare.
    pub racers: Vec<Racer>,
    /// First epoch of each job that is counted, from 1.
    pub from_epoch: u32,
    /// True if jobs announce their reads in access plans.
    pub plans: bool,
    /// Maximum number of blocks in all requests, less than 2^31.
    pub blocks_max: usize,
}

/// Progress of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Current cache size as a fraction of the workload; `None` while the input is scanned, and at the end,
    /// when all accesses of the last cache are processed and the other thread is still running.
    pub share: Option<f64>,
    /// Number of processed accesses.
    pub done: u64,
    /// Total number of accesses; 0 until it is known.
    pub of: u64,
}

/// Returns the order for a word of the admin API.
#[must_use]
pub const fn parse_order(word: OrderWord) -> Order {
    match word {
        OrderWord::Sequential => Order::Sequential,
        OrderWord::Shuffled => Order::Shuffled,
        OrderWord::ShardShuffled => Order::ShardShuffled,
    }
}

/// Returns the policy with this name.
///
/// # Errors
/// The list of valid names.
pub fn racer(name: &str) -> Result<Racer, String> {
    let names = || Racer::ALL.map(Racer::name).join(", ");
    Racer::of(name).ok_or_else(|| format!("there are {}", names()))
}

/// The policies of `asked` in canonical order, or all policies if it is empty.
#[must_use]
pub fn racers(asked: &[Racer]) -> Vec<Racer> {
    Racer::ALL.into_iter().filter(|racer| asked.is_empty() || asked.contains(racer)).collect()
}

/// Interval between checks of `watch` while only the other thread is running.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Receives the progress of a simulation, and stops it by returning an error.
type Watch<'a> = &'a dyn Fn(Step) -> Result<(), RehearsalError>;

/// Result of a policy with one cache size.
struct Run {
    score: Score,
    /// Fingerprint of the decisions of the mlgw engine.
    decided: Option<Fingerprint>,
}

/// Input of the replay, as scanned before the first cache is simulated.
struct Known {
    course: Course,
    accesses: u64,
    /// Base of relative cache sizes, in bytes.
    whole_bytes: u64,
    told: Vec<Told>,
}

impl Simulation {
    /// Runs the simulation on this thread and one more. `watch` is called on this thread, every few dozen
    /// accesses.
    ///
    /// # Errors
    /// See [`RehearsalError`]; errors of `watch` are returned.
    pub fn run(&self, watch: Watch<'_>) -> Result<Vec<Simulated>, RehearsalError> {
        let known = self.look(watch)?;
        let caches: Vec<_> = self.caches.iter().map(|cache| cache.of(known.whole_bytes)).collect();
        let races = self.race(&known, &caches, watch)?;
        let rows = caches
            .iter()
            .zip(&races)
            .flat_map(|((_, share), race)| race.iter().map(|(racer, run)| self.row(*racer, *share, run)));
        Ok(rows.collect())
    }

    fn row(&self, racer: Racer, share: f64, run: &Run) -> Simulated {
        let decided = run.decided.filter(|_| self.scenario.is_trace());
        Simulated {
            profile: self.scenario.name(),
            seed: self.scenario.seed(),
            cache_fraction: share,
            policy: racer.name(),
            object_hit_ratio: run.score.object_hit_ratio(),
            byte_hit_ratio: run.score.byte_hit_ratio(),
            upstream_bytes: run.score.upstream_bytes(),
            flash_bytes_written: run.score.written_bytes,
            decisions_hash: decided.map(|decided| format!("{:016x}", decided.hash)),
        }
    }

    fn counts(&self, epoch: u32) -> bool {
        epoch + 1 >= self.from_epoch
    }

    /// Passes all accesses to `take` in batches, with the number of accesses so far. Returns the base of
    /// relative cache sizes if the scenario has it.
    fn each_batch(
        &self,
        mut take: impl FnMut(&Batch, u64) -> Result<(), RehearsalError>,
    ) -> Result<Option<u64>, RehearsalError> {
        let (mut batch, mut done) = (Batch::default(), 0);
        let whole_bytes = self.scenario.each(|access, epoch| {
            done += 1;
            if batch.push(access, self.counts(epoch)) {
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

    fn look(&self, watch: Watch<'_>) -> Result<Known, RehearsalError> {
        let (mut course, mut objects, mut accesses) = (Course::new(self.block_bytes), Objects::default(), 0);
        let whole_bytes = self.each_batch(|batch, done| {
            self.fits(done)?;
            let numbers = objects.numbers(batch);
            course.bring_near(&numbers);
            for ((access, counts), number) in batch.iter().zip(numbers) {
                // The check precedes the addition, because the blocks of one object may exceed the range of
                // block numbers.
                self.fits(access.size.div_ceil(u64::from(self.block_bytes)))?;
                course.add(number, &access, counts);
                self.fits(course.events().max(course.blocks()) as u64)?;
            }
            accesses = done;
            watch(Step { share: None, done, of: 0 })
        })?;
        let whole_bytes = whole_bytes.unwrap_or_else(|| course.bytes());
        let told = if self.plans { self.scenario.told()? } else { Vec::new() };
        Ok(Known { course, accesses, whole_bytes, told })
    }

    fn fits(&self, blocks: u64) -> Result<(), RehearsalError> {
        if blocks <= self.blocks_max as u64 {
            return Ok(());
        }
        let (most, bytes) = (self.blocks_max, self.block_bytes);
        Err(RehearsalError::Asked(format!(
            "more than {most} blocks of {bytes} bytes are asked for: rehearse on less, or with larger blocks"
        )))
    }

    /// Runs the mlgw engine on all accesses.
    fn ours(
        &self,
        known: &Known,
        (capacity_bytes, share): (u64, f64),
        watch: Watch<'_>,
    ) -> Result<Run, RehearsalError> {
        let blocks = known.course.blocks();
        let mut runner = match &self.program {
            Some(program) => {
                Runner::with_rules(capacity_bytes, self.block_bytes, blocks, Arc::clone(program))
            }
            None => Runner::new(capacity_bytes, self.block_bytes, blocks),
        };
        runner.tell(&known.told).map_err(|error| RehearsalError::Asked(format!("plans: {error}")))?;
        let of = known.accesses;
        self.each_batch(|batch, done| {
            runner.take_all(batch);
            watch(Step { share: Some(share), done, of })
        })?;
        Ok(Run { score: runner.score(), decided: Some(runner.fingerprint()) })
    }

    /// Runs each policy with each cache size; the result is in the order of both. Each run of the mlgw
    /// engine is started by the next free thread. The second thread runs all references first, which take
    /// about as long as half of the engine's runs.
    fn race(
        &self,
        known: &Known,
        caches: &[(u64, f64)],
        watch: Watch<'_>,
    ) -> Result<Vec<Vec<(Racer, Run)>>, RehearsalError> {
        // The first run belongs to this thread, which calls `watch`.
        let (begun, is_over) = (AtomicUsize::new(1), AtomicBool::new(false));
        let asked = if self.racers.contains(&Racer::Mlgw) { caches } else { &[] };
        let ours = |first: usize, watch: Watch<'_>| {
            let (mut at, mut runs) = (first, Vec::new());
            while let Some(cache) = asked.get(at) {
                runs.push((at, self.ours(known, *cache, watch)?));
                at = begun.fetch_add(1, Relaxed);
            }
            Ok::<_, RehearsalError>(runs)
        };
        let go_on = || if is_over.load(Relaxed) { Err(RehearsalError::Stopped) } else { Ok(()) };
        let others = || {
            let races = caches.iter().map(|(capacity_bytes, _)| {
                let mut race = Vec::new();
                for racer in &self.racers {
                    go_on()?;
                    let score = known.course.score(*racer, *capacity_bytes);
                    race.extend(score.map(|score| (*racer, Run { score, decided: None })));
                }
                Ok::<_, RehearsalError>(race)
            });
            let races: Vec<_> = races.collect::<Result<_, _>>()?;
            Ok::<_, RehearsalError>((races, ours(begun.fetch_add(1, Relaxed), &|_| go_on())?))
        };
        thread::scope(|scope| {
            let beside = scope.spawn(others);
            let mut here = ours(0, watch);
            while !beside.is_finished() {
                let step = Step { share: None, done: known.accesses, of: known.accesses };
                here = here.and_then(|runs| watch(step).map(|()| runs));
                is_over.store(here.is_err(), Relaxed);
                thread::sleep(LOOK_EVERY);
            }
            let beside = beside.join();
            let here = here?;
            let (mut races, there) = beside
                .map_err(|_| RehearsalError::Failed("a cache of the rehearsal failed".to_owned()))??;
            for (at, run) in here.into_iter().chain(there) {
                races[at].insert(0, (Racer::Mlgw, run));
            }
            Ok(races)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{RehearsalError, Simulation, Step, racer, racers};
    use crate::rehearsal::scenario::Scenario;
    use mlgw_policies::rehearse::race::Racer;
    use mlgw_policies::rehearse::workload::{Profile, Settings};

    fn simulation(objects: u32) -> Simulation {
        let settings = Settings { objects: Some(objects), epochs: Some(2), ..Settings::default() };
        Simulation {
            scenario: Scenario::Profile(Profile::Epochs, settings),
            program: None,
            caches: vec![".5".parse().unwrap()],
            block_bytes: 1 << 20,
            racers: racers(&[Racer::Mlgw]),
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
            matches!(&much, Err(RehearsalError::Asked(why)) if why.starts_with("more than 20 blocks of")),
            "{much:?}"
        );
        // A single object exceeds the limit.
        let large = Simulation { block_bytes: 4096, ..simulation(1) }.run(&|_| Ok(()));
        assert!(matches!(large, Err(RehearsalError::Asked(_))), "{large:?}");
    }

    #[test]
    fn rows_do_not_depend_on_other_cache_sizes_and_threads() {
        let all = Simulation { racers: racers(&[]), ..simulation(10) };
        let of = |caches: &[&str]| {
            let caches = caches.iter().map(|cache| cache.parse().unwrap()).collect();
            Simulation { caches, ..all.clone() }.run(&|_| Ok(())).unwrap()
        };
        let sizes = [".2", ".3", ".5", ".6", ".8"];
        let alone: Vec<_> = sizes.iter().flat_map(|size| of(&[size])).collect();
        assert_eq!(alone.len(), sizes.len() * Racer::ALL.len());
        for _ in 0..20 {
            assert_eq!(of(&sizes), alone);
        }
    }

    #[test]
    fn an_error_of_watch_stops_the_simulation() {
        let stop_at = |share: Option<f64>| {
            move |step: Step| {
                if step.share == share && step.done >= 3 { Err(RehearsalError::Stopped) } else { Ok(()) }
            }
        };
        for share in [None, Some(0.5)] {
            assert_eq!(simulation(10).run(&stop_at(share)), Err(RehearsalError::Stopped), "{share:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        assert_eq!(racer("lru"), Ok(Racer::Lru));
        assert_eq!(
            racer("best"),
            Err("there are mlgw, lru, s3-fifo, sieve, never-evict, optimum".to_owned())
        );
    }
}
