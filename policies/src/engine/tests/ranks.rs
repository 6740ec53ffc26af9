//! Tests: ranks of one job are merged, and callers of a family that merely look like ranks are not.

use crate::access::{Access, Caller, Op};
use crate::engine::job::JobCallers;
use crate::engine::{CacheEngine, ObservedAccess, Options};

const BYTES: u64 = 1 << 20;
/// Time from the start of an epoch to the next.
const EPOCH_US: u64 = 1_000_000_000;

/// Time, caller and object of a read.
type Read = (u64, u64, usize);

fn shuffled(count: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    random.shuffle(&mut order);
    order
}

/// Returns a caller's reads in `share` of an epoch, evenly from `begin_us` on.
fn evenly(caller: u64, begin_us: u64, share: f64, order: Vec<usize>) -> impl Iterator<Item = Read> {
    let step_us = EPOCH_US as f64 * share / order.len() as f64;
    let at_us = move |at: usize| begin_us + (step_us * (at as f64 + 0.1 * caller as f64)) as u64;
    order.into_iter().enumerate().map(move |(at, object)| (at_us(at), caller, object))
}

/// Returns the reads of ranks under a sampler: ranks with one object too few repeat one, or all ranks leave
/// out the rest that fills no batch; then they pause.
fn dealt(ranks: usize, objects: usize, batch: usize, epochs: u64, seed: u64) -> Vec<Read> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut reads = Vec::new();
    for epoch in 0..epochs {
        let order = shuffled(objects, &mut random);
        let all = objects.div_ceil(ranks) * ranks;
        for rank in 0..ranks {
            let mut mine: Vec<usize> =
                order.iter().cycle().take(all).skip(rank).step_by(ranks).copied().collect();
            mine.truncate(mine.len() / batch * batch);
            reads.extend(evenly(rank as u64, EPOCH_US * (epoch + 1), 0.8, mine));
        }
    }
    reads.sort_unstable();
    reads
}

/// Returns the reads of independent jobs in one family: each reads everything in its own order and begins
/// some time after the first.
fn independent(lags: &[f64], objects: usize, epochs: u64, seed: u64) -> Vec<Read> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut reads = Vec::new();
    for (caller, lag) in lags.iter().enumerate() {
        for epoch in 0..epochs {
            let begin_us = EPOCH_US * (epoch + 1) + (EPOCH_US as f64 * lag) as u64;
            reads.extend(evenly(caller as u64, begin_us, 0.95, shuffled(objects, &mut random)));
        }
    }
    reads.sort_unstable();
    reads
}

/// Returns an engine after these reads, with the last access of each caller.
fn after(reads: &[Read], callers: usize) -> (CacheEngine, Vec<ObservedAccess>) {
    let options = Options { capacity_bytes: 100 * BYTES, blocks_max: 1 << 14, block_bytes: 8 << 20, seed: 3 };
    let mut engine = CacheEngine::new(options);
    let mut last = vec![None; callers];
    for (at_us, id, object) in reads {
        let caller = Caller { id: *id, family: 77 };
        let key = format!("set/{object:05}.jpg");
        let access = Access {
            at_us: *at_us,
            caller,
            bucket: 1,
            key: &key,
            op: Op::Read,
            size: BYTES,
            range: 0..BYTES,
        };
        let seen = engine.observe(&access);
        engine.read(seen, &access, 0);
        engine.take_evicted().for_each(drop);
        last[*id as usize] = Some(seen);
    }
    engine.check();
    (engine, last.into_iter().map(|seen| seen.expect("each of them reads")).collect())
}

/// True if all callers are merged into one job.
fn are_one(engine: &CacheEngine, seen: ObservedAccess) -> bool {
    let jobs = &engine.datasets[&engine.number(seen)].jobs;
    jobs.iter().any(|job| job.is_active && job.callers == JobCallers::Whole)
}

/// Returns the error in the start of a caller's last pass, as a share of an epoch.
fn missed(engine: &CacheEngine, seen: ObservedAccess, began_us: f64) -> f64 {
    let passes = engine.passes(seen).expect("the caller has read");
    (passes.started_us as f64 - began_us).abs() / EPOCH_US as f64
}

#[test]
fn ranks_of_a_small_dataset_are_one_job_with_correct_epoch_starts() {
    for (ranks, objects, batch) in [(2, 301, 1), (4, 301, 1), (4, 302, 32), (3, 500, 8), (8, 1001, 1)] {
        for seed in 0..8 {
            for epochs in [3, 4] {
                let (engine, last) = after(&dealt(ranks, objects, batch, epochs, seed), ranks);
                for seen in last {
                    let missed = missed(&engine, seen, (EPOCH_US * epochs) as f64);
                    let what = (ranks, objects, batch, seed, epochs);
                    assert!(are_one(&engine, seen) && missed <= 0.02, "{what:?}: {missed}");
                }
            }
        }
    }
}

#[test]
fn jobs_of_one_family_with_independent_shuffles_stay_separate() {
    let lags: [&[f64]; 6] =
        [&[0.0, 0.0], &[0.0, 0.3], &[0.0, 0.5], &[0.0, 0.9], &[0.0, 0.0, 0.0], &[0.0, 0.2, 0.6]];
    for lags in lags {
        for objects in [300, 1000] {
            for seed in 0..8 {
                let (engine, last) = after(&independent(lags, objects, 5, seed), lags.len());
                for (seen, lag) in last.into_iter().zip(lags) {
                    let missed = missed(&engine, seen, EPOCH_US as f64 * (5.0 + lag));
                    let what = (lags, objects, seed);
                    assert!(!are_one(&engine, seen) && missed <= 0.02, "{what:?}: {missed}");
                }
            }
        }
    }
}

#[test]
fn callers_that_follow_each_other_are_not_ranks() {
    // Where callers are close to each other, one occasionally overtakes another.
    for (callers, lag) in [(2, 0.001), (3, 0.02), (4, 0.1), (6, 0.004), (6, 0.02)] {
        for seed in 0..8 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut reads = Vec::new();
            for epoch in 1..5_u64 {
                let order = shuffled(700, &mut random);
                for caller in 0..callers {
                    let late_us = (EPOCH_US as f64 * lag * caller as f64) as u64;
                    let evenly = evenly(caller, EPOCH_US * epoch + late_us, 0.99, order.clone());
                    let late = evenly.map(|(at_us, caller, object)| {
                        (at_us + random.u64(0..EPOCH_US / 140), caller, object)
                    });
                    reads.extend(late);
                }
            }
            reads.sort_unstable();
            let (engine, last) = after(&reads, callers as usize);
            assert!(last.iter().all(|seen| !are_one(&engine, *seen)), "{callers} {lag} {seed}");
        }
    }
}

#[test]
fn epoch_starts_are_right_for_sequential_reads_of_many_folders() {
    for folders in [20, 100, 256] {
        let mut reads = Vec::new();
        for epoch in 1..4 {
            reads.extend(evenly(0, EPOCH_US * epoch, 1.0, (0..512).collect()));
        }
        let mut engine = CacheEngine::new(Options {
            capacity_bytes: BYTES,
            blocks_max: 1 << 14,
            block_bytes: 8 << 20,
            seed: 3,
        });
        let mut last = None;
        for (at_us, id, object) in reads {
            let key = format!("set/{:03x}/{object:05}.jpg", object * folders / 512);
            let caller = Caller { id, family: 77 };
            let access =
                Access { at_us, caller, bucket: 1, key: &key, op: Op::Read, size: BYTES, range: 0..BYTES };
            let seen = engine.observe(&access);
            engine.read(seen, &access, 0);
            engine.take_evicted().for_each(drop);
            last = Some(seen);
        }
        let missed = missed(&engine, last.unwrap(), EPOCH_US as f64 * 3.0);
        assert!(missed <= 0.02, "{folders}: {missed}");
    }
}
