//! Dataset numbers are reused without confusion of their previous and current datasets.

use super::program;
use crate::access::{Access, Caller, Op};
use crate::engine::{Options, UnreadBlock};
use crate::language::Property;
use crate::policy_engine::{PolicyEngine, Ruling};
use crate::workloads::{DatasetRole, WorkloadIdentity};
use std::sync::Arc;

/// More datasets than the engine has numbers.
const DATASETS: u64 = 6000;
const OBJECTS: u64 = 8;
/// Number of objects of the dataset that is read throughout.
const LONG: u64 = 100;

/// Key of an object in a folder whose name differs from all others in letters.
fn key(folder: u64, object: u64) -> String {
    let letters: String = (0..4).map(|place| (b'g' + (folder >> (4 * place) & 15) as u8) as char).collect();
    format!("{letters}/{object}.jpg")
}

#[test]
fn reused_dataset_numbers_do_not_mix_up_datasets() {
    let options = Options { capacity_bytes: 200_000, blocks_max: 1 << 14, block_bytes: 8 << 20, seed: 0 };
    let mut decider = PolicyEngine::new(options, Arc::new(program()));
    let mut at_us = 0;
    let mut read = |decider: &mut PolicyEngine, family: u64, key: &str| {
        at_us += 1000;
        let caller = Caller { id: family, family };
        let access = Access { at_us, caller, bucket: 1, key, op: Op::Read, size: 1000, range: 0..1000 };
        let seen = decider.observe(&access, WorkloadIdentity::default);
        decider.read(seen, &access, 0, &Ruling::default());
        decider.take_evicted().for_each(drop);
        at_us
    };
    let fact = |decider: &PolicyEngine, now_us, key: &str, property| {
        let object = UnreadBlock { bucket: 1, key, size: 1000, number: 0 };
        decider.with_facts_of(now_us, &object, |facts| {
            facts.fact(property, "").and_then(|fact| Some(fact.to_value()?.to_string()))
        })
    };
    let mut reads = 0;
    for folder in 0..DATASETS {
        for object in 0..2 * OBJECTS {
            read(&mut decider, 1, &format!("trained/{}.jpg", reads % LONG));
            reads += 1;
            let key = key(folder, object % OBJECTS);
            let now_us = read(&mut decider, 2 + folder, &key);
            if object + 1 == 2 * OBJECTS {
                assert_eq!(
                    fact(&decider, now_us, &key, Property::EpochCount).as_deref(),
                    Some("2"),
                    "{folder}"
                );
                assert_eq!(
                    fact(&decider, now_us, &key, Property::Workloads).as_deref(),
                    Some("1"),
                    "{folder}"
                );
            }
        }
    }
    let trainer = decider.workloads.get(1).unwrap();
    let now_us = trainer.last_us;
    assert_eq!((trainer.datasets.len(), trainer.datasets[0].role), (1, DatasetRole::Training));
    assert!(u64::from(trainer.epochs).abs_diff(reads / LONG) <= 1, "{}", trainer.epochs);
    assert_eq!(fact(&decider, now_us, "trained/1.jpg", Property::Dataset).as_deref(), Some("trained/#.jpg"));
    let (first, last) = (key(0, 0), key(DATASETS - 1, 0));
    assert_eq!(fact(&decider, now_us, &first, Property::Dataset), None, "the dataset is forgotten");
    assert!(fact(&decider, now_us, &last, Property::Dataset).is_some());
    // The dataset with the most reads is still distinguished and has its own name.
    let most = decider.shadow.datasets().max_by(|(_, one), (_, other)| one.bytes.total_cmp(&other.bytes));
    let name = decider.engine.dataset_name(most.unwrap().0).unwrap();
    assert_eq!(name.folder, "trained/");
}
