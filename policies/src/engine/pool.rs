//! The pool: what is read again and again in no order, kept as S3-FIFO keeps it.
//!
//! Yang et al., "FIFO Queues are All You Need for Cache Eviction" (SOSP 2023): newcomers pass through a small
//! queue of a tenth of the bytes; who was read more than once there, or comes back while it is remembered,
//! goes to the main queue, where each read gives it one more round. The pool's room is what datasets that are
//! read in passes leave it, and it tells what more room would bring it.

use super::hazard::Hazard;
use super::list::{List, Lists};
use super::table::{Place, Slot, Table};

/// The small queue's share of the pool.
const SMALL_PERCENT: u64 = 10;
/// Reads in the small queue above which a block goes on.
const READS_TO_STAY: u32 = 1;

/// The queues.
pub(super) struct Pool {
    small: List,
    main: List,
    ghost: List,
    small_bytes: u64,
    main_bytes: u64,
    ghost_bytes: u64,
    /// Blocks that nobody has read since they came into the small queue, or since they left it: what more or
    /// less room is about.
    unread: Hazard,
}

impl Pool {
    pub(super) fn new(lists: &mut Lists) -> Self {
        let (small, main, ghost) = (lists.make(), lists.make(), lists.make());
        let unread = Hazard::default();
        Self { small, main, ghost, small_bytes: 0, main_bytes: 0, ghost_bytes: 0, unread }
    }

    /// Bytes that it keeps.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.small_bytes + self.main_bytes
    }

    /// A block that it keeps is read.
    pub(super) fn read(&mut self, table: &mut Table, slot: Slot, now_us: u64) {
        if is_unread(table, slot) {
            self.unread.tally(now_us, true);
            self.unread.leave();
        }
        let frequency = table[slot].frequency() + 1;
        table[slot].set_frequency(frequency);
    }

    /// A block that it does not keep is asked for.
    pub(super) fn miss(&mut self, table: &Table, slot: Slot, now_us: u64) {
        self.unread.tally(now_us, is_unread(table, slot));
    }

    /// What a block more would bring: reads per microsecond, as blocks were read that had just come or gone.
    pub(super) fn worth(&self, now_us: u64) -> f64 {
        self.unread.worth(now_us)
    }

    /// Keeps a block, for which there is room.
    pub(super) fn admit(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        let was_remembered = table[slot].place() == Place::Ghost;
        if was_remembered {
            self.leave(table, lists, slot);
        }
        self.join(table, lists, slot, if was_remembered { Place::Main } else { Place::Small });
    }

    /// Lets go of one block; nothing when it keeps none. It remembers as many as it keeps, and so many bytes
    /// of them at least.
    pub(super) fn evict(
        &mut self,
        table: &mut Table,
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
                let stays = table[slot].frequency() > READS_TO_STAY;
                self.leave(table, lists, slot);
                if stays {
                    self.join(table, lists, slot, Place::Main);
                    continue;
                }
                self.join(table, lists, slot, Place::Ghost);
                let as_main = room_bytes - small_bytes_max.min(room_bytes);
                self.trim_ghosts(table, lists, as_main.max(remembered_bytes_min));
                return Some(slot);
            }
            let slot = main?;
            let frequency = table[slot].frequency();
            self.leave(table, lists, slot);
            if frequency == 0 {
                table[slot].set_place(Place::Away);
                return Some(slot);
            }
            self.join(table, lists, slot, Place::Main);
            table[slot].set_frequency(frequency - 1);
        }
    }

    fn trim_ghosts(&mut self, table: &mut Table, lists: &mut Lists, bytes_max: u64) {
        while self.ghost_bytes > bytes_max {
            let Some(oldest) = lists.first(table, self.ghost) else { return };
            self.forget(table, lists, oldest);
        }
    }

    /// Forgets a remembered block.
    pub(super) fn forget(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        self.leave(table, lists, slot);
        table[slot].set_place(Place::Away);
    }

    /// Takes a block in from elsewhere, which was kept there.
    pub(super) fn take_in(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        self.join(table, lists, slot, Place::Main);
    }

    /// A block leaves the queue that it is in.
    pub(super) fn leave(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        if is_unread(table, slot) {
            self.unread.leave();
        }
        let bytes = table[slot].bytes();
        match table[slot].place() {
            Place::Small => self.small_bytes -= bytes,
            Place::Main => self.main_bytes -= bytes,
            Place::Ghost => self.ghost_bytes -= bytes,
            _ => return,
        }
        lists.remove(table, slot);
    }

    fn join(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot, place: Place) {
        let bytes = table[slot].bytes();
        let list = match place {
            Place::Small => {
                self.small_bytes += bytes;
                self.small
            }
            Place::Main => {
                self.main_bytes += bytes;
                self.main
            }
            _ => {
                self.ghost_bytes += bytes;
                self.ghost
            }
        };
        table[slot].set_place(place);
        table[slot].set_frequency(0);
        if is_unread(table, slot) {
            self.unread.join();
        }
        lists.push(table, list, slot);
    }
}

/// Whether a block has come or gone and nobody has read it since.
fn is_unread(table: &Table, slot: Slot) -> bool {
    match table[slot].place() {
        Place::Ghost => true,
        Place::Small => table[slot].frequency() == 0,
        _ => false,
    }
}
