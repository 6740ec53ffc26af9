//! Numbers of the entries of the table, and the links between entries by number.

/// Number of an entry.
pub(super) type Slot = u32;

/// Neighbours of an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    pub(super) before: Slot,
    pub(super) after: Slot,
}

impl Link {
    /// Returns the heap position of an entry that is in a heap and in no list.
    pub(super) fn heap_position(self) -> usize {
        self.before as usize
    }

    pub(super) fn set_heap_position(&mut self, place: usize) {
        self.before = place as Slot;
    }
}
