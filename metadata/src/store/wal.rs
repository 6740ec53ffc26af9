//! The write-ahead logs of the log store, verified before they are believed.
//!
//! RocksDB takes the first record that does not verify for the end, as it must after power loss;
//! what follows is dropped. Entries are synced one write after the other, so after power loss at
//! most the last write with entries can be whole behind a torn one. If more follows, or entries
//! are missing in between, then what is damaged had been acknowledged: that is not to be opened.

use super::log_facts::Writers;
use super::saved_log::{entries_in, writer_in};
use mlgw_common::regular;
use mlgw_formats::wal_frames;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A record of a write-ahead log that does not verify.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    /// The file.
    pub(crate) file: PathBuf,
    /// Where in it.
    pub(crate) at: usize,
    /// Why it is damage; nothing when power loss leaves it like that.
    pub(crate) damage: Option<String>,
}

/// The first record of the log in `dir` that does not verify.
pub(crate) fn first_bad(dir: &Path) -> io::Result<Option<Bad>> {
    let mut seen = Seen::default();
    let mut bad: Option<Bad> = None;
    for file in files(dir)? {
        let bytes = regular::read(&file)?;
        let before = bad.is_some();
        let bad_here = wal_frames::each(&bytes, &mut |_, record, behind| {
            seen.record(&entries_in(record), before || behind);
        });
        if let (None, Some(at)) = (&bad, bad_here) {
            bad = Some(Bad { file, at, damage: None });
        }
    }
    Ok(bad.map(|bad| Bad { damage: seen.damage, ..bad }))
}

/// Whether any record of the log in `dir` has entries.
pub(crate) fn has_entries(dir: &Path) -> io::Result<bool> {
    let mut found = false;
    for file in files(dir)? {
        wal_frames::each(&regular::read(&file)?, &mut |_, record, _| found |= !entries_in(record).is_empty());
    }
    Ok(found)
}

/// Which incarnations wrote the write-ahead logs in `dir`. Every file counts, whether the store names it or
/// not.
pub(crate) fn writers(dir: &Path) -> io::Result<Writers> {
    let mut writers = Writers::default();
    for file in files(dir)? {
        wal_frames::each(&regular::read(&file)?, &mut |_, record, _| match writer_in(record) {
            Some(writer) => drop(writers.named.insert(writer)),
            None => writers.unnamed |= !entries_in(record).is_empty(),
        });
    }
    Ok(writers)
}

/// The records that verify behind the first that does not.
pub(crate) fn behind_bad(dir: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut bad = false;
    for file in files(dir)? {
        let bytes = regular::read(&file)?;
        let bad_here = wal_frames::each(&bytes, &mut |_, record, behind| {
            if bad || behind {
                found.push(record.to_vec());
            }
        });
        bad |= bad_here.is_some();
    }
    Ok(found)
}

/// The write-ahead logs in `dir`, oldest first.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<_> = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    Ok(files)
}

/// What the records told so far.
#[derive(Default)]
struct Seen {
    /// The last entry of each group.
    last: BTreeMap<u32, u64>,
    /// A write with entries is whole behind one that is not.
    whole_behind: bool,
    damage: Option<String>,
}

impl Seen {
    /// Hears of a record that verifies, with its entries (group and index).
    fn record(&mut self, entries: &[(u32, u64)], behind_bad: bool) {
        if behind_bad && self.damage.is_none() {
            if self.whole_behind {
                self.damage = Some("later writes that were synced follow it".to_owned());
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
            self.whole_behind |= !entries.is_empty();
        }
        self.last.extend(entries.iter().copied());
    }
}
