//! What somebody else wants to become of blocks: that none is kept, or only of what is read again, or by how
//! recently it was read, or that they are dearer than their reads make them.
//!
//! What is pinned stays whatever is wanted here. A weight is that of a dataset, as of the last read of it: of
//! two rules that weigh objects of one dataset differently the later read decides.

use super::table::Place;
use super::{Advice, Engine, Seen};
use crate::access::Access;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keeping {
    /// The engine decides, and a read counts as often as those before.
    AsBefore,
    /// The engine decides, and a read counts so many times.
    Weighed(f32),
    /// The same, of blocks that were read so often; at most [`READS_MAX`].
    After(u32, f32),
    /// Every block is kept, and the one that was read longest ago goes first of those that are kept so. It is
    /// so until somebody who wants it otherwise reads the block again; what comes of its dataset without
    /// being read is kept as the last that was.
    Recent,
    /// None is kept, and one that is goes.
    Never,
}

impl Default for Keeping {
    fn default() -> Self {
        Self::Weighed(1.0)
    }
}

/// Reads of a block that is not kept are counted up to this.
const READS_MAX: u32 = 4;

impl Engine {
    /// A block of what was observed is read, as [`Engine::read`], and this is to become of it.
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

    /// Whether a block that is not kept was read so often, this time included.
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
