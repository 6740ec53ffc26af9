//! Messages on standard error, without characters that control a terminal. A closed standard error does not
//! stop a command, whose open uploads would stay otherwise.

use super::terminal_text::{printable, printable_lines};
use std::io::{self, Write as _};

/// Writes text of any number of lines to standard error.
pub fn write_stderr(text: &str) {
    let _ = write!(io::stderr(), "{}", printable_lines(text));
}

/// Writes a line to standard error.
pub fn print_stderr(line: &str) {
    write_stderr(&format!("{}\n", printable(line)));
}
