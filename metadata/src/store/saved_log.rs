//! Log store of a closed catalogue, opened for reading.

use super::log_facts::LogFacts;
use super::log_rows::{LogRowKind, index_of, key};
use super::{options, wal};
use crate::store_error::StoreError;
use mlgw_formats::manifest;
use mlgw_formats::schema::meta::LogPosition;
use rocksdb::{DB, ReadOptions, WriteBatch, WriteOptions};
use std::path::{Path, PathBuf};

/// Block cache: small, because entries are read once.
const CACHE_BYTES: usize = 1 << 20;

/// A closed log.
pub(crate) struct SavedLog {
    db: DB,
    dir: PathBuf,
}

impl SavedLog {
    /// Opens a scratch copy of a log for reading.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        manifest::truncate_torn_end(dir)
            .map_err(|error| StoreError(format!("{}: {error}", dir.display())))?;
        let db = DB::open_for_read_only(&options::log(&options::cache(CACHE_BYTES)), dir, false)?;
        Ok(Self { db, dir: dir.to_owned() })
    }

    /// Opens a scratch copy of a log with the contents of all its tables and write-ahead logs, including
    /// those that its MANIFEST does not name.
    pub(crate) fn open_all_files(dir: &Path) -> Result<Self, StoreError> {
        DB::repair(&options::log(&options::cache(CACHE_BYTES)), dir)?;
        Self::open(dir)
    }

    /// The value at `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.db.get(key)?)
    }

    /// The stored position of `kind` of `group`.
    pub(crate) fn position(&self, group: u32, kind: LogRowKind) -> Result<Option<LogPosition>, StoreError> {
        let value = self.db.get(key(group, kind, 0))?;
        Ok(value.map(|bytes| mlgw_formats::schema::decode(&bytes)).transpose()?)
    }

    /// Facts that a start checks before it uses the log.
    pub(crate) fn facts(&self) -> Result<LogFacts, StoreError> {
        let writers = wal::writers(&self.dir);
        let writers = writers.map_err(|error| StoreError(format!("{}: {error}", self.dir.display())))?;
        Ok(LogFacts { writers, ..LogFacts::read(&self.db)? })
    }

    /// Calls `each` with every entry of `group` from index `from` on, in order.
    pub(crate) fn each_entry(
        &self,
        group: u32,
        from: u64,
        each: &mut dyn FnMut(u64, Vec<u8>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut within = ReadOptions::default();
        within.set_iterate_upper_bound(key(group, LogRowKind::Entry, u64::MAX));
        let mut rows = self.db.raw_iterator_opt(within);
        rows.seek(key(group, LogRowKind::Entry, from));
        while let Some((row, value)) = rows.item() {
            let index = index_of(row).ok_or_else(|| StoreError("a log key has no index".into()))?;
            each(index, value.to_vec())?;
            rows.next();
        }
        Ok(rows.status()?)
    }
}

impl SavedLog {
    /// Makes a log in `to` with the contents of this one and of the write-ahead log records `later`.
    pub(crate) fn rewrite(&self, to: &Path, later: &[Vec<u8>]) -> Result<(), StoreError> {
        self.rewrite_rows(to, &|_| true, later)
    }

    /// Makes a log in `to` with the rows of this one whose keys `kept` accepts, and with the write-ahead log
    /// records `later`.
    pub(crate) fn rewrite_rows(
        &self,
        to: &Path,
        kept: &dyn Fn(&[u8]) -> bool,
        later: &[Vec<u8>],
    ) -> Result<(), StoreError> {
        let db = DB::open(&options::log(&options::cache(CACHE_BYTES)), to)?;
        // Rows are written to tables only: the records of a write-ahead log name their writer, and these are
        // from several writers.
        let mut in_tables = WriteOptions::default();
        in_tables.disable_wal(true);
        let mut rows = self.db.raw_iterator();
        rows.seek_to_first();
        while let Some((key, value)) = rows.item() {
            if kept(key) {
                db.put_opt(key, value, &in_tables)?;
            }
            rows.next();
        }
        rows.status()?;
        for record in later {
            db.write_opt(WriteBatch::from_data(record), &in_tables)?;
        }
        Ok(db.flush()?)
    }
}

/// Makes a log in `to` with exactly these rows.
pub(crate) fn write_rows(to: &Path, rows: &[([u8; 13], Vec<u8>)]) -> Result<(), StoreError> {
    let db = DB::open(&options::log(&options::cache(CACHE_BYTES)), to)?;
    let mut in_tables = WriteOptions::default();
    in_tables.disable_wal(true);
    for (key, value) in rows {
        db.put_opt(key, value, &in_tables)?;
    }
    Ok(db.flush()?)
}
