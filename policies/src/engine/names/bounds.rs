//! Limits on remembered folders and patterns; entries that can be found in another way are forgotten first.
//!
//! Always: the remaining entries lead to the same datasets as before, and each dataset that was found by a
//! pattern is still found by at least one. The children of a folder may be counted again from zero, so the
//! folder becomes one dataset later, if at all.

use super::super::table::DATASETS_MAX;
use super::{Folder, Hashed, Names, OTHERS, Place};
use std::collections::HashSet;

/// Maximum remembered folders, and maximum remembered folder patterns.
pub(super) const FOLDERS_MAX: usize = 1 << 14;
pub(super) const PLACES_MAX: usize = 1 << 14;
/// Entries that remain after trimming: more than there are datasets.
const PLACES_LEFT: usize = PLACES_MAX / 4 * 3;
const _: () = assert!(PLACES_LEFT > DATASETS_MAX && FOLDERS_MAX > DATASETS_MAX);

impl Names {
    /// Makes room for another folder.
    pub(super) fn trim_folders(&mut self) {
        if self.folders.len() < FOLDERS_MAX {
            return;
        }
        self.keep_known_folders();
        if self.folders.len() >= FOLDERS_MAX {
            // Keys below a folder that is one dataset are found by that folder.
            let own = self.own_folders();
            self.folders.retain(|id, _| own.contains(id));
        }
    }

    /// Forgets folders without a dataset of their own, which are looked up again when needed; their parents
    /// count them again.
    pub(super) fn keep_known_folders(&mut self) {
        self.folders.retain(|_, folder| {
            *folder = Folder { folders: 0, ..*folder };
            folder.within.is_some() || folder.flat.is_some()
        });
    }

    /// Makes room for another pattern.
    pub(super) fn trim_places(&mut self) {
        if self.places.len() < PLACES_MAX {
            return;
        }
        let roots: Vec<u16> = (0..self.names.len() as u16).map(|number| self.root(number)).collect();
        let is_found: Vec<bool> = roots.iter().map(|root| self.is_found_without_place(*root)).collect();
        self.retain_places(|_, place| !is_found[place.number as usize]);
        // A dataset with many patterns, as its reader went from one to the next, keeps some of them.
        let mut least = vec![u64::MAX; roots.len()];
        for (id, place) in &self.places {
            let least = &mut least[roots[place.number as usize] as usize];
            *least = (*least).min(*id);
        }
        let mut mask = 0;
        while self.places.len() > PLACES_LEFT {
            mask = mask << 1 | 1;
            self.retain_places(|id, place| {
                id & mask == 0 || least[roots[place.number as usize] as usize] == *id
            });
        }
    }

    /// Forgets patterns and reduces the pattern counts of their folders.
    pub(super) fn retain_places(&mut self, mut stays: impl FnMut(&u64, &mut Place) -> bool) {
        let Self { places, folders, .. } = self;
        places.retain(|id, place| {
            let stays = stays(id, place);
            if let Some(folder) = folders.get_mut(&place.folder).filter(|_| !stays) {
                folder.patterns = folder.patterns.saturating_sub(1);
            }
            stays
        });
    }

    /// Returns the folders whose files, or everything below which, are or were one dataset.
    pub(super) fn own_folders(&self) -> HashSet<u64, Hashed> {
        let own = self.names.iter().filter(|name| name.pattern.is_empty());
        own.map(|name| self.folder_id(name.bucket, &name.folder)).collect()
    }

    /// True if keys of a dataset are found by their folder or by its shape.
    fn is_found_without_place(&self, whole: u16) -> bool {
        let leads = |number: u16| whole != OTHERS && self.root(number) == whole;
        match self.shapes[whole as usize] {
            0 => {
                let name = &self.names[whole as usize];
                let folder = self.folders.get(&self.folder_id(name.bucket, &name.folder));
                folder.and_then(|folder| folder.within.or(folder.flat)).is_some_and(leads)
            }
            shape => self.wholes.get(&shape).is_some_and(|(_, number)| leads(*number)),
        }
    }
}
