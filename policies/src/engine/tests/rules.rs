//! Tests: rules and weights of blocks, and blocks that disappear.

use crate::access::{Access, Caller, Op};
use crate::engine::{Advice, CacheEngine, Options};

#[test]
fn an_invalidated_block_is_kept_again() {
    let mut engine =
        CacheEngine::new(Options { capacity_bytes: 1 << 20, blocks_max: 100, block_bytes: 8 << 20, seed: 3 });
    let caller = Caller { id: 1, family: 1 };
    let mut ask = |op: Op, is_lost: bool| {
        let access = Access { at_us: 5, caller, bucket: 1, key: "a/1", op, size: 1000, range: 0..1000 };
        if is_lost {
            let id = engine.block_id(1, "a/1", 0);
            engine.invalidate(id);
            assert_eq!(engine.kept_bytes(), 0);
        }
        let seen = engine.observe(&access);
        engine.read(seen, &access, 0)
    };
    assert_eq!((ask(Op::Read, false), ask(Op::Read, false)), (Advice::Keep, Advice::Kept));
    assert_eq!((ask(Op::Read, true), ask(Op::Read, false)), (Advice::Keep, Advice::Kept));
    assert_eq!((ask(Op::Delete, false), ask(Op::Read, false)), (Advice::Bypass, Advice::Keep));
}

#[test]
fn caching_rules_for_a_block_are_applied() {
    use crate::engine::CachingRule;
    let mut engine =
        CacheEngine::new(Options { capacity_bytes: 1 << 20, blocks_max: 100, block_bytes: 8 << 20, seed: 3 });
    let caller = Caller { id: 1, family: 1 };
    let mut ask = |key: &str, keeping: CachingRule| {
        let access = Access { at_us: 5, caller, bucket: 1, key, op: Op::Read, size: 1000, range: 0..1000 };
        let seen = engine.observe(&access);
        let advice = engine.read_with_rule(seen, &access, 0, keeping);
        engine.check();
        (advice, engine.take_evicted().count())
    };
    let plain = CachingRule::default();
    assert_eq!(ask("a/1", plain), (Advice::Keep, 0));
    assert_eq!(ask("a/1", CachingRule::Never), (Advice::Bypass, 1), "the kept block is evicted");
    assert_eq!(ask("a/1", CachingRule::Never), (Advice::Bypass, 0));
    assert_eq!(ask("a/2", CachingRule::AfterReads(3, 1.0)), (Advice::Bypass, 0));
    assert_eq!(ask("a/2", CachingRule::AfterReads(3, 1.0)), (Advice::Bypass, 0));
    assert_eq!(
        ask("a/2", CachingRule::AfterReads(3, 1.0)),
        (Advice::Keep, 0),
        "the block is read for the third time"
    );
    assert_eq!(ask("a/2", CachingRule::AfterReads(3, 1.0)), (Advice::Kept, 0));
}

#[test]
fn blocks_of_higher_weight_stay_longer() {
    use crate::engine::CachingRule;
    // Two datasets that are read alike, in turns; only one of them fits.
    let mut engine = CacheEngine::new(Options {
        capacity_bytes: 60 * 1024,
        blocks_max: 1000,
        block_bytes: 8 << 20,
        seed: 3,
    });
    let mut hits = [0; 2];
    for pass in 0..6_u64 {
        for n in 0..100_u64 {
            for (at, (folder, weight)) in [("plain", 1.0), ("dear", 16.0)].into_iter().enumerate() {
                let key = format!("{folder}/{:03}", (n * 37 + pass * 11) % 100);
                let caller = Caller { id: at as u64, family: at as u64 };
                let at_us = (pass * 200 + n * 2 + at as u64) * 1000;
                let access =
                    Access { at_us, caller, bucket: 1, key: &key, op: Op::Read, size: 1024, range: 0..1024 };
                let seen = engine.observe(&access);
                let is_hit =
                    engine.read_with_rule(seen, &access, 0, CachingRule::Weighted(weight)) == Advice::Kept;
                hits[at] += u32::from(is_hit && pass >= 2);
                engine.take_evicted().for_each(drop);
            }
        }
    }
    assert!(hits[1] >= 4 * 55 && hits[0] <= 4 * 10, "{hits:?}");
}
