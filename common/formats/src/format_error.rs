//! The error of malformed stored bytes.

use crate::schema::BadRecord;

/// Stored bytes are malformed; the text names the defect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(pub String);

/// Text of the error of a command that a later version wrote.
const LATER_COMMAND: &str = "a later version wrote a command with unknown fields";

impl FormatError {
    /// Returns the error of a command with fields, or of a kind, that this version does not know.
    #[must_use]
    pub fn later_command() -> Self {
        Self(LATER_COMMAND.into())
    }

    /// True if a later version wrote what does not decode, so it is not malformed.
    #[must_use]
    pub fn is_of_later_version(&self) -> bool {
        self.0 == LATER_COMMAND
    }
}

impl From<BadRecord> for FormatError {
    fn from(bad: BadRecord) -> Self {
        Self(bad.to_string())
    }
}

impl From<crate::key::BadKey> for FormatError {
    fn from(bad: crate::key::BadKey) -> Self {
        Self(bad.to_string())
    }
}
