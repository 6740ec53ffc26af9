//! View of a group's state for `apply`: its rows, overlaid with the changes of earlier commands.
//!
//! Changes are collected in memory and reach the store in one write together with the applied log id. A
//! rejected command leaves no trace: its changes are rolled back.

use crate::store_error::StoreError;
use mlgw_common::SegmentId;
use mlgw_formats::command::Reject;
use mlgw_formats::schema;
use prost::Message;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A key and a value.
pub type Row = (Vec<u8>, Vec<u8>);

/// An ordered map of rows.
pub trait RowReader {
    /// The value at `key`.
    ///
    /// # Errors
    /// When the store fails.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// The first `max` rows from `from` on that are before `end`.
    ///
    /// # Errors
    /// When the store fails.
    fn range(&self, from: &[u8], end: &[u8], max: usize) -> Result<Vec<Row>, StoreError>;
}

/// New value of a row; `None` deletes the row.
pub type RowChange = Option<Vec<u8>>;

/// A chunk that no record names any more: segment and offset.
pub type FreedChunk = (SegmentId, u64);

/// Changed rows by key.
pub type RowChanges = BTreeMap<Vec<u8>, RowChange>;

/// Reason that a command was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// The state does not allow it.
    Reject(Reject),
    /// The store failed.
    Store(StoreError),
}

impl From<Reject> for ApplyError {
    fn from(reject: Reject) -> Self {
        Self::Reject(reject)
    }
}

impl<E: Into<StoreError>> From<E> for ApplyError {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

/// Rows overlaid with changes.
pub struct View<'a> {
    rows: &'a dyn RowReader,
    changes: RowChanges,
    /// Changes of the current command with the previous change of each row, in order.
    undo: Vec<(Vec<u8>, Option<RowChange>)>,
    /// Stored values of rows that many commands read.
    stored_rows: BTreeMap<Vec<u8>, RowChange>,
    /// Chunks that are no longer named by a record, and how many of them belong to commands that were kept.
    freed: Vec<FreedChunk>,
    freed_kept: usize,
}

impl<'a> View<'a> {
    /// A view of `rows` without changes.
    #[must_use]
    pub fn new(rows: &'a dyn RowReader) -> Self {
        Self {
            rows,
            changes: RowChanges::new(),
            undo: Vec::new(),
            stored_rows: BTreeMap::new(),
            freed: Vec::new(),
            freed_kept: 0,
        }
    }

    /// True if no command is in progress, whose changes could still be rolled back.
    pub(crate) fn is_settled(&self) -> bool {
        self.undo.is_empty()
    }

    /// Ends a command and keeps its changes.
    pub fn keep_changes(&mut self) {
        self.undo.clear();
        self.freed_kept = self.freed.len();
    }

    /// Ends a command and rolls its changes back.
    pub fn roll_back(&mut self) {
        while let Some((key, before)) = self.undo.pop() {
            match before {
                Some(change) => self.changes.insert(key, change),
                None => self.changes.remove(&key),
            };
        }
        self.freed.truncate(self.freed_kept);
    }

    /// Records that no record names the chunk at `offset` of `segment` any more.
    pub fn record_freed(&mut self, segment: SegmentId, offset: u64) {
        self.freed.push((segment, offset));
    }

    /// Number of changed rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// True if no row changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes, and the chunks that they freed.
    #[must_use]
    pub fn into_changes(self) -> (RowChanges, Vec<FreedChunk>) {
        assert!(self.is_settled(), "the last command was kept or rolled back");
        (self.changes, self.freed)
    }

    /// The record at `key`.
    ///
    /// # Errors
    /// When the store fails or the record does not decode.
    pub fn get<M: Message + Default>(&self, key: &[u8]) -> Result<Option<M>, StoreError> {
        if let Some(change) = self.changes.get(key) {
            return Ok(change.as_deref().map(schema::decode).transpose()?);
        }
        Ok(self.rows.get(key)?.as_deref().map(schema::decode_all).transpose()?)
    }

    /// The record at `key`, whose stored row is read only once for all commands.
    ///
    /// # Errors
    /// As [`View::get`].
    pub fn get_cached<M: Message + Default>(&mut self, key: &[u8]) -> Result<Option<M>, StoreError> {
        if !self.changes.contains_key(key) {
            if !self.stored_rows.contains_key(key) {
                self.stored_rows.insert(key.to_vec(), self.rows.get(key)?);
            }
            let stored = self.stored_rows.get(key).and_then(|row| row.as_deref());
            return Ok(stored.map(schema::decode_all).transpose()?);
        }
        self.get(key)
    }

    /// True if there is a row at `key`.
    ///
    /// # Errors
    /// When the store fails.
    pub fn has(&self, key: &[u8]) -> Result<bool, StoreError> {
        match self.changes.get(key) {
            Some(change) => Ok(change.is_some()),
            None => Ok(self.rows.get(key)?.is_some()),
        }
    }

    /// Writes a record.
    pub fn put<M: Message>(&mut self, key: Vec<u8>, record: &M) {
        self.set(key, Some(schema::encode(record)));
    }

    /// Deletes a row if it exists.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.set(key, None);
    }

    fn set(&mut self, key: Vec<u8>, change: RowChange) {
        let before = self.changes.insert(key.clone(), change);
        self.undo.push((key, before));
    }

    /// The first `max` rows from `from` on that are before `end`.
    ///
    /// # Errors
    /// When the store fails.
    pub fn range(&self, from: &[u8], end: &[u8], max: usize) -> Result<Vec<Row>, StoreError> {
        if from >= end || max == 0 {
            return Ok(Vec::new());
        }
        let within = (Bound::Included(from), Bound::Excluded(end));
        let mut changed = self.changes.range::<[u8], _>(within).peekable();
        if changed.peek().is_none() {
            return self.rows.range(from, end, max);
        }
        let hidden = self.changes.range::<[u8], _>(within).filter(|(_, v)| v.is_none()).count();
        let mut stored = self.rows.range(from, end, max.saturating_add(hidden))?.into_iter().peekable();
        let mut merged = Vec::with_capacity(max.min(64));
        while merged.len() < max {
            let change_first = match (changed.peek(), stored.peek()) {
                (None, None) => break,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((key, _)), Some((other, _))) => {
                    if *key == other {
                        stored.next();
                        continue;
                    }
                    *key < other
                }
            };
            if !change_first {
                merged.extend(stored.next());
            } else if let Some((key, Some(value))) = changed.next() {
                merged.push((key.clone(), value.clone()));
            }
        }
        Ok(merged)
    }
}

/// Rows in memory: the store of tests and models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryRows(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl MemoryRows {
    /// Applies changes.
    pub fn write(&mut self, changes: RowChanges) {
        for (key, change) in changes {
            match change {
                Some(value) => self.0.insert(key, value),
                None => self.0.remove(&key),
            };
        }
    }
}

impl RowReader for MemoryRows {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.get(key).cloned())
    }

    fn range(&self, from: &[u8], end: &[u8], max: usize) -> Result<Vec<Row>, StoreError> {
        if from >= end {
            return Ok(Vec::new());
        }
        let within = (Bound::Included(from), Bound::Excluded(end));
        Ok(self.0.range::<[u8], _>(within).take(max).map(|(k, v)| (k.clone(), v.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{MemoryRows, RowReader, SegmentId, View};
    use mlgw_formats::schema::meta::Counter;
    use proptest::prelude::{Just, prop};
    use proptest::{prop_assert_eq, prop_oneof, proptest};

    proptest! {
        #[test]
        fn a_range_over_changes_is_a_range_after_writing_them(
            stored in prop::collection::btree_set(0u8..40, 0..20),
            changed in prop::collection::vec((0u8..40, proptest::bool::ANY), 0..20),
            from in 0u8..40, end in 0u8..41, max in prop_oneof![4 => 0usize..12, 1 => Just(usize::MAX)],
        ) {
            let mut rows = MemoryRows::default();
            for key in stored {
                rows.0.insert(vec![key], mlgw_formats::schema::encode(&Counter { next: 1 }));
            }
            let mut view = View::new(&rows);
            for (key, put) in changed {
                if put { view.put(vec![key], &Counter { next: 2 }) } else { view.delete(vec![key]) }
            }
            let seen = view.range(&[from], &[end], max).unwrap();
            view.keep_changes();
            let (changes, _) = view.into_changes();
            let mut after = rows.clone();
            after.write(changes);
            prop_assert_eq!(seen, after.range(&[from], &[end], max).unwrap());
        }
    }

    #[test]
    fn a_rejected_command_leaves_no_changes() {
        let rows = MemoryRows::default();
        let mut view = View::new(&rows);
        view.put(vec![1], &Counter { next: 1 });
        view.record_freed(SegmentId(1), 64);
        view.keep_changes();
        view.put(vec![1], &Counter { next: 2 });
        view.put(vec![2], &Counter { next: 2 });
        view.delete(vec![1]);
        view.record_freed(SegmentId(1), 128);
        view.roll_back();
        assert_eq!(view.get(&[1]), Ok(Some(Counter { next: 1 })));
        assert_eq!(view.has(&[2]), Ok(false));
        assert_eq!(view.len(), 1);
        assert_eq!(view.into_changes().1, [(SegmentId(1), 64)]);
    }

    #[test]
    fn a_row_that_is_read_often_shows_its_changes() {
        let stored = |next| Some(Counter { next });
        let mut rows = MemoryRows::default();
        rows.0.insert(vec![1], mlgw_formats::schema::encode(&Counter { next: 1 }));
        let mut view = View::new(&rows);
        assert_eq!((view.get_cached(&[1]), view.get_cached::<Counter>(&[2])), (Ok(stored(1)), Ok(None)));
        view.keep_changes();
        view.put(vec![1], &Counter { next: 2 });
        view.put(vec![2], &Counter { next: 3 });
        assert_eq!((view.get_cached(&[1]), view.get_cached(&[2])), (Ok(stored(2)), Ok(stored(3))));
        view.roll_back();
        assert_eq!((view.get_cached(&[1]), view.get_cached::<Counter>(&[2])), (Ok(stored(1)), Ok(None)));
    }
}
