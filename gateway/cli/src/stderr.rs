//! Lines on standard error.

use std::io::{self, Write as _};

/// Prints a line on standard error. A closed standard error does not stop the command, whose open uploads
/// would stay otherwise.
pub fn print_stderr(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
