//! Table of all blocks that the engine remembers, with 24 bytes per block plus a cell in an
//! [index](super::index): dataset, size, readers, state and list links.
//!
//! Invariants: the index finds each entry by its id and nothing else; an entry is in at most one list; the
//! table never exceeds its maximum. Entries keep their numbers as long as they exist, so lists link them by
//! number.

use super::index::TableIndex;
use super::slot::{Link, Slot};
use mlgw_common::limits::COPY_BLOCK_BYTES;

/// No entry.
const NONE: Slot = u32::MAX;
/// Unit in which the bytes of a block are counted, rounded up.
const UNIT_BYTES: u64 = 512;
/// Maximum units of a block: 8 MiB.
const UNITS_MAX: u64 = 1 << 14;
/// Maximum datasets: their numbers take 12 bits of an entry.
pub(super) const DATASETS_MAX: usize = 1 << 12;

/// State of a block: whether it is kept, and in which structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// Not kept, and in no list.
    NotKept,
    /// Not kept, but remembered by the pool.
    Ghost,
    /// Kept, in the pool's queue of new blocks.
    Small,
    /// Kept, in the pool's main queue.
    Main,
    /// Kept, in a group of its dataset.
    Group,
    /// Kept, and not to be evicted.
    Pinned,
    /// Kept, in the heap of planned blocks.
    Planned,
    /// Kept, in the LRU queue.
    Recent,
    /// Kept, at the end of the LRU queue.
    Older,
    /// Not kept, but remembered by the LRU queue.
    Evicted,
}

impl EntryState {
    const ALL: [Self; 10] = [
        Self::NotKept,
        Self::Ghost,
        Self::Small,
        Self::Main,
        Self::Group,
        Self::Pinned,
        Self::Planned,
        Self::Recent,
        Self::Older,
        Self::Evicted,
    ];

    /// True if the block is kept.
    pub(super) const fn is_kept(self) -> bool {
        !matches!(self, Self::NotKept | Self::Ghost | Self::Evicted)
    }
}

/// State of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableEntry {
    /// Block id.
    pub(super) id: u64,
    /// Neighbours in its list.
    pub(super) link: Link,
    /// By job of its dataset, four bits each: stamp of the last pass in which the job read the block.
    pub(super) stamps: u32,
    /// Dataset (12 bits), units minus one (14), state (4), frequency (2).
    tag: u32,
}

const DATASET: u32 = 0;
const UNITS: u32 = 12;
const STATE: u32 = 26;
const FREQUENCY: u32 = 30;

const _: () = assert!(DATASETS_MAX <= 1 << (UNITS - DATASET), "a dataset's number fits its field");
const _: () = assert!(UNITS_MAX <= 1 << (STATE - UNITS), "a block's units fit their field");
const _: () = assert!(EntryState::ALL.len() <= 1 << (FREQUENCY - STATE), "each state fits its field");
const _: () = assert!(COPY_BLOCK_BYTES <= UNITS_MAX * UNIT_BYTES, "a block of a copy can be counted");

impl TableEntry {
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

    /// Returns its dataset.
    pub(super) fn dataset(&self) -> u16 {
        self.field(DATASET, 12) as u16
    }

    pub(super) fn set_dataset(&mut self, dataset: u16) {
        self.set_field(DATASET, 12, u32::from(dataset));
    }

    /// Returns its bytes.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.field(UNITS, 14)) + 1) * UNIT_BYTES
    }

    pub(super) fn state(&self) -> EntryState {
        EntryState::ALL[self.field(STATE, 4) as usize]
    }

    pub(super) fn set_state(&mut self, place: EntryState) {
        self.set_field(STATE, 4, place as u32);
    }

    /// Returns the number of reads since it entered the pool, at most 3.
    pub(super) fn frequency(&self) -> u32 {
        self.field(FREQUENCY, 2)
    }

    pub(super) fn set_frequency(&mut self, frequency: u32) {
        self.set_field(FREQUENCY, 2, frequency.min(3));
    }
}

/// All entries.
pub(super) struct BlockTable {
    entries: Vec<TableEntry>,
    index: TableIndex,
    free: Vec<Slot>,
    entries_max: usize,
    /// Position at which the search for an entry to forget continues.
    hand: usize,
}

impl BlockTable {
    /// Returns a table of at most `entries_max` entries; memory grows as it fills.
    pub(super) fn new(entries_max: usize) -> Self {
        let entries_max = entries_max.clamp(16, NONE as usize / 2);
        Self {
            entries: Vec::new(),
            index: TableIndex::new(entries_max),
            free: Vec::new(),
            entries_max,
            hand: 0,
        }
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the number after the last one that was assigned.
    pub(super) fn end(&self) -> Slot {
        self.entries.len() as Slot
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<TableEntry>()
            + self.index.memory_bytes()
            + self.free.capacity() * 4
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= self.entries_max
    }

    pub(super) fn find(&self, id: u64) -> Option<Slot> {
        self.index.find(id, |slot| self.entries[slot as usize].id)
    }

    /// Adds an entry with a new id. The table must not be full.
    pub(super) fn insert(&mut self, id: u64, dataset: u16, bytes: u64) -> Slot {
        assert!(!self.is_full(), "room is made before an entry is added");
        debug_assert!(self.find(id).is_none(), "a block has one entry");
        let entry = TableEntry::new(id, dataset, bytes);
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

    /// Removes an entry that is in no list.
    pub(super) fn remove(&mut self, slot: Slot) {
        let id = self.entries[slot as usize].id;
        assert_eq!(self[slot].state(), EntryState::NotKept, "an entry leaves its list before it is removed");
        self.index.remove(id, slot, |slot| self.entries[slot as usize].id);
        self.entries[slot as usize] = TableEntry::new(0, 0, 0);
        self.free.push(slot);
    }

    /// Advances the hand, which cycles through the table. Returns the entry there, if any.
    pub(super) fn advance_hand(&mut self) -> Option<Slot> {
        if self.entries.is_empty() {
            return None;
        }
        self.hand = (self.hand + 1) % self.entries.len();
        let entry = &self.entries[self.hand];
        (entry.id != 0).then_some(self.hand as Slot)
    }
}

impl std::ops::Index<Slot> for BlockTable {
    type Output = TableEntry;
    fn index(&self, slot: Slot) -> &TableEntry {
        &self.entries[slot as usize]
    }
}

impl std::ops::IndexMut<Slot> for BlockTable {
    fn index_mut(&mut self, slot: Slot) -> &mut TableEntry {
        &mut self.entries[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockTable, EntryState};
    use proptest::{collection::vec, prop_assert, prop_assert_eq, proptest};
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn table_behaves_as_a_map(steps in vec((1..60_u64, 0..3_u8), 1..400)) {
            let (mut table, mut map) = (BlockTable::new(40), HashMap::new());
            for (id, step) in steps {
                // One shard and few home cells, so that probe sequences are long and wrap around.
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
        fn fields_of_an_entry_are_independent(
            dataset in 0..4096_u16, bytes in 1..=8_u64 << 20, frequency in 0..4_u32
        ) {
            let mut table = BlockTable::new(16);
            let slot = table.insert(9, dataset, bytes);
            for place in EntryState::ALL {
                table[slot].set_state(place);
                table[slot].set_frequency(frequency);
                let entry = &table[slot];
                prop_assert_eq!(
                    (entry.dataset(), entry.state(), entry.frequency()),
                    (dataset, place, frequency)
                );
                prop_assert!(entry.bytes() >= bytes && entry.bytes() < bytes + 512);
            }
        }
    }

    #[test]
    fn an_entry_and_its_index_cell_take_at_most_32_bytes() {
        let mut table = BlockTable::new(1 << 20);
        for at in 1..=1_u64 << 20 {
            table.insert(at.wrapping_mul(0x9e37_79b9_7f4a_7c15), 7, 1);
        }
        let per_entry =
            size_of::<super::TableEntry>() as f64 + table.index.memory_bytes() as f64 / (1 << 20) as f64;
        assert!(per_entry <= 32.0, "{per_entry}");
    }
}
