//! Binary heap of kept blocks by expected read. Heap entries refer to their blocks and blocks to their heap
//! positions, so each block can be moved or removed.

use crate::engine::table::{Slot, Table};

/// A kept block of a plan.
#[derive(Clone, Copy, Debug)]
struct Held {
    due_us: u64,
    /// Id of the object's first block.
    object: u64,
    slot: Slot,
}

/// Heap with the latest expected read on top.
#[derive(Default)]
pub(in crate::engine) struct Heap {
    held: Vec<Held>,
}

impl Heap {
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns the block at a position and its object.
    pub(super) fn at(&self, place: usize) -> (Slot, u64) {
        (self.held[place].slot, self.held[place].object)
    }

    pub(super) fn top(&self) -> Option<(Slot, u64, u64)> {
        self.held.first().map(|held| (held.slot, held.object, held.due_us))
    }

    pub(super) fn push(&mut self, table: &mut Table, slot: Slot, object: u64, due_us: u64) {
        self.held.push(Held { due_us, object, slot });
        self.rise(table, self.held.len() - 1);
    }

    pub(super) fn remove(&mut self, table: &mut Table, slot: Slot) {
        let place = table[slot].link.place();
        debug_assert_eq!(self.held[place].slot, slot);
        self.held.swap_remove(place);
        if place < self.held.len() {
            self.rise(table, place);
            self.sink(table, place);
        }
    }

    pub(super) fn change(&mut self, table: &mut Table, slot: Slot, due_us: u64) {
        let place = table[slot].link.place();
        self.held[place].due_us = due_us;
        self.rise(table, place);
        self.sink(table, table[slot].link.place());
    }

    fn put(&self, table: &mut Table, place: usize) {
        table[self.held[place].slot].link.set_place(place);
    }

    fn rise(&mut self, table: &mut Table, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.held[parent].due_us >= self.held[place].due_us {
                break;
            }
            self.held.swap(parent, place);
            self.put(table, place);
            place = parent;
        }
        self.put(table, place);
    }

    fn sink(&mut self, table: &mut Table, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.held.len());
            let Some(child) = children.max_by_key(|child| self.held[*child].due_us) else { break };
            if self.held[child].due_us <= self.held[place].due_us {
                break;
            }
            self.held.swap(child, place);
            self.put(table, place);
            place = child;
        }
        self.put(table, place);
    }

    /// Checks the heap order and the positions of all blocks. Returns the bytes of all blocks.
    #[cfg(test)]
    pub(in crate::engine) fn check(&self, table: &Table) -> u64 {
        for (place, held) in self.held.iter().enumerate() {
            assert_eq!(table[held.slot].link.place(), place);
            assert_eq!(table[held.slot].place(), crate::engine::table::Place::Planned);
            assert!(place == 0 || self.held[(place - 1) / 2].due_us >= held.due_us);
        }
        self.held.iter().map(|held| table[held.slot].bytes()).sum()
    }
}
