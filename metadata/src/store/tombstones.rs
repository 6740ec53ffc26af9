//! Flushes tombstones, so that scans do not become slow after many deletions.
//!
//! A deleted row leaves a tombstone, and every scan steps over it and over the row that it hides. Tables with
//! many tombstones are marked when they are written (see `options`). RocksDB compacts marked tables even if
//! nothing else triggers it, level by level, until no hidden rows are left. (All tables of a group overlap in
//! the row of the applied position, so only the first table of a new catalogue gets there without being
//! rewritten.) The mark is in the MANIFEST, so compaction continues after a restart.
//!
//! Tombstones in memory have no table to mark. This module decides when a flush pays off: when deletions
//! pause and there are enough tombstones for the tables that their compaction rewrites. Until then they are
//! few compared with the rows of a listing. A flush blocks no writer, and a flushed state is always a
//! consistent prefix of the history.

use super::state::StateDb;
use crate::store_error::StoreError;

/// Minimum number of tombstones for a flush: a scan steps over this many in a millisecond.
const FLUSH_TOMBSTONES_MIN: u64 = 4096;

/// Number of tombstones that always suffices for a flush: a scan steps over this many in tens of
/// milliseconds, which is too much for a page of a listing, whatever the size of the tables.
const FLUSH_TOMBSTONES_MAX: u64 = 128 << 10;

/// Bytes of tables per tombstone, about 64 rows, at which rewriting the tables costs no more than the
/// deletions did.
const TABLE_BYTES_PER_TOMBSTONE: u64 = 4096;

/// Divisor that defines a pause: less than this part of the tombstones is new since the last check.
const PAUSE_DIVISOR: u64 = 8;

const _: () = assert!(FLUSH_TOMBSTONES_MIN <= FLUSH_TOMBSTONES_MAX);

/// Checks the tombstones of one state every few seconds.
#[derive(Debug, Default)]
pub(crate) struct TombstoneWatch {
    /// Number of tombstones in memory at the last check.
    before: u64,
}

impl TombstoneWatch {
    /// True if the state should be flushed now.
    pub(crate) fn is_flush_due(&mut self, state: &StateDb) -> Result<bool, StoreError> {
        let now = state.unflushed_tombstones()?;
        let before = std::mem::replace(&mut self.before, now);
        Ok(now >= FLUSH_TOMBSTONES_MIN && is_due(before, now, state.table_bytes()?))
    }
}

fn is_due(before: u64, now: u64, table_bytes: u64) -> bool {
    let enough =
        now >= (table_bytes / TABLE_BYTES_PER_TOMBSTONE).clamp(FLUSH_TOMBSTONES_MIN, FLUSH_TOMBSTONES_MAX);
    // A smaller number than before means that a flush came in between and all of these are new.
    enough && now.checked_sub(before).is_some_and(|came| came < now / PAUSE_DIVISOR)
}

#[cfg(test)]
mod tests {
    use super::{FLUSH_TOMBSTONES_MAX, FLUSH_TOMBSTONES_MIN, TombstoneWatch, is_due};
    use crate::store::{options, state::StateDb};
    use crate::view::{RowChanges, RowReader};
    use std::path::Path;

    const ROWS: u32 = 100_000;

    fn open(dir: &Path) -> StateDb {
        StateDb::open(dir, &options::cache(1 << 20), 8 << 20).unwrap()
    }

    fn key(at: u32) -> Vec<u8> {
        at.to_be_bytes().to_vec()
    }

    fn write(state: &StateDb, rows: impl Iterator<Item = u32>, value: Option<&[u8]>) {
        let changes: RowChanges = rows.map(|at| (key(at), value.map(<[u8]>::to_vec))).collect();
        state.write(&changes).unwrap();
    }

    /// Puts rows and flushes them to a table.
    fn fill(state: &StateDb) {
        write(state, 0..ROWS, Some(&[7; 40]));
        state.flush().unwrap();
    }

    fn delete_nine_of_ten(state: &StateDb) {
        write(state, (0..ROWS).filter(|at| at % 10 > 0), None);
    }

    fn kept(state: &StateDb) -> usize {
        state.range(&[], &[u8::MAX; 5], usize::MAX).unwrap().len()
    }

    #[test]
    fn tombstones_are_flushed_and_compacted_once_deletions_pause() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path());
        fill(&state);
        delete_nine_of_ten(&state);
        let mut watch = TombstoneWatch::default();
        assert!(!watch.is_flush_due(&state).unwrap(), "they are new");
        assert!(watch.is_flush_due(&state).unwrap());
        state.flush().unwrap();
        assert!(!watch.is_flush_due(&state).unwrap());
        assert_eq!(state.unflushed_tombstones().unwrap(), 0);
        assert_eq!(state.tombstones_after_compaction().unwrap(), 0);
        assert_eq!(kept(&state), ROWS as usize / 10);
    }

    #[test]
    fn a_restart_does_not_keep_tombstones() {
        let dir = tempfile::tempdir().unwrap();
        fill(&open(dir.path()));
        // The scratch copy does not compact, as if the process ended first.
        let ended = StateDb::open_scratch(dir.path(), &options::cache(1 << 20), 8 << 20).unwrap();
        delete_nine_of_ten(&ended);
        ended.flush().unwrap();
        assert_eq!(ended.tombstones_after_compaction().unwrap(), u64::from(ROWS) / 10 * 9);
        drop(ended);
        let state = open(dir.path());
        assert_eq!(state.tombstones_after_compaction().unwrap(), 0);
        assert_eq!(kept(&state), ROWS as usize / 10);
    }

    #[test]
    fn a_flush_waits_for_enough_tombstones_and_a_pause() {
        assert!(!is_due(FLUSH_TOMBSTONES_MIN - 1, FLUSH_TOMBSTONES_MIN - 1, 0));
        assert!(is_due(FLUSH_TOMBSTONES_MIN, FLUSH_TOMBSTONES_MIN, 0));
        assert!(!is_due(10_000, 10_000, 64 << 20));
        assert!(is_due(20_000, 20_000, 64 << 20));
        assert!(is_due(FLUSH_TOMBSTONES_MAX, FLUSH_TOMBSTONES_MAX, u64::MAX));
        assert!(!is_due(60_000, 120_000, 64 << 20), "as many are added as existed");
        assert!(is_due(110_000, 120_000, 64 << 20), "few are added");
        assert!(!is_due(500_000, 120_000, 64 << 20), "all of them are newer than the flush");
    }
}
