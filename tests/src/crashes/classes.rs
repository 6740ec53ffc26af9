//! Classifies the files and directories of a data directory by path.
//!
//! The layout is the one in docs/FORMATS.md: `segments/`, `catalogue/log/` (a RocksDB whose write-ahead log
//! is the Raft log on disk), beside it one RocksDB without a write-ahead log for each group, and a few files
//! of the server at the top.

use super::recorded::DATA_DIR;
use crate::power_cut::IgnoredSyncs;

/// Every class of syncs that a promise depends on.
pub(super) const SYNC_CLASSES: &[(&str, IgnoredSyncs)] = &[
    ("segment files", |path, names| !names && is_segment(path)),
    ("names of segments", |path, names| names && is_segment_directory(path)),
    ("the log's write-ahead log", |path, names| !names && is_log_file(path)),
    ("the log's tables", |path, names| !names && is_log_table(path)),
    ("the log's MANIFEST", |path, names| !names && is_log_manifest(path)),
    ("the log's CURRENT", |path, names| !names && is_log_current(path)),
    ("names in the log", |path, names| names && is_log_directory(path)),
    ("the state's tables", |path, names| !names && is_state_table(path)),
    ("the state's MANIFEST", |path, names| !names && is_state_manifest(path)),
    ("the state's CURRENT", |path, names| !names && is_state_current(path)),
    ("names in the state", |path, names| names && is_state_directory(path)),
    ("names in the catalogue", |path, names| names && is_catalogue_directory(path)),
    ("names in the data directory", |path, names| names && is_data_directory(path)),
    ("the data directory's name", |path, names| names && is_parent_of_data_directory(path)),
    ("secrets.key", |path, names| !names && is_secrets_file(path)),
    ("node.json", |path, names| !names && is_node_description(path)),
];

/// The path within the data directory; `None` for a path outside it.
fn path_in_data_dir(path: &str) -> Option<&str> {
    path.strip_prefix(DATA_DIR)?.strip_prefix('/')
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

pub(super) fn is_segment(path: &str) -> bool {
    path_in_data_dir(path).is_some_and(|path| path.starts_with("segments/") && path.ends_with(".seg"))
}

/// True for the segment that a new server writes first. A start removes a later one that is empty, for which
/// it reads it at some time.
pub(super) fn is_first_segment(path: &str) -> bool {
    path_in_data_dir(path) == Some("segments/0000000000000001.seg")
}

pub(super) fn is_segment_directory(path: &str) -> bool {
    path_in_data_dir(path) == Some("segments")
}

fn is_in_log(path: &str) -> bool {
    path_in_data_dir(path).is_some_and(|path| path.starts_with("catalogue/log/"))
}

fn is_in_state(path: &str) -> bool {
    path_in_data_dir(path).is_some_and(|path| path.starts_with("catalogue/")) && !is_in_log(path)
}

/// True for the write-ahead log of the log store, which holds acknowledged commands.
pub(super) fn is_log_file(path: &str) -> bool {
    is_in_log(path) && file_name(path).ends_with(".log")
}

/// True for tables of a RocksDB. `manifest` and `current` match its MANIFEST and its CURRENT (also under its
/// temporary name).
fn is_table(path: &str) -> bool {
    file_name(path).ends_with(".sst")
}

fn is_manifest(path: &str) -> bool {
    file_name(path).starts_with("MANIFEST-")
}

fn is_current(path: &str) -> bool {
    file_name(path).ends_with(".dbtmp") || file_name(path) == "CURRENT"
}

pub(super) fn is_log_table(path: &str) -> bool {
    is_in_log(path) && is_table(path)
}

pub(super) fn is_log_manifest(path: &str) -> bool {
    is_in_log(path) && is_manifest(path)
}

pub(super) fn is_log_current(path: &str) -> bool {
    is_in_log(path) && is_current(path)
}

pub(super) fn is_log_directory(path: &str) -> bool {
    path_in_data_dir(path) == Some("catalogue/log")
}

pub(super) fn is_state_table(path: &str) -> bool {
    is_in_state(path) && is_table(path)
}

pub(super) fn is_state_manifest(path: &str) -> bool {
    is_in_state(path) && is_manifest(path)
}

pub(super) fn is_state_current(path: &str) -> bool {
    is_in_state(path) && is_current(path)
}

pub(super) fn is_state_directory(path: &str) -> bool {
    is_in_state(path) && !file_name(path).contains('.') && !is_manifest(path) && !is_current(path)
}

/// True for every table and MANIFEST of a group's RocksDB.
pub(super) fn is_state_file(path: &str) -> bool {
    is_state_table(path) || is_state_manifest(path)
}

pub(super) fn is_catalogue_directory(path: &str) -> bool {
    path_in_data_dir(path) == Some("catalogue")
}

pub(super) fn is_data_directory(path: &str) -> bool {
    path == DATA_DIR
}

pub(super) fn is_parent_of_data_directory(path: &str) -> bool {
    path.is_empty()
}

/// True for `secrets.key`, also under the temporary name that it has before it is renamed.
pub(super) fn is_secrets_file(path: &str) -> bool {
    path_in_data_dir(path).is_some_and(|path| path.contains("secrets.key"))
}

pub(super) fn is_node_description(path: &str) -> bool {
    path_in_data_dir(path).is_some_and(|path| path.contains("node.json"))
}
