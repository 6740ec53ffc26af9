//! The runtime of commands that use a server.

use crate::CliError;

/// Runs a command that uses a server, on one thread.
pub fn run_async<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| CliError::Failed(format!("cannot start the runtime: {e}")))?.block_on(command)
}
