//! Directories that last: made, renamed and removed so that power loss cannot undo it later.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Makes `dir` and its parents, for their owner only, and syncs the directory that each new one is in.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_dir(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_parent(dir)
}

/// Syncs a directory: the names in it last.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

/// Syncs the directory that `path` is in.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new(".")),
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

/// Renames a directory whose contents are synced, and syncs where it is.
pub(crate) fn rename_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent(to)
}

/// Gives two directories beside each other, whose contents are synced, each other's name: whenever
/// power fails, one or the other is under each.
pub(crate) fn exchange_dirs(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?;
    sync_parent(one)
}

/// Removes a directory and what is in it, if it is there.
pub(crate) fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Bytes of the files directly in `dir`.
pub(crate) fn dir_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Bytes of the file system that `dir` is on, used or not.
pub(crate) fn file_system_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
}
