//! Its books are right whatever it is asked.

use crate::access::{Access, Caller, Op};
use crate::engine::{Advice, Engine, Options, Unread};
use proptest::collection::vec;
use proptest::{prop_assert, prop_assert_eq, proptest};
use std::collections::BTreeSet;

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
        for (number, (what, caller, size, kind)) in steps.into_iter().enumerate() {
            let key = key(what);
            let caller = Caller { id: caller, family: caller / 3 };
            let op = if kind == 0 { Op::Write } else { Op::Read };
            let at_us = number as u64 * 1000;
            let size = if what % 5 == 0 { size * 4 } else { size };
            let range = if kind == 1 { size / 2..size } else { 0..size };
            let access = Access { at_us, caller, bucket: 1, key: &key, op, size, range };
            let seen = engine.observe(&access);
            for block in access.range.start / 2048..=(size - 1) / 2048 {
                let id = engine.block_id(1, &key, block as u32);
                let advice = engine.read(seen, &access, block as u32);
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
            if number % 16 == 0 {
                engine.check();
            }
            let _ = (engine.pattern(seen, at_us), engine.passes(seen));
        }
        engine.check();
    }
}
