//! The error of malformed stored bytes.

use crate::schema::BadRecord;

/// Stored bytes are malformed; the text names the defect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(pub String);

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
