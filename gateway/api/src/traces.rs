//! Accesses that are recorded to rehearse policies with.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// A trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceInfo {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its files, in the order of time.
    pub files: Vec<TraceFileInfo>,
    /// While it is recorded, since when.
    pub recording_since: Option<String>,
    /// While it is recorded, bytes that it may take; then its oldest files go.
    pub bytes_max: Option<u64>,
    /// While it is recorded and when it is stopped: accesses that it has, those of files that are gone among
    /// them.
    pub accesses: Option<u64>,
    /// As `accesses`: blocks that were read and evicted meanwhile.
    pub decisions: Option<u64>,
    /// As `accesses`: a hash over what was decided on them, which a rehearsal of all of them is held against.
    /// 16 hexadecimal digits.
    pub decisions_hash: Option<String>,
    /// As `accesses`: bytes that clean copies could take.
    pub capacity_bytes: Option<u64>,
    /// As `accesses`: whether the recording ended by itself, because the disk was too slow for it.
    pub fell_behind: Option<bool>,
    /// In the answer to a start: older traces that were removed for it.
    pub removed: Vec<String>,
}

/// A file of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFileInfo {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceList {
    /// The oldest first.
    pub traces: Vec<TraceInfo>,
}

/// A trace that is to be recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTrace {
    /// Its name.
    pub name: String,
    /// Bytes that it may take; 1 GiB when absent.
    pub bytes_max: Option<u64>,
}
