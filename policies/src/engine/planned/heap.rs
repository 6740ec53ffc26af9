//! Binary heap of kept blocks by expected read. Heap entries refer to their blocks and blocks to their heap
//! positions, so each block can be moved or removed.

use crate::engine::slot::Slot;
use crate::engine::table::BlockTable;

/// A kept block of a plan.
#[derive(Clone, Copy, Debug)]
struct PlannedBlock {
    due_us: u64,
    /// Id of the object's first block.
    object: u64,
    slot: Slot,
}

/// Heap with the latest expected read on top.
#[derive(Default)]
pub(in crate::engine) struct PlannedHeap {
    blocks: Vec<PlannedBlock>,
}

impl PlannedHeap {
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the block at a position and its object.
    pub(super) fn at(&self, place: usize) -> (Slot, u64) {
        (self.blocks[place].slot, self.blocks[place].object)
    }

    pub(super) fn top(&self) -> Option<(Slot, u64, u64)> {
        self.blocks.first().map(|held| (held.slot, held.object, held.due_us))
    }

    pub(super) fn push(&mut self, table: &mut BlockTable, slot: Slot, object: u64, due_us: u64) {
        self.blocks.push(PlannedBlock { due_us, object, slot });
        self.rise(table, self.blocks.len() - 1);
    }

    pub(super) fn remove(&mut self, table: &mut BlockTable, slot: Slot) {
        let place = table[slot].link.heap_position();
        assert_eq!(self.blocks[place].slot, slot, "a planned block has its position in the heap");
        self.blocks.swap_remove(place);
        if place < self.blocks.len() {
            self.rise(table, place);
            self.sink(table, place);
        }
    }

    pub(super) fn change(&mut self, table: &mut BlockTable, slot: Slot, due_us: u64) {
        let place = table[slot].link.heap_position();
        self.blocks[place].due_us = due_us;
        self.rise(table, place);
        self.sink(table, table[slot].link.heap_position());
    }

    fn update_position(&self, table: &mut BlockTable, place: usize) {
        table[self.blocks[place].slot].link.set_heap_position(place);
    }

    fn rise(&mut self, table: &mut BlockTable, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.blocks[parent].due_us >= self.blocks[place].due_us {
                break;
            }
            self.blocks.swap(parent, place);
            self.update_position(table, place);
            place = parent;
        }
        self.update_position(table, place);
    }

    fn sink(&mut self, table: &mut BlockTable, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.blocks.len());
            let Some(child) = children.max_by_key(|child| self.blocks[*child].due_us) else { break };
            if self.blocks[child].due_us <= self.blocks[place].due_us {
                break;
            }
            self.blocks.swap(child, place);
            self.update_position(table, place);
            place = child;
        }
        self.update_position(table, place);
    }

    /// Checks the heap order and the positions of all blocks. Returns the bytes of all blocks.
    #[cfg(test)]
    pub(in crate::engine) fn check(&self, table: &BlockTable) -> u64 {
        for (place, held) in self.blocks.iter().enumerate() {
            assert_eq!(table[held.slot].link.heap_position(), place);
            assert_eq!(table[held.slot].state(), crate::engine::table::EntryState::Planned);
            assert!(place == 0 || self.blocks[(place - 1) / 2].due_us >= held.due_us);
        }
        self.blocks.iter().map(|held| table[held.slot].bytes()).sum()
    }
}
