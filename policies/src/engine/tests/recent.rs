//! Tests: blocks kept by recency compared with a plain LRU, and beside blocks kept otherwise.

use crate::access::{Access, Caller, Op};
use crate::engine::{Advice, CacheEngine, CachingRule, Options};
use crate::reference::{Lru, ReferenceCache as _};
use proptest::collection::vec;
use proptest::{prop_assert_eq, proptest};

const BLOCK_BYTES: u64 = 1024;

fn engine(blocks: u64) -> CacheEngine {
    let capacity_bytes = blocks * BLOCK_BYTES;
    CacheEngine::new(Options { capacity_bytes, blocks_max: 1 << 16, block_bytes: 8 << 20, seed: 3 })
}

/// Pseudorandom numbers (Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
fn mixed(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns one of `of` numbers, some of them much more often than others.
fn skewed(n: u64, of: u64) -> u64 {
    let share = (mixed(n) >> 11) as f64 / (1_u64 << 53) as f64;
    (share.powi(3) * of as f64) as u64
}

/// Reads single-block objects one after the other.
struct Reader {
    engine: CacheEngine,
    at_us: u64,
}

impl Reader {
    fn new(blocks: u64) -> Self {
        Self { engine: engine(blocks), at_us: 0 }
    }

    fn read_of(&mut self, caller: u64, key: &str, size: u64, keeping: CachingRule) -> bool {
        self.at_us += 1000;
        let caller = Caller { id: caller, family: caller };
        let at_us = self.at_us;
        let access = Access { at_us, caller, bucket: 1, key, op: Op::Read, size, range: 0..size };
        let seen = self.engine.observe(&access);
        let advice = self.engine.read_with_rule(seen, &access, 0, keeping);
        self.engine.take_evicted().for_each(drop);
        advice == Advice::Kept
    }

    fn read(&mut self, caller: u64, key: &str, keeping: CachingRule) -> bool {
        self.read_of(caller, key, BLOCK_BYTES, keeping)
    }
}

/// Returns the hits of the engine, with all blocks kept by recency, and those of LRU.
fn hits(blocks: u64, numbers: impl Iterator<Item = u64>) -> (Vec<bool>, Vec<bool>) {
    let (mut reader, mut lru) = (Reader::new(blocks), Lru::new(blocks * BLOCK_BYTES));
    numbers
        .map(|number| {
            // Numbers map to two datasets with objects of different sizes.
            let size = BLOCK_BYTES * (1 + number % 3);
            let key = format!("{}/{number:05}", ["a", "b"][(number / 7 % 2) as usize]);
            let ours = reader.read_of(number % 5, &key, size, CachingRule::Recency);
            reader.engine.check();
            (ours, lru.access(number as u32, size as u32, Op::Read))
        })
        .unzip()
}

#[test]
fn it_hits_what_lru_hits() {
    for blocks in [1, 2, 7, 60, 200] {
        let (ours, lru) = hits(blocks, (0..6000).map(|n| skewed(n, 200)));
        assert_eq!(ours, lru, "{blocks}");
        // A loop that fits, interleaved with scans that do not.
        let scan = |n: u64| if n % 400 < 250 { n % 50 } else { 1000 + n };
        let (ours, lru) = hits(blocks, (0..4000).map(scan));
        assert_eq!(ours, lru, "{blocks}");
        assert!(blocks < 200 || lru.iter().filter(|hit| **hit).count() > 1900);
    }
}

proptest! {
    #[test]
    fn hits_equal_those_of_lru_for_any_reads(numbers in vec(0..90_u64, 1..500), blocks in 1..80_u64) {
        let (ours, lru) = hits(blocks, numbers.into_iter());
        prop_assert_eq!(ours, lru);
    }
}

/// Returns the hit ratios of a loop that does not fit and of skewed reads, alternating, once caches are full.
fn loop_and_skewed(blocks: u64, keeping: [CachingRule; 2]) -> [f64; 2] {
    let mut reader = Reader::new(blocks);
    let (mut hits, mut reads) = ([0; 2], 0);
    for n in 0..16_000_u64 {
        let (pass, at) = (n / 1000, n % 1000);
        // Each pass in another order.
        let turn = (at * 37 + pass * 411) % 1000;
        let keys = [format!("train/{turn:05}.jpg"), format!("table/{:05}.sst", skewed(n, 1000))];
        for job in 0..2 {
            let is_hit = reader.read(job as u64, &keys[job], keeping[job]);
            hits[job] += u32::from(is_hit && pass >= 6);
        }
        reads += u32::from(pass >= 6);
    }
    reader.engine.check();
    hits.map(|hits| f64::from(hits) / f64::from(reads))
}

#[test]
fn a_dataset_that_is_kept_so_gets_its_hits_and_another_keeps_its_share() {
    let plain = CachingRule::default();
    for blocks in [200, 400, 800] {
        let before = loop_and_skewed(blocks, [plain, plain]);
        let after = loop_and_skewed(blocks, [plain, CachingRule::Recency]);
        let found = format!("{blocks}: {before:?} {after:?}");
        assert!(after[1] >= before[1], "{found}");
        assert!(after[0] >= 0.7 * before[0], "{found}");
        assert!(after[0] + after[1] >= before[0] + before[1], "{found}");
        // A scan kept by recency takes almost nothing from a loop.
        let [alone, beside] =
            [CachingRule::Never, CachingRule::Recency].map(|of_scan| loop_and_scan(blocks, of_scan));
        assert!(beside >= 0.95 * alone, "{blocks}: {alone} {beside}");
    }
}

/// Returns the hit ratio of a loop of a thousand blocks beside a scan.
fn loop_and_scan(blocks: u64, of_scan: CachingRule) -> f64 {
    let mut reader = Reader::new(blocks);
    let (mut hits, mut reads) = (0, 0);
    for n in 0..10_000_u64 {
        let is_hit = reader.read(1, &format!("train/{:05}.jpg", n % 1000), CachingRule::default());
        assert!(!reader.read(2, &format!("log/{n:06}"), of_scan));
        hits += u32::from(is_hit && n >= 4000);
        reads += u32::from(n >= 4000);
    }
    f64::from(hits) / f64::from(reads)
}

#[test]
fn who_reads_a_block_last_says_how_it_is_kept() {
    let mut reader = Reader::new(40);
    let parts = |reader: &Reader| {
        let recent = reader.engine.recent.kept_bytes() / BLOCK_BYTES;
        (recent, reader.engine.kept_bytes() / BLOCK_BYTES - recent)
    };
    let read_all = |reader: &mut Reader, keeping: CachingRule| {
        for n in 0..30 {
            reader.read(1, &format!("a/{n:03}"), keeping);
            reader.engine.check();
        }
    };
    for _ in 0..3 {
        read_all(&mut reader, CachingRule::Recency);
        assert_eq!(parts(&reader), (30, 0));
        // Two workloads with different rules move the blocks that they read, and no others.
        assert!(reader.read(2, "a/007", CachingRule::default()));
        assert_eq!(parts(&reader), (29, 1));
        assert!(reader.read(1, "a/007", CachingRule::Recency));
        assert_eq!(parts(&reader), (30, 0));
        read_all(&mut reader, CachingRule::default());
        assert_eq!(parts(&reader), (0, 30));
    }
}
