//! Every block the engine remembers, in 24 bytes and a place in an [index](super::index): what it is, who has
//! read it, and the list that it is in.
//!
//! Always: the index finds each entry by its id and nothing else; an entry is in at most one list; the table
//! never holds more than it was made for. Entries keep their numbers for as long as they live, so lists link
//! them by number.

use super::index::Index;
use super::list::Link;

/// The number of an entry.
pub(super) type Slot = u32;
/// No entry.
pub(super) const NONE: Slot = u32::MAX;
/// Bytes of a block are counted in units of so many, rounded up.
const UNIT_BYTES: u64 = 512;
/// Most units of a block: 8 MiB.
const UNITS_MAX: u64 = 1 << 14;
/// Most datasets: their numbers are 12 bits of an entry.
pub(super) const DATASETS_MAX: usize = 1 << 12;

/// Where the bytes of a block are, as far as the engine decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not kept, and in no list.
    Away,
    /// Not kept, but remembered by the pool.
    Ghost,
    /// Kept, in the pool's queue of newcomers.
    Small,
    /// Kept, in the pool's main queue.
    Main,
    /// Kept, in a group of its dataset.
    Group,
    /// Kept, and not to be evicted.
    Pinned,
    /// Kept, in the heap of what plans speak of.
    Planned,
    /// Kept, in the queue of what was read recently.
    Recent,
    /// Kept, at the end of that queue.
    Older,
    /// Not kept, but remembered by that queue.
    Past,
}

impl Place {
    const ALL: [Self; 10] = [
        Self::Away,
        Self::Ghost,
        Self::Small,
        Self::Main,
        Self::Group,
        Self::Pinned,
        Self::Planned,
        Self::Recent,
        Self::Older,
        Self::Past,
    ];

    /// Whether its bytes are kept.
    pub(super) const fn is_kept(self) -> bool {
        !matches!(self, Self::Away | Self::Ghost | Self::Past)
    }
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// What it is found by.
    pub(super) id: u64,
    /// Its neighbours in the list that it is in.
    pub(super) link: Link,
    /// By job of its dataset, four bits each: the pass in which the job has read it last.
    pub(super) stamps: u32,
    /// Dataset (12 bits), units less one (14), place (4), frequency (2).
    tag: u32,
}

const DATASET: u32 = 0;
const UNITS: u32 = 12;
const PLACE: u32 = 26;
const FREQUENCY: u32 = 30;

impl Entry {
    fn new(id: u64, dataset: u16, bytes: u64) -> Self {
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, UNITS_MAX) - 1;
        let tag = u32::from(dataset) << DATASET | (units as u32) << UNITS;
        Self { id, link: Link::default(), stamps: 0, tag }
    }

    fn field(&self, at: u32, bits: u32) -> u32 {
        self.tag >> at & ((1 << bits) - 1)
    }

    fn set_field(&mut self, at: u32, bits: u32, value: u32) {
        let mask = ((1 << bits) - 1) << at;
        self.tag = self.tag & !mask | value << at & mask;
    }

    /// The dataset that it belongs to.
    pub(super) fn dataset(&self) -> u16 {
        self.field(DATASET, 12) as u16
    }

    pub(super) fn set_dataset(&mut self, dataset: u16) {
        self.set_field(DATASET, 12, u32::from(dataset));
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.field(UNITS, 14)) + 1) * UNIT_BYTES
    }

    pub(super) fn place(&self) -> Place {
        Place::ALL[self.field(PLACE, 4) as usize]
    }

    pub(super) fn set_place(&mut self, place: Place) {
        self.set_field(PLACE, 4, place as u32);
    }

    /// How often it was read since it came into the pool, up to three times.
    pub(super) fn frequency(&self) -> u32 {
        self.field(FREQUENCY, 2)
    }

    pub(super) fn set_frequency(&mut self, frequency: u32) {
        self.set_field(FREQUENCY, 2, frequency.min(3));
    }
}

/// All entries.
pub(super) struct Table {
    entries: Vec<Entry>,
    index: Index,
    free: Vec<Slot>,
    entries_max: usize,
    /// Where the search for one that may be forgotten goes on.
    hand: usize,
}

impl Table {
    /// A table of at most so many entries; memory is used as it fills.
    pub(super) fn new(entries_max: usize) -> Self {
        let entries_max = entries_max.clamp(16, NONE as usize / 2);
        Self { entries: Vec::new(), index: Index::new(entries_max), free: Vec::new(), entries_max, hand: 0 }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The number behind the last one that was given.
    pub(super) fn end(&self) -> Slot {
        self.entries.len() as Slot
    }

    /// Bytes of memory that it takes now.
    pub(super) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.index.memory_bytes() + self.free.capacity() * 4
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= self.entries_max
    }

    pub(super) fn find(&self, id: u64) -> Option<Slot> {
        self.index.find(id, |slot| self.entries[slot as usize].id)
    }

    /// Adds one that is not there. The table is not full.
    pub(super) fn insert(&mut self, id: u64, dataset: u16, bytes: u64) -> Slot {
        debug_assert!(self.find(id).is_none() && !self.is_full());
        let entry = Entry::new(id, dataset, bytes);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as Slot
            }
        };
        self.index.insert(id, slot, |slot| self.entries[slot as usize].id);
        slot
    }

    /// Forgets an entry, which is in no list.
    pub(super) fn remove(&mut self, slot: Slot) {
        let id = self.entries[slot as usize].id;
        self.index.remove(id, slot, |slot| self.entries[slot as usize].id);
        self.entries[slot as usize] = Entry::new(0, 0, 0);
        self.free.push(slot);
    }

    /// The next few entries for which the caller looks for one to forget: round and round.
    pub(super) fn next_of_round(&mut self) -> Option<Slot> {
        if self.entries.is_empty() {
            return None;
        }
        self.hand = (self.hand + 1) % self.entries.len();
        let entry = &self.entries[self.hand];
        (entry.id != 0).then_some(self.hand as Slot)
    }
}

impl std::ops::Index<Slot> for Table {
    type Output = Entry;
    fn index(&self, slot: Slot) -> &Entry {
        &self.entries[slot as usize]
    }
}

impl std::ops::IndexMut<Slot> for Table {
    fn index_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, Table};
    use proptest::{collection::vec, prop_assert, prop_assert_eq, proptest};
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in vec((1..60_u64, 0..3_u8), 1..400)) {
            let (mut table, mut map) = (Table::new(40), HashMap::new());
            for (id, step) in steps {
                // One shard and few homes, so that probes are long and wrap.
                let id = id << 58 | id << 8;
                match (table.find(id), step) {
                    (Some(slot), 0) => {
                        table.remove(slot);
                        map.remove(&id);
                    }
                    (None, 1 | 2) if !table.is_full() => {
                        let slot = table.insert(id, 7, id % 100_000);
                        map.insert(id, slot);
                    }
                    (found, _) => prop_assert_eq!(found, map.get(&id).copied()),
                }
                prop_assert_eq!(table.len(), map.len());
                for (id, slot) in &map {
                    prop_assert_eq!(table.find(*id), Some(*slot));
                }
            }
        }

        #[test]
        fn fields_of_an_entry_do_not_touch_each_other(dataset in 0..4096_u16, bytes in 1..=8_u64 << 20, frequency in 0..4_u32) {
            let mut table = Table::new(16);
            let slot = table.insert(9, dataset, bytes);
            for place in Place::ALL {
                table[slot].set_place(place);
                table[slot].set_frequency(frequency);
                let entry = &table[slot];
                prop_assert_eq!((entry.dataset(), entry.place(), entry.frequency()), (dataset, place, frequency));
                prop_assert!(entry.bytes() >= bytes && entry.bytes() < bytes + 512);
            }
        }
    }

    #[test]
    fn an_entry_and_its_place_in_the_index_take_less_than_32_bytes() {
        let mut table = Table::new(1 << 20);
        for at in 1..=1_u64 << 20 {
            table.insert(at.wrapping_mul(0x9e37_79b9_7f4a_7c15), 7, 1);
        }
        let per_entry =
            size_of::<super::Entry>() as f64 + table.index.memory_bytes() as f64 / (1 << 20) as f64;
        assert!(per_entry <= 32.0, "{per_entry}");
    }
}
