//! Classifies the files and directories of a data directory by path.
//!
//! The layout is the one in docs/FORMATS.md: `segments/`, `catalogue/log/` (a RocksDB whose write-ahead log
//! is the Raft log on disk), beside it one RocksDB without a write-ahead log for each group, and a few files
//! of the server at the top.

use super::recorded::DATA_DIR;
use crate::power_cut::Ignored;

/// Every class of syncs that a promise depends on.
pub(super) const CLASSES: &[(&str, Ignored)] = &[
    ("segment files", |path, names| !names && segment(path)),
    ("names of segments", |path, names| names && segment_directory(path)),
    ("the log's write-ahead log", |path, names| !names && log_file(path)),
    ("the log's tables", |path, names| !names && log_table(path)),
    ("the log's MANIFEST", |path, names| !names && log_manifest(path)),
    ("the log's CURRENT", |path, names| !names && log_current(path)),
    ("names in the log", |path, names| names && log_directory(path)),
    ("the state's tables", |path, names| !names && state_table(path)),
    ("the state's MANIFEST", |path, names| !names && state_manifest(path)),
    ("the state's CURRENT", |path, names| !names && state_current(path)),
    ("names in the state", |path, names| names && state_directory(path)),
    ("names in the catalogue", |path, names| names && catalogue_directory(path)),
    ("names in the data directory", |path, names| names && data_directory(path)),
    ("the data directory's name", |path, names| names && above(path)),
    ("secrets.key", |path, names| !names && secrets(path)),
    ("node.json", |path, names| !names && node(path)),
];

/// The path within the data directory; `None` for a path outside it.
fn inside(path: &str) -> Option<&str> {
    path.strip_prefix(DATA_DIR)?.strip_prefix('/')
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

pub(super) fn segment(path: &str) -> bool {
    inside(path).is_some_and(|path| path.starts_with("segments/") && path.ends_with(".seg"))
}

pub(super) fn segment_directory(path: &str) -> bool {
    inside(path) == Some("segments")
}

fn in_log(path: &str) -> bool {
    inside(path).is_some_and(|path| path.starts_with("catalogue/log/"))
}

fn in_state(path: &str) -> bool {
    inside(path).is_some_and(|path| path.starts_with("catalogue/")) && !in_log(path)
}

/// True for the write-ahead log of the log store, which holds acknowledged commands.
pub(super) fn log_file(path: &str) -> bool {
    in_log(path) && name(path).ends_with(".log")
}

/// True for tables of a RocksDB. `manifest` and `current` match its MANIFEST and its CURRENT (also under its
/// temporary name).
fn table(path: &str) -> bool {
    name(path).ends_with(".sst")
}

fn manifest(path: &str) -> bool {
    name(path).starts_with("MANIFEST-")
}

fn current(path: &str) -> bool {
    name(path).ends_with(".dbtmp") || name(path) == "CURRENT"
}

pub(super) fn log_table(path: &str) -> bool {
    in_log(path) && table(path)
}

pub(super) fn log_manifest(path: &str) -> bool {
    in_log(path) && manifest(path)
}

pub(super) fn log_current(path: &str) -> bool {
    in_log(path) && current(path)
}

pub(super) fn log_directory(path: &str) -> bool {
    inside(path) == Some("catalogue/log")
}

pub(super) fn state_table(path: &str) -> bool {
    in_state(path) && table(path)
}

pub(super) fn state_manifest(path: &str) -> bool {
    in_state(path) && manifest(path)
}

pub(super) fn state_current(path: &str) -> bool {
    in_state(path) && current(path)
}

pub(super) fn state_directory(path: &str) -> bool {
    in_state(path) && !name(path).contains('.') && !manifest(path) && !current(path)
}

/// True for every table and MANIFEST of a group's RocksDB.
pub(super) fn state_file(path: &str) -> bool {
    state_table(path) || state_manifest(path)
}

pub(super) fn catalogue_directory(path: &str) -> bool {
    inside(path) == Some("catalogue")
}

pub(super) fn data_directory(path: &str) -> bool {
    path == DATA_DIR
}

pub(super) fn above(path: &str) -> bool {
    path.is_empty()
}

/// True for `secrets.key`, also under the temporary name that it has before it is renamed.
pub(super) fn secrets(path: &str) -> bool {
    inside(path).is_some_and(|path| path.contains("secrets.key"))
}

pub(super) fn node(path: &str) -> bool {
    inside(path).is_some_and(|path| path.contains("node.json"))
}
