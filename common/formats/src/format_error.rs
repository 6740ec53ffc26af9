//! The error of bytes that are not what they should be.

use crate::schema::BadRecord;

/// Bytes are not what they should be; the text says which.
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
