//! Epochs are as many as there were whole passes, from the second one on.

use super::told::program;
use crate::access::{Access, Caller, Op};
use crate::decider::Decider;
use crate::engine::{Options, Unread};
use crate::language::Property;
use crate::workloads::Identity;
use std::sync::Arc;

const OBJECTS: u64 = 101;

/// What is said after each read: epochs of the workload, of all of them, and what rules are told.
fn epochs_after_each(reads: impl Iterator<Item = u64>) -> Vec<(u32, u64, f64)> {
    let options = Options { capacity_bytes: 1 << 30, blocks_max: 1 << 12, block_bytes: 8 << 20, seed: 0 };
    let mut decider = Decider::new(options, Arc::new(program()));
    let said = |decider: &Decider, now_us, key: &str| {
        let object = Unread { bucket: 1, key, size: 1000, number: 0 };
        let fact =
            decider.with_facts_of(now_us, &object, |facts| facts.fact(Property::EpochCount, "")?.size());
        let known = &decider.workloads;
        let workload = known.get(2).unwrap().caught_up(&decider.engine, now_us);
        (workload.epochs, known.totals(&decider.engine, now_us, 0).epochs, fact.unwrap())
    };
    let mut all = Vec::new();
    for (at, object) in reads.enumerate() {
        let (at_us, key) = (1000 * at as u64, format!("set/{object:05}.jpg"));
        let caller = Caller { id: 1, family: 2 };
        let access = Access { at_us, caller, bucket: 1, key: &key, op: Op::Read, size: 1000, range: 0..1000 };
        let seen = decider.observe(&access, Identity::default);
        decider.engine.follow(seen, &access, 0);
        all.push(said(&decider, at_us, &key));
    }
    all
}

fn order(epoch: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..OBJECTS).collect();
    fastrand::Rng::with_seed(epoch).shuffle(&mut order);
    order
}

#[test]
fn a_pass_is_over_when_its_last_object_was_read() {
    let said = epochs_after_each((0..4).flat_map(order));
    let after = |reads: u64| said[reads as usize - 1];
    assert_eq!(after(OBJECTS), (0, 0, 0.0), "nobody knows that there is no more");
    for pass in 2..=4_u32 {
        let end = u64::from(pass) * OBJECTS;
        assert_eq!(after(end - 1), (pass - 1, u64::from(pass) - 1, f64::from(pass - 1)), "{pass}");
        assert_eq!(after(end), (pass, u64::from(pass), f64::from(pass)), "{pass}");
    }
    assert!(said.is_sorted_by(|one, next| one.0 <= next.0 && one.2 <= next.2));
}

#[test]
fn a_pass_that_is_broken_off_is_none() {
    let said = epochs_after_each((0..2).flat_map(order).chain(order(2).into_iter().take(50)));
    assert_eq!(said.last().unwrap().0, 2);
}
