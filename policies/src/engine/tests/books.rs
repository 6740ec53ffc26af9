//! Its books are right whatever it is asked.

use crate::access::{Access, Caller, Op};
use crate::engine::{Advice, Ahead, Engine, Keeping, Options, Outcome, Unread, Who};
use crate::plan::{Plan, Reading, Sampler};
use proptest::collection::vec;
use proptest::{prop_assert, prop_assert_eq, proptest};
use std::collections::{BTreeMap, BTreeSet};

/// Names of few folders and many, with numbers and without.
fn key(what: u32) -> String {
    let (kind, number) = (what % 6, what / 6 % 97);
    match kind {
        0 => format!("train/{number:05}.jpg"),
        1 => format!("shards/shard-{}/{number}.npy", number % 7),
        2 => format!("val/{}/x.png", number % 80),
        3 => format!("{number}"),
        4 => format!("logs/{}/part-of-{number}.csv", ["a", "b", "c"][number as usize % 3]),
        _ => format!("w{}x/y", "q".repeat(number as usize % 70)),
    }
}

const AHEAD: Ahead = Ahead { blocks_max: 20, bytes_max: 1 << 20 };
const OUTCOMES: [Outcome; 7] = [
    Outcome::Used,
    Outcome::Late,
    Outcome::Used,
    Outcome::Late,
    Outcome::Wasted,
    Outcome::Declined,
    Outcome::Absent,
];

/// Of these keys, in their order or another.
fn plan(number: u64, epochs: u32) -> Plan {
    let keys: Vec<String> = (0..97 * 6).step_by(6).map(key).collect();
    let sampler = if number % 4 == 3 { Sampler::TorchDistributed } else { Sampler::Sequential };
    let reading = Reading { sampler, epochs, ranks: 1 + number as u32 % 3, ..Reading::default() };
    let reading = if sampler == Sampler::Sequential { Reading { ranks: 1, ..reading } } else { reading };
    Plan::new(keys.iter().map(String::as_str).skip(number as usize), reading).unwrap()
}

proptest! {
    #[test]
    fn what_it_keeps_is_what_it_said(
        steps in vec((0..600_u32, 0..12_u64, 1..3_000_u64, 0..20_u8), 1..700),
        capacity in 1..200_u64,
        blocks in 20..300_usize,
    ) {
        let options = Options { capacity_bytes: capacity * 512, blocks_max: blocks, block_bytes: 2048, seed: 1 };
        let mut engine = Engine::new(options);
        let (mut kept, mut pinned) = (BTreeSet::new(), BTreeSet::new());
        let mut planned = 0..;
        let mut waiting = BTreeMap::new();
        for (number, (what, caller, size, kind)) in steps.into_iter().enumerate() {
            let (what, caller) = if kind > 9 { (planned.next().unwrap() * 6, 0) } else { (what, caller) };
            let key = key(what);
            let caller = Caller { id: caller, family: caller / 3 };
            if kind == 3 {
                let who = if what % 2 == 0 { Who::Caller(caller.id) } else { Who::Family(caller.family) };
                engine.put_plan(u64::from(what % 5), who, 1, plan(u64::from(what % 5), 1 + what % 3)).unwrap();
            }
            if what % 40 == 39 {
                engine.drop_plan(size % 5);
            }
            let op = if kind == 0 { Op::Write } else { Op::Read };
            let at_us = number as u64 * 1000;
            let size = if what % 5 == 0 { size * 4 } else { size };
            let range = if kind == 1 { size / 2..size } else { 0..size };
            let access = Access { at_us, caller, bucket: 1, key: &key, op, size, range };
            let seen = engine.observe(&access);
            for block in access.range.start / 2048..=(size - 1) / 2048 {
                let id = engine.block_id(1, &key, block as u32);
                let keeping = match kind {
                    7 => Keeping::Never,
                    8 => Keeping::After(3, 4.0),
                    9 => Keeping::Weighed(0.25),
                    _ => Keeping::default(),
                };
                let advice = engine.read_as(seen, &access, block as u32, keeping);
                for evicted in engine.take_evicted().collect::<Vec<_>>() {
                    prop_assert!(kept.remove(&evicted), "what is evicted was kept");
                }
                prop_assert_eq!(advice == Advice::Kept, kept.contains(&id));
                if advice == Advice::Keep {
                    kept.insert(id);
                }
                if kind == 2 && kept.remove(&id) {
                    engine.lost(id);
                    pinned.remove(&id);
                }
                if kind == 3 {
                    let unread = Unread { bucket: 1, key: &key, size, number: block as u32 };
                    let advice = engine.pin(at_us, &unread, capacity * 300);
                    engine.take_evicted().for_each(|evicted| assert!(kept.remove(&evicted)));
                    prop_assert!(advice != Advice::Kept || kept.contains(&id));
                    if advice != Advice::Bypass {
                        kept.insert(id);
                        pinned.insert(id);
                    }
                }
                if kind == 4 && pinned.remove(&id) {
                    engine.unpin(id);
                }
            }
            if kind == 5 {
                engine.set_capacity(at_us, capacity * (300 + size % 212));
                engine.take_evicted().for_each(|evicted| assert!(kept.remove(&evicted)));
            }
            if kind == 6 {
                let block = Unread { bucket: 1, key: "train/00001.jpg", size, number: 0 };
                let (id, advice) = (engine.block_id(1, block.key, 0), engine.adopt(at_us, &block));
                engine.take_evicted().for_each(|evicted| assert!(kept.remove(&evicted)));
                prop_assert_eq!(advice == Advice::Kept, kept.contains(&id));
                if advice == Advice::Keep {
                    kept.insert(id);
                }
            }
            prop_assert!(pinned.is_subset(&kept) && kept.iter().all(|id| engine.is_kept(*id)));
            let mut next = Vec::new();
            engine.ahead(seen, &access, &AHEAD, &mut next);
            for next in next {
                let under_way: &mut u32 = waiting.entry(next.stream).or_default();
                *under_way += next.blocks;
                prop_assert!(*under_way <= AHEAD.blocks_max, "no more than is allowed");
                for block in next.first..next.first + next.blocks {
                    let id = engine.block_id(next.bucket, &next.key, block);
                    prop_assert!(!kept.contains(&id), "what is kept need not be read ahead");
                    let unread = Unread { bucket: next.bucket, key: &next.key, size, number: block };
                    let advice = engine.adopt(at_us, &unread);
                    for evicted in engine.take_evicted().collect::<Vec<_>>() {
                        prop_assert!(kept.remove(&evicted), "what is evicted was kept");
                    }
                    prop_assert_eq!(advice == Advice::Kept, kept.contains(&id));
                    if advice == Advice::Keep {
                        kept.insert(id);
                    }
                }
                let outcome = OUTCOMES[number % OUTCOMES.len()];
                engine.ahead_outcome(next.stream, next.bucket, &next.key, outcome, next.blocks);
                *waiting.entry(next.stream).or_default() -= next.blocks;
            }
            if number % 16 == 0 {
                engine.check();
            }
            let _ = (engine.pattern(seen, at_us), engine.passes(seen));
        }
        engine.check();
    }
}
