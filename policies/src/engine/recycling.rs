//! Numbers of datasets are given back before they run out: by parts of other datasets, and by those that are
//! missed least.
//!
//! Of the half that has been silent longest those go first of which nothing is kept, and of these those that
//! nobody has read twice. What is kept of one that goes stays, as what nobody has read, until others need the
//! room. Always: no entry has a number that is free, and whoever remembers a dataset that is no more finds
//! none. All entries are looked at twice, once for some five hundred numbers: with half a million of them a
//! key of a new dataset was measured to cost 7 µs more than others in the mean, all that is made for it
//! included. That is 3.5 ms each time at most, and nothing for any other access.

use super::dataset::Dataset;
use super::job::Job;
use super::names::OTHERS;
use super::{Engine, Seen};
use crate::access::Access;

/// Of all datasets, those of which one in so many was silent longest may go: whoever reads now comes back
/// while that many others come.
const SILENT_SHARE: usize = 2;

impl Engine {
    /// The number of a key's dataset.
    pub(super) fn number_of(&mut self, bucket: u64, key: &str) -> u16 {
        if self.names.is_short() {
            self.give_numbers_back();
        }
        let number = self.names.dataset(bucket, key);
        self.take_united();
        number
    }

    /// What was observed, as of now: its dataset may have become part of another since, or its number may be
    /// another's.
    pub(super) fn now(&self, seen: Seen, access: &Access<'_>) -> Seen {
        match self.names.now(seen.dataset) {
            Some(number) => Seen { dataset: self.names.id(number), ..seen },
            None => {
                let number = self.names.find(access.bucket, access.key).unwrap_or(OTHERS);
                let dataset = self.names.id(number);
                Seen { dataset, stream: super::Streams::id(access.caller, dataset), ..seen }
            }
        }
    }

    /// The number of the dataset of an access, or that of [`OTHERS`] when it is not told from them any more.
    pub(super) fn number(&self, seen: Seen) -> u16 {
        self.names.now(seen.dataset).unwrap_or(OTHERS)
    }

    fn give_numbers_back(&mut self) {
        let missing = self.names.missing();
        if missing > 0 {
            self.give_up(missing);
        }
        let given = self.names.give_back();
        for slot in 0..self.table.end() {
            let entry = &mut self.table[slot];
            if let Some(number) = given.of(entry.dataset()) {
                entry.set_dataset(number);
                entry.stamps = 0;
            }
        }
        self.least_known = None;
    }

    /// So many datasets are not told from others any more.
    fn give_up(&mut self, count: usize) {
        let Self { lists, datasets, .. } = self;
        datasets.entry(OTHERS).or_insert_with(|| Dataset::new(OTHERS, lists));
        for number in self.least_missed(count) {
            let last_us = self.datasets.get(&number).map_or(0, |dataset| dataset.last_us);
            self.names.give_up(number);
            if let Some(others) = self.datasets.get_mut(&OTHERS) {
                others.last_us = others.last_us.max(last_us);
            }
        }
        self.take_united();
    }

    /// The datasets that are missed least.
    fn least_missed(&self, count: usize) -> Vec<u16> {
        let known = |number: u16| self.datasets.get(&number);
        let last_us = |number: u16| known(number).map_or(0, |dataset| dataset.last_us);
        let mut silent: Vec<u16> = self.names.roots().collect();
        silent.sort_unstable_by_key(|number| (last_us(*number), *number));
        silent.truncate((silent.len() / SILENT_SHARE).max(count));
        let is_kept = self.kept_datasets();
        silent.sort_by_key(|number| {
            let is_proven = known(*number).is_some_and(|dataset| dataset.jobs.iter().any(Job::is_proven));
            (is_kept[*number as usize], is_proven)
        });
        silent.truncate(count);
        silent
    }

    /// By number: whether anything is kept of a dataset.
    fn kept_datasets(&self) -> Vec<bool> {
        let mut is_kept = vec![false; self.names.len()];
        for slot in 0..self.table.end() {
            let entry = &self.table[slot];
            is_kept[entry.dataset() as usize] |= entry.place().is_kept();
        }
        for number in 0..is_kept.len() {
            if is_kept[number] {
                is_kept[self.names.root(number as u16) as usize] = true;
            }
        }
        is_kept
    }
}

#[cfg(test)]
impl Engine {
    /// No entry has a number that is free, each dataset knows how many it has, and names are bounded.
    pub(super) fn check_numbers(&self) {
        self.names.check();
        let mut known = std::collections::BTreeMap::<u16, u32>::new();
        for entry in (0..self.table.end()).map(|slot| &self.table[slot]).filter(|entry| entry.id != 0) {
            assert!(!self.names.is_free(entry.dataset()));
            *known.entry(self.names.root(entry.dataset())).or_default() += 1;
        }
        for (number, dataset) in &self.datasets {
            assert_eq!(self.names.root(*number), *number, "who is part of another has nothing of its own");
            assert_eq!(dataset.known, known.remove(number).unwrap_or_default(), "dataset {number}");
        }
        assert!(known.is_empty(), "{known:?}");
    }
}
