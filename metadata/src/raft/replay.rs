//! Applies saved log entries to a state without Raft: for checking and rebuilding.
//!
//! What a start of a lone voter does, entry by entry, and nothing else: no election, no jobs, no
//! command of our own. The rows come out the same because `apply` is a pure function.

use crate::apply::{apply, seq_of};
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::View;
use mlgw_formats::log_entry;
use mlgw_formats::schema::meta::MetaRow;
use openraft::EntryPayload;

/// Changed rows after which they are written.
const RUN_ROWS_MAX: usize = 4096;

/// Entries being applied to a state.
pub(crate) struct Replay<'s> {
    state: &'s StateDb,
    view: View<'s>,
    /// The index of the entry that comes next.
    next: u64,
}

impl<'s> Replay<'s> {
    /// Begins with the entry `next`.
    pub(crate) fn new(state: &'s StateDb, next: u64) -> Self {
        Self { state, view: View::new(state), next }
    }

    /// Applies the entry `index`.
    pub(crate) fn entry(&mut self, index: u64, bytes: Vec<u8>) -> Result<(), StoreError> {
        if index != self.next {
            return Err(StoreError(format!("the entry {index} came where {} belongs", self.next)));
        }
        let entry = log_entry::decode(index, bytes)?;
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Normal(batch) => {
                for (position, command) in batch.commands.iter().enumerate() {
                    // Rejected then, rejected now: it changes nothing.
                    let _ = apply(&mut self.view, command, seq_of(index, position))?;
                }
            }
            EntryPayload::Membership(membership) => {
                let stored =
                    mlgw_formats::log_types::StoredMembership::new(Some(entry.log_id), membership.clone());
                self.view.put(MetaRow::Membership.row(), &log_entry::stored_record(&stored));
            }
        }
        self.view.put(MetaRow::Applied.row(), &log_entry::position(&entry.log_id));
        self.view.keep();
        self.next = index + 1;
        if self.view.len() >= RUN_ROWS_MAX { self.write() } else { Ok(()) }
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> Result<(), StoreError> {
        self.write()
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let view = std::mem::replace(&mut self.view, View::new(self.state));
        self.state.write(&view.into_changes().0)
    }
}
