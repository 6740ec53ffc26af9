//! Queue of blocks that a rule keeps by recency (LRU): every such block is kept, and the least recently read
//! one is evicted first.
//!
//! One queue holds these blocks of all datasets. It is divided so that the worth of room can be measured: the
//! tenth of the bytes read longest ago, and the recently evicted blocks, are those affected by more or less
//! room. Blocks in between are not tracked.

use super::hazard::Hazard;
use super::list::{List, Lists};
use super::slot::Slot;
use super::table::{BlockTable, EntryState};

/// Share of its bytes, read longest ago, that counts as older, in percent.
const OLDER_PERCENT: u64 = 10;

/// LRU queue: every block in `older` was read before every block in `newer`.
pub(super) struct LruQueue {
    newer: List,
    older: List,
    evicted: List,
    newer_bytes: u64,
    older_bytes: u64,
    evicted_bytes: u64,
    /// Reads of the older and of the evicted blocks.
    tail: Hazard,
}

impl LruQueue {
    pub(super) fn new(lists: &mut Lists) -> Self {
        let (newer, older, past) = (lists.make(), lists.make(), lists.make());
        let end = Hazard::default();
        Self { newer, older, evicted: past, newer_bytes: 0, older_bytes: 0, evicted_bytes: 0, tail: end }
    }

    /// Returns the bytes of kept blocks.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.newer_bytes + self.older_bytes
    }

    /// Returns the gain from room for one more block, in reads per microsecond.
    pub(super) fn worth(&self, now_us: u64) -> f64 {
        self.tail.worth(now_us)
    }

    /// Records a read of a kept block.
    pub(super) fn read(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot, now_us: u64) {
        match table[slot].state() {
            EntryState::Older => self.tail.count_own_read(now_us),
            _ => self.tail.count_other_read(now_us),
        }
        self.admit(table, lists, slot);
    }

    /// Records a read of a block that is not kept.
    pub(super) fn miss(&mut self, table: &BlockTable, slot: Slot, now_us: u64) {
        match table[slot].state() {
            EntryState::Evicted => self.tail.count_own_read(now_us),
            _ => self.tail.count_other_read(now_us),
        }
    }

    /// Keeps a block for which there is room, as the most recently read one.
    pub(super) fn admit(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        self.adopt(table, lists, slot);
        // Only after the tally above, which needs the previous number of older blocks.
        while self.older_bytes < self.kept_bytes() * OLDER_PERCENT / 100 {
            let Some(oldest) = lists.first(table, self.newer) else { return };
            self.leave(table, lists, oldest);
            self.join(table, lists, oldest, EntryState::Older);
        }
    }

    /// Does the same for a block that is kept elsewhere.
    pub(super) fn adopt(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        self.leave(table, lists, slot);
        self.join(table, lists, slot, EntryState::Recent);
    }

    /// Evicts the least recently read block; `None` if none is kept. Remembers at most `past_bytes_max` bytes
    /// of evicted blocks.
    pub(super) fn evict(
        &mut self,
        table: &mut BlockTable,
        lists: &mut Lists,
        past_bytes_max: u64,
    ) -> Option<Slot> {
        let slot = lists.first(table, self.older).or_else(|| lists.first(table, self.newer))?;
        self.leave(table, lists, slot);
        self.join(table, lists, slot, EntryState::Evicted);
        while self.evicted_bytes > past_bytes_max {
            let Some(oldest) = lists.first(table, self.evicted) else { break };
            self.leave(table, lists, oldest);
        }
        Some(slot)
    }

    /// Removes a block from this queue, if it is in it; its state is then not kept.
    pub(super) fn leave(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        let bytes = table[slot].bytes();
        let part_bytes = match table[slot].state() {
            EntryState::Recent => &mut self.newer_bytes,
            EntryState::Older => {
                self.tail.leave();
                &mut self.older_bytes
            }
            EntryState::Evicted => {
                self.tail.leave();
                &mut self.evicted_bytes
            }
            _ => return,
        };
        assert!(*part_bytes >= bytes, "the sum of a part includes each of its blocks");
        *part_bytes -= bytes;
        lists.remove(table, slot);
        table[slot].set_state(EntryState::NotKept);
    }

    fn join(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot, place: EntryState) {
        let bytes = table[slot].bytes();
        let list = match place {
            EntryState::Recent => {
                self.newer_bytes += bytes;
                self.newer
            }
            EntryState::Older => {
                self.older_bytes += bytes;
                self.tail.join();
                self.older
            }
            _ => {
                self.evicted_bytes += bytes;
                self.tail.join();
                self.evicted
            }
        };
        table[slot].set_state(place);
        lists.push(table, list, slot);
    }
}

#[cfg(test)]
impl LruQueue {
    /// Checks that every block has the state of its part and that the sums of bytes are right.
    pub(super) fn check(&self, table: &BlockTable, lists: &Lists) {
        let parts = [
            (self.newer, EntryState::Recent, self.newer_bytes),
            (self.older, EntryState::Older, self.older_bytes),
            (self.evicted, EntryState::Evicted, self.evicted_bytes),
        ];
        for (list, place, bytes) in parts {
            let slots = lists.all(table, list);
            assert!(slots.iter().all(|slot| table[*slot].state() == place), "{place:?}");
            assert_eq!(slots.iter().map(|slot| table[*slot].bytes()).sum::<u64>(), bytes, "{place:?}");
        }
    }
}
