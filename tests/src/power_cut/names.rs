//! Directory entries: the durable ones, and the changes that are still undecided.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Cut, Style};
use crate::recording::{Event, Ino, ROOT};
use crate::seed::Rng;

/// The entries of every directory.
pub(super) type Directories = HashMap<Ino, BTreeMap<Arc<str>, Ino>>;

/// All directories under the model.
#[derive(Default)]
pub(super) struct Names<'a> {
    durable: Directories,
    pending: Vec<&'a Event>,
}

impl<'a> Names<'a> {
    pub(super) fn change(&mut self, event: &'a Event) {
        self.pending.push(event);
    }

    pub(super) fn sync(&mut self, dir: Ino) {
        for event in std::mem::take(&mut self.pending) {
            if home(event) == dir {
                apply(&mut self.durable, event);
            } else {
                self.pending.push(event);
            }
        }
    }

    /// Decides every unsynced change at random, in the order of the changes.
    pub(super) fn settle(mut self, cut: Cut) -> Directories {
        let pending = std::mem::take(&mut self.pending);
        let mut kept: Vec<bool> = pending
            .iter()
            .enumerate()
            .map(|(index, event)| {
                let mut rng = Rng::new(cut.seed).fork(index as u64 ^ 0x6e61_6d65);
                match cut.style.of(cut.seed, home(event)) {
                    Style::LoseAll | Style::LoseNames => false,
                    Style::KeepAll | Style::LoseData => true,
                    Style::Mixed | Style::Torn | Style::PerFile => rng.chance(1, 2),
                }
            })
            .collect();
        hold_back_renames(&pending, &mut kept);
        for (event, kept) in pending.into_iter().zip(kept) {
            if kept {
                apply(&mut self.durable, event);
            }
        }
        self.durable.entry(ROOT).or_default();
        self.durable
    }
}

/// Keeps every earlier change of a directory to which a kept rename goes.
///
/// RocksDB creates a MANIFEST, syncs its data, renames CURRENT over to name it, and only then syncs the
/// directory: it relies on the rename not overtaking the creation. Journaling file systems (ext4, XFS, btrfs,
/// F2FS) guarantee exactly this, so the model does too; no other order is guaranteed.
fn hold_back_renames(pending: &[&Event], kept: &mut [bool]) {
    for index in (0..pending.len()).rev() {
        if kept[index] && matches!(pending[index], Event::Rename { .. }) {
            for earlier in 0..index {
                if home(pending[earlier]) == home(pending[index]) {
                    kept[earlier] = true;
                }
            }
        }
    }
}

/// The directory whose sync makes the change durable.
fn home(event: &Event) -> Ino {
    match event {
        Event::Name { dir, .. } | Event::Unname { dir, .. } => *dir,
        Event::Rename { to, .. } => to.0,
        other => unreachable!("{other:?} does not change names"),
    }
}

fn apply(directories: &mut Directories, event: &Event) {
    match event {
        Event::Name { dir, name, ino } => {
            directories.entry(*dir).or_default().insert(name.clone(), *ino);
        }
        Event::Unname { dir, name, ino } => forget(directories, *dir, name, *ino),
        Event::Rename { from, to, ino } => {
            forget(directories, from.0, &from.1, *ino);
            directories.entry(to.0).or_default().insert(to.1.clone(), *ino);
        }
        other => unreachable!("{other:?} does not change names"),
    }
}

/// Removes a name if it still refers to this inode: a later file of the same name stays.
fn forget(directories: &mut Directories, dir: Ino, name: &str, ino: Ino) {
    let entries = directories.entry(dir).or_default();
    if entries.get(name) == Some(&ino) {
        entries.remove(name);
    }
}
