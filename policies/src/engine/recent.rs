//! What somebody wants kept by how recently it was read: LRU. Every block that comes is kept, and the one
//! goes first that was read longest ago.
//!
//! One queue for all such blocks, of whichever dataset. It is cut in two, so that it can be told what room is
//! worth here: of what was read longest ago a tenth, and what has gone of late, are the blocks that more or
//! less room is about. What was read in between costs nothing to keep track of.

use super::hazard::Hazard;
use super::list::{List, Lists};
use super::table::{Place, Slot, Table};

/// The share of its bytes, read longest ago, that less room would be about.
const OLDER_PERCENT: u64 = 10;

/// The queue: all of `older` was read before all of `newer`.
pub(super) struct Recent {
    newer: List,
    older: List,
    past: List,
    newer_bytes: u64,
    older_bytes: u64,
    past_bytes: u64,
    /// Of the older ones, and those that have gone.
    end: Hazard,
}

impl Recent {
    pub(super) fn new(lists: &mut Lists) -> Self {
        let (newer, older, past) = (lists.make(), lists.make(), lists.make());
        let end = Hazard::default();
        Self { newer, older, past, newer_bytes: 0, older_bytes: 0, past_bytes: 0, end }
    }

    /// Bytes that it keeps.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.newer_bytes + self.older_bytes
    }

    /// What a block more would bring: reads per microsecond.
    pub(super) fn worth(&self, now_us: u64) -> f64 {
        self.end.worth(now_us)
    }

    /// A block that it keeps is read.
    pub(super) fn read(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot, now_us: u64) {
        self.end.tally(now_us, table[slot].place() == Place::Older);
        self.admit(table, lists, slot);
    }

    /// A block that it does not keep is asked for.
    pub(super) fn miss(&mut self, table: &Table, slot: Slot, now_us: u64) {
        self.end.tally(now_us, table[slot].place() == Place::Past);
    }

    /// Keeps a block, for which there is room, as the one that was read last.
    pub(super) fn admit(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        self.take_in(table, lists, slot);
        // Only now that it was tallied until when there were how many.
        while self.older_bytes < self.kept_bytes() * OLDER_PERCENT / 100 {
            let Some(oldest) = lists.first(table, self.newer) else { return };
            self.leave(table, lists, oldest);
            self.join(table, lists, oldest, Place::Older);
        }
    }

    /// The same of a block from elsewhere, which was kept there.
    pub(super) fn take_in(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        self.leave(table, lists, slot);
        self.join(table, lists, slot, Place::Recent);
    }

    /// Lets go of the block that was read longest ago; nothing when it keeps none. It remembers so many bytes
    /// of what has gone.
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

    /// A block leaves where it is, if that is here: it is away then.
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
    /// Every block is where it says that it is, and the sums are theirs.
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
