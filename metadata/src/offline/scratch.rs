//! Scratch copies of a catalogue, on which the checks work.

use crate::store::state::StateDb;
use std::path::PathBuf;

/// State of a group, on a scratch copy.
pub(super) struct ScratchState {
    pub(super) group: u32,
    pub(super) state: StateDb,
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
}

/// Directory that is removed with its owner.
pub(super) struct Scratch(pub(super) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = mlgw_formats::store_files::remove_dir(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "failed to remove the scratch copy");
        }
    }
}
