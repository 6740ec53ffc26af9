//! The mark of a data directory that is being restored from a backup.
//!
//! It is the first file of a restore, and is removed after `node.json`, the last one. So after a power
//! failure a directory with the mark and without `node.json` has an unknown part of a backup, perhaps without
//! any file that a start would miss. It must not become that of a new server, which would look restored and
//! be empty.

use crate::node_file::{DataDirError, NODE_FILE};
use crate::synced_dir::create_dir_synced;
use mlgw_common::private_file;
use mlgw_formats::store_files;
use std::io;
use std::path::Path;

/// File in the data directory.
pub(crate) const RESTORE_MARK: &str = "restore-unfinished";

/// Explanation for who finds the file.
const TEXT: &str = "A restore of this directory has begun and did not end. Empty the directory.\n";

/// Marks the directory, which is created if it does not exist. Durable when it returns.
pub(crate) fn write(dir: &Path) -> Result<(), DataDirError> {
    let path = dir.join(RESTORE_MARK);
    let written = create_dir_synced(dir).and_then(|()| private_file::write(dir, &path, TEXT.as_bytes()));
    written.map_err(|source| DataDirError::Io { path, source })
}

/// Removes the mark of a directory that is complete. If it stays, it has no effect.
pub(crate) fn remove(dir: &Path) {
    let path = dir.join(RESTORE_MARK);
    match std::fs::remove_file(&path).and_then(|()| store_files::sync_dir(dir)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(%error, path = %path.display(), "cannot remove the mark of a restore"),
    }
}

/// Refuses a directory whose restore did not end.
pub(crate) fn require_ended(dir: &Path) -> Result<(), DataDirError> {
    let exists = |name: &str| {
        let path = dir.join(name);
        std::fs::exists(&path).map_err(|source| DataDirError::Io { path, source })
    };
    if exists(RESTORE_MARK)? && !exists(NODE_FILE)? {
        return Err(DataDirError::UnfinishedRestore { path: dir.to_owned() });
    }
    Ok(())
}
