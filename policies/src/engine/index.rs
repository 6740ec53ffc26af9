//! The index of the table: numbers of entries by hash, with linear probing (Knuth, The Art of Computer
//! Programming 3, 6.4, algorithm R for deletion).
//!
//! It is in shards, each of which grows by a quarter when three quarters of it are used, so that memory
//! follows what is in it and nobody waits long while some of it moves: of a million entries some four
//! thousand at a time. Bits that numbers do not need hold some of an entry's hash, so that hardly any but the
//! one that is looked for is looked at, each of which is another wait for memory. Always: every entry is
//! found from its home on before an empty place.

use super::table::Slot;

/// A power of two.
const SHARDS: usize = 256;
/// Of so many places of a shard three are used at most.
const LOAD: (usize, usize) = (4, 3);
const PLACES_MIN: usize = 8;

/// See the module. What the id of an entry is, the caller says.
pub(super) struct Index {
    shards: Box<[Shard]>,
    marks: Marks,
}

#[derive(Clone, Default)]
struct Shard {
    /// The number of an entry and one, and above that its mark; 0 is an empty place.
    places: Vec<u32>,
    used: usize,
}

/// How places are made of numbers and hashes.
#[derive(Clone, Copy)]
struct Marks {
    /// Bits of the largest number and one.
    number_bits: u32,
}

impl Marks {
    /// What the place of an entry holds.
    const fn place(self, id: u64, slot: Slot) -> u32 {
        self.mark(id) | (slot + 1)
    }

    /// The entry of a place, unless it is empty.
    const fn slot(self, place: u32) -> Option<Slot> {
        (place & !(u32::MAX << self.number_bits)).checked_sub(1)
    }

    /// Bits of an id that tell neither its shard nor much of its home.
    const fn mark(self, id: u64) -> u32 {
        ((id >> 8) as u32) << self.number_bits
    }

    /// Whether a place that is not empty may be that of the id with this mark.
    const fn may_be(self, place: u32, mark: u32) -> bool {
        (place ^ mark) >> self.number_bits == 0
    }
}

impl Index {
    /// One for entries of which there are at most so many, fewer than 2³¹.
    pub(super) fn new(entries_max: usize) -> Self {
        let number_bits = (usize::BITS - entries_max.leading_zeros()).min(u32::BITS - 1);
        Self { shards: vec![Shard::default(); SHARDS].into(), marks: Marks { number_bits } }
    }

    /// Bytes of memory that it takes now.
    pub(super) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| size_of::<Shard>() + shard.places.len() * size_of::<u32>()).sum()
    }

    /// The entry of this id.
    pub(super) fn find(&self, id: u64, id_of: impl Fn(Slot) -> u64) -> Option<Slot> {
        let places = &self.shards[shard_of(id)].places;
        if places.is_empty() {
            return None;
        }
        let (mut at, mark) = (home(id, places.len()), self.marks.mark(id));
        loop {
            let slot = self.marks.slot(places[at])?;
            if self.marks.may_be(places[at], mark) && id_of(slot) == id {
                return Some(slot);
            }
            at = after(at, places.len());
        }
    }

    /// Adds the entry of an id, which has none.
    pub(super) fn insert(&mut self, id: u64, slot: Slot, id_of: impl Fn(Slot) -> u64) {
        let shard = &mut self.shards[shard_of(id)];
        if shard.used * LOAD.0 >= shard.places.len() * LOAD.1 {
            shard.grow(self.marks, id_of);
        }
        shard.used += 1;
        shard.put(id, self.marks.place(id, slot));
    }

    /// Forgets the entry of an id.
    pub(super) fn remove(&mut self, id: u64, slot: Slot, id_of: impl Fn(Slot) -> u64) {
        let Shard { places, used } = &mut self.shards[shard_of(id)];
        *used -= 1;
        let (mut hole, place) = (home(id, places.len()), self.marks.place(id, slot));
        while places[hole] != place {
            hole = after(hole, places.len());
        }
        let mut at = hole;
        loop {
            places[hole] = 0;
            loop {
                at = after(at, places.len());
                let Some(other) = self.marks.slot(places[at]) else { return };
                if !is_between(hole, home(id_of(other), places.len()), at) {
                    break;
                }
            }
            places[hole] = places[at];
            hole = at;
        }
    }
}

impl Shard {
    fn grow(&mut self, marks: Marks, id_of: impl Fn(Slot) -> u64) {
        let length = (self.places.len() + self.places.len() / 4).max(PLACES_MIN);
        for place in std::mem::replace(&mut self.places, vec![0; length]) {
            if let Some(slot) = marks.slot(place) {
                self.put(id_of(slot), place);
            }
        }
    }

    fn put(&mut self, id: u64, place: u32) {
        let mut at = home(id, self.places.len());
        while self.places[at] != 0 {
            at = after(at, self.places.len());
        }
        self.places[at] = place;
    }
}

/// By the low bits: a home is told by the high ones.
const fn shard_of(id: u64) -> usize {
    id as usize & (SHARDS - 1)
}

/// Ids are hashes already: the high half of a product spreads them over any length (Lemire, "Fast random
/// integer generation in an interval", 2019).
const fn home(id: u64, length: usize) -> usize {
    ((id as u128 * length as u128) >> 64) as usize
}

const fn after(at: usize, length: usize) -> usize {
    if at + 1 == length { 0 } else { at + 1 }
}

/// Whether `home` is in the cyclic range behind `hole` up to `at`.
const fn is_between(hole: usize, home: usize, at: usize) -> bool {
    if hole <= at { hole < home && home <= at } else { hole < home || home <= at }
}

#[cfg(test)]
mod tests {
    use super::{Index, Slot};
    use std::cell::Cell;

    const fn id_of(slot: Slot) -> u64 {
        (slot as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn its_memory_follows_what_is_in_it() {
        let mut index = Index::new(200_000);
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
    fn what_is_in_it_is_found_however_many_bits_are_left_for_marks() {
        for entries_max in [20_000, 1 << 24, (1 << 31) - 1] {
            let mut index = Index::new(entries_max);
            // The last numbers that there may be.
            let first = (entries_max - 20_000) as Slot;
            (0..20_000).for_each(|n| index.insert(id_of(first + n), first + n, id_of));
            let find = |index: &Index, n: Slot| index.find(id_of(first + n), id_of);
            assert!((0..20_000).all(|n| find(&index, n) == Some(first + n)));
            (0..20_000).step_by(2).for_each(|n| index.remove(id_of(first + n), first + n, id_of));
            assert!((0..20_000).all(|n| find(&index, n).is_some() == (n % 2 == 1)));
        }
    }

    #[test]
    fn few_others_are_looked_at() {
        let (entries, looked) = (1 << 16, Cell::new(0_u32));
        let mut index = Index::new(entries as usize);
        (0..entries).for_each(|slot| index.insert(id_of(slot), slot, id_of));
        let look = |slot: Slot| {
            looked.set(looked.get() + 1);
            id_of(slot)
        };
        assert!((0..entries).all(|slot| index.find(id_of(slot), look) == Some(slot)));
        assert!(looked.get() < entries + entries / 1000, "{} for {entries}", looked.get());
    }
}
