//! Settings and progress of a catalogue's checkpoints, and the names of their directories.

use super::options::CheckpointOptions;
use std::path::{Path, PathBuf};
use tokio::sync::Mutex;

/// Settings and progress of the checkpoints.
pub(super) struct Checkpoints {
    pub(super) options: Option<CheckpointOptions>,
    /// Entries applied since the start when the newest checkpoint was made. Locked while one is made.
    pub(super) made_at: Mutex<Option<u64>>,
}

impl Checkpoints {
    pub(super) fn new(options: Option<CheckpointOptions>) -> Self {
        Self { options, made_at: Mutex::default() }
    }
}

/// Path of checkpoint `number`.
pub(crate) fn checkpoint_dir(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("checkpoint-{number}"))
}

/// Numbers of the checkpoints in `dir`, the oldest first.
pub(crate) fn checkpoint_numbers(dir: &Path) -> std::io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix("checkpoint-")?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}
