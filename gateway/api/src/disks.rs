//! Disks of a node: replacement of a segment directory.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Request to take an empty directory in place of a lost segment directory with the same path.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceDiskRequest {
    /// Path of the directory, as in the configuration of the node.
    pub directory: String,
    /// True to accept the loss of segments whose only copy was in the directory.
    #[serde(default)]
    pub accept_loss: bool,
}

/// A segment directory that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplacedDiskInfo {
    /// Path of the directory.
    pub directory: String,
    /// Number of segments that are copied from other nodes.
    pub copied_again: u64,
    /// Ids of segments whose only copy was lost.
    pub lost: Vec<u64>,
}
