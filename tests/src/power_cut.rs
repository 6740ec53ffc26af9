//! The states that a power cut may leave of a recording.
//!
//! The model is harsher than any one file system, so that passing it is a statement about all of them:
//!
//! - **Data.** `fsync` and `fdatasync` make every earlier write and size change of that file durable, and
//!   nothing else: not its name. Each later write is kept, dropped or torn at 512-byte sectors, independently
//!   and in any order; a dropped write may still have grown the file (zeros).
//! - **A failed sync** decides the unsynced data at random at that point: the kernel marks those pages clean,
//!   and no later sync of that file writes them.
//! - **Names.** Create, link, unlink, mkdir, rmdir and rename are durable once their directory is synced;
//!   before that each is kept or lost independently. A rename is atomic: the old name or the new one, durable
//!   with a sync of the destination directory. A file without a name is gone, synced or not, and a directory
//!   that lost its name takes all entries below it along.
//! - **One order is kept**: a rename does not reach the disk before earlier changes of its destination
//!   directory (`names` gives the reason).
//! - **Kind and permissions** of a file are durable with its name.
//!
//! A [`PowerCut`] (position, style, seed) determines a state completely. Any position is possible; often it
//! is the moment when a client received its response, since a missing sync shows then.

use std::collections::HashMap;

use crate::disk::FileImage;
use crate::recording::{DiskEvent, Ino, Recording};
use crate::seed::Rng;

mod files;
mod names;
mod tests;
mod tree;

pub(crate) use tree::CrashTree;

/// Treatment of unsynced changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutStyle {
    /// All of them are lost: the state that shows a missing sync most surely.
    DropAll,
    /// All of them reached the disk: the state that `kill -9` leaves.
    KeepAll,
    /// Data is kept, names are lost.
    DropNames,
    /// Names are kept, data is lost.
    DropData,
    /// Each write and each name independently: kept, dropped or torn.
    Mixed,
    /// Every write is torn; each name is kept or lost independently.
    Torn,
    /// Each file and directory in one of the other styles.
    PerFile,
}

impl CutStyle {
    const ALL: [Self; 7] = [
        Self::DropAll,
        Self::KeepAll,
        Self::DropNames,
        Self::DropData,
        Self::Mixed,
        Self::Torn,
        Self::PerFile,
    ];

    /// Chooses a style. [`Self::DropAll`] and [`Self::Mixed`] are chosen more often: they find the most.
    pub(crate) fn choose(rng: &mut Rng) -> Self {
        match rng.below(10) {
            0 | 1 => Self::DropAll,
            2..=4 => Self::Mixed,
            5 => Self::PerFile,
            other => Self::ALL[usize::try_from(other).expect("small") % Self::ALL.len()],
        }
    }

    fn for_inode(self, seed: u64, ino: Ino) -> Self {
        if self == Self::PerFile { Self::ALL[Rng::new(seed).fork(ino).index(6)] } else { self }
    }
}

/// A power cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerCut {
    /// Events before this position had happened.
    pub(crate) at: usize,
    pub(crate) style: CutStyle,
    pub(crate) seed: u64,
}

/// Selects the syncs that have no effect, for the controls: by path (the root's is empty) and by kind (true
/// for a sync of names).
pub(crate) type IgnoredSyncs = fn(path: &str, names: bool) -> bool;

/// Every sync counts.
pub(crate) const NO_SYNCS_IGNORED: IgnoredSyncs = |_, _| false;

/// The state that `cut` leaves.
pub(crate) fn crash_state(recording: &Recording, cut: PowerCut, ignored: IgnoredSyncs) -> CrashTree {
    let mut files: HashMap<Ino, files::PendingFile> = HashMap::new();
    let mut names = names::PendingNames::default();
    for event in &recording.events[..cut.at] {
        match event {
            DiskEvent::AddName { .. } | DiskEvent::RemoveName { .. } | DiskEvent::Rename { .. } => {
                names.add_change(event)
            }
            DiskEvent::SyncNames { dir, path } if !ignored(path, true) => names.sync(*dir),
            DiskEvent::Write { ino, .. } | DiskEvent::Resize { ino, .. } | DiskEvent::Zero { ino, .. } => {
                files.entry(*ino).or_default().add_change(event);
            }
            DiskEvent::Sync { ino, path } if !ignored(path, false) => files.entry(*ino).or_default().sync(),
            DiskEvent::SyncFailed { ino } => files.entry(*ino).or_default().resolve_pending(cut, *ino),
            DiskEvent::Sync { .. } | DiskEvent::SyncNames { .. } => {}
        }
    }
    let resolved = |(ino, mut data): (Ino, files::PendingFile)| {
        data.resolve_pending(cut, ino);
        (ino, data.into_durable())
    };
    let files: HashMap<Ino, FileImage> = files.into_iter().map(resolved).collect();
    CrashTree { files, directories: names.resolve_pending(cut), shapes: recording.shapes.clone() }
}
