//! Output of results on standard output: columns for people, JSON documents for programs.

use super::stderr::write_stderr;
use super::stdout::StdoutStream;
use super::terminal_text::{printable, printable_lines};
use super::{CliError, OutputForm};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, IsTerminal as _};

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
        StdoutStream::open()?.write(text.as_bytes()).map(|_| ())
    }

    /// Writes a document as JSON, or the table that `table` formats from it.
    pub fn document<T: Serialize>(
        self,
        document: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        self.document_or_file(document, |document| printable_lines(&table(document)).into_owned())
    }

    /// Writes a document as JSON, or the file in it unchanged.
    pub(super) fn document_or_file<T: Serialize>(
        self,
        document: &T,
        file: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        match self.form {
            OutputForm::Table => self.text(&file(document)),
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

/// Formats a count with its noun: `1 rule`, `2 rules`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats a line of text without control characters.
#[must_use]
pub fn text_line(text: &str) -> String {
    printable(text).into_owned() + "\n"
}

/// Formats a document as one line of JSON.
pub(super) fn json_line<T: Serialize>(document: &T) -> Result<String, CliError> {
    let text = serde_json::to_string(document).map_err(|error| CliError::Failed(error.to_string()))?;
    Ok(text + "\n")
}

/// Requests confirmation before a deletion.
pub(super) fn confirm(question: &str, yes: bool) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    match request_answer(question, "[y/N]")?.as_str() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(aborted()),
    }
}

/// Returns the answer to a question, which `hint` follows. Without a terminal `--yes` is required instead.
///
/// # Errors
/// If there is no terminal, or it cannot be read.
pub fn request_answer(question: &str, hint: &str) -> Result<String, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::Usage(format!("{question} Add --yes to confirm.")));
    }
    write_stderr(&format!("{question} {hint} "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|_| aborted())?;
    Ok(answer.trim().to_owned())
}

/// The error of a question that was not confirmed.
#[must_use]
pub fn aborted() -> CliError {
    CliError::Failed("aborted; nothing was changed".to_owned())
}

/// A table whose columns are formatted later: as text, or on the page of `mlgw top`.
pub(super) struct TextTable {
    pub(super) head: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&columns(&self.head, &self.rows))
    }
}

/// Formats rows in columns as wide as their widest cell, under a header. A cell is one line without control
/// characters.
pub fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let table = |rows: &[Vec<String>]| {
        let mut table = Table::new();
        table.add_rows(rows.iter().map(|row| row.iter().map(|cell| printable(cell))));
        table
    };
    let mut header = Table::new();
    header.add_row(head.to_vec());
    let mut widths = header.column_max_content_widths();
    for rows in rows.chunks(ROWS_AT_ONCE) {
        let found = table(rows).column_max_content_widths();
        widths.iter_mut().zip(found).for_each(|(width, found)| *width = found.max(*width));
    }
    let mut text = aligned(header, &widths);
    text.extend(rows.chunks(ROWS_AT_ONCE).map(|rows| aligned(table(rows), &widths)));
    text
}

/// Formats names and values, one pair per line. A value is one line without control characters.
pub(super) fn pairs(rows: &[(&str, String)]) -> String {
    let mut table = Table::new();
    table.add_rows(rows.iter().map(|(name, value)| [Cow::Borrowed(*name), printable(value)]));
    let widths = table.column_max_content_widths();
    if rows.is_empty() { String::new() } else { aligned(table, &widths) }
}

/// Spaces between columns.
const GAP: u16 = 2;
/// Number of rows that are formatted at once. A row takes more than a kilobyte until it is formatted.
const ROWS_AT_ONCE: usize = 4096;

/// Formats a table without borders in columns of these widths. Lines are never wrapped.
fn aligned(mut table: Table, widths: &[u16]) -> String {
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for (column, width) in table.column_iter_mut().zip(widths) {
        let width = Width::Fixed(width.saturating_add(GAP));
        column.set_padding((0, GAP)).set_constraint(ColumnConstraint::Absolute(width));
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::{ROWS_AT_ONCE, columns, confirm, pairs, text_line};

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["longer".to_owned(), String::new()]];
        assert_eq!(columns(&["NAME", "N"], &rows), "NAME    N\na       1\nlonger\n");
        assert_eq!(pairs(&[("a", "1".into()), ("bcd", String::new())]), "a    1\nbcd\n");
        assert_eq!((columns(&["NAME", "N"], &[]), pairs(&[])), ("NAME  N\n".to_owned(), String::new()));
    }

    #[test]
    fn a_cell_is_a_line_that_does_not_control_the_terminal() {
        let key = "k\x1b[2J\nNAME  \u{9b}".to_owned();
        let shown = "k\\u{1b}[2J\\nNAME  \\u{9b}";
        assert_eq!(columns(&["KEY"], &[vec![key.clone()]]), format!("KEY\n{shown}\n"));
        assert_eq!(pairs(&[("key", key.clone())]), format!("key  {shown}\n"));
        assert_eq!(text_line(&key), format!("{shown}\n"));
    }

    #[test]
    fn wide_characters_are_aligned_and_long_cells_are_not_wrapped() {
        let row = |key: &str| vec![key.to_owned(), "1".to_owned()];
        let rows = [row("数据/图.jpg"), row("🚀.bin"), row("e\u{301}t\u{e9}"), row("a b")];
        let expected = "\
KEY          N
数据/图.jpg  1
🚀.bin       1
e\u{301}t\u{e9}          1
a b          1
";
        assert_eq!(columns(&["KEY", "N"], &rows), expected);
        assert_eq!(pairs(&[("数据", "1".into()), ("a", "2".into())]), "数据  1\na     2\n");
        let long = columns(&["KEY", "N"], &[row(&"k".repeat(1024))]);
        assert_eq!(long.lines().map(str::len).collect::<Vec<_>>(), [1027, 1027]);
    }

    #[test]
    fn all_rows_of_a_long_table_have_the_same_columns() {
        let rows: Vec<_> = (0..=ROWS_AT_ONCE).map(|row| vec![row.to_string(), "x".to_owned()]).collect();
        let text =
            columns(&["N", ""], &[rows, vec![vec!["a wide cell".to_owned(), "x".to_owned()]]].concat());
        let place = |line: &str| line.find('x');
        assert!(text.lines().skip(1).all(|line| place(line) == Some(13)), "{}", &text[..100]);
        assert_eq!(text.lines().count(), ROWS_AT_ONCE + 3);
    }

    #[test]
    fn yes_needs_no_terminal() {
        assert_eq!(confirm("Delete?", true), Ok(()));
    }
}
