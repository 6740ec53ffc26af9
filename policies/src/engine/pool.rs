//! Pool: blocks that are read repeatedly in no order, kept by S3-FIFO.
//!
//! Yang et al., "FIFO Queues are All You Need for Cache Eviction" (SOSP 2023): new blocks pass through a
//! small queue with a tenth of the bytes. A block that is read more than once there, or is read again while
//! it is remembered, moves to the main queue, where each read gives it one more round. The pool gets the room
//! that datasets read in passes leave, and it reports the gain from more room.

use super::hazard::Hazard;
use super::list::{List, Lists};
use super::slot::Slot;
use super::table::{BlockTable, EntryState};

/// Share of the small queue in the pool, in percent.
const SMALL_PERCENT: u64 = 10;
/// Number of reads in the small queue above which a block moves to the main queue.
const READS_TO_PROMOTE: u32 = 1;

/// S3-FIFO queues.
pub(super) struct Pool {
    small: List,
    main: List,
    ghost: List,
    small_bytes: u64,
    main_bytes: u64,
    ghost_bytes: u64,
    /// Blocks without a read since they entered the small queue or left it: those affected by more or less
    /// room.
    unread: Hazard,
}

impl Pool {
    pub(super) fn new(lists: &mut Lists) -> Self {
        let (small, main, ghost) = (lists.make(), lists.make(), lists.make());
        let unread = Hazard::default();
        Self { small, main, ghost, small_bytes: 0, main_bytes: 0, ghost_bytes: 0, unread }
    }

    /// Returns the bytes of kept blocks.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.small_bytes + self.main_bytes
    }

    /// Records a read of a kept block.
    pub(super) fn read(&mut self, table: &mut BlockTable, slot: Slot, now_us: u64) {
        if is_unread(table, slot) {
            self.unread.count_own_read(now_us);
            self.unread.leave();
        }
        let frequency = table[slot].frequency() + 1;
        table[slot].set_frequency(frequency);
    }

    /// Records a read of a block that is not kept.
    pub(super) fn miss(&mut self, table: &BlockTable, slot: Slot, now_us: u64) {
        if is_unread(table, slot) {
            self.unread.count_own_read(now_us);
        } else {
            self.unread.count_other_read(now_us);
        }
    }

    /// Returns the gain from room for one more block, in reads per microsecond, from the reads of blocks that
    /// just entered or left.
    pub(super) fn worth(&self, now_us: u64) -> f64 {
        self.unread.worth(now_us)
    }

    /// Keeps a block for which there is room.
    pub(super) fn admit(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        let was_remembered = table[slot].state() == EntryState::Ghost;
        if was_remembered {
            self.leave(table, lists, slot);
        }
        self.join(table, lists, slot, if was_remembered { EntryState::Main } else { EntryState::Small });
    }

    /// Evicts one block; `None` if none is kept. The pool remembers as many evicted bytes as the main queue
    /// may hold, and at least `remembered_bytes_min`.
    pub(super) fn evict(
        &mut self,
        table: &mut BlockTable,
        lists: &mut Lists,
        remembered_bytes_min: u64,
    ) -> Option<Slot> {
        let room_bytes = self.kept_bytes();
        let small_bytes_max = (room_bytes * SMALL_PERCENT / 100).max(1);
        loop {
            let small = lists.first(table, self.small);
            let main = lists.first(table, self.main);
            let is_small_full = self.small_bytes >= small_bytes_max || main.is_none();
            if let Some(slot) = small.filter(|_| is_small_full) {
                let is_promoted = table[slot].frequency() > READS_TO_PROMOTE;
                self.leave(table, lists, slot);
                if is_promoted {
                    self.join(table, lists, slot, EntryState::Main);
                    continue;
                }
                self.join(table, lists, slot, EntryState::Ghost);
                let as_main = room_bytes - small_bytes_max.min(room_bytes);
                self.trim_ghosts(table, lists, as_main.max(remembered_bytes_min));
                return Some(slot);
            }
            let slot = main?;
            let frequency = table[slot].frequency();
            self.leave(table, lists, slot);
            if frequency == 0 {
                table[slot].set_state(EntryState::NotKept);
                return Some(slot);
            }
            self.join(table, lists, slot, EntryState::Main);
            table[slot].set_frequency(frequency - 1);
        }
    }

    fn trim_ghosts(&mut self, table: &mut BlockTable, lists: &mut Lists, bytes_max: u64) {
        while self.ghost_bytes > bytes_max {
            let Some(oldest) = lists.first(table, self.ghost) else { return };
            self.forget(table, lists, oldest);
        }
    }

    /// Forgets a remembered block.
    pub(super) fn forget(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        self.leave(table, lists, slot);
        table[slot].set_state(EntryState::NotKept);
    }

    /// Adopts a block that is kept elsewhere.
    pub(super) fn adopt(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        self.join(table, lists, slot, EntryState::Main);
    }

    /// Removes a block from its queue.
    pub(super) fn leave(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        if is_unread(table, slot) {
            self.unread.leave();
        }
        let bytes = table[slot].bytes();
        let queue_bytes = match table[slot].state() {
            EntryState::Small => &mut self.small_bytes,
            EntryState::Main => &mut self.main_bytes,
            EntryState::Ghost => &mut self.ghost_bytes,
            _ => return,
        };
        assert!(*queue_bytes >= bytes, "the sum of a queue includes each of its blocks");
        *queue_bytes -= bytes;
        lists.remove(table, slot);
    }

    fn join(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot, place: EntryState) {
        let bytes = table[slot].bytes();
        let list = match place {
            EntryState::Small => {
                self.small_bytes += bytes;
                self.small
            }
            EntryState::Main => {
                self.main_bytes += bytes;
                self.main
            }
            _ => {
                self.ghost_bytes += bytes;
                self.ghost
            }
        };
        table[slot].set_state(place);
        table[slot].set_frequency(0);
        if is_unread(table, slot) {
            self.unread.join();
        }
        lists.push(table, list, slot);
    }
}

/// True if a block entered or left and was not read since.
fn is_unread(table: &BlockTable, slot: Slot) -> bool {
    match table[slot].state() {
        EntryState::Ghost => true,
        EntryState::Small => table[slot].frequency() == 0,
        _ => false,
    }
}
