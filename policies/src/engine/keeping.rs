//! Rules on the caching of blocks: never keep a block, keep it only after several reads, keep it by recency,
//! or change the weight of its reads.
//!
//! Pinned blocks stay regardless. A weight applies to a whole dataset, as of the last read of it: of two
//! rules that weigh objects of one dataset differently, the later read decides.

use super::table::Place;
use super::{Advice, Engine, Seen};
use crate::access::Access;

/// Caching rule for a read; see the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keeping {
    /// The engine decides; the weight of the dataset's reads is left as it is.
    AsBefore,
    /// The engine decides; a read counts with this weight.
    Weighed(f32),
    /// The same, for blocks that were read this often; at most [`READS_MAX`].
    After(u32, f32),
    /// Every block is kept, and the least recently read of the blocks kept this way is evicted first. This
    /// holds until a read of the block under another rule. A block of the dataset that is added without a
    /// read is kept like the last block that was added or moved.
    Recent,
    /// The block is not kept; if it is, it is evicted.
    Never,
}

impl Default for Keeping {
    fn default() -> Self {
        Self::Weighed(1.0)
    }
}

/// Maximum counted reads of a block that is not kept.
const READS_MAX: u32 = 4;

impl Engine {
    /// Records a read of a block like [`Engine::read`], under a caching rule.
    pub fn read_as(&mut self, seen: Seen, access: &Access<'_>, block: u32, keeping: Keeping) -> Advice {
        let id = self.names.block_id(access.bucket, access.key, block);
        let slot = self.table.find(id);
        let place = slot.map_or(Place::Away, |slot| self.table[slot].place());
        match (keeping, slot) {
            (Keeping::Never, Some(slot)) if place.is_kept() && place != Place::Pinned => {
                self.leave(slot);
                self.kept_bytes -= self.table[slot].bytes();
                self.evicted.push(id);
                self.follow(seen, access, block);
                Advice::Bypass
            }
            (Keeping::Never, _) if !place.is_kept() => {
                self.follow(seen, access, block);
                Advice::Bypass
            }
            (Keeping::After(reads, _), _) if place == Place::Away && !self.was_read(id, reads) => {
                self.follow(seen, access, block);
                if let Some(slot) = self.table.find(id) {
                    let frequency = self.table[slot].frequency();
                    self.table[slot].set_frequency(frequency + 1);
                }
                Advice::Bypass
            }
            (Keeping::Weighed(weight) | Keeping::After(_, weight), _) => {
                self.weigh(seen, weight);
                self.read(seen, access, block)
            }
            (Keeping::Recent, _) => self.read_to_keep(seen, access, block, true),
            (Keeping::AsBefore | Keeping::Never, _) => self.read(seen, access, block),
        }
    }

    /// True if a block that is not kept was read this often, including the current read.
    fn was_read(&self, id: u64, reads: u32) -> bool {
        let before = self.table.find(id).map_or(0, |slot| self.table[slot].frequency());
        before + 1 >= reads.min(READS_MAX)
    }

    fn weigh(&mut self, seen: Seen, weight: f32) {
        let number = self.number(seen);
        let changed = self.datasets.get_mut(&number).is_some_and(|dataset| dataset.set_weight(weight));
        if changed {
            self.least_known = None;
        }
    }
}
