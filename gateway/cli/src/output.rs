//! Output of results on standard output: columns for people, JSON documents for programs.

use super::{CliError, OutputForm};
use serde::Serialize;
use std::io::{self, IsTerminal as _, Write as _};

/// Settings of the output.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// Output format.
    pub form: OutputForm,
    /// True if only the result is printed.
    pub quiet: bool,
}

impl Out {
    /// Writes text unchanged. A closed pipe is no error.
    pub fn text(self, text: &str) -> Result<(), CliError> {
        match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::Failed(format!("standard output: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Writes a document as JSON, or the table that `table` formats from it.
    pub fn document<T: Serialize>(
        self,
        document: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        match self.form {
            OutputForm::Table => self.text(&table(document)),
            OutputForm::Json => {
                let text =
                    serde_json::to_string_pretty(document).map_err(|e| CliError::Failed(e.to_string()))?;
                self.text(&(text + "\n"))
            }
        }
    }

    /// Reports a completed action, unless quiet.
    pub fn done<T: Serialize>(self, document: &T, sentence: &str) -> Result<(), CliError> {
        if self.quiet { Ok(()) } else { self.document(document, |_| format!("{sentence}\n")) }
    }
}

/// Requests confirmation before a deletion.
pub(super) fn confirm(question: &str, yes: bool) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(CliError::Usage(format!("{question} Add --yes to confirm.")));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    match (read, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes") => Ok(()),
        _ => Err(CliError::Failed("aborted; nothing was changed".to_owned())),
    }
}

/// Formats rows in columns as wide as their widest cell, under a header.
pub fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut out = line(&mut head.iter().copied());
    for row in rows {
        out += &line(&mut row.iter().map(String::as_str));
    }
    out
}

/// Formats names and values, one pair per line.
pub(super) fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}").trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::{columns, confirm, pairs};

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["longer".to_owned(), String::new()]];
        assert_eq!(columns(&["NAME", "N"], &rows), "NAME    N\na       1\nlonger\n");
        assert_eq!(pairs(&[("a", "1".into()), ("bcd", String::new())]), "a    1\nbcd\n");
    }

    #[test]
    fn yes_needs_no_terminal() {
        assert_eq!(confirm("Delete?", true), Ok(()));
    }
}
