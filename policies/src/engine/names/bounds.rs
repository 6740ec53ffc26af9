//! How much is remembered of where keys belong, and what is forgotten of it: first what is found again
//! otherwise.
//!
//! Always: what is left leads where it led, and each dataset that was found by a place is found by one. How
//! many children a folder has may be counted anew then: it becomes one dataset later, if at all.

use super::super::table::DATASETS_MAX;
use super::{Folder, Hashed, Names, OTHERS, Place};
use std::collections::HashSet;

/// Folders of which it is remembered what they belong to; and folders with a pattern each.
pub(super) const FOLDERS_MAX: usize = 1 << 14;
pub(super) const PLACES_MAX: usize = 1 << 14;
/// So many are left: more than there are datasets.
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
            // What is below a folder that is one dataset is found by that.
            let own = self.own_folders();
            self.folders.retain(|id, _| own.contains(id));
        }
    }

    /// Forgets folders that are looked up anew; those that have them count them again.
    pub(super) fn keep_known_folders(&mut self) {
        self.folders.retain(|_, folder| {
            *folder = Folder { folders: 0, ..*folder };
            folder.within.is_some() || folder.flat.is_some()
        });
    }

    /// Makes room for another place.
    pub(super) fn trim_places(&mut self) {
        if self.places.len() < PLACES_MAX {
            return;
        }
        let roots: Vec<u16> = (0..self.names.len() as u16).map(|number| self.root(number)).collect();
        let is_found: Vec<bool> = roots.iter().map(|root| self.is_found_without_place(*root)).collect();
        self.retain_places(|_, place| !is_found[place.number as usize]);
        // What has many places, as those who read it went from one to the next, keeps some of them, and goes
        // on from those.
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

    /// Forgets places; a folder has one pattern less for each.
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

    /// Folders that are or were one dataset with all of their files, or with all that is below them.
    pub(super) fn own_folders(&self) -> HashSet<u64, Hashed> {
        let own = self.names.iter().filter(|name| name.pattern.is_empty());
        own.map(|name| self.folder_id(name.bucket, &name.folder)).collect()
    }

    /// Whether keys of a dataset are found by their folder, or by what folders are called.
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
