//! Tests: the engine's invariants hold for any sequence of calls.

use crate::access::{Access, Caller, Op};
use crate::engine::{
    Advice, CacheEngine, CachingRule, ObservedAccess, Options, PlanReaders, ReadAheadLimits, ReadAheadOrder,
    ReadAheadOutcome, UnreadBlock,
};
use crate::plan::{Plan, PlanSchedule, Sampler};
use proptest::collection::vec;
use proptest::{prop_assert, proptest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Returns names in few folders and many, with numbers and without.
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

const AHEAD: ReadAheadLimits =
    ReadAheadLimits { blocks_max: 20, bytes_max: 1 << 20, order: ReadAheadOrder::Any };
const OUTCOMES: [ReadAheadOutcome; 7] = [
    ReadAheadOutcome::Used,
    ReadAheadOutcome::Late,
    ReadAheadOutcome::Used,
    ReadAheadOutcome::Late,
    ReadAheadOutcome::Wasted,
    ReadAheadOutcome::Declined,
    ReadAheadOutcome::Absent,
];

/// Returns a plan over these keys, in their order or another.
fn plan(number: u64, epochs: u32) -> Plan {
    let keys: Vec<String> = (0..97 * 6).step_by(6).map(key).collect();
    let sampler = if number % 4 == 3 { Sampler::TorchDistributed } else { Sampler::Sequential };
    let reading = PlanSchedule { sampler, epochs, ranks: 1 + number as u32 % 3, ..PlanSchedule::default() };
    let reading = if sampler == Sampler::Sequential { PlanSchedule { ranks: 1, ..reading } } else { reading };
    Plan::new(keys.iter().map(String::as_str).skip(number as usize), reading).unwrap()
}

/// An engine with an independent record of its advice.
struct EngineChecker {
    engine: CacheEngine,
    capacity: u64,
    kept: BTreeSet<u64>,
    pinned: BTreeSet<u64>,
    /// Read-ahead blocks by stream.
    waiting: BTreeMap<u64, u32>,
}

impl EngineChecker {
    fn new(capacity: u64, blocks_max: usize, numbers_max: usize) -> Self {
        let options = Options { capacity_bytes: capacity * 512, blocks_max, block_bytes: 2048, seed: 1 };
        let (kept, pinned, waiting) = Default::default();
        Self { engine: CacheEngine::with_numbers(options, numbers_max), capacity, kept, pinned, waiting }
    }

    fn take_evicted(&mut self) {
        for evicted in self.engine.take_evicted().collect::<Vec<_>>() {
            assert!(self.kept.remove(&evicted), "only kept blocks are evicted");
        }
    }

    /// Checks and records the advice on a block.
    fn check_advice(&mut self, id: u64, advice: Advice) {
        self.take_evicted();
        assert_eq!(advice == Advice::Kept, self.kept.contains(&id));
        if advice == Advice::Keep {
            self.kept.insert(id);
        }
    }

    fn adopt(&mut self, at_us: u64, block: &UnreadBlock<'_>) {
        let id = self.engine.block_id(block.bucket, block.key, block.number);
        let advice = self.engine.admit_unread(at_us, block);
        self.check_advice(id, advice);
    }

    /// Reads a block, followed by another action on it.
    fn read(&mut self, seen: ObservedAccess, access: &Access<'_>, block: u32, kind: u8) {
        let id = self.engine.block_id(1, access.key, block);
        let keeping = match kind {
            7 => CachingRule::Never,
            8 => CachingRule::AfterReads(3, 4.0),
            9 => CachingRule::Weighted(0.25),
            18..24 => CachingRule::Recency,
            _ => CachingRule::default(),
        };
        let advice = self.engine.read_with_rule(seen, access, block, keeping);
        self.check_advice(id, advice);
        if kind == 2 && self.kept.remove(&id) {
            self.engine.invalidate(id);
            self.pinned.remove(&id);
        }
        if kind == 3 {
            let unread = UnreadBlock { bucket: 1, key: access.key, size: access.size, number: block };
            let advice = self.engine.pin(access.at_us, &unread, self.capacity * 300);
            self.take_evicted();
            assert!(advice != Advice::Kept || self.kept.contains(&id));
            if advice != Advice::Bypass {
                self.kept.insert(id);
                self.pinned.insert(id);
            }
        }
        if kind == 4 && self.pinned.remove(&id) {
            self.engine.unpin(id);
        }
    }

    fn plan(&mut self, what: u32, size: u64, kind: u8, caller: Caller) {
        if kind == 3 {
            let who = if what.is_multiple_of(2) {
                PlanReaders::Caller(caller.id)
            } else {
                PlanReaders::Family(caller.family)
            };
            let number = u64::from(what % 5);
            self.engine.put_plan(number, who, 1, plan(number, 1 + what % 3)).unwrap();
        }
        if what % 40 == 39 {
            self.engine.drop_plan(size % 5);
        }
    }

    /// Adopts the blocks that are proposed for read-ahead.
    fn ahead(&mut self, seen: ObservedAccess, access: &Access<'_>, outcome: ReadAheadOutcome) {
        let mut next = Vec::new();
        self.engine.read_ahead(seen, access, &AHEAD, &mut next);
        for next in next {
            let under_way = self.waiting.entry(next.stream).or_default();
            *under_way += next.blocks;
            assert!(*under_way <= AHEAD.blocks_max, "at most the allowed number");
            for number in next.first..next.first + next.blocks {
                let id = self.engine.block_id(next.bucket, &next.key, number);
                assert!(!self.kept.contains(&id), "kept blocks are not read ahead");
                let size = access.size;
                self.adopt(access.at_us, &UnreadBlock { bucket: next.bucket, key: &next.key, size, number });
            }
            self.engine.record_ahead_outcome(next.stream, next.bucket, &next.key, outcome, next.blocks);
            *self.waiting.entry(next.stream).or_default() -= next.blocks;
        }
    }
}

proptest! {
    #[test]
    fn kept_blocks_equal_the_advice(
        steps in vec((0..600_u32, 0..12_u64, 1..3_000_u64, 0..24_u8), 1..700),
        capacity in 1..200_u64,
        blocks in 20..300_usize,
        numbers in 4..200_usize,
    ) {
        let mut books = EngineChecker::new(capacity, blocks, numbers);
        // An access observed long ago, with its block read only now.
        let mut waiting: VecDeque<(ObservedAccess, String)> = VecDeque::new();
        let mut planned = 0..;
        for (number, (what, caller, size, kind)) in steps.into_iter().enumerate() {
            let is_planned = (10..20).contains(&kind);
            let (what, caller) = if is_planned { (planned.next().unwrap() * 6, 0) } else { (what, caller) };
            let key = key(what);
            let caller = Caller { id: caller, family: caller / 3 };
            books.plan(what, size, kind, caller);
            let op = if kind == 0 { Op::Write } else { Op::Read };
            let at_us = number as u64 * 1000;
            let size = if what % 5 == 0 { size * 4 } else { size };
            let range = if kind == 1 { size / 2..size } else { 0..size };
            let access = Access { at_us, caller, bucket: 1, key: &key, op, size, range };
            let seen = books.engine.observe(&access);
            for block in access.range.start / 2048..=(size - 1) / 2048 {
                books.read(seen, &access, block as u32, kind);
            }
            if kind == 5 {
                books.engine.set_capacity(at_us, capacity * (300 + size % 212));
                books.take_evicted();
            }
            if kind == 6 {
                books.adopt(at_us, &UnreadBlock { bucket: 1, key: "train/00001.jpg", size, number: 0 });
            }
            prop_assert!(books.pinned.is_subset(&books.kept));
            prop_assert!(books.kept.iter().all(|id| books.engine.is_kept(*id)));
            books.ahead(seen, &access, OUTCOMES[number % OUTCOMES.len()]);
            if number % 16 == 0 {
                books.engine.check();
            }
            waiting.push_back((seen, key.clone()));
            if waiting.len() > 40
                && let Some((seen, key)) = waiting.pop_front()
            {
                let access = Access { key: &key, size: 512, range: 0..512, ..access };
                books.read(seen.at(at_us), &access, 0, kind);
                let _ = (books.engine.pattern(seen, at_us), books.engine.passes(seen));
                let _ = books.engine.dataset(seen);
            }
            let _ = (books.engine.pattern(seen, at_us), books.engine.passes(seen));
        }
        books.engine.check();
    }
}
