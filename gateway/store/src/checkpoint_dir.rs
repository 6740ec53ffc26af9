//! The directory of checkpoints: its owner and its mark.
//!
//! A server removes all but its newest checkpoints, so it writes them only to its own directory. The mark has
//! the format of the marks of segment directories. A directory without a mark is marked if every checkpoint
//! in it is of this timeline. One of another server or timeline is refused and unchanged. The mark is written
//! completely before any checkpoint, so after a crash the directory is judged again.

use crate::location::StoreLocation;
use mlgw_common::{Kinship, Lineage};
use mlgw_metadata::offline::{CheckpointDir, foreign_checkpoint, unexpected_checkpoint};
use mlgw_segments::hot::{read_mark, write_mark};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Error of a directory of checkpoints that cannot be used. No file in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointDirError {
    /// The directory belongs to another server or another timeline.
    #[error(
        "{dir} is not this server's checkpoint directory ({why}) and was left unchanged; correct \
         catalogue.checkpoint_dir, or move the directory away: a server creates new checkpoints (`mlgw \
         store check` checks the other files)"
    )]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// The difference.
        why: String,
    },
    /// The disk failed.
    #[error("{dir}: {source}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Returns true if the directory of checkpoints already carries this server's mark. A new directory does not.
///
/// # Errors
/// When the directory belongs to another server or cannot be read.
pub fn is_own(place: &StoreLocation, lineage: &Lineage) -> Result<bool, CheckpointDirError> {
    let (dir, has_run) = (&*place.checkpoints, place.has_run());
    let foreign = |why: String| CheckpointDirError::Foreign { dir: dir.to_owned(), why };
    match read_mark(dir) {
        Ok(Some(found)) if lineage.kinship(&found) == Kinship::Own => return Ok(true),
        Ok(Some(found)) => {
            return Err(foreign(format!("its mark names {found}, but this server is {}", lineage.own)));
        }
        Ok(None) => {}
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(foreign("its mark is damaged".to_owned()));
        }
        Err(source) => return Err(CheckpointDirError::Io { dir: dir.to_owned(), source }),
    }
    let found = if has_run { foreign_checkpoint(dir, lineage) } else { unexpected_checkpoint(dir) };
    match found {
        Ok(None) => Ok(false),
        Ok(Some(why)) => Err(foreign(why)),
        Err(source) => Err(CheckpointDirError::Io { dir: dir.to_owned(), source }),
    }
}

/// Returns true if the directory has the mark of this server and timeline.
#[must_use]
pub(crate) fn has_own_mark(dir: &Path, lineage: &Lineage) -> bool {
    read_mark(dir).ok().flatten().is_some_and(|found| lineage.kinship(&found) == Kinship::Own)
}

/// Returns the directory with its mark, for checks and rebuilds.
#[must_use]
pub fn described<'p>(dir: &'p Path, lineage: Option<&Lineage>) -> CheckpointDir<'p> {
    let is_marked = lineage.is_some_and(|own| has_own_mark(dir, own));
    CheckpointDir { path: dir, is_marked }
}

/// Judges the directory of checkpoints, and marks it if it has no mark yet.
///
/// # Errors
/// When the directory belongs to another server, or the mark cannot be written.
pub fn admit(place: &StoreLocation, lineage: &Lineage) -> Result<(), CheckpointDirError> {
    if is_own(place, lineage)? {
        return Ok(());
    }
    let dir = &*place.checkpoints;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let marked = made.and_then(|()| write_mark(dir, &lineage.own));
    marked.map_err(|source| CheckpointDirError::Io { dir: dir.to_owned(), source })
}
