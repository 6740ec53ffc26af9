//! Upstreams: other object stores and checks of their capabilities.
//!
//! Field names and their order are a stable interface for programs. Nothing is stored, so a power failure has
//! no effect.

use serde::{Deserialize, Serialize};

/// An upstream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamInfo {
    /// Name in the configuration.
    pub name: String,
    /// Protocol of the store.
    pub kind: String,
    /// URL of the store; absent for the vendor's default.
    pub endpoint: Option<String>,
    /// Bucket, container or directory.
    pub bucket: String,
    /// Prefix of the keys of segments.
    pub prefix: String,
    /// True if segments are encrypted before the upload.
    pub encrypt: bool,
    /// Remote-backed buckets whose origin is here.
    pub bound: Vec<String>,
    /// True if segments are spilled to this upstream.
    pub spilled_to: bool,
    /// Number of segments here.
    pub segments: u64,
    /// Bytes of these segments.
    pub segment_bytes: u64,
    /// Relation of this server to the prefix by its ownership mark: `own`, `unchecked`, `earlier`,
    /// `superseded`, `foreign`, `missing` or `damaged`. Nothing is deleted under the prefix unless it is
    /// `own`.
    pub owner: String,
    /// Identity in the mark, if it is not this server's.
    pub marked_by: Option<String>,
    /// Fault of the mark, with advice.
    pub advice: Option<String>,
    /// True if the store honors conditional writes; unknown before its prefix is claimed.
    pub conditions: Option<bool>,
}

/// All upstreams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamList {
    /// Upstreams, sorted by name.
    pub upstreams: Vec<UpstreamInfo>,
}

/// A step of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInfo {
    /// Operation tested: `reach`, `credentials`, `list`, `write`, `read`, `range`, `multipart`, `abort` or
    /// `delete`.
    pub step: String,
    /// Fault, if any.
    pub fault: Option<String>,
    /// Missing permission, if the store reported one.
    pub missing: Option<String>,
}
