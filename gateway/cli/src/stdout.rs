//! Standard output as a stream of bytes, without the buffer for lines that the standard library adds.

use crate::CliError;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;

/// Standard output.
pub(super) struct StdoutStream(File);

impl StdoutStream {
    /// Opens standard output.
    ///
    /// # Errors
    /// The process can open no further file.
    pub(super) fn open() -> Result<Self, CliError> {
        let stream = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
        Ok(Self(File::from(stream)))
    }

    /// Returns a stream to another file.
    #[cfg(test)]
    pub(super) fn to(file: File) -> Self {
        Self(file)
    }

    /// Writes bytes. Returns `Break` if the reader closed the pipe, which is no error.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<ControlFlow<()>, CliError> {
        match self.0.write_all(bytes) {
            Ok(()) => Ok(ControlFlow::Continue(())),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
            Err(error) => Err(failed(error)),
        }
    }
}

fn failed(error: io::Error) -> CliError {
    CliError::Failed(format!("standard output: {error}"))
}
