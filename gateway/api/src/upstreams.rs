//! Object stores of others, and whether they can do what is asked of them.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// An object store of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamInfo {
    /// Its name in the configuration.
    pub name: String,
    /// Whose protocol it speaks.
    pub kind: String,
    /// Its URL; none is the vendor's own.
    pub endpoint: Option<String>,
    /// Its bucket, container or directory.
    pub bucket: String,
    /// What keys of segments in it begin with.
    pub prefix: String,
    /// Whether segments are encrypted before they are sent there.
    pub encrypt: bool,
    /// The buckets that are bound to it.
    pub bound: Vec<String>,
    /// Whether segments are spilled to it.
    pub spilled_to: bool,
    /// Segments that are there.
    pub segments: u64,
    /// Bytes of them.
    pub segment_bytes: u64,
    /// The relation of this server to the prefix by its mark: `own`, `unchecked`, `earlier`, `superseded`,
    /// `foreign`, `missing` or `damaged`. Nothing is deleted there unless it is `own`.
    pub owner: String,
    /// The identity in a mark that is not this server's.
    pub marked_by: Option<String>,
    /// What is wrong with the mark and what to do about it.
    pub advice: Option<String>,
    /// Whether the store honours conditional writes; unknown before its prefix is claimed.
    pub conditions: Option<bool>,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamList {
    /// By name.
    pub upstreams: Vec<UpstreamInfo>,
}

/// A step of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInfo {
    /// What was asked for: `reach`, `credentials`, `list`, `write`, `read`, `range`, `multipart`, `abort`,
    /// `delete`.
    pub step: String,
    /// What went wrong, if anything.
    pub fault: Option<String>,
    /// The permission that is missing, when that is what the store says.
    pub missing: Option<String>,
}
