//! A recording of all changes and syncs of a data directory, in the one order in which they happened.
//!
//! The file system appends an event under its lock *before* it replies to the kernel. An event that a later
//! one depends on therefore comes earlier, and a position taken when a client has its response is after every
//! sync that the response waited for. The crash model needs no other knowledge of time.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

/// Inode number of a file or directory of the recorded file system. The root is 1.
pub(crate) type Ino = u64;

/// The root directory, which exists before the recording begins.
pub(crate) const ROOT: Ino = 1;

/// A change or a sync. Reads are not recorded.
#[derive(Clone, Debug)]
pub(crate) enum DiskEvent {
    /// A new name: of a new file or directory, or a hard link.
    AddName {
        dir: Ino,
        name: Arc<str>,
        ino: Ino,
    },
    /// A removed name (unlink or rmdir).
    RemoveName {
        dir: Ino,
        name: Arc<str>,
        ino: Ino,
    },
    /// A moved name, which replaced the file that had the new name.
    Rename {
        from: (Ino, Arc<str>),
        to: (Ino, Arc<str>),
        ino: Ino,
    },
    Write {
        ino: Ino,
        offset: u64,
        data: Bytes,
    },
    /// `ftruncate`, or an allocation that grew the file.
    Resize {
        ino: Ino,
        bytes: u64,
    },
    /// An allocation or hole punch that made a range read as zeros.
    Zero {
        ino: Ino,
        offset: u64,
        bytes: u64,
    },
    /// A successful `fsync` or `fdatasync`. The path is the file's path at that time.
    Sync {
        ino: Ino,
        path: Arc<str>,
    },
    /// A failed `fsync`: the kernel forgets the unsynced data, and no later sync writes it.
    SyncFailed {
        ino: Ino,
    },
    /// An `fsync` of a directory. The path is empty for the root.
    SyncNames {
        dir: Ino,
        path: Arc<str>,
    },
}

/// Kind and permissions of an inode. They are durable immediately: nothing in mlgw depends on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeShape {
    pub(crate) directory: bool,
    pub(crate) mode: u32,
}

/// The events of one data directory, and the shapes of all inodes it ever held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    pub(crate) events: Vec<DiskEvent>,
    pub(crate) shapes: HashMap<Ino, InodeShape>,
}

impl Recording {
    /// The moment after everything recorded so far.
    pub(crate) fn position(&self) -> usize {
        self.events.len()
    }

    /// The positions of the syncs for which `chosen` returns true. Its arguments are the path, and true for a
    /// sync of names.
    pub(crate) fn syncs(&self, chosen: impl Fn(&str, bool) -> bool) -> Vec<usize> {
        let is_chosen = |event: &DiskEvent| match event {
            DiskEvent::Sync { path, .. } => chosen(path, false),
            DiskEvent::SyncNames { path, .. } => chosen(path, true),
            _ => false,
        };
        (0..self.events.len()).filter(|index| is_chosen(&self.events[*index])).collect()
    }

    /// Number of files created with this suffix, for progress lines.
    pub(crate) fn created_count(&self, suffix: &str) -> usize {
        let made =
            |event: &&DiskEvent| matches!(event, DiskEvent::AddName { name, .. } if name.ends_with(suffix));
        self.events.iter().filter(made).count()
    }

    /// Number of files with this suffix that were removed.
    pub(crate) fn removed_count(&self, suffix: &str) -> usize {
        let removed = |event: &&DiskEvent| match event {
            DiskEvent::RemoveName { name, .. } => name.ends_with(suffix),
            _ => false,
        };
        self.events.iter().filter(removed).count()
    }

    /// Bytes written, for progress lines.
    pub(crate) fn written_bytes(&self) -> usize {
        let length =
            |event: &DiskEvent| if let DiskEvent::Write { data, .. } = event { data.len() } else { 0 };
        self.events.iter().map(length).sum()
    }
}
