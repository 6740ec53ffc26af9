//! A reserve of space and inodes for a start on a full disk, so that objects can be deleted.
//!
//! Opening the catalogue writes files. A disk without a free byte or inode would therefore prevent a start,
//! and no object could be deleted. `start-reserve/` contains preallocated files without content. A start that
//! finds too little space removes them while it holds the directory's lock. A running server creates them
//! again when there is plenty of room, and never uses them itself. After a power failure some of the files
//! may be missing. The reserve is smaller until the next check creates the rest.

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Directory of the reserve in the data directory.
const DIR: &str = "start-reserve";
/// Number of files. A start creates some 30. Deletes need a few more for the catalogue's log.
const FILES: u64 = 64;
/// Maximum bytes: the size of the flush of the catalogue's log at a start, and of the next log.
const BYTES_MAX: u64 = 24 << 20;
/// Minimum bytes. A disk without room for these has no reserve.
const BYTES_MIN: u64 = 2 << 20;
/// Divisor of the file system: the reserve takes at most one part in this many.
const SHARE_MAX: u64 = 8;
/// Free bytes below which a start takes the reserve, if there is one.
const START_BYTES: u64 = 32 << 20;
/// Free inodes below which a start takes the reserve.
const START_INODES: u64 = FILES;
/// Interval between checks of a running server whether the reserve can be created.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Size and free space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FreeSpace {
    total_bytes: u64,
    bytes: u64,
    /// Free inodes. `None` if the file system has no fixed number of them.
    inodes: Option<u64>,
}

impl FreeSpace {
    fn of(dir: &Path) -> io::Result<Self> {
        let found = statvfs(dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let inodes = (found.f_files > 0).then_some(found.f_favail);
        Ok(Self { total_bytes: bytes(found.f_blocks), bytes: bytes(found.f_bavail), inodes })
    }

    /// Returns true if a start should take the reserve.
    fn is_short(self) -> bool {
        self.bytes < START_BYTES || self.inodes.is_some_and(|inodes| inodes < START_INODES)
    }

    /// Returns the bytes of the reserve to create, such that `kept_bytes` stay free for the catalogue, or
    /// `None` if there is no room.
    fn affordable_reserve(self, kept_bytes: u64) -> Option<u64> {
        let wanted = BYTES_MAX.min(self.total_bytes / SHARE_MAX).min(kept_bytes);
        let available = self.bytes.saturating_sub(kept_bytes) / 2;
        let has_inodes = self.inodes.is_none_or(|inodes| inodes >= 4 * FILES);
        Some(wanted.min(available)).filter(|bytes| *bytes >= BYTES_MIN && has_inodes)
    }
}

/// Removes the reserve of the data directory `dir` if a start is short of space. The caller holds the
/// directory's lock.
pub(super) fn take_if_short(dir: &Path) {
    let reserve = dir.join(DIR);
    if !FreeSpace::of(dir).is_ok_and(FreeSpace::is_short) || !reserve.is_dir() {
        return;
    }
    let dir = dir.display();
    tracing::warn!(%dir, "the disk is full: released the start reserve; delete data");
    for entry in fs::read_dir(&reserve).into_iter().flatten().flatten() {
        if let Err(error) = fs::remove_file(entry.path()) {
            tracing::warn!(%error, file = %entry.path().display(), "cannot release the start reserve");
        }
    }
}

/// Creates the reserve of `dir` whenever there is room for it beside `kept_bytes` that stay free. Returns
/// only if the file system does not support preallocation.
pub async fn maintain(dir: PathBuf, kept_bytes: u64) {
    let mut is_refused = false;
    while !is_refused {
        let dir = dir.clone();
        let made = tokio::task::spawn_blocking(move || create_missing(&dir, kept_bytes)).await;
        if let Ok(Err(error)) = made {
            // A file system without preallocation never supports it, so there is no further attempt.
            is_refused = error.kind() == io::ErrorKind::Unsupported;
            tracing::warn!(%error, "cannot create the start reserve for a full disk");
        }
        mlgw_common::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Creates the missing files of the reserve, if there is room. Created files stay when a later one fails.
fn create_missing(dir: &Path, kept_bytes: u64) -> io::Result<()> {
    let reserve = dir.join(DIR);
    if file_path(&reserve, FILES - 1).exists() {
        return Ok(());
    }
    let Some(bytes) = FreeSpace::of(dir)?.affordable_reserve(kept_bytes) else { return Ok(()) };
    if !reserve.is_dir() {
        DirBuilder::new().mode(0o700).create(&reserve)?;
    }
    for number in 0..FILES {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = mlgw_common::regular::open_with(options, &file_path(&reserve, number))?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes / FILES)?;
    }
    Ok(())
}

fn file_path(reserve: &Path, number: u64) -> PathBuf {
    reserve.join(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_reserve_is_taken_when_space_is_short_and_created_when_there_is_plenty() {
        let free = |total, bytes, inodes| FreeSpace { total_bytes: total * MIB, bytes: bytes * MIB, inodes };
        assert!(free(1000, 0, None).is_short() && free(1000, 31, Some(1000)).is_short());
        assert!(free(1000, 500, Some(0)).is_short() && free(1000, 500, Some(63)).is_short());
        assert!(!free(1000, 32, Some(64)).is_short() && !free(1000, 500, None).is_short());
        let kept = 32 * MIB;
        for (name, free, expected) in [
            ("large", free(1000, 900, None), Some(24)),
            ("small", free(64, 60, None), Some(8)),
            ("nearly full", free(1000, 40, None), Some(4)),
            ("too full", free(1000, 35, None), None),
            ("full", free(1000, 32, None), None),
            ("no inodes", free(1000, 900, Some(255)), None),
            ("inodes", free(1000, 900, Some(256)), Some(24)),
        ] {
            assert_eq!(free.affordable_reserve(kept), expected.map(|mib| mib * MIB), "{name}");
        }
        assert_eq!(
            free(1000, 900, None).affordable_reserve(0),
            None,
            "no reserve without free space to keep"
        );
    }

    #[test]
    fn the_reserve_occupies_space_and_inodes() {
        let dir = tempfile::tempdir().unwrap();
        create_missing(dir.path(), 8 * MIB).unwrap();
        let files =
            || fs::read_dir(dir.path().join(DIR)).unwrap().map(|file| file.unwrap().metadata().unwrap());
        assert_eq!((files().count() as u64, files().map(|file| file.len()).sum()), (FILES, 8 * MIB));
        fs::remove_file(file_path(&dir.path().join(DIR), FILES - 1)).unwrap();
        create_missing(dir.path(), 8 * MIB).unwrap();
        assert_eq!(files().count() as u64, FILES, "an incomplete reserve is completed");
    }
}
