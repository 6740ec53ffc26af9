//! The subcommand `mlgw store restore`: creates a data directory from a backup.
//!
//! The backup is verified while it is read, byte by byte. The new directory's `node.json` is written last,
//! with its own incarnation. A start refuses the directory of an interrupted restore, which must be emptied
//! and restored again.

use super::StoreVerbError;
use super::backup::BackedUp;
use crate::catalogue_dir::CatalogueName;
use crate::data_dir::DataDir;
use crate::node_file::{NODE_FILE, NodeDescription};
use mlgw_common::regular;
use mlgw_metadata::copy::Copier;
use mlgw_metadata::offline::ProgressCallback;
use std::fs::File;
use std::path::Path;

/// Fills `dir` (absent or empty) from the copy in `from`. The segments are written to `segments`, which may
/// be outside of `dir`.
///
/// # Errors
/// When the copy is incomplete, when a target is not empty, or when a file cannot be written.
pub fn restore(
    from: &Path,
    dir: &Path,
    segments: &Path,
    watch: ProgressCallback<'_>,
) -> Result<BackedUp, StoreVerbError> {
    let contents = mlgw_metadata::copy::read_contents(from)?;
    // Refused if a newer version wrote it.
    let described = DataDir::description(from)?.filter(|_| contents.files.contains_key(NODE_FILE));
    let original = described.ok_or_else(|| StoreVerbError::NoDataDir(from.to_owned()))?;
    // The original may continue to run and assign the same ids to other bytes.
    let restored = original.next_incarnation()?;
    // A backup has one catalogue, whatever its name was.
    let restored = NodeDescription { catalogue: CatalogueName::FIRST, ..restored };
    let mut findings = Vec::new();
    mlgw_metadata::copy::verify_contents(&contents, from, "", &mut findings, watch);
    if let Some(damage) = findings.first() {
        return Err(StoreVerbError::Damaged(format!("{}: {}", damage.place, damage.what)));
    }
    for target in [dir, segments] {
        super::backup::require_empty(target)?;
    }
    let (mut done, total) = (0, contents.bytes());
    for name in contents.files.keys().filter(|name| *name != NODE_FILE) {
        let (folder, below) = match name.strip_prefix("segments/") {
            Some(below) => (segments, below),
            None => (dir, name.as_str()),
        };
        let source = from.join(name);
        let mut file = regular::open(&source).map_err(StoreVerbError::io(&source))?;
        Copier::new(folder, None)?.add_open(&mut file, u64::MAX, below, &mut |bytes| {
            done += bytes;
            watch("restoring", done, total);
        })?;
    }
    sync_all(dir)?;
    sync_all(segments)?;
    restored.write(dir)?;
    Ok(BackedUp { files: contents.files.len() as u64, bytes: total })
}

/// Syncs a directory and its subdirectories.
fn sync_all(dir: &Path) -> Result<(), StoreVerbError> {
    let io = StoreVerbError::io;
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir).map_err(io(dir))?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_all(&entry.path())?;
        }
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io(dir))
}
