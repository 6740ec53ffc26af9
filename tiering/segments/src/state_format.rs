//! Formats of the small state files of a data directory, for a check that does not open the store.

use std::io;
use std::path::Path;

/// Format of `flash.json`.
pub const FLASH: u32 = crate::flash::FORMAT;
/// Format of `scrub.json`.
pub const SCRUB: u32 = crate::hot::SCRUB_FORMAT;
/// Format of `upstream-leftovers.json`.
pub const LEFTOVERS: u32 = crate::hot::LEFTOVERS_FORMAT;

/// Checks that a server can start with the state file at `path`: the file does not exist, or is readable and
/// of a format up to `format`. A damaged file is accepted: the server starts with an empty state.
///
/// # Errors
/// The reason why a server would not start.
pub fn check(path: &Path, format: u32) -> io::Result<()> {
    crate::hot::state_file::check(path, format)
}
