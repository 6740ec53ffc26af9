//! Tests: read-ahead over folders rarely requests absent keys.

use crate::access::{Access, Caller, Op};
use crate::engine::{CacheEngine, Options, ReadAheadLimits, ReadAheadOrder, ReadAheadOutcome};
use std::collections::{HashMap, HashSet, VecDeque};

const AHEAD: ReadAheadLimits =
    ReadAheadLimits { blocks_max: 16, bytes_max: 64 << 20, order: ReadAheadOrder::Any };
const SIZE: u64 = 100_000;
const OBJECTS: usize = 3000;
/// Reads until the origin reports that the key does not exist.
const LAG: usize = 4;

/// Outcomes for one reader.
struct ReadAheadTally {
    absent: usize,
    used: usize,
}

/// Reads objects in this order.
fn read_in_order(keys: &[String]) -> ReadAheadTally {
    let options = Options { capacity_bytes: 1, blocks_max: 1 << 14, block_bytes: 8 << 20, seed: 1 };
    let mut engine = CacheEngine::new(options);
    let there: HashSet<&str> = keys.iter().map(String::as_str).collect();
    let caller = Caller::of("AK", b"loader", None, &[10, 0, 0, 1]);
    let mut waiting = HashMap::new();
    let mut unknown: VecDeque<(usize, u64, String)> = VecDeque::new();
    let mut came = ReadAheadTally { absent: 0, used: 0 };
    for (n, key) in keys.iter().enumerate() {
        while let Some((at, stream, absent)) = unknown.pop_front() {
            if at > n {
                unknown.push_front((at, stream, absent));
                break;
            }
            engine.record_ahead_outcome(stream, 1, &absent, ReadAheadOutcome::Absent, 1);
        }
        if let Some(stream) = waiting.remove(key) {
            came.used += 1;
            engine.record_ahead_outcome(stream, 1, key, ReadAheadOutcome::Used, 1);
        }
        let (op, range, at_us) = (Op::Read, 0..SIZE, n as u64 * 10_000);
        let access = Access { at_us, caller, bucket: 1, key, op, size: SIZE, range };
        let seen = engine.observe(&access);
        engine.read(seen, &access, 0);
        let mut next = Vec::new();
        engine.read_ahead(seen, &access, &AHEAD, &mut next);
        for next in next {
            if there.contains(&*next.key) {
                waiting.insert(next.key, next.stream);
            } else {
                came.absent += 1;
                unknown.push_back((n + LAG, next.stream, next.key));
            }
        }
    }
    came
}

/// Returns the keys of folders with `each` objects, whose numbers continue over folders or restart in each.
fn folders(each: usize, numbers_continue: bool) -> Vec<String> {
    let number = |n: usize| if numbers_continue { n } else { n % each };
    (0..OBJECTS).map(|n| format!("set/{:04}/{:06}.jpg", n / each, number(n))).collect()
}

#[test]
fn absent_keys_are_a_small_part_of_all_requests() {
    for goes_on in [true, false] {
        for each in [1, 2, 3, 5, 10, 25, 100, 1000] {
            let came = read_in_order(&folders(each, goes_on));
            let requested = OBJECTS + came.absent;
            assert!(
                came.absent * 20 <= requested,
                "{} of {requested} in folders of {each}, {goes_on}",
                came.absent
            );
        }
    }
}

#[test]
fn folders_of_random_lengths_cause_few_absent_keys() {
    for goes_on in [true, false] {
        let (mut keys, mut number, mut chance) = (Vec::new(), 0, 7_usize);
        for folder in 0.. {
            chance = (chance * 1_103_515_245 + 12_345) % (1 << 31);
            for n in 0..1 + chance / 64 % 30 {
                keys.push(format!("set/{folder:04}/{:06}.jpg", if goes_on { number } else { n }));
                number += 1;
            }
            if keys.len() >= OBJECTS {
                break;
            }
        }
        let came = read_in_order(&keys);
        let requested = keys.len() + came.absent;
        assert!(came.absent * 10 <= requested, "{} of {requested}, {goes_on}", came.absent);
    }
}

#[test]
fn read_ahead_still_works_in_long_folders() {
    for goes_on in [true, false] {
        let came = read_in_order(&folders(100, goes_on));
        assert!(came.used * 10 >= OBJECTS * 8, "{} of {OBJECTS}, {goes_on}", came.used);
        let came = read_in_order(&folders(OBJECTS, goes_on));
        assert!(came.used >= OBJECTS - 10, "{} of {OBJECTS}", came.used);
    }
}
