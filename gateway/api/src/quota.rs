//! Quotas: what may be held, what is held of it, and what to change.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// What may be held; what is not given has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaInfo {
    /// Bytes of objects, and of parts of uploads in progress.
    pub bytes: Option<u64>,
    /// Objects.
    pub objects: Option<u64>,
}

/// What is held against a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedInfo {
    /// Bytes of objects, and of parts of uploads in progress.
    pub bytes: u64,
    /// Objects.
    pub objects: u64,
}

/// What to change of a quota; what is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaRequest {
    /// A size, such as `10GiB`, or `none`.
    pub bytes: Option<String>,
    /// A number, or `none`.
    pub objects: Option<String>,
}
