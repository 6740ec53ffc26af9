//! `disk` as a mounted FUSE file system, on which a server can put its whole data directory.
//!
//! Files are opened with direct I/O: every `write` and `fsync` of the program arrives here as one call, in
//! order. No data waits in the kernel's page cache, and every `read` can be made to fail.

use std::path::Path;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard};

use fuser::{BackgroundSession, Config, MountOption};

use crate::disk::Disk;

mod calls;
mod tests;

/// A mounted disk; unmounted when dropped. Stop every program that uses it first.
pub(crate) struct Mount {
    disk: Arc<Mutex<Disk>>,
    session: Option<BackgroundSession>,
    dir: tempfile::TempDir,
}

impl Mount {
    pub(crate) fn new() -> Self {
        Self::of_disk(Disk::new())
    }

    /// Mounts a disk that may have content already.
    pub(crate) fn of_disk(disk: Disk) -> Self {
        let dir = tempfile::tempdir().expect("a mount point");
        let disk = Arc::new(Mutex::new(disk));
        let session = Some(mounted(&disk, dir.path()));
        Self { disk, session, dir }
    }

    /// Puts another disk in the place of this one. No program may use it meanwhile.
    pub(crate) fn replace_disk(&mut self, disk: Disk) {
        self.unmount();
        self.disk = Arc::new(Mutex::new(disk));
        self.session = Some(mounted(&self.disk, self.dir.path()));
    }

    fn unmount(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(error) = session.umount_and_join()
        {
            eprintln!("unmounting {}: {error}", self.dir.path().display());
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("the file system task does not panic")
    }

    /// Returns the shared disk, for a history that marks positions in its recording.
    pub(crate) fn shared_disk(&self) -> Arc<Mutex<Disk>> {
        self.disk.clone()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Mounts a disk.
fn mounted(disk: &Arc<Mutex<Disk>>, at: &Path) -> BackgroundSession {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("mlgw-recording".to_owned())];
    // No request waits for another request of ours, so two threads suffice for two cores.
    config.n_threads = Some(2);
    fuser::spawn_mount(calls::RecordingFilesystem::new(Arc::clone(disk)), at, &config)
        .expect("mounting needs /dev/fuse, and root or fusermount3 (package fuse3)")
}
