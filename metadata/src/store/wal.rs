//! Verifies the write-ahead logs of the log store before they are replayed.
//!
//! RocksDB treats the first record that does not verify as the end of the log, which is right after a power
//! loss, and drops the rest. Entries are synced one write after the other, so after a power loss at most the
//! last write with entries can be intact after a torn one. If more follows, or entries between are missing,
//! then the damaged part had been acknowledged, and the log must not be opened.

use super::log_rows::{LogRowKind, index_of, key};
use mlgw_common::{Incarnation, regular};
use mlgw_formats::wal_frames;
use rocksdb::{WriteBatch, WriteBatchIterator};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// A record of a write-ahead log that does not verify.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadWalRecord {
    /// The file.
    pub(crate) file: PathBuf,
    /// Offset of the record in the file.
    pub(crate) at: usize,
    /// Reason to count it as damage; `None` if a power loss can leave such a record.
    pub(crate) damage: Option<String>,
}

/// Incarnations that the records of write-ahead logs name as their writers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalWriters {
    /// The named incarnations.
    pub(crate) named: BTreeSet<Incarnation>,
    /// True if a record with entries names no writer.
    pub(crate) unnamed: bool,
}

/// The first record of the log in `dir` that does not verify.
pub(crate) fn first_bad(dir: &Path) -> io::Result<Option<BadWalRecord>> {
    let mut seen = WalFacts::default();
    let mut bad: Option<BadWalRecord> = None;
    for file in files(dir)? {
        let bytes = regular::read(&file)?;
        let before = bad.is_some();
        let bad_here = wal_frames::for_each_record(&bytes, &mut |_, record, behind| {
            let entries = entries_in(record);
            if before || behind { seen.record_after_defect(&entries) } else { seen.record(&entries) }
        });
        if let (None, Some(at)) = (&bad, bad_here) {
            bad = Some(BadWalRecord { file, at, damage: None });
        }
    }
    Ok(bad.map(|bad| BadWalRecord { damage: seen.damage, ..bad }))
}

/// True if any record of the log in `dir` has entries.
pub(crate) fn has_entries(dir: &Path) -> io::Result<bool> {
    let mut found = false;
    for file in files(dir)? {
        wal_frames::for_each_record(&regular::read(&file)?, &mut |_, record, _| {
            found |= !entries_in(record).is_empty()
        });
    }
    Ok(found)
}

/// Incarnations that wrote the write-ahead logs in `dir`. All files are read, including those that the store
/// does not name.
pub(crate) fn writers(dir: &Path) -> io::Result<WalWriters> {
    let mut writers = WalWriters::default();
    for file in files(dir)? {
        wal_frames::for_each_record(&regular::read(&file)?, &mut |_, record, _| match writer_in(record) {
            Some(writer) => drop(writers.named.insert(writer)),
            None => writers.unnamed |= !entries_in(record).is_empty(),
        });
    }
    Ok(writers)
}

/// Records that verify after the first one that does not.
pub(crate) fn records_after_bad(dir: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut bad = false;
    for file in files(dir)? {
        let bytes = regular::read(&file)?;
        let bad_here = wal_frames::for_each_record(&bytes, &mut |_, record, behind| {
            if bad || behind {
                found.push(record.to_vec());
            }
        });
        bad |= bad_here.is_some();
    }
    Ok(found)
}

/// Write-ahead logs in `dir`, the oldest first.
pub(super) fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<_> = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    // The numbers in their names have six digits or more.
    files.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    Ok(files)
}

/// Facts from the records that were read.
#[derive(Default)]
struct WalFacts {
    /// Index of the last entry of each group.
    last: BTreeMap<u32, u64>,
    /// A write with entries is intact after a damaged record.
    is_write_after_defect: bool,
    damage: Option<String>,
}

impl WalFacts {
    /// Adds a record that verifies, by its entries (group and index).
    fn record(&mut self, entries: &[(u32, u64)]) {
        self.last.extend(entries.iter().copied());
    }

    /// Adds a record that verifies and follows one that does not.
    fn record_after_defect(&mut self, entries: &[(u32, u64)]) {
        if self.damage.is_none() {
            if self.is_write_after_defect {
                self.damage = Some("later synced writes follow it".to_owned());
            }
            for (group, index) in entries {
                let last = self.last.get(group).copied().unwrap_or(*index);
                if *index > last + 1 {
                    let (from, to) = (last + 1, index - 1);
                    self.damage = Some(format!("the entries {from} to {to} of group {group} are lost"));
                    break;
                }
                self.last.insert(*group, *index);
            }
            self.is_write_after_defect |= !entries.is_empty();
        }
        self.record(entries);
    }
}

/// The incarnation that a record of the write-ahead log names as its writer.
fn writer_in(record: &[u8]) -> Option<Incarnation> {
    struct LastIndex(Option<u64>);
    impl WriteBatchIterator for LastIndex {
        fn put(&mut self, row: &[u8], value: &[u8]) {
            if row == key(0, LogRowKind::Writer, 0) {
                self.0 = value.try_into().ok().map(u64::from_be_bytes);
            }
        }

        fn delete(&mut self, _: &[u8]) {}
    }
    let mut found = LastIndex(None);
    // A record begins with a sequence number and a count.
    if record.len() > 12 {
        WriteBatch::from_data(record).iterate(&mut found);
    }
    found.0.map(Incarnation)
}

/// Entries (group and index) in a record of the write-ahead log.
pub(crate) fn entries_in(record: &[u8]) -> Vec<(u32, u64)> {
    struct LogRecords(Vec<(u32, u64)>);
    impl WriteBatchIterator for LogRecords {
        fn put(&mut self, key: &[u8], _: &[u8]) {
            let group = key.first_chunk::<4>().map(|group| u32::from_be_bytes(*group));
            if key.get(4) == Some(&(LogRowKind::Entry as u8))
                && let (Some(group), Some(index)) = (group, index_of(key))
            {
                self.0.push((group, index));
            }
        }

        fn delete(&mut self, _: &[u8]) {}
    }
    let mut found = LogRecords(Vec::new());
    // A record begins with a sequence number and a count.
    if record.len() > 12 {
        WriteBatch::from_data(record).iterate(&mut found);
    }
    found.0
}

#[cfg(test)]
mod tests {
    use super::files;

    #[test]
    fn files_are_in_the_order_of_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["000007.log", "999999.log", "1000000.log"];
        names.iter().for_each(|name| std::fs::write(dir.path().join(name), "").unwrap());
        assert_eq!(files(dir.path()).unwrap(), names.map(|name| dir.path().join(name)));
    }
}
