//! Hit ratios that other caches would have reached: LRU, S3-FIFO and never-evict, simulated beside the engine
//! on a sample of all blocks.
//!
//! A block belongs to the sample or not by its id, and the simulated caches have that share of the capacity
//! (spatially hashed sampling as in Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 2015;
//! for caches other than LRU: Waldspurger et al., "Cache Modeling and Optimization using Miniature
//! Simulations", ATC 2017). Invariant: at most [`BLOCKS_MAX`] blocks are remembered; if more are read, half
//! of them leave the sample. A crash loses the counts.

use crate::access::Op;
use crate::block::BuildPassThroughHasher;
use crate::engine::{Advice, DatasetId};
use crate::reference::{Lru, NeverEvict, ReferenceCache as _, S3Fifo};
use std::collections::HashMap;

/// Maximum blocks of the sample; about 90 bytes each.
const BLOCKS_MAX: usize = 1 << 15;
/// Maximum distinguished datasets, as many as the engine has. Beyond that the least read half counts as one.
const DATASETS_MAX: usize = 1 << 12;
/// Number of sampled reads after which earlier counts weigh half.
const HALF_READS: u32 = 1 << 17;
/// A block that was not read for this many sampled reads per block of the sample is dropped first.
const SILENT_READS_PER_BLOCK: u32 = 8;

/// Recent reads and hits in the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SimulatedHits {
    /// Bytes of the blocks that were read.
    pub bytes: f64,
    /// Bytes that were kept here.
    pub here: f64,
    /// Bytes that LRU would have kept.
    pub lru: f64,
    /// Bytes that S3-FIFO would have kept.
    pub s3_fifo: f64,
    /// Bytes that would have been kept if nothing was ever evicted.
    pub never_evict: f64,
}

impl SimulatedHits {
    fn all(&mut self) -> [&mut f64; 5] {
        let Self { bytes, here, lru, s3_fifo, never_evict } = self;
        [bytes, here, lru, s3_fifo, never_evict]
    }

    fn add(&mut self, bytes: u32, hits: [bool; 4]) {
        let bytes = f64::from(bytes);
        for (sum, counts) in self.all().into_iter().zip([true].into_iter().chain(hits)) {
            *sum += if counts { bytes } else { 0.0 };
        }
    }

    fn join(&mut self, mut other: Self) {
        self.all().into_iter().zip(other.all()).for_each(|(sum, count)| *sum += *count);
    }

    /// Returns the byte hit ratios here and for LRU, S3-FIFO and never-evict; `None` before the first read.
    #[must_use]
    pub fn ratios(&self) -> Option<[f64; 4]> {
        let of = |hits: f64| hits / self.bytes;
        (self.bytes > 0.0).then(|| [of(self.here), of(self.lru), of(self.s3_fifo), of(self.never_evict)])
    }
}

#[derive(Clone, Copy)]
struct SampledBlock {
    number: u32,
    read_at: u32,
}

/// Simulated caches; see the module.
pub struct ShadowCaches {
    capacity_bytes: u64,
    shift: u32,
    blocks_max: usize,
    blocks: HashMap<u64, SampledBlock, BuildPassThroughHasher>,
    free: Vec<u32>,
    reads: u32,
    lru: Lru,
    s3_fifo: S3Fifo,
    never_evict: NeverEvict,
    datasets: HashMap<DatasetId, SimulatedHits>,
    /// Counts of datasets that are no longer distinguished.
    others: SimulatedHits,
}

impl ShadowCaches {
    /// Returns caches with the capacity of the engine.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self::with_blocks(capacity_bytes, BLOCKS_MAX)
    }

    fn with_blocks(capacity_bytes: u64, blocks_max: usize) -> Self {
        Self {
            capacity_bytes,
            shift: 0,
            blocks_max,
            blocks: HashMap::default(),
            free: Vec::new(),
            reads: 0,
            lru: Lru::new(capacity_bytes),
            s3_fifo: S3Fifo::new(capacity_bytes),
            never_evict: NeverEvict::new(capacity_bytes),
            datasets: HashMap::new(),
            others: SimulatedHits::default(),
        }
    }

    /// Sets the capacity of the engine.
    pub fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
        let share = capacity_bytes >> self.shift;
        self.lru.set_capacity(share);
        self.s3_fifo.set_capacity(share);
        self.never_evict.set_capacity(share);
    }

    /// Records a read of a block of a dataset, and the engine's advice on it.
    pub fn read(&mut self, dataset: DatasetId, id: u64, bytes: u32, advice: Advice) {
        if !self.is_sampled(id) {
            return;
        }
        if self.blocks.len() >= self.blocks_max && !self.blocks.contains_key(&id) {
            self.make_room();
            if !self.is_sampled(id) {
                return;
            }
        }
        self.reads = self.reads.wrapping_add(1);
        let (next, free) = (self.blocks.len() as u32, &mut self.free);
        let block = self.blocks.entry(id).or_insert_with(|| {
            // A free number: one that was given back, or the first that was never used.
            SampledBlock { number: free.pop().unwrap_or(next), read_at: 0 }
        });
        block.read_at = self.reads;
        let number = block.number;
        assert!(self.blocks.len() <= self.blocks_max, "the sample is limited");
        let hits = [
            advice == Advice::Kept,
            self.lru.access(number, bytes, Op::Read),
            self.s3_fifo.access(number, bytes, Op::Read),
            self.never_evict.access(number, bytes, Op::Read),
        ];
        if self.datasets.len() >= DATASETS_MAX && !self.datasets.contains_key(&dataset) {
            self.join_smallest();
            assert!(self.datasets.len() < DATASETS_MAX, "merged datasets leave room for another");
        }
        self.datasets.entry(dataset).or_default().add(bytes, hits);
        if self.reads.is_multiple_of(HALF_READS) {
            let all = self.datasets.values_mut().chain([&mut self.others]);
            all.flat_map(SimulatedHits::all).for_each(|sum| *sum /= 2.0);
        }
    }

    /// Forgets a block of an object that has a new version.
    pub fn forget(&mut self, id: u64) {
        if let Some(block) = self.blocks.remove(&id) {
            self.drop_number(block.number);
        }
    }

    /// Returns the recent counts by dataset, in bytes of the sample.
    pub fn datasets(&self) -> impl Iterator<Item = (DatasetId, SimulatedHits)> + '_ {
        self.datasets.iter().map(|(number, counts)| (*number, *counts))
    }

    /// Returns the recent counts of all datasets together.
    #[must_use]
    pub fn total(&self) -> SimulatedHits {
        let mut total = self.others;
        self.datasets.values().for_each(|counts| total.join(*counts));
        total
    }

    /// Merges the half of the datasets with the fewest recent reads.
    fn join_smallest(&mut self) {
        let mut all: Vec<(DatasetId, SimulatedHits)> = self.datasets().collect();
        all.sort_unstable_by(|(a, one), (b, other)| one.bytes.total_cmp(&other.bytes).then(a.cmp(b)));
        all.truncate(DATASETS_MAX / 2);
        for (dataset, counts) in all {
            self.datasets.remove(&dataset);
            self.others.join(counts);
        }
    }

    fn is_sampled(&self, id: u64) -> bool {
        id & ((1 << self.shift) - 1) == 0
    }

    fn drop_number(&mut self, number: u32) {
        self.lru.invalidate(number);
        self.s3_fifo.invalidate(number);
        self.never_evict.invalidate(number);
        self.free.push(number);
    }

    /// Makes room: drops blocks without a recent read, and if that is not enough, halves the sample.
    fn make_room(&mut self) {
        let (reads, silent) = (self.reads, SILENT_READS_PER_BLOCK.saturating_mul(self.blocks.len() as u32));
        self.drop_unless(|_, block| reads.wrapping_sub(block.read_at) <= silent);
        while self.blocks.len() > self.blocks_max / 4 * 3 {
            self.shift += 1;
            let mask = (1 << self.shift) - 1;
            self.drop_unless(|id, _| id & mask == 0);
            self.set_capacity(self.capacity_bytes);
        }
    }

    fn drop_unless(&mut self, keep: impl Fn(u64, &SampledBlock) -> bool) {
        let gone: Vec<u64> =
            self.blocks.iter().filter(|(id, block)| !keep(**id, block)).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.forget(id));
    }
}

#[cfg(test)]
mod tests {
    use super::{Advice, DATASETS_MAX, DatasetId, ShadowCaches};
    use crate::block::mix_hash;
    use fastrand::Rng;

    const KIB: u32 = 1 << 10;

    /// Reads all blocks of a KiB each, in another order each time.
    fn pass(shadow: &mut ShadowCaches, number: u16, blocks: u64, seed: u64) {
        let mut order: Vec<u64> = (0..blocks).collect();
        Rng::with_seed(seed).shuffle(&mut order);
        for block in order {
            shadow.read(
                DatasetId::first(number),
                mix_hash(block ^ u64::from(number) << 32),
                KIB,
                Advice::Keep,
            );
        }
    }

    #[test]
    fn never_evict_hits_the_share_that_fits_and_lru_less_also_with_sampling() {
        for blocks_max in [1 << 15, 1 << 10] {
            let mut shadow = ShadowCaches::with_blocks(4000 << 10, blocks_max);
            pass(&mut shadow, 1, 8000, 0);
            let first = shadow.total();
            for seed in 1..6 {
                pass(&mut shadow, 1, 8000, seed);
            }
            let [here, lru, _, never_evict] = {
                let mut all = shadow.total();
                let mut before = first;
                all.all().into_iter().zip(before.all()).for_each(|(sum, count)| *sum -= *count);
                all.ratios().unwrap()
            };
            assert!(here == 0.0 && (0.42..0.57).contains(&never_evict), "{blocks_max}: {never_evict}");
            assert!(lru < never_evict - 0.1, "{blocks_max}: {lru} beside {never_evict}");
            assert!(shadow.blocks.len() <= blocks_max && (shadow.shift > 0) == (blocks_max < 8000));
        }
    }

    #[test]
    fn counts_are_per_dataset_and_silent_blocks_leave_before_the_sample_shrinks() {
        let mut shadow = ShadowCaches::with_blocks(1 << 30, 1 << 10);
        pass(&mut shadow, 7, 300, 0);
        for seed in 0..60 {
            pass(&mut shadow, 8, 400, seed);
        }
        for round in 0..20_u64 {
            pass(&mut shadow, 9, 20, round);
            (0..20).for_each(|block| {
                let id = mix_hash(block + round * 20 + (1 << 40));
                shadow.read(DatasetId::first(10), id, KIB, Advice::Kept);
            });
        }
        let mut datasets: Vec<DatasetId> = shadow.datasets().map(|(dataset, _)| dataset).collect();
        datasets.sort_unstable();
        assert_eq!(datasets, [7, 8, 9, 10].map(DatasetId::first));
        let of = |number| {
            let id = DatasetId::first(number);
            shadow.datasets().find(|(dataset, _)| *dataset == id).unwrap().1.ratios().unwrap()
        };
        assert_eq!((of(7), of(10)), ([0.0; 4], [1.0, 0.0, 0.0, 0.0]));
        assert!(of(8)[1] > 0.97 && shadow.shift == 0, "{} {:?}", shadow.shift, of(8));
    }
    #[test]
    fn the_smallest_of_many_datasets_are_merged_without_loss() {
        let mut shadow = ShadowCaches::with_blocks(1 << 30, 1 << 10);
        let mut id = DatasetId::first(1);
        for round in 0..3 * DATASETS_MAX as u64 {
            shadow.read(DatasetId::first(2), 1, KIB, Advice::Kept);
            shadow.read(id, 2, KIB, Advice::Kept);
            id = id.next();
            assert!(shadow.datasets().count() <= DATASETS_MAX, "{round}");
        }
        let large = shadow.datasets().find(|(dataset, _)| *dataset == DatasetId::first(2)).unwrap().1;
        assert_eq!(large.bytes, (3 * DATASETS_MAX) as f64 * f64::from(KIB));
        assert_eq!(shadow.total().bytes, 2.0 * large.bytes);
    }
}
