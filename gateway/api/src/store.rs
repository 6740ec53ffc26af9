//! Backups of a data directory in use.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Request to start a backup.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBackup {
    /// Absolute path of the target directory on the server's host; it must be empty or absent.
    pub out: String,
    /// True to leave data in upstreams there: restoring the backup then requires the upstreams in their
    /// present state.
    #[serde(default)]
    pub leave_upstreams: bool,
}

/// State of this process's newest backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupStatus {
    /// State of the backup.
    pub state: BackupState,
    /// Target directory.
    pub out: String,
    /// Current stage.
    pub stage: String,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Bytes to copy, as far as known.
    pub total_bytes: u64,
    /// Number of files, once the backup is done.
    pub files: u64,
    /// Cause of the failure.
    pub error: Option<String>,
}

words! {
    /// State of a backup.
    BackupState {
        /// No backup was started since the start of the process.
        None = "none",
        /// In progress.
        Running = "running",
        /// Completed.
        Done = "done",
        /// Failed.
        Failed = "failed",
    }
}
