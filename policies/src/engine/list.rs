//! Doubly linked lists of table entries; each entry is in at most one list.
//!
//! A list is a ring with a sentinel. An entry can be removed without knowing its list, and two lists of any
//! length are joined in constant time.

use super::slot::{Link, Slot};
use super::table::BlockTable;

/// Numbers from here on are sentinels.
const SENTINELS: Slot = 1 << 31;

/// Number of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List(Slot);

/// All lists.
#[derive(Default)]
pub(super) struct Lists {
    sentinels: Vec<Link>,
    free: Vec<Slot>,
}

impl Lists {
    /// Returns a new, empty list.
    pub(super) fn make(&mut self) -> List {
        let number = self.free.pop().unwrap_or_else(|| {
            self.sentinels.push(Link::default());
            (self.sentinels.len() - 1) as Slot
        });
        let list = SENTINELS | number;
        self.sentinels[number as usize] = Link { before: list, after: list };
        List(list)
    }

    /// Frees an empty list.
    pub(super) fn free_list(&mut self, list: List) {
        let sentinel = &self.sentinels[(list.0 & !SENTINELS) as usize];
        assert!(sentinel.after == list.0, "a list is empty when it is freed");
        self.free.push(list.0 & !SENTINELS);
    }

    fn link(&self, table: &BlockTable, at: Slot) -> Link {
        if at >= SENTINELS { self.sentinels[(at & !SENTINELS) as usize] } else { table[at].link }
    }

    fn link_mut<'a>(&'a mut self, table: &'a mut BlockTable, at: Slot) -> &'a mut Link {
        if at >= SENTINELS { &mut self.sentinels[(at & !SENTINELS) as usize] } else { &mut table[at].link }
    }

    /// Appends an entry that is in no list.
    pub(super) fn push(&mut self, table: &mut BlockTable, list: List, slot: Slot) {
        let last = self.link(table, list.0).before;
        table[slot].link = Link { before: last, after: list.0 };
        self.link_mut(table, last).after = slot;
        self.link_mut(table, list.0).before = slot;
    }

    /// Removes an entry from its list.
    pub(super) fn remove(&mut self, table: &mut BlockTable, slot: Slot) {
        let Link { before, after } = table[slot].link;
        let link = self.link_mut(table, before);
        assert!(link.after == slot, "an entry that is removed is in a list");
        link.after = after;
        self.link_mut(table, after).before = before;
    }

    /// Returns the first entry, which was added first.
    pub(super) fn first(&self, table: &BlockTable, list: List) -> Option<Slot> {
        let first = self.link(table, list.0).after;
        (first < SENTINELS).then_some(first)
    }

    /// Returns all entries of a list.
    #[cfg(test)]
    pub(super) fn all(&self, table: &BlockTable, list: List) -> Vec<Slot> {
        let next = |slot: &Slot| Some(table[*slot].link.after).filter(|next| *next < SENTINELS);
        std::iter::successors(self.first(table, list), next).collect()
    }

    /// Appends all entries of `other` to `list`; `other` is empty afterwards.
    pub(super) fn append_all(&mut self, table: &mut BlockTable, list: List, other: List) {
        let Link { before: last, after: first } = self.link(table, other.0);
        if first == other.0 {
            return;
        }
        let end = self.link(table, list.0).before;
        self.link_mut(table, end).after = first;
        self.link_mut(table, first).before = end;
        self.link_mut(table, last).after = list.0;
        self.link_mut(table, list.0).before = last;
        *self.link_mut(table, other.0) = Link { before: other.0, after: other.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::BlockTable;
    use super::Lists;
    use proptest::{collection::vec, prop_assert_eq, proptest};
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn lists_behave_as_queues_with_removal_and_concatenation(
            steps in vec((0..20_u32, 0..3_usize, 0..3_usize), 1..200)
        ) {
            let (mut table, mut lists) = (BlockTable::new(32), Lists::default());
            for id in 0..20 {
                table.insert(id + 1, 0, 1);
            }
            let all = [lists.make(), lists.make(), lists.make()];
            let mut model = [VecDeque::new(), VecDeque::new(), VecDeque::<u32>::new()];
            for (slot, to, step) in steps {
                let holder = model.iter().position(|queue| queue.contains(&slot));
                match (holder, step) {
                    (None, _) => {
                        lists.push(&mut table, all[to], slot);
                        model[to].push_back(slot);
                    }
                    (Some(from), 0) => {
                        lists.remove(&mut table, slot);
                        model[from].retain(|other| *other != slot);
                    }
                    (Some(from), _) if from != to => {
                        lists.append_all(&mut table, all[to], all[from]);
                        let moved = std::mem::take(&mut model[from]);
                        model[to].extend(moved);
                    }
                    _ => {}
                }
                for (list, queue) in all.iter().zip(&model) {
                    prop_assert_eq!(lists.first(&table, *list), queue.front().copied());
                    prop_assert_eq!(lists.all(&table, *list), Vec::from(queue.clone()));
                }
            }
        }
    }
}
