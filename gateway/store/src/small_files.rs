//! The small files of a data directory, judged alike by a start and by `store check`.
//!
//! Files that no acknowledged data depends on may be missing or damaged. A start creates them again. But if
//! such a path is of another type, such as a directory, or has the format of a newer version, the server
//! leaves it unchanged and does not start. The checks write nothing.

use super::StoreVerbError;
use mlgw_background::reconciler::retention_state;
use mlgw_common::regular;
use mlgw_segments::{decisions, state_format};
use mlgw_telemetry::audit;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Directories in a data directory, and their subdirectories.
const DIRECTORIES: &[&str] = &[
    "audit",
    "catalogue",
    "checkpoints",
    "cluster",
    "copies",
    "copies/index",
    "copies/segments",
    // The access journal of earlier servers.
    "diary",
    "journal",
    "plans",
    "segments",
    "traces",
];
/// JSON files with a format, and the newest format that this version reads.
const STATES: &[(&str, u32)] = &[
    ("flash.json", state_format::FLASH),
    ("scrub.json", state_format::SCRUB),
    ("upstream-leftovers.json", state_format::LEFTOVERS),
];

/// Paths of objects, of data from which they are rebuilt, or of a node's key. An operator must handle them.
const NOT_SET_ASIDE: &[&str] = &["catalogue", "checkpoints", "cluster", "segments"];

/// A path that prevents a server from starting.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct UnfitFile {
    /// The path.
    pub path: PathBuf,
    /// The problem at that path.
    pub source: io::Error,
}

/// Returns all small files in the data directory `dir` that prevent a server from starting.
#[must_use]
pub fn unfit_files(dir: &Path) -> Vec<UnfitFile> {
    let mut found = Vec::new();
    let mut judge = |name: &str, judged: fn(&Path) -> io::Result<()>| {
        let path = dir.join(name);
        match judged(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A parent directory is replaced by a file and is judged separately.
            Err(error) if error.raw_os_error() == Some(Errno::NOTDIR.raw_os_error()) => {}
            Err(source) => found.push(UnfitFile { path, source }),
            Ok(()) => {}
        }
    };
    DIRECTORIES.iter().for_each(|name| judge(name, directory));
    let audit = format!("audit/{}", audit::FILE_NAME);
    for name in
        ["LOCK", mlgw_api::ADMIN_FILE, retention_state::FILE_NAME, retention_state::SPACINGS_NAME, &audit]
    {
        judge(name, readable);
    }
    for name in decisions::FILE_NAMES {
        judge(name, decisions::check_file);
    }
    for (name, format) in STATES {
        let path = dir.join(name);
        if let Err(source) = state_format::check(&path, *format) {
            found.push(UnfitFile { path, source });
        }
    }
    found
}

/// Renames paths of another type in the place of small files of `dir`, and returns a description of each. A
/// start creates the files again.
///
/// # Errors
/// When a path cannot be renamed.
pub(super) fn set_aside(dir: &Path) -> Result<Vec<String>, StoreVerbError> {
    let mut renamed = Vec::new();
    for UnfitFile { path, .. } in unfit_files(dir) {
        // A file of a newer version stays, and so does a path in the place of objects.
        let is_other = regular::check(&path).is_err();
        if !is_other || NOT_SET_ASIDE.iter().any(|name| path == dir.join(name)) {
            continue;
        }
        let names = (1_u64..).map(|number| PathBuf::from(format!("{}.set-aside-{number}", path.display())));
        let Some(aside) = names.into_iter().find(|aside| !aside.exists()) else { continue };
        fs::rename(&path, &aside).map_err(StoreVerbError::io(&path))?;
        renamed.push(format!("moved the path at {} to {}", path.display(), aside.display()));
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(StoreVerbError::io(dir))?;
    Ok(renamed)
}

fn directory(path: &Path) -> io::Result<()> {
    let is_dir = std::fs::metadata(path)?.is_dir();
    let what = || io::Error::new(io::ErrorKind::NotADirectory, "expected a directory, found a file");
    if is_dir { Ok(()) } else { Err(what()) }
}

fn readable(path: &Path) -> io::Result<()> {
    regular::open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::unfit_files;
    use std::fs;

    #[test]
    fn a_missing_or_damaged_file_is_accepted_and_one_of_another_type_or_newer_format_is_not() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path();
        let names = || {
            unfit_files(dir)
                .iter()
                .map(|unfit| unfit.path.file_name().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(), [""; 0], "empty directory");
        let files = [
            "LOCK",
            "admin.json",
            "deletions",
            "spacings",
            "decisions.jsonl",
            "decisions.1.jsonl",
            "flash.json",
            "scrub.json",
            "upstream-leftovers.json",
        ];
        for file in files {
            fs::write(dir.join(file), "damaged").unwrap();
            assert_eq!(names(), [""; 0], "{file} is damaged");
            fs::remove_file(dir.join(file)).unwrap();
            fs::create_dir(dir.join(file)).unwrap();
            assert_eq!(names(), [file], "a directory");
            fs::remove_dir(dir.join(file)).unwrap();
        }
        for directory in super::DIRECTORIES.iter().filter(|name| !name.contains('/')) {
            fs::write(dir.join(directory), "").unwrap();
            assert_eq!(names(), [*directory], "a file");
            fs::remove_file(dir.join(directory)).unwrap();
        }
        for (name, format) in super::STATES {
            fs::write(dir.join(name), format!("{{\"format\":{}}}", format + 1)).unwrap();
            assert_eq!(names(), [*name], "a newer format");
            fs::remove_file(dir.join(name)).unwrap();
        }
        fs::write(dir.join("decisions.jsonl"), "{\"v\":1000000,\"seq\":1}\n").unwrap();
        assert_eq!(names(), ["decisions.jsonl"], "a newer format");
    }
}
