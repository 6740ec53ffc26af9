//! A directory that is mounted once more as a disk of one spindle: everything passes through to it, and
//! reads, writes and syncs take as long as they would there ([`Pace`]). A decorator for benchmarks of a slow
//! tier, also a program.
//!
//! Always: a request is answered no sooner than it is done below, so what survives power loss is up to the
//! file system below: a sync is a sync there. Requests are done one at a time and in the order in which the
//! kernel hands them over, by one thread: a program's long read or write comes as several requests that
//! follow on each other, and two threads would take turns with them and seek. Looking up, making, renaming,
//! removing and listing cost nothing by themselves: a disk's file system has most of that in memory, and what
//! has to be on the disk is paid for by the sync.
//!
//! By default files are opened past the kernel's page cache: every read and every write that a program makes
//! arrives here. With [`Caching::PageCache`] they are cached as those of any disk are. Writes are then as
//! slow as before (each waits for the disk), reads of what was read or written lately cost nothing, until the
//! program lets go of it or opens the file anew, and the kernel reads ahead.
//!
//! Not supported: symbolic links, extended attributes, setting times and owners.

use std::io;
use std::path::Path;

use fuser::{BackgroundSession, Config, MountOption};

mod calls;
mod handles;
mod nodes;
mod pace;
#[cfg(test)]
mod tests;

pub use pace::Pace;

/// Whether the kernel keeps what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Every call of a program arrives at the disk.
    Direct,
    /// What a program has just read or written it may read from memory.
    PageCache,
}

/// A mounted slow disk.
#[derive(Debug)]
pub struct SlowDisk {
    session: BackgroundSession,
}

impl SlowDisk {
    /// Mounts the directory `backing` on the directory `on`.
    ///
    /// # Errors
    /// Either is none, or mounting is not possible: that needs /dev/fuse, and root or fusermount3.
    pub fn mount(backing: &Path, on: &Path, pace: Pace, caching: Caching) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("mlgw-slow-disk".to_owned())];
        // One spindle; and what follows on stays in order.
        config.n_threads = Some(1);
        let session = fuser::spawn_mount(calls::Calls::new(backing, pace, caching)?, on, &config)?;
        Ok(Self { session })
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// Somebody still has a file of it open, or is in it.
    pub fn unmount(self) -> io::Result<()> {
        self.session.umount_and_join()
    }
}
