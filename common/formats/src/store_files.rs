//! Durable directory operations: created, renamed and removed directories survive power loss once a call
//! returns.

use mlgw_common::regular;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Creates `dir` and its parents with mode 0700, and syncs the parent of each new directory.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    make_dir_with_mode(dir, 0o700)
}

/// Creates `dir` and its parents with this mode, which the umask restricts, and syncs the parent of each new
/// directory.
pub fn make_dir_with_mode(dir: &Path, mode: u32) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    make_dir_with_mode(parent_of(dir), mode)?;
    match fs::DirBuilder::new().mode(mode).create(dir) {
        // Another process may have created the directory.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !dir.is_dir() => return Err(error),
        _ => {}
    }
    sync_parent(dir)
}

/// Syncs a directory, so that the names in it are durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

/// Syncs the directory that contains `path`.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    sync_dir(parent_of(path))
}

/// Returns the directory that contains `path`. The root directory contains itself.
#[must_use]
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        None if path.has_root() => path,
        _ => Path::new("."),
    }
}

/// Renames a directory whose contents are synced, and syncs the parent of the new name.
pub fn rename_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent(to)
}

/// Atomically exchanges the names of two sibling directories whose contents are synced. After a power loss
/// each name refers to one or the other.
pub fn exchange_dirs(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?;
    sync_parent(one)
}

/// Removes a directory and its contents, if it exists.
pub fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Checks that every entry of a store's directory that RocksDB opens is a regular file.
///
/// # Errors
/// Names the first entry that is not a regular file, or the reason why the directory cannot be read.
pub fn check_regular_files(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !is_opened(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let path = entry.path();
        match regular::check(&path) {
            // Removed since it was listed, or a dangling link: opening it reports the error.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            checked => checked
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?,
        }
    }
    Ok(())
}

/// True if RocksDB opens a file of this name. RocksDB renames its information log and ignores unknown names.
fn is_opened(name: &str) -> bool {
    let has_end = [".sst", ".log", ".dbtmp"].iter().any(|end| name.ends_with(end));
    let has_start = ["MANIFEST-", "OPTIONS-"].iter().any(|start| name.starts_with(start));
    has_end || has_start || ["CURRENT", "IDENTITY", "LOCK"].contains(&name)
}

/// Returns the total bytes of the files directly in `dir`.
pub fn dir_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Returns the size in bytes of the file system that holds `dir`, used and free.
pub fn file_system_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
}

/// Returns the free bytes of the file system that holds `dir`, without those reserved for the superuser.
pub fn file_system_free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::{make_dir, make_dir_with_mode, parent_of};
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    #[test]
    fn directories_are_created_with_their_parents() {
        let room = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(room.path().join(name)).unwrap().permissions().mode() & 0o777;
        make_dir(&room.path().join("a/b")).unwrap();
        assert_eq!((mode("a"), mode("a/b")), (0o700, 0o700));
        make_dir_with_mode(&room.path().join("a/c"), 0o500).unwrap();
        assert_eq!((mode("a"), mode("a/c")), (0o700, 0o500));
        fs::write(room.path().join("file"), "").unwrap();
        assert!(make_dir(&room.path().join("file")).is_err(), "a file is not a directory");
        assert!(make_dir(&room.path().join("file/d")).is_err());
        assert!(make_dir(Path::new("")).is_err());
    }

    #[test]
    fn every_path_has_a_parent() {
        for (path, parent) in [("/a/b", "/a"), ("/a", "/"), ("/", "/"), ("a", "."), ("a/b", "a"), ("", ".")] {
            assert_eq!(parent_of(Path::new(path)), Path::new(parent), "{path}");
        }
    }
}
