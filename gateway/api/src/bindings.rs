//! Bindings of buckets to buckets of other object stores.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Binding of a bucket to its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BindingInfo {
    /// Name of the upstream.
    pub upstream: String,
    /// Prefix of the origin's keys, which is stripped from the keys shown here.
    pub prefix: String,
    /// Mode of the binding.
    pub mode: BindingMode,
    /// Duration for which a response of the origin is valid; if absent, the setting `bound.ttl` applies.
    pub ttl: Option<String>,
}

/// Request to bind a bucket.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BindRequest {
    /// Name of the upstream.
    pub upstream: String,
    /// Prefix of the origin's keys, which is stripped from the keys shown here.
    #[serde(default)]
    pub prefix: String,
    /// Mode of the binding; `read-through` if absent.
    #[serde(default)]
    pub mode: Option<BindingMode>,
    /// Duration for which a response of the origin is valid, such as `30s` or `1h`.
    #[serde(default)]
    pub ttl: Option<String>,
}

/// Request to stop trusting clean copies and metadata of an origin's objects.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefreshRequest {
    /// Prefix of the keys concerned; empty for all.
    #[serde(default)]
    pub prefix: String,
}

/// Result of a refresh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefreshResult {
    /// Objects about which anything was cached.
    pub objects: u64,
}

words! {
    /// Treatment of writes to a remote-backed bucket.
    BindingMode {
        /// Writes are refused.
        ReadThrough = "read-through",
        /// A write is acknowledged once the origin has it.
        WriteThrough = "write-through",
        /// A write is acknowledged once it is durable here, and reaches the origin later.
        WriteBack = "write-back",
    }
}
