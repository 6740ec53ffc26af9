//! Limits on remembered folders and patterns; entries that can be found in another way are forgotten first.
//!
//! Invariants: the remaining entries lead to the same datasets as before, and each dataset that was found by
//! a pattern is still found by at least one. The children of a folder may be counted again from zero, so the
//! folder becomes one dataset later, if at all.

use super::super::table::DATASETS_MAX;
use super::{BuildPassThroughHasher, DatasetNames, FolderEntry, OTHERS, PatternEntry};
use std::collections::HashSet;

/// Maximum remembered folders, and maximum remembered folder patterns.
pub(super) const FOLDERS_MAX: usize = 1 << 14;
pub(super) const PATTERNS_MAX: usize = 1 << 14;
/// Entries that remain after trimming: more than there are datasets.
const PATTERNS_LEFT: usize = PATTERNS_MAX / 4 * 3;
const _: () = assert!(PATTERNS_LEFT > DATASETS_MAX && FOLDERS_MAX > DATASETS_MAX);

impl DatasetNames {
    /// Makes room for another folder.
    pub(super) fn trim_folders(&mut self) {
        if self.folders.len() < FOLDERS_MAX {
            return;
        }
        self.trim_folders_without_dataset();
        if self.folders.len() >= FOLDERS_MAX {
            // Keys below a folder that is one dataset are found by that folder.
            let own = self.own_folders();
            self.folders.retain(|id, _| own.contains(id));
        }
    }

    /// Forgets folders without a dataset of their own, which are looked up again when needed; their parents
    /// count them again.
    pub(super) fn trim_folders_without_dataset(&mut self) {
        self.folders.retain(|_, folder| {
            *folder = FolderEntry { folders: 0, ..*folder };
            folder.tree_dataset.is_some() || folder.files_dataset.is_some()
        });
    }

    /// Makes room for another pattern.
    pub(super) fn trim_patterns(&mut self) {
        if self.patterns.len() < PATTERNS_MAX {
            return;
        }
        let roots: Vec<u16> = (0..self.names.len() as u16).map(|number| self.root(number)).collect();
        let is_found_by_folder: Vec<bool> =
            roots.iter().map(|root| self.is_found_without_pattern(*root)).collect();
        self.retain_patterns(|_, place| !is_found_by_folder[place.number as usize]);
        // A dataset with many patterns, as its reader went from one to the next, keeps some of them.
        let mut least = vec![u64::MAX; roots.len()];
        for (id, place) in &self.patterns {
            let least = &mut least[roots[place.number as usize] as usize];
            *least = (*least).min(*id);
        }
        let mut mask = 0;
        while self.patterns.len() > PATTERNS_LEFT {
            mask = mask << 1 | 1;
            self.retain_patterns(|id, place| {
                id & mask == 0 || least[roots[place.number as usize] as usize] == *id
            });
        }
    }

    /// Forgets patterns and reduces the pattern counts of their folders.
    pub(super) fn retain_patterns(&mut self, mut keep: impl FnMut(&u64, &mut PatternEntry) -> bool) {
        let Self { patterns: places, folders, .. } = self;
        places.retain(|id, place| {
            let stays = keep(id, place);
            if let Some(folder) = folders.get_mut(&place.folder).filter(|_| !stays) {
                folder.patterns = folder.patterns.saturating_sub(1);
            }
            stays
        });
    }

    /// Returns the folders whose files, or everything below which, are or were one dataset.
    pub(super) fn own_folders(&self) -> HashSet<u64, BuildPassThroughHasher> {
        let own = self.names.iter().filter(|name| name.pattern.is_empty());
        own.map(|name| self.folder_id(name.bucket, &name.folder)).collect()
    }

    /// True if keys of a dataset are found by their folder or by its shape.
    fn is_found_without_pattern(&self, whole: u16) -> bool {
        let leads = |number: u16| whole != OTHERS && self.root(number) == whole;
        match self.shapes[whole as usize] {
            0 => {
                let name = &self.names[whole as usize];
                let folder = self.folders.get(&self.folder_id(name.bucket, &name.folder));
                folder.and_then(|folder| folder.tree_dataset.or(folder.files_dataset)).is_some_and(leads)
            }
            shape => self.united_by_shape.get(&shape).is_some_and(|(_, number)| leads(*number)),
        }
    }
}
