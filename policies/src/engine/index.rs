//! The index of the table: numbers of entries by hash, with linear probing (Knuth, The Art of Computer Programming 3, 6.4, algorithm R for deletion).
//!
//! It is in shards, each of which grows by a quarter when three quarters of it are used, so that memory follows what is in it and nobody waits long
//! while some of it moves: of a million entries some four thousand at a time. Always: every entry is found from its home on before an empty place.

use super::table::Slot;

/// A power of two.
const SHARDS: usize = 256;
/// Of so many places of a shard three are used at most.
const LOAD: (usize, usize) = (4, 3);
const PLACES_MIN: usize = 8;

/// See the module. What the id of an entry is, the caller says.
pub(super) struct Index {
    shards: Box<[Shard]>,
}

#[derive(Clone, Default)]
struct Shard {
    /// Numbers of entries and one; 0 is an empty place.
    places: Vec<Slot>,
    used: usize,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { shards: vec![Shard::default(); SHARDS].into() }
    }

    /// Bytes of memory that it takes now.
    pub(super) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| size_of::<Shard>() + shard.places.len() * size_of::<Slot>()).sum()
    }

    /// The entry of this id.
    pub(super) fn find(&self, id: u64, id_of: impl Fn(Slot) -> u64) -> Option<Slot> {
        let places = &self.shards[shard_of(id)].places;
        if places.is_empty() {
            return None;
        }
        let mut at = home(id, places.len());
        loop {
            let slot = places[at].checked_sub(1)?;
            if id_of(slot) == id {
                return Some(slot);
            }
            at = after(at, places.len());
        }
    }

    /// Adds the entry of an id, which has none.
    pub(super) fn insert(&mut self, id: u64, slot: Slot, id_of: impl Fn(Slot) -> u64) {
        let shard = &mut self.shards[shard_of(id)];
        if shard.used * LOAD.0 >= shard.places.len() * LOAD.1 {
            shard.grow(id_of);
        }
        shard.used += 1;
        shard.put(id, slot);
    }

    /// Forgets the entry of an id.
    pub(super) fn remove(&mut self, id: u64, slot: Slot, id_of: impl Fn(Slot) -> u64) {
        let Shard { places, used } = &mut self.shards[shard_of(id)];
        *used -= 1;
        let mut hole = home(id, places.len());
        while places[hole] != slot + 1 {
            hole = after(hole, places.len());
        }
        let mut at = hole;
        loop {
            places[hole] = 0;
            loop {
                at = after(at, places.len());
                let Some(other) = places[at].checked_sub(1) else { return };
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
    fn grow(&mut self, id_of: impl Fn(Slot) -> u64) {
        let length = (self.places.len() + self.places.len() / 4).max(PLACES_MIN);
        for place in std::mem::replace(&mut self.places, vec![0; length]) {
            if let Some(slot) = place.checked_sub(1) {
                self.put(id_of(slot), slot);
            }
        }
    }

    fn put(&mut self, id: u64, slot: Slot) {
        let mut at = home(id, self.places.len());
        while self.places[at] != 0 {
            at = after(at, self.places.len());
        }
        self.places[at] = slot + 1;
    }
}

/// By the low bits: a home is told by the high ones.
const fn shard_of(id: u64) -> usize {
    id as usize & (SHARDS - 1)
}

/// Ids are hashes already: the high half of a product spreads them over any length (Lemire, "Fast random integer generation in an interval", 2019).
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

    #[test]
    fn its_memory_follows_what_is_in_it() {
        let id_of = |slot: Slot| u64::from(slot + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut index = Index::new();
        let empty = index.memory_bytes();
        assert!(empty < 10_000);
        for slot in 0..200_000 {
            index.insert(id_of(slot), slot, id_of);
            if [1_000, 50_000, 199_999].contains(&slot) {
                let per_entry = (index.memory_bytes() - empty) as f64 / f64::from(slot);
                assert!(per_entry < 9.0, "{per_entry} bytes of each of {slot}");
            }
        }
        assert!((0..200_000).all(|slot| index.find(id_of(slot), id_of) == Some(slot)));
        (0..200_000).step_by(2).for_each(|slot| index.remove(id_of(slot), slot, id_of));
        assert!((0..200_000).all(|slot| index.find(id_of(slot), id_of).is_some() == (slot % 2 == 1)));
    }
}
