//! Scans of objects, extent pages, uploads and parts, in key order, over one snapshot per range.
//!
//! A scan runs on the caller's thread and decodes only the records that it returns. Where a bucket spans
//! groups, the scan visits the partitions in key order.

use super::resident::Resident;
use crate::store::state::{BlockCaching, RowIter, StateDb};
use crate::store_error::{ReadError, StoreError};
use mlgw_common::{BodyId, BucketId, ObjectKey, PartNumber};
use mlgw_formats::schema::{
    ExtentPage, ObjectSummary, ObjectVersion, PartRecord, Upload, decode, extent, object, part, upload,
};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Reader for scans; keeps the state of each group open.
#[derive(Clone)]
pub struct Reader {
    resident: Arc<Resident>,
    /// State of each group on this node.
    states: BTreeMap<u32, Arc<StateDb>>,
    caching: BlockCaching,
}

impl Reader {
    pub(super) fn new(
        resident: Arc<Resident>,
        states: BTreeMap<u32, Arc<StateDb>>,
        caching: BlockCaching,
    ) -> Self {
        Self { resident, states, caching }
    }

    /// Scans the current versions of a bucket by key, beginning at `from` (raw bytes of a key or of a prefix
    /// of one).
    #[must_use]
    pub fn scan(&self, bucket: BucketId, from: Bound<&[u8]>) -> ObjectScan<'_> {
        let (key, row) = object_start(bucket, from);
        ObjectScan { rows: RangeScan::new(self, bucket, key, row, &OBJECTS), bucket }
    }

    /// Pages of a body's map with their first byte, beginning with the page that covers `from`.
    #[must_use]
    pub fn extent_pages(&self, bucket: BucketId, key: &ObjectKey, body: BodyId, from: u64) -> PageScan<'_> {
        let start = extent::row(body, 0);
        let mut rows = self.rows_of(bucket, key, &start, &extent::rows_end(body));
        if from > 0 {
            rows.seek_for_prev(&extent::row(body, from));
        }
        PageScan { rows }
    }

    /// Pages of a long part's extents (see [`PartRecord::paged_extents`]) with their first byte within the
    /// part, beginning with the page that covers `from`.
    #[must_use]
    pub fn part_pages(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
        number: PartNumber,
        from: u64,
    ) -> PageScan<'_> {
        let start = part::page_row(body, number, 0);
        let mut rows = self.rows_of(bucket, key, &start, &part::pages_end(body, number));
        if from > 0 {
            rows.seek_for_prev(&part::page_row(body, number, from));
        }
        PageScan { rows }
    }

    /// Uploads of a bucket, ordered by key and then by age. They begin after `after`: after that upload if it
    /// names one, else after all uploads of its key. Without `after` they begin with the first upload.
    #[must_use]
    pub fn uploads(&self, bucket: BucketId, after: Option<(&[u8], Option<BodyId>)>) -> UploadScan<'_> {
        let (key, row) = match after {
            None => (Vec::new(), upload::row_from(bucket, b"")),
            Some((key, Some(body))) => {
                (key.to_vec(), upload::row(bucket, key, BodyId(body.0.saturating_add(1))))
            }
            Some((key, None)) => (key.to_vec(), upload::row_after_key(bucket, key)),
        };
        UploadScan { rows: RangeScan::new(self, bucket, key, row, &UPLOADS) }
    }

    /// Parts of a body by number, beginning after number `after` (0 for all). Extents of long parts are
    /// omitted; see [`Reader::part_pages`].
    #[must_use]
    pub fn parts(&self, bucket: BucketId, key: &ObjectKey, body: BodyId, after: u16) -> PartScan<'_> {
        PartScan { rows: self.rows_of(bucket, key, &part::row_after(body, after), &part::rows_end(body)) }
    }

    fn rows_of(&self, bucket: BucketId, key: &ObjectKey, from: &[u8], end: &[u8]) -> ScannedRows<'_> {
        self.rows(self.resident.group_of(bucket, key.as_bytes()), from, end)
    }

    fn rows(&self, group: u32, from: &[u8], end: &[u8]) -> ScannedRows<'_> {
        let state = self.states.get(&group).ok_or(ReadError::GroupElsewhere { group });
        ScannedRows(state.map(|state| state.rows_cached(from, end, self.caching)))
    }
}

/// A key and a value, unless the scan is at its end.
type ScannedRow<'a> = Result<Option<(&'a [u8], &'a [u8])>, ReadError>;

/// Rows of a group, or the reason that the group cannot be read here.
struct ScannedRows<'a>(Result<RowIter<'a>, ReadError>);

impl ScannedRows<'_> {
    /// True if the group has no member on this node.
    const fn are_elsewhere(&self) -> bool {
        matches!(self.0, Err(ReadError::GroupElsewhere { .. }))
    }

    fn next(&mut self) -> ScannedRow<'_> {
        match &mut self.0 {
            Ok(rows) => rows.next().map_err(ReadError::from),
            Err(error) => Err(error.clone()),
        }
    }

    fn seek(&mut self, row: &[u8]) {
        if let Ok(rows) = &mut self.0 {
            rows.seek(row);
        }
    }

    fn seek_for_prev(&mut self, row: &[u8]) {
        if let Ok(rows) = &mut self.0 {
            rows.seek_for_prev(row);
        }
    }
}

/// Start of a scan of objects: the key and the row.
fn object_start(bucket: BucketId, from: Bound<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    match from {
        Bound::Unbounded => (Vec::new(), object::row_from(bucket, b"")),
        Bound::Included(key) => (key.to_vec(), object::row_from(bucket, key)),
        // The next key in byte order is the same key followed by a NUL.
        Bound::Excluded(key) => (key.to_vec(), object::row_from(bucket, &[key, &[0]].concat())),
    }
}

/// Row family that is spread over groups by (bucket, key).
struct SpreadFamily {
    row_from: fn(BucketId, &[u8]) -> Vec<u8>,
    rows_end: fn(BucketId) -> Vec<u8>,
}

static OBJECTS: SpreadFamily = SpreadFamily { row_from: object::row_from, rows_end: object::rows_end };
static UPLOADS: SpreadFamily = SpreadFamily { row_from: upload::row_from, rows_end: upload::rows_end };

/// Rows of a bucket, partition after partition.
struct RangeScan<'a> {
    reader: &'a Reader,
    bucket: BucketId,
    family: &'static SpreadFamily,
    rows: ScannedRows<'a>,
    /// Partitions after the current one, the next one last.
    later: Vec<(Vec<u8>, u32)>,
    /// True to skip partitions whose group has no member on this node.
    is_partial: bool,
    /// Number of those that were skipped.
    skipped: usize,
}

impl<'a> RangeScan<'a> {
    fn new(
        reader: &'a Reader,
        bucket: BucketId,
        key: Vec<u8>,
        row: Vec<u8>,
        family: &'static SpreadFamily,
    ) -> Self {
        let mut later = reader.resident.ranges(bucket, &key);
        later.reverse();
        let group = later.pop().map_or(0, |(_, group)| group);
        let end = range_end(bucket, family, &later);
        let rows = reader.rows(group, &row, &end);
        Self { reader, bucket, family, rows, later, is_partial: false, skipped: 0 }
    }

    /// Returns the next row, converted by `take`.
    fn next<T>(
        &mut self,
        take: impl Fn(&[u8], &[u8]) -> Result<T, StoreError>,
    ) -> Option<Result<T, ReadError>> {
        loop {
            if self.is_partial && self.rows.are_elsewhere() {
                self.skipped += 1;
            } else {
                match self.rows.next() {
                    Ok(Some((row, value))) => return Some(take(row, value).map_err(ReadError::from)),
                    Err(error) => return Some(Err(error)),
                    Ok(None) => {}
                }
            }
            let (start, group) = self.later.pop()?;
            let row = (self.family.row_from)(self.bucket, &start);
            let end = range_end(self.bucket, self.family, &self.later);
            self.rows = self.reader.rows(group, &row, &end);
        }
    }
}

fn range_end(bucket: BucketId, family: &SpreadFamily, later: &[(Vec<u8>, u32)]) -> Vec<u8> {
    match later.last() {
        Some((start, _)) => (family.row_from)(bucket, start),
        None => (family.rows_end)(bucket),
    }
}

/// Current versions of a bucket, in key order.
pub struct ObjectScan<'a> {
    rows: RangeScan<'a>,
    bucket: BucketId,
}

impl ObjectScan<'_> {
    /// Skips the ranges whose group has no member on this node, instead of ending with an error.
    #[must_use]
    pub fn of_own_groups(mut self) -> Self {
        self.rows.is_partial = true;
        self
    }

    /// Number of ranges that were skipped.
    #[must_use]
    pub const fn skipped_ranges(&self) -> usize {
        self.rows.skipped
    }

    /// Moves forward to the first key at or after these raw bytes. `from` must not be before the current
    /// position.
    pub fn seek(&mut self, from: Bound<&[u8]>) {
        let (key, row) = object_start(self.bucket, from);
        let within = self.rows.later.last().is_none_or(|(start, _)| &key < start);
        if within {
            self.rows.rows.seek(&row);
        } else {
            let later = RangeScan::new(self.rows.reader, self.bucket, key, row, self.rows.family);
            let (is_partial, skipped) = (self.rows.is_partial, self.rows.skipped);
            self.rows = RangeScan { is_partial, skipped, ..later };
        }
    }
}

impl Iterator for ObjectScan<'_> {
    type Item = Result<(ObjectKey, StoredVersion), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next(|row, value| {
            let (_, key) = object::key_of(row)?;
            Ok((object_key(&key)?, StoredVersion(value.into())))
        })
    }
}

fn object_key(key: &[u8]) -> Result<ObjectKey, StoreError> {
    ObjectKey::from_bytes(key).map_err(|error| StoreError(format!("a stored key is invalid: {error}")))
}

/// Stored record of a version, not yet decoded.
#[derive(Clone, Debug)]
pub struct StoredVersion(Box<[u8]>);

impl StoredVersion {
    /// Decodes the whole version.
    ///
    /// # Errors
    /// If the record does not decode.
    pub fn version(&self) -> Result<ObjectVersion, ReadError> {
        Ok(decode(&self.0).map_err(StoreError::from)?)
    }

    /// Decodes only the fields that listings show.
    ///
    /// # Errors
    /// If the record does not decode.
    pub fn summary(&self) -> Result<ObjectSummary, ReadError> {
        Ok(decode(&self.0).map_err(StoreError::from)?)
    }
}

/// Pages of a map, with their first logical bytes.
pub struct PageScan<'a> {
    rows: ScannedRows<'a>,
}

impl Iterator for PageScan<'_> {
    type Item = Result<(u64, ExtentPage), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        take(self.rows.next(), |row, value| {
            // Rows of both families end with the first byte's offset.
            let first = row.last_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            Ok((first, decode(value)?))
        })
    }
}

/// Uploads of a bucket, ordered by key and then by age.
pub struct UploadScan<'a> {
    rows: RangeScan<'a>,
}

impl Iterator for UploadScan<'_> {
    type Item = Result<(ObjectKey, Upload), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next(|row, value| {
            let (_, key, _) = upload::key_of(row)?;
            Ok((object_key(&key)?, decode(value)?))
        })
    }
}

/// Parts of a body, ordered by number.
pub struct PartScan<'a> {
    rows: ScannedRows<'a>,
}

impl Iterator for PartScan<'_> {
    type Item = Result<(PartNumber, PartRecord), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        take(self.rows.next(), |row, value| Ok((part::key_of(row)?.1, decode(value)?)))
    }
}

fn take<T>(
    row: ScannedRow<'_>,
    take: impl Fn(&[u8], &[u8]) -> Result<T, StoreError>,
) -> Option<Result<T, ReadError>> {
    match row {
        Ok(row) => row.map(|(row, value)| take(row, value).map_err(ReadError::from)),
        Err(error) => Some(Err(error)),
    }
}
