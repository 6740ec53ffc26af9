//! Tests: a dataset that no job will read again frees its share at once.

use crate::access::{Access, Caller, Op};
use crate::engine::{Advice, CacheEngine, Options};

const BYTES: u64 = 1 << 20;
const OBJECTS: u64 = 1000;
const ROOM: u64 = 500;

struct ReleaseBench {
    engine: CacheEngine,
    at_us: u64,
}

impl ReleaseBench {
    fn new() -> Self {
        let options =
            Options { capacity_bytes: ROOM * BYTES, blocks_max: 1 << 16, block_bytes: 8 << 20, seed: 3 };
        Self { engine: CacheEngine::new(options), at_us: 0 }
    }

    fn ask(&mut self, op: Op, set: &str, number: u64) -> Advice {
        self.at_us += 1000;
        let (at_us, key) = (self.at_us, key(set, number));
        let caller = Caller { id: 1, family: 1 };
        let access = Access { at_us, caller, bucket: 1, key: &key, op, size: BYTES, range: 0..BYTES };
        let seen = self.engine.observe(&access);
        let advice = self.engine.read(seen, &access, 0);
        self.engine.take_evicted().for_each(drop);
        advice
    }

    /// Reads all of a set in some order and counts the hits.
    fn pass(&mut self, set: &str, number: u64) -> usize {
        let mut order: Vec<u64> = (0..OBJECTS).collect();
        fastrand::Rng::with_seed(number).shuffle(&mut order);
        order.into_iter().filter(|at| self.ask(Op::Read, set, *at) == Advice::Kept).count()
    }

    fn kept(&self, set: &str) -> usize {
        let is_kept = |number: &u64| self.engine.is_kept(self.engine.block_id(1, &key(set, *number), 0));
        (0..OBJECTS).filter(is_kept).count()
    }
}

fn key(set: &str, number: u64) -> String {
    format!("{set}/{number:05}.jpg")
}

#[test]
fn a_dataset_left_for_another_is_evicted_within_a_pass() {
    for epochs in [2, 3, 6] {
        let mut bench = ReleaseBench::new();
        for pass in 0..epochs {
            bench.pass("a", pass);
        }
        assert_eq!(bench.kept("a"), ROOM as usize);
        bench.pass("b", 10);
        assert!(bench.kept("a") * 20 <= ROOM as usize, "{epochs}: {}", bench.kept("a"));
        let found = bench.pass("b", 11);
        assert!(found * 100 >= ROOM as usize * 95, "{epochs}: {found}");
    }
}

#[test]
fn deleted_blocks_leave_nothing_behind() {
    let mut bench = ReleaseBench::new();
    for pass in 0..3 {
        bench.pass("a", pass);
    }
    for number in 0..OBJECTS {
        bench.ask(Op::Delete, "a", number);
    }
    assert_eq!((bench.kept("a"), bench.engine.kept_bytes()), (0, 0));
}
