//! The directory of checkpoints: whose it is, and its mark.
//!
//! A server removes all but its newest checkpoints, so it makes them only in a directory of its own. The mark
//! is that of directories of segments. A directory without one is marked when every checkpoint in it is of
//! this timeline. One of another server or timeline is refused and stays as it is. The mark is written whole
//! before anything else, so a crash leaves a directory that is judged again.

use mlgw_common::{Kinship, Lineage};
use mlgw_metadata::offline::{CheckpointDir, foreign_checkpoint};
use mlgw_segments::hot::{read_mark, write_mark};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Why a directory of checkpoints is not used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointDirError {
    /// It is another server's, or another timeline's.
    #[error(
        "{dir} is not this server's directory of checkpoints ({why}): it was left as it is; put \
         catalogue.checkpoint_dir right, or move the directory away: a server makes new checkpoints \
         (`mlgw store check` looks at everything else)"
    )]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// How it differs.
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

/// Whether the directory is this server's already; a new one is none yet. `has_run` is whether the server has
/// a log.
///
/// # Errors
/// When it is another server's.
pub fn judge(dir: &Path, lineage: &Lineage, has_run: bool) -> Result<bool, CheckpointDirError> {
    let foreign = |why: String| CheckpointDirError::Foreign { dir: dir.to_owned(), why };
    match read_mark(dir) {
        Ok(Some(found)) if lineage.kinship(&found) == Kinship::Own => return Ok(true),
        Ok(Some(found)) => return Err(foreign(format!("its mark names {found}, this is {}", lineage.own))),
        Ok(None) => {}
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(foreign("its mark is damaged".to_owned()));
        }
        Err(source) => return Err(CheckpointDirError::Io { dir: dir.to_owned(), source }),
    }
    match foreign_checkpoint(dir, lineage, has_run) {
        Ok(None) => Ok(false),
        Ok(Some(why)) => Err(foreign(why)),
        Err(source) => Err(CheckpointDirError::Io { dir: dir.to_owned(), source }),
    }
}

/// The directory, for checks and rebuilds.
#[must_use]
pub fn described<'p>(dir: &'p Path, lineage: Option<&Lineage>) -> CheckpointDir<'p> {
    let mark = read_mark(dir).ok().flatten();
    let is_marked = mark.is_some_and(|found| lineage.is_some_and(|own| own.kinship(&found) == Kinship::Own));
    CheckpointDir { path: dir, is_marked }
}

/// Judges the directory, and marks it where it has no mark yet.
///
/// # Errors
/// When it is another server's, or the mark cannot be written.
pub fn admit(dir: &Path, lineage: &Lineage, has_run: bool) -> Result<(), CheckpointDirError> {
    if judge(dir, lineage, has_run)? {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let marked = made.and_then(|()| write_mark(dir, &lineage.own));
    marked.map_err(|source| CheckpointDirError::Io { dir: dir.to_owned(), source })
}
