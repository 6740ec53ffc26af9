//! Where a bound bucket is moved to.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// Where a bound bucket is moved to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrateRequest {
    /// The upstream's name.
    pub upstream: String,
    /// What keys there begin with that are shown here without it.
    #[serde(default)]
    pub prefix: String,
}
