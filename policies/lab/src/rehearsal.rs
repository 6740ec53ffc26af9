//! What policies are tried with before they run, for the command line and the admin API alike: the answers
//! are the same documents.
//!
//! - `validate`: whether files are right, and everything that is wrong with them;
//! - `examine`: what rules make of keys, without anybody who reads them;
//! - `simulate`: what caches would have got, on a `scenario`: a recorded trace or a generated workload.
//!
//! Always: nothing of it changes anything, and what is random comes from a seed. Only traces are read from
//! the disk. There is nothing that a power failure could take.

pub mod examine;
pub mod scenario;
pub mod simulate;
pub mod sizes;
pub mod validate;

use std::io;
use std::path::Path;

/// Why something is not tried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RehearsalError {
    /// What was asked for makes no sense, or is too much.
    #[error("{0}")]
    Asked(String),
    /// The trace cannot be read, or is none.
    #[error("{0}")]
    Trace(String),
    /// Whoever asked does not want it any more.
    #[error("nobody waits for it any more")]
    Stopped,
    /// It failed by our fault.
    #[error("{0}")]
    Failed(String),
}

/// Why a trace's file is not read.
fn unreadable(path: &Path, error: &io::Error) -> RehearsalError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            RehearsalError::Asked(format!("{}: there is no such file", path.display()))
        }
        _ => RehearsalError::Trace(format!("{}: {error}", path.display())),
    }
}
