//! Access traces, recorded to simulate policies on them.
//!
//! Field names and their order are a stable interface for programs.

use mlgw_common::limits::{TRACE_BYTES_DEFAULT, TRACE_BYTES_MIN};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceInfo {
    /// Name of the trace.
    pub name: String,
    /// Bytes of the trace.
    pub bytes: u64,
    /// Files of the trace, oldest first.
    pub files: Vec<TraceFileInfo>,
    /// Start of the recording, while the trace is being recorded.
    pub recording_since: Option<String>,
    /// Limit in bytes, while the trace is being recorded; beyond it the oldest files are removed.
    pub bytes_max: Option<u64>,
    /// Recorded accesses, those in removed files included. Present while the trace is being recorded and in
    /// the response to a stop.
    pub accesses: Option<u64>,
    /// Blocks that were read and evicted during the recording; present as `accesses` is.
    pub decisions: Option<u64>,
    /// Hash over the decisions on the recorded accesses, for comparison with a simulation of all of them;
    /// present as `accesses` is. 16 hexadecimal digits.
    pub decisions_hash: Option<String>,
    /// Capacity for clean copies in bytes; present as `accesses` is.
    pub capacity_bytes: Option<u64>,
    /// True if the recording stopped because the disk was too slow for it; present as `accesses` is.
    pub fell_behind: Option<bool>,
    /// In the response to a start only: older traces that were removed to make room.
    pub removed: Vec<String>,
}

/// A file of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceFileInfo {
    /// Number of the file.
    pub number: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// All traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceList {
    /// Traces, oldest first.
    pub traces: Vec<TraceInfo>,
}

/// Request to record a trace.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTrace {
    /// Name of the trace.
    pub name: String,
    /// Limit in bytes; 1 GiB if absent.
    #[schemars(range(min = TRACE_BYTES_MIN), extend("default" = TRACE_BYTES_DEFAULT))]
    pub bytes_max: Option<u64>,
}
