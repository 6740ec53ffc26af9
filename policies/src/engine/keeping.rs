//! Rules on the caching of blocks: never keep a block, keep it only after several reads, keep it by recency,
//! or change the weight of its reads.
//!
//! Pinned blocks stay regardless. A weight applies to a whole dataset, as of the last read of it: of two
//! rules that weigh objects of one dataset differently, the later read decides.

use super::dataset::EvictionOrder;
use super::table::EntryState;
use super::{Advice, CacheEngine, ObservedAccess};
use crate::access::Access;

/// Caching rule for a read; see the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CachingRule {
    /// The engine decides; the weight of the dataset's reads is left as it is.
    Unchanged,
    /// The engine decides; a read counts with this weight.
    Weighted(f32),
    /// The same, for blocks that were read this often; at most [`READS_MAX`].
    AfterReads(u32, f32),
    /// Every block is kept, and the least recently read of the blocks kept this way is evicted first. This
    /// holds until a read of the block under another rule. A block of the dataset that is added without a
    /// read is kept like the last block that was added or moved.
    Recency,
    /// The block is not kept; if it is, it is evicted.
    Never,
}

impl Default for CachingRule {
    fn default() -> Self {
        Self::Weighted(1.0)
    }
}

/// Maximum counted reads of a block that is not kept.
const READS_MAX: u32 = 4;

impl CacheEngine {
    /// Records a read of a block like [`CacheEngine::read`], under a caching rule.
    pub fn read_with_rule(
        &mut self,
        seen: ObservedAccess,
        access: &Access<'_>,
        block: u32,
        rule: CachingRule,
    ) -> Advice {
        let id = self.names.block_id(access.bucket, access.key, block);
        let slot = self.table.find(id);
        let place = slot.map_or(EntryState::NotKept, |slot| self.table[slot].state());
        match (rule, slot) {
            (CachingRule::Never, Some(slot)) if place.is_kept() && place != EntryState::Pinned => {
                self.remove_from_queue(slot);
                self.subtract_kept(slot);
                self.evicted.push(id);
                self.read_uncached(seen, access, block);
                Advice::Bypass
            }
            (CachingRule::Never, _) if !place.is_kept() => {
                self.read_uncached(seen, access, block);
                Advice::Bypass
            }
            (CachingRule::AfterReads(reads, _), _)
                if place == EntryState::NotKept && !self.has_reads(id, reads) =>
            {
                self.read_uncached(seen, access, block);
                if let Some(slot) = self.table.find(id) {
                    let frequency = self.table[slot].frequency();
                    self.table[slot].set_frequency(frequency + 1);
                }
                Advice::Bypass
            }
            (CachingRule::Weighted(weight) | CachingRule::AfterReads(_, weight), _) => {
                self.set_weight(seen, weight);
                self.read(seen, access, block)
            }
            (CachingRule::Recency, _) => self.read_block(seen, access, block, EvictionOrder::Recency),
            (CachingRule::Unchanged | CachingRule::Never, _) => self.read(seen, access, block),
        }
    }

    /// True if a block that is not kept was read this often, including the current read.
    fn has_reads(&self, id: u64, reads: u32) -> bool {
        let before = self.table.find(id).map_or(0, |slot| self.table[slot].frequency());
        before + 1 >= reads.min(READS_MAX)
    }

    fn set_weight(&mut self, seen: ObservedAccess, weight: f32) {
        let number = self.number(seen);
        let is_changed = self.datasets.get_mut(&number).is_some_and(|dataset| dataset.set_weight(weight));
        if is_changed {
            self.least_known = None;
        }
    }
}
