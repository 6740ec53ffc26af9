//! Applies saved log entries to a state without Raft: for checking and rebuilding.
//!
//! It does entry by entry what a start of a lone voter does, but without an election, background jobs or
//! commands of its own. The rows are the same because `apply` is a pure function.

use crate::apply::{apply, seq_of};
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::View;
use mlgw_formats::cluster_version::{CLUSTER_VERSION, check_known};
use mlgw_formats::log_entry;
use mlgw_formats::schema::meta::MetaRow;
use openraft::EntryPayload;

/// Changed rows after which a batch of them is written.
const RUN_ROWS_MAX: usize = 4096;

/// Replay of log entries into a state.
pub(crate) struct Replay<'s> {
    state: &'s StateDb,
    view: View<'s>,
    /// Index of the next entry.
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
            return Err(StoreError(format!("the log has entry {index} in the place of entry {}", self.next)));
        }
        let entry = log_entry::decode(index, bytes)?;
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Normal(batch) => {
                for (position, command) in batch.commands.iter().enumerate() {
                    check_known(command, CLUSTER_VERSION).map_err(|why| StoreError(why.to_string()))?;
                    // A command that was rejected originally is rejected again and changes nothing.
                    let _ = apply(&mut self.view, command, seq_of(index, position))?;
                }
            }
            EntryPayload::Membership(membership) => {
                let stored =
                    mlgw_formats::log_types::StoredMembership::new(Some(entry.log_id), membership.clone());
                self.view.put(MetaRow::Membership.row(), &log_entry::record_of_membership(&stored));
            }
        }
        self.view.put(MetaRow::Applied.row(), &log_entry::log_position(&entry.log_id));
        self.view.keep_changes();
        self.next = index + 1;
        if self.view.len() >= RUN_ROWS_MAX { self.write() } else { Ok(()) }
    }

    /// Writes the remaining changes.
    pub(crate) fn finish(mut self) -> Result<(), StoreError> {
        self.write()
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let view = std::mem::replace(&mut self.view, View::new(self.state));
        self.state.write(&view.into_changes().0)
    }
}
