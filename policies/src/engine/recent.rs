//! Queue of blocks that a rule keeps by recency (LRU): every such block is kept, and the least recently read
//! one is evicted first.
//!
//! One queue holds these blocks of all datasets. It is divided so that the worth of room can be measured: the
//! tenth of the bytes read longest ago, and the recently evicted blocks, are those affected by more or less
//! room. Blocks in between are not tracked.

use super::hazard::Hazard;
use super::list::{List, Lists};
use super::table::{Place, Slot, Table};

/// Share of its bytes, read longest ago, that counts as older, in percent.
const OLDER_PERCENT: u64 = 10;

/// LRU queue: every block in `older` was read before every block in `newer`.
pub(super) struct Recent {
    newer: List,
    older: List,
    past: List,
    newer_bytes: u64,
    older_bytes: u64,
    past_bytes: u64,
    /// Reads of the older and of the evicted blocks.
    end: Hazard,
}

impl Recent {
    pub(super) fn new(lists: &mut Lists) -> Self {
        let (newer, older, past) = (lists.make(), lists.make(), lists.make());
        let end = Hazard::default();
        Self { newer, older, past, newer_bytes: 0, older_bytes: 0, past_bytes: 0, end }
    }

    /// Returns the bytes of kept blocks.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.newer_bytes + self.older_bytes
    }

    /// Returns the gain from room for one more block, in reads per microsecond.
    pub(super) fn worth(&self, now_us: u64) -> f64 {
        self.end.worth(now_us)
    }

    /// Records a read of a kept block.
    pub(super) fn read(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot, now_us: u64) {
        self.end.tally(now_us, table[slot].place() == Place::Older);
        self.admit(table, lists, slot);
    }

    /// Records a read of a block that is not kept.
    pub(super) fn miss(&mut self, table: &Table, slot: Slot, now_us: u64) {
        self.end.tally(now_us, table[slot].place() == Place::Past);
    }

    /// Keeps a block for which there is room, as the most recently read one.
    pub(super) fn admit(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        self.take_in(table, lists, slot);
        // Only after the tally above, which needs the previous number of older blocks.
        while self.older_bytes < self.kept_bytes() * OLDER_PERCENT / 100 {
            let Some(oldest) = lists.first(table, self.newer) else { return };
            self.leave(table, lists, oldest);
            self.join(table, lists, oldest, Place::Older);
        }
    }

    /// Does the same for a block that is kept elsewhere.
    pub(super) fn take_in(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        self.leave(table, lists, slot);
        self.join(table, lists, slot, Place::Recent);
    }

    /// Evicts the least recently read block; `None` if none is kept. Remembers at most `past_bytes_max` bytes
    /// of evicted blocks.
    pub(super) fn evict(
        &mut self,
        table: &mut Table,
        lists: &mut Lists,
        past_bytes_max: u64,
    ) -> Option<Slot> {
        let slot = lists.first(table, self.older).or_else(|| lists.first(table, self.newer))?;
        self.leave(table, lists, slot);
        self.join(table, lists, slot, Place::Past);
        while self.past_bytes > past_bytes_max {
            let Some(oldest) = lists.first(table, self.past) else { break };
            self.leave(table, lists, oldest);
        }
        Some(slot)
    }

    /// Removes a block from this queue, if it is in it; its state is then not kept.
    pub(super) fn leave(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        let bytes = table[slot].bytes();
        match table[slot].place() {
            Place::Recent => self.newer_bytes -= bytes,
            Place::Older => {
                self.older_bytes -= bytes;
                self.end.leave();
            }
            Place::Past => {
                self.past_bytes -= bytes;
                self.end.leave();
            }
            _ => return,
        }
        lists.remove(table, slot);
        table[slot].set_place(Place::Away);
    }

    fn join(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot, place: Place) {
        let bytes = table[slot].bytes();
        let list = match place {
            Place::Recent => {
                self.newer_bytes += bytes;
                self.newer
            }
            Place::Older => {
                self.older_bytes += bytes;
                self.end.join();
                self.older
            }
            _ => {
                self.past_bytes += bytes;
                self.end.join();
                self.past
            }
        };
        table[slot].set_place(place);
        lists.push(table, list, slot);
    }
}

#[cfg(test)]
impl Recent {
    /// Checks that every block has the state of its part and that the sums of bytes are right.
    pub(super) fn check(&self, table: &Table, lists: &Lists) {
        let parts = [
            (self.newer, Place::Recent, self.newer_bytes),
            (self.older, Place::Older, self.older_bytes),
            (self.past, Place::Past, self.past_bytes),
        ];
        for (list, place, bytes) in parts {
            let held = lists.all(table, list);
            assert!(held.iter().all(|slot| table[*slot].place() == place), "{place:?}");
            assert_eq!(held.iter().map(|slot| table[*slot].bytes()).sum::<u64>(), bytes, "{place:?}");
        }
    }
}
