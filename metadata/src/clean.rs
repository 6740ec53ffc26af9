//! Index of clean copies: the cached objects of origins on this node, in a store of the node's own, outside
//! Raft.
//!
//! Invariant: a row names bytes that were complete when the row was written, and a cached block has a row at
//! its id. Nothing here is the only copy of any data, so only the allocated ids are synced. After a power
//! loss the index is as of its last flush: forgotten copies are fetched again, and stale rows fail
//! verification. An index that does not open is replaced by an empty one.

mod batch;

pub use batch::CleanBatch;

use crate::row_cache::RowCache;
use crate::store::options;
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::{RowChanges, RowReader};
use mlgw_common::{BodyId, BucketId, ObjectKey, SegmentId};
use mlgw_formats::schema::copy::{self, BlockName, CopyBlockRecord, CopyRecord, CopySegment};
use mlgw_formats::schema::meta::{Counter, MetaRow};
use mlgw_formats::schema::{Extent, decode, encode};
use mlgw_formats::store_files;
use parking_lot::Mutex;
use std::path::Path;

/// Bytes of rows that are collected before they are flushed.
const MEMTABLE_BYTES: usize = 16 << 20;
/// Number of ids that are reserved at a time; unused ones are skipped after a restart.
const IDS_RESERVED: u64 = 1 << 20;
/// Bit that distinguishes body ids of copies from those of the catalogue.
pub const CLEAN_BODY: u64 = 1 << 63;
/// Bit that distinguishes segment ids of copies from those of the catalogue.
pub const CLEAN_SEGMENT: u64 = 1 << 63;

/// Error of reading or writing the index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index of clean copies: {0}")]
pub struct CleanIndexError(String);

impl From<StoreError> for CleanIndexError {
    fn from(error: StoreError) -> Self {
        Self(error.to_string())
    }
}

impl From<std::io::Error> for CleanIndexError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

type CleanIndexResult<T> = Result<T, CleanIndexError>;

/// The index.
pub struct CleanIndex {
    store: StateDb,
    rows: RowCache,
    bodies: Mutex<IdRange>,
    segments: Mutex<IdRange>,
}

impl CleanIndex {
    /// Opens or creates the index in `dir`, with `memory_bytes` bytes of memory for rows.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn open(dir: &Path, memory_bytes: usize) -> CleanIndexResult<Self> {
        let open = || {
            store_files::make_dir(dir)?;
            let cache = options::cache(memory_bytes / 4);
            Ok::<_, CleanIndexError>(StateDb::open(&dir.join("index"), &cache, MEMTABLE_BYTES)?)
        };
        let store = match open() {
            Ok(store) => store,
            // The disk is missing, or another process has the index open: an operator has to act.
            Err(error) if error.0.starts_with("IO error") => return Err(error),
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(),
                    "the index of clean copies does not open; creating a new one");
                store_files::remove_dir(&dir.join("index"))?;
                open()?
            }
        };
        Ok(Self {
            store,
            rows: RowCache::new(memory_bytes / 4 * 3),
            bodies: Mutex::new(IdRange::new(MetaRow::NextBody)),
            segments: Mutex::new(IdRange::new(MetaRow::NextSegment)),
        })
    }

    /// The record of `key`. Counts as a read of `key`, see [`CleanIndex::is_recent`].
    ///
    /// # Errors
    /// If the store fails.
    pub fn copy(&self, bucket: BucketId, key: &ObjectKey) -> CleanIndexResult<Option<CopyRecord>> {
        let row = copy::row(bucket, key.as_bytes());
        if let Some(kept) = self.rows.get(&row) {
            return Ok(Some(decode(&kept).map_err(StoreError::from)?));
        }
        let ticket = self.rows.ticket(&row);
        let Some(value) = self.store.get_pinned(&row)? else { return Ok(None) };
        let found = decode(&value).map_err(StoreError::from)?;
        self.rows.insert(ticket, &row, &value);
        Ok(Some(found))
    }

    /// The record of `key`, without counting it as a read.
    ///
    /// # Errors
    /// If the store fails.
    pub fn peek(&self, bucket: BucketId, key: &ObjectKey) -> CleanIndexResult<Option<CopyRecord>> {
        let value = self.store.get_pinned(&copy::row(bucket, key.as_bytes()))?;
        Ok(value.map(|value| decode(&value)).transpose().map_err(StoreError::from)?)
    }

    /// True if `key` was read recently, that is, its row is in memory.
    #[must_use]
    pub fn is_recent(&self, bucket: BucketId, key: &ObjectKey) -> bool {
        self.rows.contains(&copy::row(bucket, key.as_bytes()))
    }

    /// Applies a batch of changes atomically.
    ///
    /// # Errors
    /// If the store fails.
    pub fn write(&self, batch: &CleanBatch) -> CleanIndexResult<()> {
        batch.copies().for_each(|row| self.rows.begin_change(row));
        self.store.write(batch.changes())?;
        batch.copies().for_each(|row| self.rows.end_change(row));
        Ok(())
    }

    /// The block that an id names, if it is cached.
    ///
    /// # Errors
    /// If the store fails.
    pub fn name(&self, id: u64) -> CleanIndexResult<Option<BlockName>> {
        let value = self.store.get_pinned(&copy::name_row(id))?;
        Ok(value.map(|value| decode(&value)).transpose().map_err(StoreError::from)?)
    }

    /// The first `max` copies of a bucket whose keys begin with `prefix` and come after `after`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn copies(
        &self,
        bucket: BucketId,
        prefix: &str,
        after: Option<&ObjectKey>,
        max: usize,
    ) -> CleanIndexResult<Vec<(ObjectKey, CopyRecord)>> {
        let from = match after {
            Some(key) => [copy::row(bucket, key.as_bytes()), vec![0]].concat(),
            None => copy::row_from(bucket, prefix.as_bytes()),
        };
        let mut found = Vec::new();
        for (row, value) in self.store.range(&from, &copy::rows_end(bucket), max)? {
            let (_, key) = copy::key_of(&row).map_err(StoreError::from)?;
            let key = ObjectKey::from_bytes(&key).map_err(|bad| CleanIndexError(bad.to_string()))?;
            if !key.as_str().starts_with(prefix) {
                break;
            }
            found.push((key, decode(&value).map_err(StoreError::from)?));
        }
        Ok(found)
    }

    /// Extents of block `number` of a body, if it is cached.
    ///
    /// # Errors
    /// If the store fails.
    pub fn block(&self, body: BodyId, number: u64) -> CleanIndexResult<Option<Vec<Extent>>> {
        let Some(value) = self.store.get_pinned(&copy::block_row(body, number))? else { return Ok(None) };
        Ok(Some(decode::<CopyBlockRecord>(&value).map_err(StoreError::from)?.extents))
    }

    /// Numbers of the cached blocks of a body.
    ///
    /// # Errors
    /// If the store fails.
    pub fn blocks(&self, body: BodyId) -> CleanIndexResult<Vec<u64>> {
        let (first, end) = copy::block_rows(body);
        let rows = self.store.range(&first, &end, usize::MAX)?;
        rows.iter().map(|(row, _)| Ok(copy::block_of(row).map_err(StoreError::from)?.1)).collect()
    }

    /// The first `max` cached blocks of a body, from `number` on.
    ///
    /// # Errors
    /// If the store fails.
    pub fn blocks_from(
        &self,
        body: BodyId,
        number: u64,
        max: usize,
    ) -> CleanIndexResult<Vec<(u64, Vec<Extent>)>> {
        let rows = self.store.range(&copy::block_row(body, number), &copy::block_rows(body).1, max)?;
        let block = |(row, value): &(Vec<u8>, Vec<u8>)| {
            let (_, number) = copy::block_of(row).map_err(StoreError::from)?;
            Ok((number, decode::<CopyBlockRecord>(value).map_err(StoreError::from)?.extents))
        };
        rows.iter().map(block).collect()
    }

    /// The first `max` copies of all buckets that come after `after`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn all_copies(
        &self,
        after: Option<(BucketId, &ObjectKey)>,
        max: usize,
    ) -> CleanIndexResult<Vec<(BucketId, ObjectKey, CopyRecord)>> {
        use mlgw_formats::key::Family::Copy as Family;
        let from = match after {
            Some((bucket, key)) => [copy::row(bucket, key.as_bytes()), vec![0]].concat(),
            None => Family.start(),
        };
        let named = |(row, value): &(Vec<u8>, Vec<u8>)| {
            let (bucket, key) = copy::key_of(row).map_err(StoreError::from)?;
            let key = ObjectKey::from_bytes(&key).map_err(|bad| CleanIndexError(bad.to_string()))?;
            Ok((bucket, key, decode(value).map_err(StoreError::from)?))
        };
        self.store.range(&from, &Family.end(), max)?.iter().map(named).collect()
    }

    /// Records of the segments of copies.
    ///
    /// # Errors
    /// If the store fails.
    pub fn segments(&self) -> CleanIndexResult<Vec<CopySegment>> {
        use mlgw_formats::key::Family::CopySegment as Family;
        let rows = self.store.range(&Family.start(), &Family.end(), usize::MAX)?;
        rows.iter().map(|(_, value)| Ok(decode(value).map_err(StoreError::from)?)).collect()
    }

    /// Sets the record of a segment of copies.
    ///
    /// # Errors
    /// If the store fails.
    pub fn put_segment(&self, segment: &CopySegment) -> CleanIndexResult<()> {
        let row = copy::segment_row(SegmentId(segment.id));
        Ok(self.store.write(&RowChanges::from([(row, Some(encode(segment)))]))?)
    }

    /// Removes the record of a segment of copies.
    ///
    /// # Errors
    /// If the store fails.
    pub fn remove_segment(&self, segment: SegmentId) -> CleanIndexResult<()> {
        Ok(self.store.write(&RowChanges::from([(copy::segment_row(segment), None)]))?)
    }

    /// Allocates an id for a body of a copy; it is never allocated again.
    ///
    /// # Errors
    /// If the store fails.
    pub fn next_body(&self) -> CleanIndexResult<BodyId> {
        Ok(BodyId(CLEAN_BODY | self.bodies.lock().next(&self.store)?))
    }

    /// Allocates an id for a segment of copies; it is never allocated again.
    ///
    /// # Errors
    /// If the store fails.
    pub fn next_segment(&self) -> CleanIndexResult<SegmentId> {
        Ok(SegmentId(CLEAN_SEGMENT | self.segments.lock().next(&self.store)?))
    }

    /// Flushes everything to disk.
    ///
    /// # Errors
    /// If the store fails.
    pub fn flush(&self) -> CleanIndexResult<()> {
        Ok(self.store.flush()?)
    }
}

/// Ids that are allocated from a range reserved on disk.
struct IdRange {
    row: MetaRow,
    next: u64,
    end: u64,
}

impl IdRange {
    fn new(row: MetaRow) -> Self {
        Self { row, next: 0, end: 0 }
    }

    fn next(&mut self, store: &StateDb) -> CleanIndexResult<u64> {
        if self.next == self.end {
            let row = self.row.row();
            let counter: Counter = match store.get(&row)? {
                Some(value) => decode(&value).map_err(StoreError::from)?,
                None => Counter::default(),
            };
            let (first, end) = (counter.next.max(1), counter.next.max(1) + IDS_RESERVED);
            store.write(&RowChanges::from([(row, Some(encode(&Counter { next: end })))]))?;
            store.flush()?;
            // Only after the flush: ids of a range that is not reserved would be allocated again.
            (self.next, self.end) = (first, end);
        }
        assert!(self.next < self.end, "an id is within the reserved range");
        self.next += 1;
        Ok(self.next - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::{CLEAN_BODY, CleanBatch, CleanIndex};
    use crate::catalogue::testing::extent;
    use mlgw_common::{BucketId, ObjectKey, SegmentId};
    use mlgw_formats::schema::{BlockName, CopyRecord, CopySegment, ObjectVersion};
    use std::path::Path;

    const BUCKET: BucketId = BucketId(3);

    fn open(dir: &Path) -> CleanIndex {
        CleanIndex::open(dir, 1 << 20).unwrap()
    }

    fn key(text: &str) -> ObjectKey {
        ObjectKey::from_bytes(text.as_bytes()).unwrap()
    }

    fn copy(etag: &str) -> CopyRecord {
        let object = ObjectVersion { etag: etag.into(), ..ObjectVersion::default() };
        CopyRecord { object, validated_ms: 1, with_checksums: false, read_ms: 0 }
    }

    fn write(index: &CleanIndex, change: impl FnOnce(&mut CleanBatch)) {
        let mut batch = CleanBatch::default();
        change(&mut batch);
        index.write(&batch).unwrap();
    }

    fn put(index: &CleanIndex, name: &str, etag: &str) {
        write(index, |batch| batch.copy(BUCKET, &key(name), Some(&copy(etag))));
    }

    #[test]
    fn the_last_written_copy_is_returned_until_it_is_removed() {
        let room = tempfile::tempdir().unwrap();
        let index = open(room.path());
        let a = key("a");
        assert_eq!(index.copy(BUCKET, &a), Ok(None));
        for etag in ["one", "two"] {
            put(&index, "a", etag);
            assert_eq!(index.copy(BUCKET, &a), Ok(Some(copy(etag))));
            assert_eq!(index.copy(BUCKET, &a), Ok(Some(copy(etag))), "from memory");
        }
        assert!(index.is_recent(BUCKET, &a) && !index.is_recent(BucketId(4), &a));
        put(&index, "b", "b");
        assert_eq!(index.peek(BUCKET, &key("b")), Ok(Some(copy("b"))));
        assert!(!index.is_recent(BUCKET, &key("b")), "it was not read");
        assert_eq!(index.copy(BucketId(4), &a), Ok(None));
        write(&index, |batch| batch.copy(BUCKET, &a, None));
        assert_eq!(index.copy(BUCKET, &a), Ok(None));
    }

    #[test]
    fn copies_are_listed_by_prefix_page_by_page() {
        let room = tempfile::tempdir().unwrap();
        let index = open(room.path());
        for name in ["a", "p/1", "p/2", "p/3", "q"] {
            put(&index, name, name);
        }
        let names = |after: Option<&str>, max| {
            let page = index.copies(BUCKET, "p/", after.map(key).as_ref(), max).unwrap();
            page.into_iter().map(|(key, _)| key.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(None, 2), ["p/1", "p/2"]);
        assert_eq!(names(Some("p/2"), 2), ["p/3"]);
        assert_eq!(names(Some("p/3"), 2), [""; 0]);
        write(&index, |batch| batch.copy(BucketId(9), &key("other"), Some(&copy("o"))));
        let all = |after: Option<(BucketId, &str)>, max| {
            let after = after.map(|(bucket, name)| (bucket, key(name)));
            let page = index.all_copies(after.as_ref().map(|(bucket, key)| (*bucket, key)), max).unwrap();
            page.into_iter().map(|(_, key, _)| key.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            (all(None, 2), all(Some((BUCKET, "p/3")), 9)),
            (vec!["a".into(), "p/1".into()], vec!["q".into(), "other".into()])
        );
    }

    #[test]
    fn blocks_and_segments_are_found_again_after_a_flush() {
        let room = tempfile::tempdir().unwrap();
        let segment = CopySegment { id: 9, generation: 2, length: 0, live_bytes: Some(5) };
        let name = BlockName { bucket: 3, key: "k".into(), number: 5 };
        let body = {
            let index = open(room.path());
            let body = index.next_body().unwrap();
            for number in [0, 2, 5] {
                write(&index, |batch| batch.block(body, number, Some(vec![extent(9, number)])));
            }
            write(&index, |batch| {
                batch.block(body, 2, None);
                batch.name(77, Some(&name));
            });
            index.put_segment(&segment).unwrap();
            index.flush().unwrap();
            body
        };
        let index = open(room.path());
        assert_eq!(index.block(body, 5), Ok(Some(vec![extent(9, 5)])));
        assert_eq!((index.blocks(body), index.segments()), (Ok(vec![0, 5]), Ok(vec![segment])));
        assert_eq!(index.blocks_from(body, 1, 9), Ok(vec![(5, vec![extent(9, 5)])]));
        assert_eq!((index.name(77), index.name(78)), (Ok(Some(name)), Ok(None)));
        write(&index, |batch| {
            [0, 5].into_iter().for_each(|number| batch.block(body, number, None));
            batch.name(77, None);
        });
        index.remove_segment(SegmentId(9)).unwrap();
        assert_eq!(index.name(77), Ok(None));
        assert_eq!((index.blocks(body), index.segments()), (Ok(vec![]), Ok(vec![])));
    }

    #[test]
    fn ids_are_unique_although_the_process_ends_without_a_flush() {
        let room = tempfile::tempdir().unwrap();
        let given = || {
            let index = open(room.path());
            let ids = [index.next_body().unwrap(), index.next_body().unwrap()];
            index.next_segment().unwrap();
            ids
        };
        let (first, then) = (given(), given());
        assert!(first[0] < first[1] && first[1] < then[0] && then[0].0 & CLEAN_BODY != 0);
    }

    #[test]
    fn an_index_that_does_not_open_is_replaced() {
        let room = tempfile::tempdir().unwrap();
        put(&open(room.path()), "a", "a");
        open(room.path()).flush().unwrap();
        std::fs::write(room.path().join("index/CURRENT"), "nothing").unwrap();
        let index = open(room.path());
        assert_eq!(index.copy(BUCKET, &key("a")), Ok(None));
    }
}
