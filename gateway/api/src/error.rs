//! Refusals as programs and people read them.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use serde::{Deserialize, Serialize};

/// How a refusal is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDocument {
    /// What programs tell it by.
    pub code: String,
    /// What people read.
    pub message: String,
}
