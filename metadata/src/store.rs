//! RocksDB: one state store per group, one log store per node.
//!
//! State: the write-ahead log is off, because the Raft log is one. All families are in one column
//! family and the applied log id is written with what it applied, so whatever was flushed is a
//! consistent prefix of history. Log: every append of every group goes through one thread, one
//! batch and one sync at a time. When power fails, the state is as of its last flush and the log
//! as of its last sync, and replaying one over the other gives back all that was acknowledged.

pub(crate) mod floor;
pub(crate) mod links;
pub(crate) mod log;
pub(crate) mod log_facts;
#[cfg(test)]
mod manifest_tests;
pub(crate) mod options;
pub(crate) mod saved_log;
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
