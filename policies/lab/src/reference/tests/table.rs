//! Hit ratios of each reference on each trace, as computed by this project's reference simulator.

use super::python::Random;
use super::traces::{ReferenceOrder, epochs, jobs, mix, read};
use crate::reference::{ClassAwareCache, EpochHazard, Event, OptimumOutcome, Sieve, optimum};
use mlgw_policies::access::Op;
use mlgw_policies::reference::{Lru, NeverEvict, ReferenceCache, S3Fifo};

const SHARES: [f64; 5] = [0.2, 0.35, 0.5, 0.65, 0.8];

fn ratio(mut cache: impl ReferenceCache, events: &[Event], mark: usize) -> f64 {
    let (mut hits, mut reads) = (0, 0);
    for (at, event) in events.iter().enumerate() {
        let hit = cache.access(event.block, event.bytes, event.op);
        if at >= mark && event.op == Op::Read {
            reads += 1;
            hits += u32::from(hit);
        }
    }
    f64::from(hits) / f64::from(reads)
}

fn best(capacity: u64, events: &[Event], mark: usize) -> f64 {
    let outcomes = optimum(events, capacity);
    let hits = outcomes[mark..].iter().filter(|outcome| **outcome == OptimumOutcome::Hit).count();
    hits as f64 / events[mark..].iter().filter(|event| event.op == Op::Read).count() as f64
}

#[track_caller]
fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 0.001, "{found:.4} and not {expected}");
}

/// Checks a policy on the trace of epochs: 5,000 blocks, 30 epochs, measured from the 16th on.
fn check_epochs(order: ReferenceOrder, of: impl Fn(u64, &[Event], usize) -> f64, expected: [f64; 5]) {
    let events = epochs(order, 5000, 30, &mut Random::new(42));
    for (share, expected) in SHARES.iter().zip(expected) {
        close(of((5000.0 * share) as u64, &events, 5000 * 15), expected);
    }
}

#[test]
fn lru_on_epochs() {
    check_epochs(
        ReferenceOrder::Shuffled,
        |c, e, m| ratio(Lru::new(c), e, m),
        [0.022, 0.070, 0.155, 0.283, 0.478],
    );
    check_epochs(ReferenceOrder::Sequential, |c, e, m| ratio(Lru::new(c), e, m), [0.0; 5]);
}

#[test]
fn never_evict_on_epochs() {
    for order in [ReferenceOrder::Shuffled, ReferenceOrder::Sequential, ReferenceOrder::Shards] {
        check_epochs(order, |c, e, m| ratio(NeverEvict::new(c), e, m), SHARES);
    }
}

#[test]
fn sieve_on_epochs() {
    check_epochs(
        ReferenceOrder::Shuffled,
        |c, e, m| ratio(Sieve::new(c), e, m),
        [0.145, 0.298, 0.454, 0.617, 0.780],
    );
    check_epochs(ReferenceOrder::Sequential, |c, e, m| ratio(Sieve::new(c), e, m), [0.0; 5]);
}

#[test]
fn s3_fifo_on_epochs() {
    check_epochs(
        ReferenceOrder::Shuffled,
        |c, e, m| ratio(S3Fifo::new(c), e, m),
        [0.148, 0.138, 0.187, 0.333, 0.547],
    );
}

#[test]
fn optimum_on_epochs() {
    for order in [ReferenceOrder::Shuffled, ReferenceOrder::Sequential, ReferenceOrder::Shards] {
        check_epochs(order, best, SHARES);
    }
}

#[test]
fn three_jobs_on_one_dataset() {
    let reads = jobs(2000, 3, 14);
    let events: Vec<_> = reads.iter().map(|(block, _)| read(*block)).collect();
    let mark = reads.len() / 2;
    for (capacity, expected) in [(400, [0.138, 0.200, 0.366, 0.488]), (800, [0.295, 0.400, 0.584, 0.680])] {
        close(ratio(Lru::new(capacity), &events, mark), expected[0]);
        close(ratio(NeverEvict::new(capacity), &events, mark), expected[1]);
        close(hazard(&reads, 2000, 3, capacity as u32, mark), expected[2]);
        close(best(capacity, &events, mark), expected[3]);
    }
}

fn hazard(reads: &[(u32, usize)], blocks: u32, jobs: usize, capacity: u32, mark: usize) -> f64 {
    let mut cache = EpochHazard::new(blocks, jobs, capacity);
    let hits: Vec<_> = reads.iter().map(|(block, job)| cache.access(*job, *block)).collect();
    hits[mark..].iter().filter(|hit| **hit).count() as f64 / (reads.len() - mark) as f64
}

#[test]
fn the_mixed_workload() {
    let mix = mix();
    let events: Vec<_> = mix.iter().map(|(event, _)| *event).collect();
    assert_eq!(
        (events.len(), events.iter().filter(|event| event.op == Op::Read).count()),
        (140_200, 131_050)
    );
    let rows = [
        (1000, [0.313, 0.236, 0.261, 0.025, 0.427, 0.381]),
        (2000, [0.334, 0.413, 0.414, 0.047, 0.514, 0.457]),
        (3000, [0.364, 0.426, 0.445, 0.069, 0.590, 0.533]),
        (5000, [0.445, 0.470, 0.560, 0.166, 0.712, 0.654]),
    ];
    for (capacity, expected) in rows {
        close(ratio(Lru::new(capacity), &events, 0), expected[0]);
        close(ratio(Sieve::new(capacity), &events, 0), expected[1]);
        close(ratio(S3Fifo::new(capacity), &events, 0), expected[2]);
        close(ratio(NeverEvict::new(capacity), &events, 0), expected[3]);
        close(best(capacity, &events, 0), expected[4]);
        let mut class_aware = ClassAwareCache::new(capacity);
        let hits = mix.iter().filter(|(event, class)| {
            let hit = class_aware.access(event.block, 1, *class);
            hit && event.op == Op::Read
        });
        close(hits.count() as f64 / 131_050.0, expected[5]);
    }
}
