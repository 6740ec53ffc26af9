//! The formats of the small state files of a data directory, for a check that does not open them.

use std::io;
use std::path::Path;

/// Format of `flash.json`.
pub const FLASH: u32 = crate::flash::FORMAT;
/// Format of `scrub.json`.
pub const SCRUB: u32 = crate::hot::SCRUB_FORMAT;
/// Format of `upstream-leftovers.json`.
pub const LEFTOVERS: u32 = crate::hot::LEFTOVERS_FORMAT;

/// Checks that a start can use the file of state at `path`: that it is not there, or can be read and is of a
/// format up to `format`. A damaged one can be used: it starts empty.
///
/// # Errors
/// What keeps a server from starting.
pub fn check(path: &Path, format: u32) -> io::Result<()> {
    crate::hot::state_file::check(path, format)
}
