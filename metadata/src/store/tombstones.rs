//! Deleted rows: what is left of them, and how it goes.
//!
//! A deleted row leaves a tombstone, and every scan steps over it and over the row that it hides. Tables of
//! which many rows are tombstones are marked when they are written (see `options`); RocksDB compacts those
//! although nothing else asks for it, level by level, to where nothing is hidden any more. (All tables of a
//! group overlap in the row of the applied position, so none but a new catalogue's first gets there without
//! being written anew.) The MANIFEST has the mark, so compaction goes on after a restart.
//!
//! For tombstones in memory there is no table to mark. Here it is decided when they are worth a flush: when
//! deleting pauses, and there are enough of them for the tables that their compaction writes anew; until then
//! they are few beside what there is to show. Nothing waits for it: writers go on, and what a flush leaves is
//! a consistent prefix.

use super::state::StateDb;
use crate::store_error::StoreError;

/// So few are stepped over in a millisecond.
const FLUSHED_MIN: u64 = 4096;

/// So many are stepped over in tens of milliseconds, which a page should not take, however large the tables
/// are.
const FLUSHED_MAX: u64 = 128 << 10;

/// Bytes of tables to a tombstone, about 64 rows, at which writing them anew costs no more than deleting did.
const TABLE_BYTES_EACH: u64 = 4096;

/// Deleting pauses when less than this part of the tombstones came since the last look.
const PAUSE: u64 = 8;

/// Looks at the tombstones of one state, every few seconds.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// How many were in memory at the last look.
    before: u64,
}

impl Watch {
    /// Whether they should be flushed now.
    pub(crate) fn look(&mut self, state: &StateDb) -> Result<bool, StoreError> {
        let now = state.unflushed_tombstones()?;
        let before = std::mem::replace(&mut self.before, now);
        Ok(now >= FLUSHED_MIN && is_due(before, now, state.table_bytes()?))
    }
}

fn is_due(before: u64, now: u64, table_bytes: u64) -> bool {
    let enough = now >= (table_bytes / TABLE_BYTES_EACH).clamp(FLUSHED_MIN, FLUSHED_MAX);
    // Fewer than before: there was a flush in between, and these have all come since.
    enough && now.checked_sub(before).is_some_and(|came| came < now / PAUSE)
}

#[cfg(test)]
mod tests {
    use super::{FLUSHED_MAX, FLUSHED_MIN, Watch, is_due};
    use crate::store::{options, state::StateDb};
    use crate::view::{Changes, Rows};
    use std::path::Path;

    const ROWS: u32 = 100_000;

    fn open(dir: &Path) -> StateDb {
        StateDb::open(dir, &options::cache(1 << 20), 8 << 20).unwrap()
    }

    fn key(at: u32) -> Vec<u8> {
        at.to_be_bytes().to_vec()
    }

    fn write(state: &StateDb, rows: impl Iterator<Item = u32>, value: Option<&[u8]>) {
        let changes: Changes = rows.map(|at| (key(at), value.map(<[u8]>::to_vec))).collect();
        state.write(&changes).unwrap();
    }

    /// Puts rows and brings them to a table.
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
    fn once_deleting_pauses_tombstones_go_from_memory_and_from_tables() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path());
        fill(&state);
        delete_nine_of_ten(&state);
        let mut watch = Watch::default();
        assert!(!watch.look(&state).unwrap(), "they have only just come");
        assert!(watch.look(&state).unwrap());
        state.flush().unwrap();
        assert!(!watch.look(&state).unwrap());
        assert_eq!(state.unflushed_tombstones().unwrap(), 0);
        assert_eq!(state.tombstones_at_rest().unwrap(), 0);
        assert_eq!(kept(&state), ROWS as usize / 10);
    }

    #[test]
    fn a_restart_does_not_keep_tombstones() {
        let dir = tempfile::tempdir().unwrap();
        fill(&open(dir.path()));
        // Nothing is compacted in here, as when the process ends first.
        let ended = StateDb::open_scratch(dir.path(), &options::cache(1 << 20), 8 << 20).unwrap();
        delete_nine_of_ten(&ended);
        ended.flush().unwrap();
        assert_eq!(ended.tombstones_at_rest().unwrap(), u64::from(ROWS) / 10 * 9);
        drop(ended);
        let state = open(dir.path());
        assert_eq!(state.tombstones_at_rest().unwrap(), 0);
        assert_eq!(kept(&state), ROWS as usize / 10);
    }

    #[test]
    fn a_flush_has_to_pay_and_waits_for_a_pause() {
        assert!(!is_due(FLUSHED_MIN - 1, FLUSHED_MIN - 1, 0));
        assert!(is_due(FLUSHED_MIN, FLUSHED_MIN, 0));
        assert!(!is_due(10_000, 10_000, 64 << 20));
        assert!(is_due(20_000, 20_000, 64 << 20));
        assert!(is_due(FLUSHED_MAX, FLUSHED_MAX, u64::MAX));
        assert!(!is_due(60_000, 120_000, 64 << 20), "as many come as there were");
        assert!(is_due(110_000, 120_000, 64 << 20), "few come");
        assert!(!is_due(500_000, 120_000, 64 << 20), "all of them have come since a flush");
    }
}
