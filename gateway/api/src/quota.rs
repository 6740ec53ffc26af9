//! Quotas: limits, usage and changes.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of a quota; absent fields are unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaInfo {
    /// Bytes of objects, and of parts of uploads in progress.
    pub bytes: Option<u64>,
    /// Number of objects.
    pub objects: Option<u64>,
}

/// Usage counted against a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UsedInfo {
    /// Bytes of objects, and of parts of uploads in progress.
    pub bytes: u64,
    /// Number of objects.
    pub objects: u64,
}

/// Request to change a quota; absent fields keep their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaRequest {
    /// A size, such as `10GiB`, or `none`.
    pub bytes: Option<String>,
    /// A number, or `none`.
    pub objects: Option<String>,
}
