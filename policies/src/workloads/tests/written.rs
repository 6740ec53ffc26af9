//! Datasets that are written through the gateway before they are read are classified as data.

use super::program;
use crate::access::{Access, Caller, Op};
use crate::engine::{DatasetPattern, Options, ReadOrder};
use crate::language::Phase;
use crate::policy_engine::PolicyEngine;
use crate::workloads::{DatasetRole, WorkloadIdentity};
use std::sync::Arc;

const OBJECTS: usize = 200;

/// Writes all objects with one caller and reads them with another in shuffled passes. Returns the role,
/// phase and pattern of the reader after each pass.
fn trained_on_what_was_written(
    name: impl Fn(usize) -> String,
) -> Vec<(DatasetRole, Option<Phase>, Option<DatasetPattern>)> {
    let options = Options { capacity_bytes: 1 << 30, blocks_max: 1 << 12, block_bytes: 8 << 20, seed: 0 };
    let mut decider = PolicyEngine::new(options, Arc::new(program()));
    let (writer, reader) = (Caller { id: 1, family: 1 }, Caller { id: 2, family: 2 });
    let mut at_us = 0;
    let mut found = Vec::new();
    let mut send = |decider: &mut PolicyEngine, caller, op, object: usize| {
        at_us += 10_000;
        let (key, size) = (name(object), 100_000);
        let access = Access { at_us, caller, bucket: 1, key: &key, op, size, range: 0..size };
        let seen = decider.observe(&access, WorkloadIdentity::default);
        decider.engine.read_uncached(seen, &access, 0);
        (seen, at_us)
    };
    for object in 0..OBJECTS {
        send(&mut decider, writer, Op::Write, object);
    }
    for pass in 0..3 {
        let mut order: Vec<usize> = (0..OBJECTS).collect();
        fastrand::Rng::with_seed(pass).shuffle(&mut order);
        let mut last = None;
        for object in order {
            last = Some(send(&mut decider, reader, Op::Read, object));
        }
        let workload = decider.workloads.get(2).unwrap();
        let pattern =
            last.and_then(|(seen, at_us)| workload.datasets[0].pattern(&decider.engine, seen, at_us));
        found.push((workload.datasets[0].role, workload.phase, pattern));
    }
    found
}

#[test]
fn a_written_dataset_counts_as_training_from_the_first_epoch_on() {
    let shuffled = Some(DatasetPattern::Epochs(ReadOrder::Shuffled));
    let expected = (DatasetRole::Training, Some(Phase::Training), shuffled);
    for name in [|at: usize| format!("set/{at:06}.jpg"), |at| format!("set/{at:06}")] {
        assert_eq!(trained_on_what_was_written(name), [expected; 3], "{}", name(0));
    }
}
