//! Findings about a server's health, with advice.
//!
//! Field names and their order are a stable interface for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No problem.
    Ok,
    /// A problem that an operator should look at today.
    Warning,
    /// Requests fail or data is at risk.
    Critical,
}

impl Health {
    /// Returns the severity as spelled in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthFinding {
    /// Severity of the problem.
    pub severity: Health,
    /// Description of the problem.
    pub what: String,
    /// Advice: the next step for the operator.
    pub advice: String,
}
