//! Error of a command, with its exit status.

/// Error of a command.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// The command failed, or reported findings.
    #[error("{0}")]
    Failed(String),
    /// The arguments are wrong.
    #[error("{0}")]
    Usage(String),
    /// The server cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The server refused the request, or a running server holds the lock.
    #[error("{0}")]
    Refused(String),
}

impl CliError {
    /// Returns the exit status for this error.
    #[must_use]
    pub const fn status(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
            Self::Refused(_) => 4,
        }
    }
}
