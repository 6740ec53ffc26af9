//! The error of a store that failed, or holds what it cannot hold.

use crate::schema::BadRecord;

/// The store failed, or holds what it cannot hold. The state must not be used any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

impl From<BadRecord> for StoreError {
    fn from(bad: BadRecord) -> Self {
        Self(bad.to_string())
    }
}

impl From<crate::key::BadKey> for StoreError {
    fn from(bad: crate::key::BadKey) -> Self {
        Self(bad.to_string())
    }
}
