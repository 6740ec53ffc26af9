//! Reasons that end a pass early.

use mlgw_metadata::ReadError;

/// Reason why a scan ended early.
pub(super) enum PassEnd {
    /// The server stops.
    Stopping,
    /// The evaluated policy is no longer the running one.
    Changed,
    /// The clock of this node is not confirmed by other nodes any more.
    ClockUnconfirmed,
    /// The catalogue cannot be read, or a thread panicked.
    Failed(String),
}

impl From<ReadError> for PassEnd {
    fn from(error: ReadError) -> Self {
        Self::Failed(error.to_string())
    }
}
