//! Input of the reference caches: each requested block, by number.

use super::{AccessBatch, CacheAlgorithm, Score, Scoring};
use crate::blocks::Blocks;
use crate::reference::{Event, OptimumOutcome, Sieve, optimum};
use mlgw_policies::BuildPassThroughHasher;
use mlgw_policies::access::{Access, Op};
use mlgw_policies::reference::{Lru, NeverEvict, ReferenceCache, S3Fifo};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Numbers objects in the order in which they first occur.
///
/// An object is identified by a hash of 64 bits. With ten million objects, a collision occurs in one of
/// about 400,000 simulations.
#[derive(Default)]
pub struct ObjectNumbers(HashMap<u64, u32, BuildPassThroughHasher>);

impl ObjectNumbers {
    /// Returns the number of the object.
    pub fn number(&mut self, access: &Access<'_>) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(xxh3_64_with_seed(access.key.as_bytes(), access.bucket)).or_insert(next)
    }

    /// Returns the numbers of the objects of a batch, in order.
    pub fn numbers(&mut self, batch: &AccessBatch) -> Vec<u32> {
        batch.iter().map(|(access, _)| self.number(&access)).collect()
    }

    /// Number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// Sequence of block accesses that each reference replays.
#[derive(Debug)]
pub struct BlockTrace {
    blocks: Blocks,
    events: Vec<Event>,
    /// Part of each event in the score: an event counts if its epoch is at least `--from-epoch`.
    scoring: Vec<Scoring>,
}

impl BlockTrace {
    /// Creates an empty sequence with blocks of `block_bytes` each.
    #[must_use]
    pub fn new(block_bytes: u32) -> Self {
        let blocks = Blocks::new(block_bytes);
        Self { blocks, events: Vec::new(), scoring: Vec::new() }
    }

    /// Adds an access to the object with this number.
    pub fn add(&mut self, object: u32, access: &Access<'_>, scoring: Scoring) {
        if access.op == Op::Delete {
            for block in self.blocks.known_blocks(object) {
                self.push(Event { block, bytes: 0, op: Op::Delete }, Scoring::WarmUp);
            }
            return;
        }
        for (block, bytes) in self.blocks.blocks_of(object, access.size, &access.range) {
            self.push(Event { block, bytes, op: access.op }, scoring);
        }
    }

    /// Looks objects up without any other effect, so that their entries are in the CPU cache when accesses
    /// to them are added.
    pub fn prefetch_memory(&self, objects: &[u32]) {
        objects.iter().for_each(|object| self.blocks.prefetch_memory(*object));
    }

    fn push(&mut self, event: Event, scoring: Scoring) {
        self.events.push(event);
        self.scoring.push(scoring);
    }

    /// Returns the events, each with true if it is a read that counts.
    fn scored_events(&self) -> impl Iterator<Item = (&Event, bool)> {
        assert_eq!(self.events.len(), self.scoring.len(), "each event has its part in the score");
        let is_scored =
            |(event, scoring): (&Event, &Scoring)| event.op == Op::Read && *scoring == Scoring::Counted;
        self.events.iter().zip(&self.scoring).map(move |one| (one.0, is_scored(one)))
    }

    /// Number of distinct blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.count() as usize
    }

    /// Number of events.
    #[must_use]
    pub fn events(&self) -> usize {
        self.events.len()
    }

    /// Bytes of all blocks that were read or written: a cache of that size holds everything.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let mut bytes = vec![0; self.blocks()];
        for event in &self.events {
            let known: &mut u32 = &mut bytes[event.block as usize];
            *known = event.bytes.max(*known);
        }
        bytes.into_iter().map(u64::from).sum()
    }

    /// Returns the score of a reference with a cache of `capacity_bytes`; `None` for the mlgw engine, whose
    /// input is more than blocks.
    #[must_use]
    pub fn score(&self, algorithm: CacheAlgorithm, capacity_bytes: u64) -> Option<Score> {
        match algorithm {
            CacheAlgorithm::Mlgw => None,
            CacheAlgorithm::Lru => Some(self.replay(&mut Lru::new(capacity_bytes))),
            CacheAlgorithm::S3Fifo => Some(self.replay(&mut S3Fifo::new(capacity_bytes))),
            CacheAlgorithm::Sieve => Some(self.replay(&mut Sieve::new(capacity_bytes))),
            CacheAlgorithm::NeverEvict => Some(self.replay(&mut NeverEvict::new(capacity_bytes))),
            CacheAlgorithm::Optimum => Some(self.optimum_score(capacity_bytes)),
        }
    }

    fn replay(&self, reference: &mut impl ReferenceCache) -> Score {
        let mut score = Score::default();
        for (event, is_scored) in self.scored_events() {
            if event.op == Op::Delete {
                reference.invalidate(event.block);
                continue;
            }
            match (is_scored, reference.access(event.block, event.bytes, event.op)) {
                (true, true) => score.count_hit(event.bytes),
                (true, false) => score.count_miss(event.bytes),
                (false, _) => {}
            }
        }
        score.written_bytes = reference.bytes_written();
        score
    }

    /// Score of the optimum. A deletion counts as a write to the block: a copy from before it is stale.
    fn optimum_score(&self, capacity_bytes: u64) -> Score {
        let mut score = Score::default();
        let outcomes = optimum(&self.events, capacity_bytes);
        for ((event, is_scored), outcome) in self.scored_events().zip(outcomes) {
            match (is_scored, outcome) {
                (true, OptimumOutcome::Hit) => score.count_hit(event.bytes),
                (true, OptimumOutcome::Admitted | OptimumOutcome::Bypassed) => score.count_miss(event.bytes),
                (false, _) => {}
            }
            let is_written = event.op == Op::Read && outcome == OptimumOutcome::Admitted;
            score.written_bytes += u64::from(event.bytes) * u64::from(is_written);
        }
        score
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockTrace, CacheAlgorithm, ObjectNumbers, Scoring};
    use mlgw_policies::access::{Access, Caller, Op};

    fn access(key: &str, op: Op) -> Access<'_> {
        let caller = Caller { id: 1, family: 1 };
        Access { at_us: 0, caller, bucket: 1, key, op, size: 25, range: 0..25 }
    }

    #[test]
    fn a_deleted_object_does_not_hit() {
        let (mut trace, mut objects) = (BlockTrace::new(10), ObjectNumbers::default());
        for op in [Op::Read, Op::Read, Op::Delete, Op::Read] {
            for key in ["a", "b"] {
                let access = access(key, op);
                trace.add(objects.number(&access), &access, Scoring::Counted);
            }
        }
        assert_eq!((objects.count(), trace.blocks(), trace.bytes(), trace.events()), (2, 6, 50, 24));
        for algorithm in CacheAlgorithm::ALL.iter().copied().skip(1) {
            let score = trace.score(algorithm, 1000).unwrap();
            assert_eq!((score.reads, score.hits, score.hit_bytes), (18, 6, 50), "{}", algorithm.name());
        }
        assert_eq!(trace.score(CacheAlgorithm::Mlgw, 1000), None);
    }
}
