//! The facts of a log that a start checks: its server, its first entry and its end.
//!
//! Reading them costs a few point reads and two seeks per group, whatever the length of the log.

use super::log::{Kind, index_of, key};
use crate::store_error::StoreError;
use mlgw_common::{Identity, Incarnation};
use mlgw_formats::schema::meta::LogPosition;
use rocksdb::{DB, ReadOptions};
use std::collections::BTreeSet;

/// What a start checks of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogFacts {
    /// The server that wrote it; none in a log of an earlier version, or in a new one.
    pub(crate) identity: Option<Identity>,
    /// The incarnation that made the newest write; none in a log of an earlier version, or in a new one.
    pub(crate) writer: Option<Incarnation>,
    /// Who wrote its write-ahead logs.
    pub(crate) writers: Writers,
    /// Each group's part, by number.
    pub(crate) groups: Vec<GroupFacts>,
}

/// Which incarnations the records of write-ahead logs name as their writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writers {
    /// Those that are named.
    pub(crate) named: BTreeSet<Incarnation>,
    /// Some record with entries names none.
    pub(crate) unnamed: bool,
}

/// A group's part of a log. Each number is the index of the entry that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFacts {
    /// The first entry that is there; none when there is no entry.
    pub(crate) first: Option<u64>,
    /// The entry after the last one that is there or was purged.
    pub(crate) end: u64,
    /// The entry after the last purged one.
    pub(crate) purged: u64,
    /// The entry after the last one that is known to be committed.
    pub(crate) committed: u64,
}

impl LogFacts {
    /// Reads the facts of groups 0 to `groups` - 1.
    pub(super) fn read(db: &DB, groups: u32) -> Result<Self, StoreError> {
        let identity = db.get(key(0, Kind::Identity, 0))?.map(|bytes| identity_in(&bytes)).transpose()?;
        let writer = db.get(key(0, Kind::Writer, 0))?;
        let writer = writer.map(|bytes| writer_in(&bytes)).transpose()?;
        let groups = (0..groups).map(|group| GroupFacts::read(db, group)).collect::<Result<_, _>>()?;
        Ok(Self { identity, writer, writers: Writers::default(), groups })
    }
}

impl LogFacts {
    /// Entries that the groups have had in their logs, purged ones included. With one voter it only grows.
    pub(crate) fn entries(&self) -> u64 {
        self.groups.iter().map(|group| group.end).sum()
    }
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
        let (purged, committed) = (after(Kind::Purged)?, after(Kind::Committed)?);
        let mut within = ReadOptions::default();
        within.set_iterate_lower_bound(key(group, Kind::Entry, 0));
        within.set_iterate_upper_bound(key(group, Kind::Entry, u64::MAX));
        let mut rows = db.raw_iterator_opt(within);
        // Purged entries may still be there as tombstones: the seek begins behind them.
        rows.seek(key(group, Kind::Entry, purged));
        let first = rows.key().and_then(index_of);
        rows.status()?;
        rows.seek_to_last();
        let last = rows.key().and_then(index_of);
        rows.status()?;
        let end = last.map_or(0, |last| last + 1).max(purged);
        Ok(Self { first, end, purged, committed })
    }
}
