//! Bindings of buckets to buckets of others.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// What a bucket fronts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingInfo {
    /// The upstream's name.
    pub upstream: String,
    /// What keys there begin with that are shown here without it.
    pub prefix: String,
    /// `read-through`, `write-through` or `write-back`.
    pub mode: String,
    /// How long an answer of the origin holds; without one, as `bound.ttl` says.
    pub ttl: Option<String>,
}

/// A bucket to bind.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindRequest {
    /// The upstream's name.
    pub upstream: String,
    /// What keys there begin with that are shown here without it.
    #[serde(default)]
    pub prefix: String,
    /// `read-through`, the default, `write-through` or `write-back`.
    #[serde(default)]
    pub mode: Option<String>,
    /// How long an answer of the origin holds, as `30s` or `1h`.
    #[serde(default)]
    pub ttl: Option<String>,
}

/// Which copies are not to be trusted any more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefreshRequest {
    /// Of keys that begin so.
    #[serde(default)]
    pub prefix: String,
}

/// How many there were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refreshed {
    /// Objects of which something was known.
    pub objects: u64,
}
