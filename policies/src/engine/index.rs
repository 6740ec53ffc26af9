//! Index of the table: entry numbers by hash, with linear probing (Knuth, The Art of Computer Programming 3,
//! 6.4, algorithm R for deletion).
//!
//! The index is split into shards, each of which grows by a quarter when three quarters of its cells are in
//! use. Memory therefore follows the number of entries, and no caller waits long for a move: about four
//! thousand of a million entries move at a time. The bits that entry numbers do not need hold a part of the
//! entry's hash. Hardly any other entry is then compared in a search, and each comparison costs a memory
//! access. Invariant: every entry is found by a search from its home cell before an empty cell.

use super::slot::Slot;

/// Number of shards, a power of two.
const SHARDS: usize = 256;
/// Maximum load of a shard: 3 of 4 cells.
const LOAD_MAX: (usize, usize) = (4, 3);
const CELLS_MIN: usize = 8;

/// Hash index; see the module. The caller supplies the id of an entry.
pub(super) struct TableIndex {
    shards: Box<[IndexShard]>,
    layout: CellLayout,
}

#[derive(Clone, Default)]
struct IndexShard {
    /// Cells: entry number plus one, with hash bits above it; 0 is an empty cell.
    cells: Vec<u32>,
    used: usize,
}

/// Layout of a cell: entry number and hash bits.
#[derive(Clone, Copy)]
struct CellLayout {
    /// Bits of the largest entry number plus one.
    number_bits: u32,
}

impl CellLayout {
    /// Returns the cell of an entry.
    const fn cell(self, id: u64, slot: Slot) -> u32 {
        self.hash_bits(id) | (slot + 1)
    }

    /// Returns the entry of a cell; `None` if it is empty.
    const fn slot(self, place: u32) -> Option<Slot> {
        (place & !(u32::MAX << self.number_bits)).checked_sub(1)
    }

    /// Returns the hash bits of an id for its cell. They depend neither on its shard nor much on its home
    /// cell.
    const fn hash_bits(self, id: u64) -> u32 {
        ((id >> 8) as u32) << self.number_bits
    }

    /// True if a cell that is not empty can be that of the id with these hash bits.
    const fn may_match(self, place: u32, mark: u32) -> bool {
        (place ^ mark) >> self.number_bits == 0
    }
}

impl TableIndex {
    /// Returns an index for at most `entries_max` entries, fewer than 2³¹.
    pub(super) fn new(entries_max: usize) -> Self {
        let number_bits = (usize::BITS - entries_max.leading_zeros()).min(u32::BITS - 1);
        Self { shards: vec![IndexShard::default(); SHARDS].into(), layout: CellLayout { number_bits } }
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| size_of::<IndexShard>() + shard.cells.len() * size_of::<u32>()).sum()
    }

    /// Returns the entry of this id.
    pub(super) fn find(&self, id: u64, id_of: impl Fn(Slot) -> u64) -> Option<Slot> {
        let places = &self.shards[shard_of(id)].cells;
        if places.is_empty() {
            return None;
        }
        let (mut at, mark) = (home(id, places.len()), self.layout.hash_bits(id));
        loop {
            let slot = self.layout.slot(places[at])?;
            if self.layout.may_match(places[at], mark) && id_of(slot) == id {
                return Some(slot);
            }
            at = next_cell(at, places.len());
        }
    }

    /// Adds the entry of an id that has none.
    pub(super) fn insert(&mut self, id: u64, slot: Slot, id_of: impl Fn(Slot) -> u64) {
        let shard = &mut self.shards[shard_of(id)];
        if shard.used * LOAD_MAX.0 >= shard.cells.len() * LOAD_MAX.1 {
            shard.grow(self.layout, id_of);
        }
        shard.used += 1;
        assert!(shard.used < shard.cells.len(), "a search ends at an empty cell");
        shard.put(id, self.layout.cell(id, slot));
    }

    /// Removes the entry of an id.
    pub(super) fn remove(&mut self, id: u64, slot: Slot, id_of: impl Fn(Slot) -> u64) {
        let IndexShard { cells: places, used } = &mut self.shards[shard_of(id)];
        *used -= 1;
        let (mut hole, place) = (home(id, places.len()), self.layout.cell(id, slot));
        while places[hole] != place {
            assert!(places[hole] != 0, "an entry that is removed is in the index");
            hole = next_cell(hole, places.len());
        }
        let mut at = hole;
        loop {
            places[hole] = 0;
            loop {
                at = next_cell(at, places.len());
                let Some(other) = self.layout.slot(places[at]) else { return };
                if !is_between(hole, home(id_of(other), places.len()), at) {
                    break;
                }
            }
            places[hole] = places[at];
            hole = at;
        }
    }
}

impl IndexShard {
    fn grow(&mut self, marks: CellLayout, id_of: impl Fn(Slot) -> u64) {
        let length = (self.cells.len() + self.cells.len() / 4).max(CELLS_MIN);
        for place in std::mem::replace(&mut self.cells, vec![0; length]) {
            if let Some(slot) = marks.slot(place) {
                self.put(id_of(slot), place);
            }
        }
    }

    fn put(&mut self, id: u64, place: u32) {
        let mut at = home(id, self.cells.len());
        while self.cells[at] != 0 {
            at = next_cell(at, self.cells.len());
        }
        self.cells[at] = place;
    }
}

/// Returns the shard of an id, from its low bits; the home cell depends on the high bits.
const fn shard_of(id: u64) -> usize {
    id as usize & (SHARDS - 1)
}

/// Returns the home cell of an id in a shard of `length` cells. Ids are hashes: the high half of the product
/// spreads them over any length (Lemire, "Fast random integer generation in an interval", 2019).
const fn home(id: u64, length: usize) -> usize {
    ((id as u128 * length as u128) >> 64) as usize
}

const fn next_cell(at: usize, length: usize) -> usize {
    if at + 1 == length { 0 } else { at + 1 }
}

/// True if `home` is in the cyclic range after `hole` up to `at`.
const fn is_between(hole: usize, home: usize, at: usize) -> bool {
    if hole <= at { hole < home && home <= at } else { hole < home || home <= at }
}

#[cfg(test)]
mod tests {
    use super::{Slot, TableIndex};
    use std::cell::Cell;

    const fn id_of(slot: Slot) -> u64 {
        (slot as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn memory_follows_the_number_of_entries() {
        let mut index = TableIndex::new(200_000);
        let empty = index.memory_bytes();
        assert!(empty < 10_000);
        for slot in 0..200_000 {
            index.insert(id_of(slot), slot, id_of);
            if [1_000, 50_000, 199_999].contains(&slot) {
                let per_entry = (index.memory_bytes() - empty) as f64 / f64::from(slot);
                assert!(per_entry < 9.0, "{per_entry} bytes of each of {slot}");
            }
        }
    }

    #[test]
    fn entries_are_found_for_any_number_of_hash_bits() {
        for entries_max in [20_000, 1 << 24, (1 << 31) - 1] {
            let mut index = TableIndex::new(entries_max);
            // The largest possible entry numbers.
            let first = (entries_max - 20_000) as Slot;
            (0..20_000).for_each(|n| index.insert(id_of(first + n), first + n, id_of));
            let find = |index: &TableIndex, n: Slot| index.find(id_of(first + n), id_of);
            assert!((0..20_000).all(|n| find(&index, n) == Some(first + n)));
            (0..20_000).step_by(2).for_each(|n| index.remove(id_of(first + n), first + n, id_of));
            assert!((0..20_000).all(|n| find(&index, n).is_some() == (n % 2 == 1)));
        }
    }

    #[test]
    fn few_other_entries_are_compared() {
        let (entries, lookups) = (1 << 16, Cell::new(0_u32));
        let mut index = TableIndex::new(entries as usize);
        (0..entries).for_each(|slot| index.insert(id_of(slot), slot, id_of));
        let counted_id = |slot: Slot| {
            lookups.set(lookups.get() + 1);
            id_of(slot)
        };
        assert!((0..entries).all(|slot| index.find(id_of(slot), counted_id) == Some(slot)));
        assert!(lookups.get() < entries + entries / 1000, "{} for {entries}", lookups.get());
    }
}
