//! Error of a command, with its exit status.

use super::terminal_text::printable_lines;

/// Error of a command. It is printed without characters that control a terminal, because a message may
/// contain names and text of a server.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// The command failed, or reported findings.
    #[error("{}", printable_lines(.0))]
    Failed(String),
    /// The arguments are wrong.
    #[error("{}", printable_lines(.0))]
    Usage(String),
    /// The server cannot be reached.
    #[error("{}", printable_lines(.0))]
    Unreachable(String),
    /// The server refused the request, or a running server holds the lock.
    #[error("{}", printable_lines(.0))]
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

    /// Returns the error with another message.
    #[must_use]
    pub(super) fn map_message(self, change: impl FnOnce(&str) -> String) -> Self {
        match self {
            Self::Failed(message) => Self::Failed(change(&message)),
            Self::Usage(message) => Self::Usage(change(&message)),
            Self::Unreachable(message) => Self::Unreachable(change(&message)),
            Self::Refused(message) => Self::Refused(change(&message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CliError;

    #[test]
    fn an_error_does_not_control_the_terminal() {
        let message = "line 1:\n\tkey \x1b]0;title\x07 \u{9b}2J\r";
        let shown = "line 1:\n\tkey \\u{1b}]0;title\\u{7} \\u{9b}2J\\r";
        let errors = [CliError::Failed, CliError::Usage, CliError::Unreachable, CliError::Refused];
        for error in errors.map(|error| error(message.to_owned())) {
            assert_eq!(error.to_string(), shown);
        }
    }
}
