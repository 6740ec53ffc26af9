//! Findings: the errors and notes that are collected while a file is read.

use super::diagnostic::{Diagnostic, Diagnostics, TextPosition};
use super::limits::DIAGNOSTICS_MAX;
use super::notes::FileNotes;
use std::sync::Arc;

/// Collects the errors of one file.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) file: Arc<str>,
    pub(super) list: Vec<Diagnostic>,
    /// Prefix of every path: the template instance that is read.
    pub(super) path_prefix: String,
    /// Patterns read so far.
    pub(super) patterns: usize,
    /// Rules read so far, whether valid or not.
    pub(super) rules: usize,
    /// Facts about unreadable definitions and about references.
    pub(super) notes: FileNotes,
}

impl Findings {
    pub(super) fn new(file: &str) -> Self {
        let (file, notes) = (file.into(), FileNotes::default());
        Self { file, list: Vec::new(), path_prefix: String::new(), patterns: 0, rules: 0, notes }
    }

    /// Adds an error, unless [`DIAGNOSTICS_MAX`] are already recorded.
    pub(super) fn add(
        &mut self,
        spot: TextPosition,
        path: &str,
        found: String,
        expected: String,
        nearest: Option<String>,
    ) {
        if self.list.len() < DIAGNOSTICS_MAX {
            let dot = if self.path_prefix.is_empty() || path.is_empty() || path.starts_with('[') {
                ""
            } else {
                "."
            };
            let path = format!("{}{dot}{path}", self.path_prefix);
            let (file, TextPosition { line, column }) = (Arc::clone(&self.file), spot);
            self.list.push(Diagnostic { file, line, column, path, expected, found, nearest });
        }
    }

    /// Returns `value` if there is no error.
    pub(super) fn result<T>(self, value: Option<T>) -> Result<T, Diagnostics> {
        self.into_diagnostics().result(value)
    }

    /// Returns the errors in the order of the text.
    pub(super) fn into_diagnostics(mut self) -> Diagnostics {
        self.list.sort_by_key(|one| (one.line, one.column));
        Diagnostics(self.list)
    }
}
