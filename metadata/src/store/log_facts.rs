//! The facts of a log that a start checks: its server, its first entry and its end.
//!
//! Reading them costs a few point reads and two seeks per group, whatever the length of the log.

use super::log::{Kind, index_of, key};
use crate::schema::meta::LogPosition;
use crate::view::StoreError;
use mlgw_common::Identity;
use rocksdb::{DB, ReadOptions};

/// What a start checks of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogFacts {
    /// The server that wrote it; none in a log of an earlier version, or in a new one.
    pub(crate) identity: Option<Identity>,
    /// Each group's part, by number.
    pub(crate) groups: Vec<GroupFacts>,
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
        let groups = (0..groups).map(|group| GroupFacts::read(db, group)).collect::<Result<_, _>>()?;
        Ok(Self { identity, groups })
    }
}

impl LogFacts {
    /// Entries that the groups have had in their logs, purged ones included. With one voter it only grows.
    pub(crate) fn entries(&self) -> u64 {
        self.groups.iter().map(|group| group.end).sum()
    }
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
                value.map(|bytes| crate::schema::decode(&bytes)).transpose()?;
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
