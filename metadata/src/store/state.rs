//! State of a group: rows in RocksDB, flushed on request, copied as hard links, and replaced as a whole by a
//! snapshot of another member.
//!
//! The store is the directory `state-N` with the largest N. A received snapshot is complete and synced before
//! it is renamed to the next number, so a power loss leaves the old state or the new one.

use super::options;
use super::space_waits::SpaceWaits;
use crate::store_error::StoreError;
use crate::view::{Row, RowChanges, RowReader};
use mlgw_formats::{manifest, store_files};
use parking_lot::RwLock;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::properties::{self, PropName};
use rocksdb::{
    Cache, DB, DBPinnableSlice, DBRawIterator, FlushOptions, ReadOptions, ReadTier, Snapshot, WriteBatch,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Treatment of the table blocks that a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockCaching {
    /// The blocks enter the cache.
    Keep,
    /// The blocks do not displace those that requests use.
    Bypass,
}

const STATE: &str = "state-";

/// Open state of a group.
pub(crate) struct StateDb {
    db: DB,
    persisted: ReadOptions,
    /// Dropped after the store is closed, because fields are dropped in order.
    open: Arc<()>,
}

impl StateDb {
    /// Opens or creates the store in `dir`.
    pub(crate) fn open(dir: &Path, cache: &Cache, memtable_bytes: usize) -> Result<Self, StoreError> {
        manifest::truncate_torn_end(dir)
            .map_err(|error| StoreError(format!("{}: {error}", dir.display())))?;
        let db = DB::open(&options::state(cache, memtable_bytes), dir)?;
        let mut persisted = ReadOptions::default();
        persisted.set_read_tier(ReadTier::Persisted);
        Ok(Self { db, persisted, open: Arc::default() })
    }

    /// Opens the store in `dir` read-only; nothing in it changes.
    pub(crate) fn open_read_only(dir: &Path) -> Result<Self, StoreError> {
        let db = DB::open_for_read_only(&rocksdb::Options::default(), dir, false)?;
        Ok(Self { db, persisted: ReadOptions::default(), open: Arc::default() })
    }

    /// Opens a scratch copy of a store, to read it and to replay a log into it. Nothing is compacted, so its
    /// tables stay as they are.
    pub(crate) fn open_scratch(dir: &Path, cache: &Cache, memtable_bytes: usize) -> Result<Self, StoreError> {
        let mut options = options::state(cache, memtable_bytes);
        options.create_if_missing(false);
        options.set_disable_auto_compactions(true);
        manifest::truncate_torn_end(dir)
            .map_err(|error| StoreError(format!("{}: {error}", dir.display())))?;
        let db = DB::open(&options, dir)?;
        Ok(Self { db, persisted: ReadOptions::default(), open: Arc::default() })
    }

    /// File names of its tables.
    pub(crate) fn live_tables(&self) -> Result<BTreeSet<String>, StoreError> {
        let files = self.db.live_files()?;
        Ok(files.into_iter().map(|file| file.name.trim_start_matches('/').to_owned()).collect())
    }

    /// First and last key of each of its tables.
    pub(crate) fn table_ranges(&self) -> Result<Vec<Row>, StoreError> {
        let files = self.db.live_files()?;
        Ok(files.into_iter().filter_map(|file| file.start_key.zip(file.end_key)).collect())
    }

    /// Weak reference that has no owners once the store is closed.
    pub(crate) fn open_token(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    /// The value at `key`, without a copy.
    pub(crate) fn get_pinned(&self, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>, StoreError> {
        Ok(self.db.get_pinned(key)?)
    }

    /// The value at `key` on disk, ignoring unflushed changes.
    pub(crate) fn get_flushed(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.db.get_opt(key, &self.persisted)?)
    }

    /// Writes changes atomically.
    pub(crate) fn write(&self, changes: &RowChanges) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        for (key, change) in changes {
            match change {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        Ok(self.db.write_without_wal(batch)?)
    }

    /// Deletes the rows from `from` on that are before `end`, in one step however many they are.
    pub(crate) fn delete_range(&self, from: &[u8], end: &[u8]) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        batch.delete_range(from, end);
        Ok(self.db.write_without_wal(batch)?)
    }

    /// Frees the space of a range whose rows were deleted and flushed: removes whole tables, and rewrites
    /// those that have other rows too. The deletion is in the first level, whose tables are not removed, so
    /// it hides the rows until they are gone.
    pub(crate) fn free_range(&self, from: &[u8], end: &[u8]) -> Result<(), StoreError> {
        self.db.delete_file_in_range(from, end)?;
        self.db.compact_range(Some(from), Some(end));
        Ok(())
    }

    /// Flushes all changes to disk, synced.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.check_writable()?;
        let mut flush = FlushOptions::default();
        flush.set_wait(true);
        Ok(self.db.flush_opt(&flush)?)
    }

    /// Fails while RocksDB has not recovered from a full disk. Flushes and checkpoints must not be tried then
    /// ([`super::space_waits`]).
    fn check_writable(&self) -> Result<(), StoreError> {
        Ok(self.db.write_without_wal(WriteBatch::default())?)
    }

    /// Number of unflushed tombstones.
    pub(crate) fn unflushed_tombstones(&self) -> Result<u64, StoreError> {
        self.property(properties::NUM_DELETES_ACTIVE_MEM_TABLE)
    }

    /// Bytes of its tables.
    pub(crate) fn table_bytes(&self) -> Result<u64, StoreError> {
        self.property(properties::LIVE_SST_FILES_SIZE)
    }

    fn property(&self, name: &PropName) -> Result<u64, StoreError> {
        Ok(self.db.property_int_value(name)?.unwrap_or(0))
    }

    /// Waits until no compaction is pending, and returns the number of tombstones according to the tables'
    /// own properties (RocksDB's counts in memory restart at zero at each open).
    #[cfg(test)]
    pub(crate) fn tombstones_after_compaction(&self) -> Result<u64, StoreError> {
        self.db.wait_for_compact(&rocksdb::WaitForCompactOptions::default())?;
        let all = self.db.property_value(properties::AGGREGATED_TABLE_PROPERTIES)?.unwrap_or_default();
        let count = all.split(';').find_map(|line| line.trim().strip_prefix("# deletions="));
        count.and_then(|count| count.parse().ok()).ok_or_else(|| StoreError(all.clone()))
    }

    /// Makes a copy of everything written in `dir`, which must not exist: with hard links if the file system
    /// allows them.
    pub(crate) fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        self.check_writable()?;
        Ok(Checkpoint::new(&self.db)?.create_checkpoint(dir)?)
    }

    /// Bytes of table blocks in the cache.
    #[cfg(test)]
    pub(crate) fn cached_bytes(&self) -> Result<u64, StoreError> {
        self.property(properties::BLOCK_CACHE_USAGE)
    }

    /// Iterator over the rows from `from` on that are before `end`, over one snapshot. It is for scans over
    /// most of the state: its blocks bypass the cache.
    pub(crate) fn rows(&self, from: &[u8], end: &[u8]) -> RowIter<'_> {
        self.rows_cached(from, end, BlockCaching::Bypass)
    }

    /// The same with a choice for the table blocks that the scan reads.
    pub(crate) fn rows_cached(&self, from: &[u8], end: &[u8], caching: BlockCaching) -> RowIter<'_> {
        let mut rows = self.db.raw_iterator_opt(between(from, end, caching));
        rows.seek(from);
        RowIter { rows, started: false }
    }

    /// The rows as they are now, whatever is written later. It reads nothing. RocksDB keeps the replaced
    /// values of later changes until it is dropped.
    pub(crate) fn frozen(&self) -> FrozenRows<'_> {
        FrozenRows(self.db.snapshot())
    }
}

/// Options of a read of the rows from `from` on that are before `end`.
fn between(from: &[u8], end: &[u8], caching: BlockCaching) -> ReadOptions {
    let mut within = ReadOptions::default();
    within.fill_cache(caching == BlockCaching::Keep);
    within.set_iterate_lower_bound(from);
    within.set_iterate_upper_bound(end);
    within
}

/// The rows of a state at one moment.
pub(crate) struct FrozenRows<'a>(Snapshot<'a>);

impl FrozenRows<'_> {
    /// Iterator over the rows from `from` on that are before `end`. Its blocks bypass the cache. It keeps
    /// memtables and files in use, so a long scan takes a new one from time to time.
    pub(crate) fn rows(&self, from: &[u8], end: &[u8]) -> RowIter<'_> {
        let mut rows = self.0.raw_iterator_opt(between(from, end, BlockCaching::Bypass));
        rows.seek(from);
        RowIter { rows, started: false }
    }
}

impl RowReader for StateDb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.db.get(key)?)
    }

    fn range(&self, from: &[u8], end: &[u8], max: usize) -> Result<Vec<Row>, StoreError> {
        let mut rows = Vec::new();
        if from >= end {
            return Ok(rows);
        }
        let mut iter = self.rows_cached(from, end, BlockCaching::Keep);
        while rows.len() < max {
            match iter.next()? {
                Some((key, value)) => rows.push((key.to_vec(), value.to_vec())),
                None => break,
            }
        }
        Ok(rows)
    }
}

/// A row that is valid until its iterator moves.
pub(crate) type BorrowedRow<'a> = Result<Option<(&'a [u8], &'a [u8])>, StoreError>;

/// Rows in order, borrowed one at a time.
pub(crate) struct RowIter<'a> {
    rows: DBRawIterator<'a>,
    started: bool,
}

impl RowIter<'_> {
    /// The next row.
    pub(crate) fn next(&mut self) -> BorrowedRow<'_> {
        if std::mem::replace(&mut self.started, true) && self.rows.valid() {
            self.rows.next();
        }
        if !self.rows.valid() {
            self.rows.status()?;
            return Ok(None);
        }
        Ok(self.rows.item())
    }

    /// Moves to the first row at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) {
        self.rows.seek(key);
        self.started = false;
    }

    /// Moves to the last row at or before `key`, if there is one.
    pub(crate) fn seek_for_prev(&mut self, key: &[u8]) {
        self.rows.seek_for_prev(key);
        self.started = false;
    }
}

/// State of a group on this node, with the means to replace it.
pub(crate) struct StateStore {
    dir: PathBuf,
    cache: Cache,
    memtable_bytes: usize,
    /// The number of the directory in use, and the store in it.
    current: RwLock<(u64, Arc<StateDb>)>,
}

impl StateStore {
    /// Opens or creates the state in `dir`, and removes the remains of interrupted replacements.
    pub(crate) fn open(dir: &Path, cache: &Cache, memtable_bytes: usize) -> Result<Self, StoreError> {
        let io = |error: std::io::Error| StoreError(format!("{}: {error}", dir.display()));
        store_files::make_dir(dir).map_err(io)?;
        let newest = remove_leftovers(dir).map_err(io)?;
        let path = dir.join(format!("{STATE}{newest}"));
        let db = StateDb::open(&path, cache, memtable_bytes)?;
        store_files::sync_dir(dir).map_err(io)?;
        Ok(Self {
            dir: dir.to_owned(),
            cache: cache.clone(),
            memtable_bytes,
            current: RwLock::new((newest, Arc::new(db))),
        })
    }

    /// The current state. A holder keeps the files of a replaced state open.
    pub(crate) fn current(&self) -> Arc<StateDb> {
        Arc::clone(&self.current.read().1)
    }

    /// Bytes of the state's files.
    pub(crate) fn bytes(&self) -> u64 {
        store_files::dir_bytes(&self.dir.join(format!("{STATE}{}", self.current.read().0)))
    }

    /// Path of a directory beside the state, for snapshots that are taken or received.
    pub(crate) fn scratch_dir(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Bytes of the state's memtable.
    pub(crate) const fn memtable_bytes(&self) -> usize {
        self.memtable_bytes
    }

    /// Replaces the state by the snapshot in `received`, which must be complete and synced. While the disk is
    /// full, it waits until the snapshot can be opened.
    pub(crate) fn replace(&self, received: &Path, space: &SpaceWaits) -> Result<(), StoreError> {
        let io = |error: std::io::Error| StoreError(format!("{}: {error}", self.dir.display()));
        // The state machine alone replaces the state. Readers use the old one until the new one is open.
        let old = self.current.read().0;
        let next = old + 1;
        let path = self.dir.join(format!("{STATE}{next}"));
        store_files::rename_dir(received, &path).map_err(io)?;
        let open = || StateDb::open(&path, &self.cache, self.memtable_bytes);
        let db = space.repeat("a received state", self.memtable_bytes, open)?;
        *self.current.write() = (next, Arc::new(db));
        store_files::remove_dir(&self.dir.join(format!("{STATE}{old}"))).map_err(io)
    }
}

/// Removes all but the newest state, and returns its number.
fn remove_leftovers(dir: &Path) -> std::io::Result<u64> {
    let mut states = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(STATE)?.parse::<u64>().ok());
        match number {
            Some(number) => states.push((number, entry.path())),
            None => store_files::remove_dir(&entry.path())?,
        }
    }
    states.sort();
    let newest = states.pop().map_or(1, |(number, _)| number);
    for (_, old) in states {
        store_files::remove_dir(&old)?;
    }
    Ok(newest)
}
