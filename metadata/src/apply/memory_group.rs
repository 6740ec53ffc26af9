//! A group in memory, for tests: rows, and the real `apply` with a log index that grows.

use super::{apply, seq_of};
use crate::view::{MemoryRows, View};
use mlgw_formats::command::{Change, Command, Reject, Reply};

/// Rows of a group after the entries of its log.
#[derive(Clone, Default)]
pub(crate) struct MemoryGroup {
    pub(crate) rows: MemoryRows,
    /// Index of the last entry.
    pub(crate) index: u64,
}

impl MemoryGroup {
    /// Applies a command as the next entry.
    pub(crate) fn apply(&mut self, change: Change) -> Result<Reply, Reject> {
        self.index += 1;
        let mut view = View::new(&self.rows);
        let outcome = apply(&mut view, &Command::from(change), seq_of(self.index, 0)).unwrap();
        let (changes, _) = view.into_changes();
        assert!(outcome.is_ok() || changes.is_empty(), "a rejected command changes nothing");
        self.rows.write(changes);
        outcome
    }
}
