//! Files below a directory, found one by one. Symbolic links are followed.

use crate::terminal_text::printable;
use std::fmt::Display;
use std::fs::{self, Metadata, ReadDir};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file below the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocalFile {
    pub(super) path: PathBuf,
    /// Path below the directory.
    pub(super) relative: PathBuf,
}

/// The files below a directory, or the problems that hide them.
pub(super) struct LocalFiles {
    root: PathBuf,
    /// Directories from the root to the current one.
    open: Vec<OpenDirectory>,
}

struct OpenDirectory {
    entries: ReadDir,
    identity: FileIdentity,
}

/// Device and number of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl LocalFiles {
    /// Opens a directory.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn below(root: &Path) -> Result<Self, String> {
        let mut files = Self { root: root.to_owned(), open: Vec::new() };
        let metadata = fs::metadata(root).map_err(|error| problem(root, &error))?;
        files.enter(root, &metadata).map(|()| files)
    }

    fn enter(&mut self, path: &Path, metadata: &Metadata) -> Result<(), String> {
        let identity = FileIdentity { device: metadata.dev(), inode: metadata.ino() };
        if self.open.iter().any(|open| open.identity == identity) {
            return Err(problem(path, &"a symbolic link to a directory that contains it"));
        }
        let entries = fs::read_dir(path).map_err(|error| problem(path, &error))?;
        self.open.push(OpenDirectory { entries, identity });
        Ok(())
    }

    /// Returns the file at `path`, or enters the directory.
    fn visit(&mut self, path: PathBuf) -> Option<Result<LocalFile, String>> {
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) => return Some(Err(problem(&path, &error))),
        };
        if metadata.is_dir() {
            return self.enter(&path, &metadata).err().map(Err);
        }
        let relative = path.strip_prefix(&self.root).unwrap_or(&path).to_owned();
        Some(Ok(LocalFile { path, relative }))
    }
}

impl Iterator for LocalFiles {
    type Item = Result<LocalFile, String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let found = match self.open.last_mut()?.entries.next() {
                None => {
                    self.open.pop();
                    None
                }
                Some(Ok(entry)) => self.visit(entry.path()),
                Some(Err(error)) => Some(Err(problem(&self.root, &error))),
            };
            if found.is_some() {
                return found;
            }
        }
    }
}

/// Formats the problem of a file, whose name may control a terminal.
fn problem(path: &Path, reason: &dyn Display) -> String {
    printable(&format!("{}: {reason}", path.display())).into_owned()
}

#[cfg(test)]
mod tests {
    use super::LocalFiles;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    #[test]
    fn all_files_are_found_and_circles_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("a/b")).unwrap();
        fs::create_dir(path("empty")).unwrap();
        for name in ["1", "a/2", "a/b/3 ü"] {
            fs::write(path(name), name).unwrap();
        }
        symlink(path("a"), path("link")).unwrap();
        symlink(dir.path(), path("a/b/up")).unwrap();
        symlink(path("none"), path("dangling")).unwrap();
        let (found, problems): (Vec<_>, Vec<_>) =
            LocalFiles::below(dir.path()).unwrap().partition(Result::is_ok);
        let mut names: Vec<_> =
            found.into_iter().map(|file| file.unwrap().relative.to_str().unwrap().to_owned()).collect();
        names.sort_unstable();
        assert_eq!(names, ["1", "a/2", "a/b/3 ü", "link/2", "link/b/3 ü"]);
        assert_eq!(problems.len(), 3, "two circles and a dangling link: {problems:?}");
        let absent = LocalFiles::below(Path::new("/nonexistent\x1b\n")).err().unwrap();
        assert!(absent.starts_with("/nonexistent\\u{1b}\\n: "), "{absent}");
    }
}
