//! RocksDB stores: one state store per group, one log store per node.
//!
//! State store: RocksDB's write-ahead log is off, because the Raft log serves as one. All row families are in
//! one column family, and the applied log id is written together with the rows that were applied, so a
//! flushed state is always a consistent prefix of the history. Log store: the appends of all groups go
//! through one thread, with one batch and one sync at a time. After a power loss the state is as of its last
//! flush and the log as of its last sync; replaying the log over the state restores every acknowledged
//! command.

pub(crate) mod behind;
pub(crate) mod floor;
pub(crate) mod group_dirs;
pub(crate) mod links;
pub(crate) mod log;
pub(crate) mod log_facts;
pub(crate) mod log_rows;
#[cfg(test)]
mod manifest_tests;
pub(crate) mod options;
pub(crate) mod saved_log;
pub(crate) mod space_waits;
pub(crate) mod state;
pub(crate) mod tombstones;
pub(crate) mod wal;
#[cfg(test)]
mod wal_frames_tests;

use crate::store_error::StoreError;

impl From<rocksdb::Error> for StoreError {
    fn from(error: rocksdb::Error) -> Self {
        Self(error.into_string())
    }
}
