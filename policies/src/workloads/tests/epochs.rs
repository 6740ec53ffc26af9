//! The number of epochs is the number of whole passes, from the second pass on.

use super::program;
use crate::access::{Access, Caller, Op};
use crate::engine::{CacheEngine, Options, UnreadBlock};
use crate::language::Property;
use crate::policy_engine::PolicyEngine;
use crate::workloads::{WorkloadIdentity, WorkloadLimits};
use std::sync::Arc;

const OBJECTS: u64 = 101;

const OPTIONS: Options =
    Options { capacity_bytes: 1 << 30, blocks_max: 1 << 12, block_bytes: 8 << 20, seed: 0 };

/// After each read: epochs of the workload, epochs of all workloads, and the epoch count in the facts for
/// rules.
fn epochs_after_each(reads: impl Iterator<Item = u64>) -> Vec<(u32, u64, f64)> {
    let mut all = Vec::new();
    let counts = |decider: &mut PolicyEngine, now_us, key: &str| {
        let object = UnreadBlock { bucket: 1, key, size: 1000, number: 0 };
        let fact =
            decider.with_facts_of(now_us, &object, |facts| facts.fact(Property::EpochCount, "")?.size());
        let workload = decider.workloads.get(2).unwrap().with_current_epochs(&decider.engine, now_us);
        (workload.epochs, decider.workloads.totals(&decider.engine, now_us, 0).epochs, fact.unwrap())
    };
    read_all(reads, |decider, at_us, key| all.push(counts(decider, at_us, key)));
    all
}

/// Reads objects and calls `then` after each read.
fn read_all(
    reads: impl Iterator<Item = u64>,
    mut then: impl FnMut(&mut PolicyEngine, u64, &str),
) -> PolicyEngine {
    let mut decider = PolicyEngine::new(OPTIONS, Arc::new(program()));
    for (at, object) in reads.enumerate() {
        let (at_us, key) = (1000 * at as u64, format!("set/{object:05}.jpg"));
        let caller = Caller { id: 1, family: 2 };
        let access = Access { at_us, caller, bucket: 1, key: &key, op: Op::Read, size: 1000, range: 0..1000 };
        let seen = decider.observe(&access, WorkloadIdentity::default);
        decider.engine.read_uncached(seen, &access, 0);
        then(&mut decider, at_us, &key);
    }
    decider
}

fn order(epoch: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..OBJECTS).collect();
    fastrand::Rng::with_seed(epoch).shuffle(&mut order);
    order
}

#[test]
fn a_pass_is_over_when_its_last_object_was_read() {
    let epochs = epochs_after_each((0..4).flat_map(order));
    let after = |reads: u64| epochs[reads as usize - 1];
    assert_eq!(after(OBJECTS), (0, 0, 0.0), "the end of the dataset is not known yet");
    for pass in 2..=4_u32 {
        let end = u64::from(pass) * OBJECTS;
        assert_eq!(after(end - 1), (pass - 1, u64::from(pass) - 1, f64::from(pass - 1)), "{pass}");
        assert_eq!(after(end), (pass, u64::from(pass), f64::from(pass)), "{pass}");
    }
    assert!(epochs.is_sorted_by(|one, next| one.0 <= next.0 && one.2 <= next.2));
}

#[test]
fn an_incomplete_pass_is_not_counted() {
    let epochs = epochs_after_each((0..2).flat_map(order).chain(order(2).into_iter().take(50)));
    assert_eq!(epochs.last().unwrap().0, 2);
}

#[test]
fn epochs_stay_counted_when_the_engine_or_the_tracker_evicts_their_state() {
    let mut decider = read_all((0..3).flat_map(order), |_, _, _| {});
    let now_us = 1000 * 3 * OBJECTS;
    // An engine that has the dataset, but no state about this reader.
    let mut nothing = CacheEngine::new(OPTIONS);
    for object in order(0) {
        let (caller, key) = (Caller { id: 8, family: 8 }, format!("set/{object:05}.jpg"));
        let access =
            Access { at_us: 0, caller, bucket: 1, key: &key, op: Op::Read, size: 1000, range: 0..1000 };
        nothing.observe(&access);
    }
    assert!(decider.workloads.get(2).unwrap().epochs < 3, "no evaluation since the last read");
    assert_eq!(decider.workloads.totals(&decider.engine, now_us, 0).epochs, 3);
    assert_eq!(decider.workloads.totals(&nothing, now_us, 0).epochs, 3);
    // The last pass of an evicted workload counts, although there was no query since.
    let mut decider = read_all((0..3).flat_map(order), |_, _, _| {});
    let max = WorkloadLimits::default().workloads_max as u64;
    let program = Arc::clone(decider.program());
    for family in 10..10 + max {
        let identity = WorkloadIdentity::default();
        decider.workloads.set_identity(now_us + family, family, identity, &decider.engine, &program);
    }
    assert!(decider.workloads.get(2).is_none());
    assert_eq!(decider.workloads.totals(&nothing, now_us, 0).epochs, 3);
}
