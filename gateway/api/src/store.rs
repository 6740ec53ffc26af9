//! Backups of a data directory in use.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// Where a backup is to go.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewBackup {
    /// A directory on the server's host, absolute; empty or absent.
    pub out: String,
    /// Whether what is in upstreams may stay there: then the backup needs them as they are now.
    #[serde(default)]
    pub leave_upstreams: bool,
}

/// The newest backup of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupStatus {
    /// `none`, `running`, `done` or `failed`.
    pub state: String,
    /// Where it goes.
    pub out: String,
    /// What it is doing.
    pub stage: String,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Bytes there are to copy, as far as is known.
    pub total_bytes: u64,
    /// Files of a backup that is done.
    pub files: u64,
    /// Why it failed.
    pub error: Option<String>,
}
