//! Outcomes of caching decisions: copies that were read again, copies that were evicted unread, and blocks
//! that were missed afterwards.
//!
//! Each copy is attributed to the rule that requested it, or to the engine where none did. Invariant: at most
//! [`BLOCKS_MAX`] blocks are remembered. Beyond that a sample of all ids is tracked, and counts are scaled to
//! represent all blocks (spatially hashed sampling as in Waldspurger et al., "Efficient MRC Construction with
//! SHARDS", FAST 2015). A crash loses the counts.

use crate::block::BuildPassThroughHasher;
use crate::engine::Advice;
use std::collections::HashMap;

/// Maximum remembered blocks; 24 bytes each.
const BLOCKS_MAX: usize = 1 << 18;
/// Maximum distinguished rules, over all policies so far; further ones count as the engine.
const CAUSES_MAX: usize = 1 << 12;
const _: () = assert!(CAUSES_MAX <= 1 << u16::BITS, "a cause is a number of 16 bits");

/// Cause of a copy: the engine or a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CopyCause(u16);

/// Number of blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCount {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
}

impl BlockCount {
    fn add(&mut self, blocks: u64, bytes: u32) {
        self.blocks += blocks;
        self.bytes += blocks * u64::from(bytes);
    }
}

/// Outcomes of the copies of one cause since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyTally {
    /// Copies that were made.
    pub kept: BlockCount,
    /// Copies that were read again.
    pub used: BlockCount,
    /// Copies that were evicted for lack of room before any read.
    pub wasted: BlockCount,
    /// Copies that were evicted and requested afterwards.
    pub missed: BlockCount,
    /// Blocks that were bypassed and requested again.
    pub passed_again: BlockCount,
}

/// Last decision on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyState {
    Kept,
    Used,
    Evicted,
    Passed,
}

#[derive(Clone, Copy, Debug)]
struct TrackedCopy {
    cause: CopyCause,
    state: CopyState,
    bytes: u32,
}

/// Outcomes by cause; see the module.
#[derive(Debug)]
pub struct CopyOutcomes {
    /// Ids of rules; the first is the engine.
    causes: Vec<Box<str>>,
    tallies: Vec<CopyTally>,
    blocks: HashMap<u64, TrackedCopy, BuildPassThroughHasher>,
    /// The sample contains one block in 2 to the power of this.
    shift: u32,
    blocks_max: usize,
}

impl Default for CopyOutcomes {
    fn default() -> Self {
        Self::new(BLOCKS_MAX)
    }
}

impl CopyOutcomes {
    fn new(blocks_max: usize) -> Self {
        let (causes, tallies) = (vec!["".into()], vec![CopyTally::default()]);
        Self { causes, tallies, blocks: HashMap::default(), shift: 0, blocks_max }
    }

    /// Returns the cause that represents a rule.
    pub fn cause(&mut self, rule: &str) -> CopyCause {
        let known = self.causes.iter().position(|one| &**one == rule);
        CopyCause(known.unwrap_or_else(|| self.add_cause(rule)) as u16)
    }

    fn add_cause(&mut self, rule: &str) -> usize {
        if self.causes.len() >= CAUSES_MAX {
            return 0;
        }
        self.causes.push(rule.into());
        self.tallies.push(CopyTally::default());
        assert_eq!(self.causes.len(), self.tallies.len(), "each cause has a tally");
        self.causes.len() - 1
    }

    /// Records a read of a block of `bytes` bytes, and the advice that was given because of `cause`.
    pub fn read(&mut self, id: u64, bytes: u32, advice: Advice, cause: CopyCause) {
        if !self.is_sampled(id) {
            return;
        }
        let weight = 1 << self.shift;
        let before = self.blocks.get_mut(&id);
        if let Some(fate) = before {
            let tally = &mut self.tallies[fate.cause.0 as usize];
            match fate.state {
                CopyState::Kept if advice == Advice::Kept => {
                    tally.used.add(weight, fate.bytes);
                    fate.state = CopyState::Used;
                }
                CopyState::Evicted => tally.missed.add(weight, fate.bytes),
                CopyState::Passed => tally.passed_again.add(weight, fate.bytes),
                CopyState::Kept | CopyState::Used => {}
            }
            if advice == Advice::Kept {
                return;
            }
        }
        let state = match advice {
            Advice::Kept => return,
            Advice::Keep => CopyState::Kept,
            Advice::Bypass => CopyState::Passed,
        };
        if state == CopyState::Kept {
            self.tallies[cause.0 as usize].kept.add(weight, bytes);
        }
        self.make_room();
        if self.is_sampled(id) {
            self.blocks.insert(id, TrackedCopy { cause, state, bytes });
            assert!(self.blocks.len() <= self.blocks_max, "remembered blocks are limited");
        }
    }

    /// True if the block is remembered.
    #[must_use]
    pub fn is_tracked(&self, id: u64) -> bool {
        self.is_sampled(id) && self.blocks.contains_key(&id)
    }

    /// Records that a block was evicted for lack of room.
    pub fn evicted(&mut self, id: u64) {
        let Some(fate) = self.blocks.get_mut(&id) else { return };
        if fate.state == CopyState::Kept {
            self.tallies[fate.cause.0 as usize].wasted.add(1 << self.shift, fate.bytes);
        }
        fate.state = CopyState::Evicted;
    }

    /// Records that a block disappeared without a decision.
    pub fn invalidate(&mut self, id: u64) {
        self.blocks.remove(&id);
    }

    /// Returns the outcomes of the copies of one cause.
    #[must_use]
    pub fn tally(&self, cause: CopyCause) -> CopyTally {
        self.tallies[cause.0 as usize]
    }

    /// Returns the outcomes of all causes: rules by id, the engine as an empty string.
    pub fn tallies(&self) -> impl Iterator<Item = (&str, &CopyTally)> {
        self.causes.iter().map(|rule| &**rule).zip(&self.tallies)
    }

    fn is_sampled(&self, id: u64) -> bool {
        id & ((1 << self.shift) - 1) == 0
    }

    /// Makes room: forgets blocks that are not kept, and if that is not enough, halves the sample.
    fn make_room(&mut self) {
        if self.blocks.len() < self.blocks_max {
            return;
        }
        self.blocks.retain(|_, fate| matches!(fate.state, CopyState::Kept | CopyState::Used));
        while self.blocks.len() > self.blocks_max / 4 * 3 {
            self.shift += 1;
            let mask = (1 << self.shift) - 1;
            self.blocks.retain(|id, _| id & mask == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockCount, CopyCause, CopyOutcomes, CopyTally};
    use crate::block::mix_hash;
    use crate::engine::Advice::{self, Bypass, Keep, Kept};

    const ENGINE: CopyCause = CopyCause(0);

    fn record(outcomes: &mut CopyOutcomes, decisions: &[(u64, Option<Advice>)], cause: CopyCause) {
        for (id, advice) in decisions {
            match advice {
                Some(advice) => outcomes.read(*id, 10, *advice, cause),
                None => outcomes.evicted(*id),
            }
        }
    }

    fn counts(tally: CopyTally) -> [u64; 5] {
        let CopyTally { kept, used, wasted, missed, passed_again } = tally;
        assert!([kept, used, wasted, missed, passed_again].iter().all(|one| one.bytes == one.blocks * 10));
        [kept, used, wasted, missed, passed_again].map(|BlockCount { blocks, .. }| blocks)
    }

    #[test]
    fn each_copy_is_used_or_wasted_once_and_missed_when_requested_again() {
        let mut outcomes = CopyOutcomes::default();
        record(&mut outcomes, &[(1, Some(Keep)), (1, Some(Kept)), (1, Some(Kept)), (1, None)], ENGINE);
        assert_eq!(counts(outcomes.tally(ENGINE)), [1, 1, 0, 0, 0]);
        record(
            &mut outcomes,
            &[(2, Some(Keep)), (2, None), (2, Some(Keep)), (2, None), (2, Some(Bypass))],
            ENGINE,
        );
        assert_eq!(counts(outcomes.tally(ENGINE)), [3, 1, 2, 2, 0]);
        record(&mut outcomes, &[(3, Some(Bypass)), (3, Some(Bypass)), (3, Some(Keep))], ENGINE);
        assert_eq!(counts(outcomes.tally(ENGINE)), [4, 1, 2, 2, 2]);
        outcomes.invalidate(3);
        record(&mut outcomes, &[(3, Some(Keep)), (4, Some(Kept)), (5, None)], ENGINE);
        assert_eq!(
            counts(outcomes.tally(ENGINE)),
            [5, 1, 2, 2, 2],
            "lost blocks and blocks without a decision are not attributed"
        );
    }

    #[test]
    fn each_rule_has_its_own_outcomes() {
        let mut outcomes = CopyOutcomes::default();
        let (one, other) = (outcomes.cause("one"), outcomes.cause("other"));
        assert_eq!(outcomes.cause("one"), one);
        record(&mut outcomes, &[(1, Some(Keep))], one);
        // A read counts as use for the rule that kept the copy, whoever reads it.
        record(&mut outcomes, &[(2, Some(Keep)), (1, Some(Kept))], other);
        let counts_by_rule: Vec<_> =
            outcomes.tallies().map(|(rule, tally)| (rule.to_owned(), counts(*tally))).collect();
        let expected = [("", [0; 5]), ("one", [1, 1, 0, 0, 0]), ("other", [1, 0, 0, 0, 0])];
        assert_eq!(counts_by_rule, expected.map(|(rule, counts)| (rule.to_owned(), counts)));
    }

    #[test]
    fn a_sample_represents_all_blocks_within_the_limit() {
        let mut outcomes = CopyOutcomes::new(1 << 10);
        for block in 0..100_000_u64 {
            outcomes.read(mix_hash(block), 10, Keep, ENGINE);
            if block >= 10_000 {
                outcomes.evicted(mix_hash(block - 10_000));
            }
            assert!(outcomes.blocks.len() <= 1 << 10);
        }
        let [kept, used, wasted, missed, _] = counts(outcomes.tally(ENGINE));
        assert!(outcomes.shift > 2 && used == 0 && missed == 0);
        assert!(kept.abs_diff(100_000) < 10_000 && wasted.abs_diff(90_000) < 12_000, "{kept} {wasted}");
    }
}
