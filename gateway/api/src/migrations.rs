//! Migration of a remote-backed bucket to another origin.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// New origin of a remote-backed bucket that is migrated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrationTarget {
    /// Name of the upstream.
    pub upstream: String,
    /// Prefix of the origin's keys, which is stripped from the keys shown here.
    #[serde(default)]
    pub prefix: String,
}
