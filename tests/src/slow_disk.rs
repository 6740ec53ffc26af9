//! A pass-through mount of a directory as a disk of one spindle: all calls go to the directory, and reads,
//! writes and syncs take as long as on such a disk ([`DiskPace`]). A decorator for benchmarks of a slow tier,
//! also a program.
//!
//! Invariants: a request is answered no sooner than it is done below, so the file system below decides which
//! data survives a power loss: a sync is a sync there. Requests are done one at a time, in the order in which
//! the kernel sends them, by one thread: a program's long read or write arrives as several consecutive
//! requests, and two threads would interleave them and seek. Lookup, create, rename, remove and list cost
//! nothing themselves: a disk's file system has most of that in memory, and the sync pays for the data that
//! must be on the disk.
//!
//! By default files are opened with direct I/O, past the kernel's page cache: every read and every write of a
//! program arrives here. With [`Caching::PageCache`] they are cached as those of any disk are. Writes are
//! then as slow as before (each waits for the disk), reads of data that was read or written lately cost
//! nothing until the program drops it from the cache or opens the file anew, and the kernel reads ahead.
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

pub use pace::DiskPace;

/// The kernel's caching of file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Every call of a program arrives at the disk.
    Direct,
    /// A program may read data that it has just read or written from memory.
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
    /// Either path is not a directory, or mounting is not possible: it needs /dev/fuse, and root or
    /// fusermount3.
    pub fn mount(backing: &Path, mount_point: &Path, pace: DiskPace, caching: Caching) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("mlgw-slow-disk".to_owned())];
        // One spindle; and consecutive requests stay in order.
        config.n_threads = Some(1);
        let session =
            fuser::spawn_mount(calls::SlowFilesystem::new(backing, pace, caching)?, mount_point, &config)?;
        Ok(Self { session })
    }

    /// Unmounts the disk.
    ///
    /// # Errors
    /// A process still has a file of the mount open, or its working directory in it.
    pub fn unmount(self) -> io::Result<()> {
        self.session.umount_and_join()
    }
}
