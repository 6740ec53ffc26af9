//! Facts of a log that a start checks: its server, its first entry and its end.
//!
//! Reading them costs a few point reads and two seeks per group, whatever the length of the log.

use super::log_rows::{LogRowKind, group_of, index_of, key};
use super::wal::WalWriters;
use crate::store_error::StoreError;
use mlgw_common::{Identity, Incarnation};
use mlgw_formats::schema::meta::LogPosition;
use rocksdb::{DB, ReadOptions};

/// Facts that a start checks of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogFacts {
    /// The server that wrote the log; `None` in a new log or in one of an earlier version.
    pub(crate) identity: Option<Identity>,
    /// The incarnation that made the newest write; `None` in a new log or in one of an earlier version.
    pub(crate) writer: Option<Incarnation>,
    /// Writers of its write-ahead logs.
    pub(crate) writers: WalWriters,
    /// Each group's part, by number.
    pub(crate) groups: Vec<GroupFacts>,
}

/// Part of a log that belongs to one group. Each number is the index of the next entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFacts {
    /// The first existing entry; `None` if there is none.
    pub(crate) first: Option<u64>,
    /// The entry after the last one that exists or was purged.
    pub(crate) end: u64,
    /// The entry after the last purged one.
    pub(crate) purged: u64,
    /// The entry after the last one that is known to be committed.
    pub(crate) committed: u64,
}

impl LogFacts {
    /// Reads the facts of all groups that the log has rows of, and of those with lower numbers.
    pub(super) fn read(db: &DB) -> Result<Self, StoreError> {
        let identity =
            db.get(key(0, LogRowKind::Identity, 0))?.map(|bytes| identity_in(&bytes)).transpose()?;
        let writer = db.get(key(0, LogRowKind::Writer, 0))?;
        let writer = writer.map(|bytes| writer_in(&bytes)).transpose()?;
        let groups =
            (0..groups_in(db)?).map(|group| GroupFacts::read(db, group)).collect::<Result<_, _>>()?;
        Ok(Self { identity, writer, writers: WalWriters::default(), groups })
    }
}

impl LogFacts {
    /// The part of a group. A group without rows has none.
    pub(crate) fn group(&self, id: u32) -> GroupFacts {
        self.groups.get(id as usize).copied().unwrap_or_default()
    }

    /// Number of entries that the groups have ever had in their logs, purged ones included. With one voter it
    /// never decreases.
    pub(crate) fn entries(&self) -> u64 {
        self.groups.iter().map(|group| group.end).sum()
    }
}

/// The number after that of the last group with rows.
fn groups_in(db: &DB) -> Result<u32, StoreError> {
    let mut rows = db.raw_iterator();
    rows.seek_to_last();
    let last = rows.key().and_then(group_of).map_or(0, |group| group + 1);
    rows.status()?;
    Ok(last)
}

/// The incarnation in the row that names the writer.
fn writer_in(bytes: &[u8]) -> Result<Incarnation, StoreError> {
    let number = bytes.try_into().map(u64::from_be_bytes);
    number
        .map(Incarnation)
        .map_err(|_| StoreError("the row of the log that names its writer is damaged".into()))
}

fn identity_in(bytes: &[u8]) -> Result<Identity, StoreError> {
    let text = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    text.ok_or_else(|| StoreError("the row of the log that names its server is damaged".into()))
}

impl GroupFacts {
    fn read(db: &DB, group: u32) -> Result<Self, StoreError> {
        let after = |kind| -> Result<u64, StoreError> {
            let value = db.get(key(group, kind, 0))?;
            let position: Option<LogPosition> =
                value.map(|bytes| mlgw_formats::schema::decode(&bytes)).transpose()?;
            Ok(position.map_or(0, |position| position.index + 1))
        };
        let (purged, committed) = (after(LogRowKind::Purged)?, after(LogRowKind::Committed)?);
        let mut within = ReadOptions::default();
        within.set_iterate_lower_bound(key(group, LogRowKind::Entry, 0));
        within.set_iterate_upper_bound(key(group, LogRowKind::Entry, u64::MAX));
        let mut rows = db.raw_iterator_opt(within);
        // Purged entries may still exist as tombstones, so the seek begins after them.
        rows.seek(key(group, LogRowKind::Entry, purged));
        let first = rows.key().and_then(index_of);
        rows.status()?;
        rows.seek_to_last();
        let last = rows.key().and_then(index_of);
        rows.status()?;
        let end = last.map_or(0, |last| last + 1).max(purged);
        Ok(Self { first, end, purged, committed })
    }
}
