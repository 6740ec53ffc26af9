//! Errors of a store that failed or whose contents are invalid.

use mlgw_formats::format_error::FormatError;
use mlgw_formats::key::BadKey;
use mlgw_formats::schema::BadRecord;

/// A store failed, or its contents are invalid. The state must not be used any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

impl StoreError {
    /// True if the disk has no space for a write. RocksDB names the reason in its text, with these words.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.0.contains("No space left on device")
    }
}

impl From<FormatError> for StoreError {
    fn from(error: FormatError) -> Self {
        Self(error.0)
    }
}

impl From<BadRecord> for StoreError {
    fn from(bad: BadRecord) -> Self {
        Self(bad.to_string())
    }
}

impl From<BadKey> for StoreError {
    fn from(bad: BadKey) -> Self {
        Self(bad.to_string())
    }
}

/// Error of a read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The store failed, or its contents are invalid: it needs a repair, and a retry does not help.
    #[error("the catalogue cannot be read: {0}")]
    Store(String),
    /// This node has no member of a group, or has none any more. Another node has its rows.
    #[error("this node has no member of group {group}: try again, and another node serves the request")]
    GroupElsewhere {
        /// The group.
        group: u32,
    },
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.0)
    }
}

impl From<BadKey> for ReadError {
    fn from(bad: BadKey) -> Self {
        StoreError::from(bad).into()
    }
}

impl From<BadRecord> for ReadError {
    fn from(bad: BadRecord) -> Self {
        StoreError::from(bad).into()
    }
}
