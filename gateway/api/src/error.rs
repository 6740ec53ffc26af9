//! Error documents for programs and people.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// JSON body of a refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdminErrorBody {
    /// Error code, stable for programs.
    pub code: String,
    /// Message for people.
    pub message: String,
}
