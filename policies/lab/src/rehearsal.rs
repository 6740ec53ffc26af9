//! Rehearsals of policies before they run, for the command line and the admin API: both return the same
//! documents.
//!
//! - `validate`: checks files and returns all diagnostics;
//! - `examine`: evaluates rules on keys, without accesses;
//! - `simulate`: compares caches on a `scenario`: a recorded trace or a generated workload.
//!
//! No rehearsal changes any state, and random values come from a seed. Only traces are read from disk, and
//! nothing is written.

pub mod examine;
pub mod scenario;
pub mod simulate;
pub mod sizes;
pub mod validate;

use std::io;
use std::path::Path;

/// Reason why a rehearsal fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RehearsalError {
    /// The request is invalid or exceeds a limit.
    #[error("{0}")]
    InvalidRequest(String),
    /// The trace cannot be read, or is not a trace.
    #[error("{0}")]
    Trace(String),
    /// The caller stopped the rehearsal.
    #[error("stopped because no caller waits for the result")]
    Stopped,
    /// Internal error.
    #[error("{0}")]
    Failed(String),
}

/// Error for a trace file that cannot be read.
fn unreadable(path: &Path, error: &io::Error) -> RehearsalError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            RehearsalError::InvalidRequest(format!("{}: there is no such file", path.display()))
        }
        _ => RehearsalError::Trace(format!("{}: {error}", path.display())),
    }
}
