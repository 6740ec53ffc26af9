//! Directory entries: the durable ones, and the changes that are still undecided.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{CutStyle, PowerCut};
use crate::recording::{DiskEvent, Ino, ROOT};
use crate::seed::Rng;

/// The entries of every directory.
pub(super) type DirectoryEntries = HashMap<Ino, BTreeMap<Arc<str>, Ino>>;

/// All directories under the model.
#[derive(Default)]
pub(super) struct PendingNames<'a> {
    durable: DirectoryEntries,
    pending: Vec<&'a DiskEvent>,
}

impl<'a> PendingNames<'a> {
    pub(super) fn add_change(&mut self, event: &'a DiskEvent) {
        self.pending.push(event);
    }

    pub(super) fn sync(&mut self, dir: Ino) {
        for event in std::mem::take(&mut self.pending) {
            if directory_of(event) == dir {
                apply(&mut self.durable, event);
            } else {
                self.pending.push(event);
            }
        }
    }

    /// Decides every unsynced change at random, in the order of the changes.
    pub(super) fn resolve_pending(mut self, cut: PowerCut) -> DirectoryEntries {
        let pending = std::mem::take(&mut self.pending);
        let mut kept: Vec<bool> = pending
            .iter()
            .enumerate()
            .map(|(index, event)| {
                let mut rng = Rng::new(cut.seed).fork(index as u64 ^ 0x6e61_6d65);
                match cut.style.for_inode(cut.seed, directory_of(event)) {
                    CutStyle::DropAll | CutStyle::DropNames => false,
                    CutStyle::KeepAll | CutStyle::DropData => true,
                    CutStyle::Mixed | CutStyle::Torn | CutStyle::PerFile => rng.chance(1, 2),
                }
            })
            .collect();
        keep_changes_before_renames(&pending, &mut kept);
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
fn keep_changes_before_renames(pending: &[&DiskEvent], kept: &mut [bool]) {
    for index in (0..pending.len()).rev() {
        if kept[index] && matches!(pending[index], DiskEvent::Rename { .. }) {
            for earlier in 0..index {
                if directory_of(pending[earlier]) == directory_of(pending[index]) {
                    kept[earlier] = true;
                }
            }
        }
    }
}

/// The directory whose sync makes the change durable.
fn directory_of(event: &DiskEvent) -> Ino {
    match event {
        DiskEvent::AddName { dir, .. } | DiskEvent::RemoveName { dir, .. } => *dir,
        DiskEvent::Rename { to, .. } => to.0,
        other => unreachable!("{other:?} does not change names"),
    }
}

fn apply(directories: &mut DirectoryEntries, event: &DiskEvent) {
    match event {
        DiskEvent::AddName { dir, name, ino } => {
            directories.entry(*dir).or_default().insert(name.clone(), *ino);
        }
        DiskEvent::RemoveName { dir, name, ino } => remove_name(directories, *dir, name, *ino),
        DiskEvent::Rename { from, to, ino } => {
            remove_name(directories, from.0, &from.1, *ino);
            directories.entry(to.0).or_default().insert(to.1.clone(), *ino);
        }
        other => unreachable!("{other:?} does not change names"),
    }
}

/// Removes a name if it still refers to this inode: a later file of the same name stays.
fn remove_name(directories: &mut DirectoryEntries, dir: Ino, name: &str, ino: Ino) {
    let entries = directories.entry(dir).or_default();
    if entries.get(name) == Some(&ino) {
        entries.remove(name);
    }
}
