//! Numbers of datasets: a table entry has few bits for them, so they are reclaimed and reused.
//!
//! Numbers of datasets that became part of others are reclaimed first, since nothing is lost with them; the
//! engine chooses further datasets ([`DatasetNames::dissolve`]). A reused number has another generation, so
//! an old [`DatasetId`] never refers to the next dataset with its number. Invariants: until it is reused, a
//! number leads to the dataset that its own became part of, or to [`OTHERS`]; no map leads to a free number.

use super::super::table::DATASETS_MAX;
use super::{DatasetName, DatasetNames, FolderEntry, OTHERS};

/// Maximum numbers that one key needs: one for a folder that becomes a dataset, and one for its pattern.
const NEEDED_MAX: usize = 2;
/// Divisor of all numbers that gives the batch to be reclaimed; every batch costs a scan of all entries.
const BATCH_SHARE: usize = 8;

/// Id of a dataset: its number and generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatasetId(u32);

const GENERATION_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << GENERATION_BITS;
const _: () = assert!(DATASETS_MAX <= 1 << (u32::BITS - GENERATION_BITS), "an id holds any number");

impl DatasetId {
    /// Returns the id of the first dataset with this number.
    pub(crate) const fn first(number: u16) -> Self {
        Self((number as u32) << GENERATION_BITS)
    }

    /// Returns the id of the next dataset with the same number.
    pub(crate) const fn next(self) -> Self {
        let generation = (self.0 + 1) % GENERATIONS;
        Self(self.0 & !(GENERATIONS - 1) | generation)
    }

    pub(in crate::engine) const fn number(self) -> u16 {
        (self.0 >> GENERATION_BITS) as u16
    }

    /// Returns bits that distinguish the dataset, in the upper part, to be mixed with ids of callers.
    pub(in crate::engine) const fn bits(self) -> u64 {
        (self.0 as u64) << (48 - GENERATION_BITS)
    }
}

/// By reclaimed number: the dataset that takes its entries over.
pub(in crate::engine) struct ReclaimedNumbers(Box<[Option<u16>]>);

impl ReclaimedNumbers {
    pub(in crate::engine) fn of(&self, number: u16) -> Option<u16> {
        self.0.get(number as usize).copied().flatten()
    }
}

impl DatasetNames {
    /// Returns the id of the dataset that has a number.
    pub(in crate::engine) fn id(&self, number: u16) -> DatasetId {
        self.ids[number as usize]
    }

    /// Returns the current number of a dataset; `None` if its number was reused.
    pub(in crate::engine) fn current_number(&self, id: DatasetId) -> Option<u16> {
        let number = id.number();
        self.ids.get(number as usize).filter(|it| **it == id).map(|_| self.root(number))
    }

    /// Returns the count of numbers, including free ones.
    pub(in crate::engine) fn len(&self) -> usize {
        self.names.len()
    }

    /// True if a key may need more numbers than are left.
    pub(in crate::engine) fn is_short(&self) -> bool {
        self.numbers_max.saturating_sub(self.names.len()) + self.free.len() < NEEDED_MAX
    }

    /// Returns the datasets that are not part of others, except [`OTHERS`].
    pub(in crate::engine) fn roots(&self) -> impl Iterator<Item = u16> + '_ {
        (1..self.names.len() as u16).filter(|number| self.part_of[*number as usize] == *number)
    }

    /// Returns how many datasets have to be given up so that, with the parts of others, a batch of numbers
    /// can be reclaimed.
    pub(in crate::engine) fn shortfall(&self) -> usize {
        let parts = self.names.len() - 1 - self.roots().count() - self.free.len();
        (self.numbers_max / BATCH_SHARE).max(NEEDED_MAX).saturating_sub(parts)
    }

    /// Makes a dataset part of [`OTHERS`].
    pub(in crate::engine) fn dissolve(&mut self, number: u16) {
        assert!(number != OTHERS && self.root(number) == number, "a dataset is dissolved once");
        self.part_of[number as usize] = OTHERS;
        self.united.push((OTHERS, number));
    }

    /// Reclaims the numbers of all datasets that are part of others.
    pub(in crate::engine) fn reclaim_numbers(&mut self) -> ReclaimedNumbers {
        let mut is_free = vec![false; self.names.len()];
        self.free.iter().for_each(|number| is_free[*number as usize] = true);
        let roots: Vec<u16> = (0..self.names.len() as u16).map(|number| self.root(number)).collect();
        let reclaimed = roots.iter().enumerate().map(|(number, root)| {
            let is_part = usize::from(*root) != number;
            (is_part && !is_free[number]).then_some(*root)
        });
        let given = ReclaimedNumbers(reclaimed.collect());
        // Includes numbers reclaimed earlier: the dataset that they are part of may become free now.
        self.part_of = roots;
        self.redirect(&given);
        for number in (1..self.names.len() as u16).filter(|number| given.of(*number).is_some()) {
            self.names[number as usize] = DatasetName::default();
            self.shapes[number as usize] = 0;
            self.free.push_back(number);
        }
        given
    }

    /// Redirects entries that lead to a reclaimed number to the current dataset, or forgets them.
    fn redirect(&mut self, reclaimed: &ReclaimedNumbers) {
        let redirect_number = |number: &mut u16| {
            *number = reclaimed.of(*number).unwrap_or(*number);
            *number != OTHERS
        };
        self.retain_patterns(|_, place| redirect_number(&mut place.number));
        // Keys below a folder that is one dataset are found by that folder.
        let Self { united_by_shape: wholes, shapes, .. } = self;
        wholes.retain(|shape, (_, whole)| redirect_number(whole) && shapes[*whole as usize] == *shape);
        let own = self.own_folders();
        self.folders.retain(|id, folder| {
            let FolderEntry { files_dataset: flat, tree_dataset: within, .. } = folder;
            let has_dataset = flat.iter_mut().chain(within).all(redirect_number);
            if !has_dataset {
                // The children are unknown then; the parent has counted this folder already.
                *folder = FolderEntry::default();
            }
            has_dataset || own.contains(id)
        });
    }

    /// Returns a number for a new dataset.
    pub(super) fn new_dataset(&mut self, name: DatasetName, shape: u64) -> u16 {
        if let Some(number) = self.free.pop_front() {
            let at = number as usize;
            self.ids[at] = self.ids[at].next();
            (self.names[at], self.shapes[at], self.part_of[at]) = (name, shape, number);
            return number;
        }
        debug_assert!(self.names.len() < self.numbers_max, "numbers are released before a key is looked up");
        if self.names.len() >= self.numbers_max {
            return OTHERS;
        }
        let number = self.names.len() as u16;
        self.ids.push(DatasetId::first(number));
        self.names.push(name);
        self.shapes.push(shape);
        self.part_of.push(number);
        number
    }
}

#[cfg(test)]
impl DatasetNames {
    pub(in crate::engine) fn is_free(&self, number: u16) -> bool {
        self.free.contains(&number)
    }

    /// Checks that nothing leads to a free number and that all sizes are within bounds.
    pub(in crate::engine) fn check(&self) {
        use super::bounds::{FOLDERS_MAX, PATTERNS_MAX};
        let Self {
            names,
            ids,
            part_of: within,
            shapes,
            free,
            patterns: places,
            folders,
            united_by_shape: wholes,
            united,
            ..
        } = self;
        assert!(names.len() <= self.numbers_max && united.is_empty());
        assert!([ids.len(), within.len(), shapes.len()].iter().all(|length| *length == names.len()));
        let mut is_free = vec![false; names.len()];
        for number in free {
            assert!(!std::mem::replace(&mut is_free[*number as usize], true), "each number is released once");
            assert_ne!(self.root(*number), *number, "the number is merged into another");
        }
        let leads =
            |number: u16| !is_free[number as usize] && (number == OTHERS || self.root(number) != OTHERS);
        assert!(places.values().all(|place| leads(place.number)));
        assert!(
            folders
                .values()
                .flat_map(|folder| folder.files_dataset.iter().chain(&folder.tree_dataset))
                .all(|it| leads(*it))
        );
        assert!(wholes.values().all(|(_, number)| leads(*number)));
        assert!(places.len() <= PATTERNS_MAX && wholes.len() <= self.numbers_max);
        // A folder is looked up together with all folders above it.
        assert!(folders.len() <= FOLDERS_MAX + 1024);
    }
}
