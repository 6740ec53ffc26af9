//! Numbers of datasets: an entry of the table has room for few, so that they are given back and given again.
//!
//! Those of parts of other datasets come first, as nothing is lost with them; which others, the engine says
//! ([`Names::give_up`]). What is given again is of another generation, so that nobody who remembers a dataset
//! takes the next one of its number for it. Always: until then the number leads to what its dataset became
//! part of, or to [`OTHERS`]; no map leads to a number that is free.

use super::{DatasetName, Folder, Names, OTHERS};

/// What one key may need: a folder that has become a dataset, and what one of its names is like.
const NEEDED_MAX: usize = 2;
/// The part of all numbers that is given back at once, since all entries are looked at each time.
const BATCH_SHARE: usize = 8;

/// A dataset: its number, and how many had that before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatasetId(u32);

const GENERATION_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << GENERATION_BITS;

impl DatasetId {
    /// The dataset that was the first to have a number.
    pub(crate) const fn first(number: u16) -> Self {
        Self((number as u32) << GENERATION_BITS)
    }

    /// The one that has it next.
    pub(crate) const fn next(self) -> Self {
        let generation = (self.0 + 1) % GENERATIONS;
        Self(self.0 & !(GENERATIONS - 1) | generation)
    }

    pub(in crate::engine) const fn number(self) -> u16 {
        (self.0 >> GENERATION_BITS) as u16
    }

    /// What tells it from all others, in the upper bits that ids of callers are to be mixed with.
    pub(in crate::engine) const fn bits(self) -> u64 {
        (self.0 as u64) << (48 - GENERATION_BITS)
    }
}

/// By number that was given back: whose it is now.
pub(in crate::engine) struct GivenBack(Box<[Option<u16>]>);

impl GivenBack {
    pub(in crate::engine) fn of(&self, number: u16) -> Option<u16> {
        self.0.get(number as usize).copied().flatten()
    }
}

impl Names {
    /// The dataset that has a number.
    pub(in crate::engine) fn id(&self, number: u16) -> DatasetId {
        self.ids[number as usize]
    }

    /// The number that a dataset has by now; nothing when its own was given again.
    pub(in crate::engine) fn now(&self, id: DatasetId) -> Option<u16> {
        let number = id.number();
        self.ids.get(number as usize).filter(|it| **it == id).map(|_| self.root(number))
    }

    /// How many numbers there are, with those that are free.
    pub(in crate::engine) fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether a key may need more numbers than there are.
    pub(in crate::engine) fn is_short(&self) -> bool {
        self.numbers_max.saturating_sub(self.names.len()) + self.free.len() < NEEDED_MAX
    }

    /// Datasets that are no part of others, but for [`OTHERS`].
    pub(in crate::engine) fn roots(&self) -> impl Iterator<Item = u16> + '_ {
        (1..self.names.len() as u16).filter(|number| self.within[*number as usize] == *number)
    }

    /// How many datasets are to be given up, so that with the parts of others a batch of numbers can be given
    /// back.
    pub(in crate::engine) fn missing(&self) -> usize {
        let parts = self.names.len() - 1 - self.roots().count() - self.free.len();
        (self.numbers_max / BATCH_SHARE).max(NEEDED_MAX).saturating_sub(parts)
    }

    /// A dataset is one of [`OTHERS`] from now on.
    pub(in crate::engine) fn give_up(&mut self, number: u16) {
        self.within[number as usize] = OTHERS;
        self.united.push((OTHERS, number));
    }

    /// Gives back the numbers of all that is part of others.
    pub(in crate::engine) fn give_back(&mut self) -> GivenBack {
        let mut is_free = vec![false; self.names.len()];
        self.free.iter().for_each(|number| is_free[*number as usize] = true);
        let roots: Vec<u16> = (0..self.names.len() as u16).map(|number| self.root(number)).collect();
        let given = roots.iter().enumerate().map(|(number, root)| {
            let is_part = usize::from(*root) != number;
            (is_part && !is_free[number]).then_some(*root)
        });
        let given = GivenBack(given.collect());
        // Also of those that were given back before: what they are part of may be free now.
        self.within = roots;
        self.lead_away(&given);
        for number in (1..self.names.len() as u16).filter(|number| given.of(*number).is_some()) {
            self.names[number as usize] = DatasetName::default();
            self.shapes[number as usize] = 0;
            self.free.push_back(number);
        }
        given
    }

    /// What led to a number that is given back leads to whose that is now, or is forgotten.
    fn lead_away(&mut self, given: &GivenBack) {
        let lead = |number: &mut u16| {
            *number = given.of(*number).unwrap_or(*number);
            *number != OTHERS
        };
        self.retain_places(|_, place| lead(&mut place.number));
        // All below a folder that is one dataset are found by that.
        let Self { wholes, shapes, .. } = self;
        wholes.retain(|shape, (_, whole)| lead(whole) && shapes[*whole as usize] == *shape);
        let own = self.own_folders();
        self.folders.retain(|id, folder| {
            let Folder { flat, within, .. } = folder;
            let leads = flat.iter_mut().chain(within).all(lead);
            if !leads {
                // Of what is below it nothing is known; itself its parent has counted.
                *folder = Folder::default();
            }
            leads || own.contains(id)
        });
    }

    /// A number for what is new.
    pub(super) fn make(&mut self, name: DatasetName, shape: u64) -> u16 {
        if let Some(number) = self.free.pop_front() {
            let at = number as usize;
            self.ids[at] = self.ids[at].next();
            (self.names[at], self.shapes[at], self.within[at]) = (name, shape, number);
            return number;
        }
        debug_assert!(
            self.names.len() < self.numbers_max,
            "numbers are given back before a key is looked up"
        );
        if self.names.len() >= self.numbers_max {
            return OTHERS;
        }
        let number = self.names.len() as u16;
        self.ids.push(DatasetId::first(number));
        self.names.push(name);
        self.shapes.push(shape);
        self.within.push(number);
        number
    }
}

#[cfg(test)]
impl Names {
    pub(in crate::engine) fn is_free(&self, number: u16) -> bool {
        self.free.contains(&number)
    }

    /// Nothing leads to a number that is free, and everything is bounded.
    pub(in crate::engine) fn check(&self) {
        use super::bounds::{FOLDERS_MAX, PLACES_MAX};
        let Self { names, ids, within, shapes, free, places, folders, wholes, united, .. } = self;
        assert!(names.len() <= self.numbers_max && united.is_empty());
        assert!([ids.len(), within.len(), shapes.len()].iter().all(|length| *length == names.len()));
        let mut is_free = vec![false; names.len()];
        for number in free {
            assert!(!std::mem::replace(&mut is_free[*number as usize], true), "given back once");
            assert_ne!(self.root(*number), *number, "it leads elsewhere");
        }
        let leads =
            |number: u16| !is_free[number as usize] && (number == OTHERS || self.root(number) != OTHERS);
        assert!(places.values().all(|place| leads(place.number)));
        assert!(
            folders.values().flat_map(|folder| folder.flat.iter().chain(&folder.within)).all(|it| leads(*it))
        );
        assert!(wholes.values().all(|(_, number)| leads(*number)));
        assert!(places.len() <= PLACES_MAX && wholes.len() <= self.numbers_max);
        // A folder is looked up with all that are above it.
        assert!(folders.len() <= FOLDERS_MAX + 1024);
    }
}
