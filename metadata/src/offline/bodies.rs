//! Extents of objects and uploads, from the rows of a state.

use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::RowReader as _;
use mlgw_common::{BodyId, BucketId, PartNumber};
use mlgw_formats::key::{BadKey, Family};
use mlgw_formats::schema::{
    BadRecord, Extent, ExtentPage, ObjectVersion, PartRecord, decode, extent, object, part, upload, version,
};

/// A referenced extent.
#[derive(Clone, Copy, Debug)]
pub struct ReferencedExtent<'a> {
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: &'a [u8],
    /// The body.
    pub body: BodyId,
    /// The part, if the body was uploaded in parts.
    pub part: Option<PartNumber>,
    /// Offset of its first byte in the body, or in the part.
    pub offset: u64,
    /// Location of the bytes.
    pub extent: &'a Extent,
}

impl ReferencedExtent<'_> {
    /// Returns the end of its record in the file of the segment.
    #[must_use]
    pub fn end(&self) -> u64 {
        let Extent { offset, head_bytes, stored_bytes, .. } = self.extent;
        offset.saturating_add(u64::from(*head_bytes)).saturating_add(*stored_bytes)
    }
}

/// Calls `each` with every extent that objects, versions and uploads of `state` reference.
pub(crate) fn each_extent(
    state: &StateDb,
    each: &mut dyn FnMut(&ReferencedExtent<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for family in [Family::Object, Family::Version, Family::Upload] {
        let mut rows = state.rows(&family.start(), &family.end());
        while let Some((row, value)) = rows.next()? {
            let (bucket, key, body) = match family {
                Family::Upload => upload::key_of(row)?,
                Family::Version => {
                    let (bucket, key, _) = version::key_of(row)?;
                    (bucket, key, decode::<ObjectVersion>(value)?.body())
                }
                _ => {
                    let (bucket, key) = object::key_of(row)?;
                    (bucket, key, decode::<ObjectVersion>(value)?.body())
                }
            };
            let mut whole = ExtentVisitor { bucket, key: &key, body, part: None, offset: 0 };
            if family == Family::Upload {
                parts(state, whole, each)?;
                continue;
            }
            let record: ObjectVersion = decode(value)?;
            whole.extents(&record.extents, each)?;
            if record.part_count > 0 {
                parts(state, whole, each)?;
            } else if record.is_paged() {
                let mut pages = state.rows(&extent::row(body, 0), &extent::rows_end(body));
                while let Some((_, page)) = pages.next()? {
                    whole.extents(&decode::<ExtentPage>(page)?.extents, each)?;
                }
            }
        }
    }
    Ok(())
}

/// Iterates over the extents of one body or part, in order.
#[derive(Clone, Copy)]
struct ExtentVisitor<'a> {
    bucket: BucketId,
    key: &'a [u8],
    body: BodyId,
    part: Option<PartNumber>,
    offset: u64,
}

impl ExtentVisitor<'_> {
    fn extents(
        &mut self,
        extents: &[Extent],
        each: &mut dyn FnMut(&ReferencedExtent<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for extent in extents {
            let Self { bucket, key, body, part, offset } = *self;
            each(&ReferencedExtent { bucket, key, body, part, offset, extent })?;
            self.offset += extent.logical_bytes;
        }
        Ok(())
    }
}

/// All stored parts of a body, including those that its index does not name and that wait to be freed.
fn parts(
    state: &StateDb,
    whole: ExtentVisitor<'_>,
    each: &mut dyn FnMut(&ReferencedExtent<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let body = whole.body;
    let mut rows = state.rows(&part::rows_start(body), &part::rows_end(body));
    while let Some((row, value)) = rows.next()? {
        let (_, number) = part::key_of(row)?;
        let record: PartRecord = decode(value)?;
        let mut walk = ExtentVisitor { part: Some(number), offset: 0, ..whole };
        walk.extents(&record.extents, each)?;
        if record.paged_extents > 0 {
            let mut pages = state.rows(&part::page_row(body, number, 0), &part::pages_end(body, number));
            while let Some((_, page)) = pages.next()? {
                walk.extents(&decode::<ExtentPage>(page)?.extents, each)?;
            }
        }
    }
    Ok(())
}

/// Fault of a body's map.
pub(super) enum MapFault {
    /// A row cannot be read.
    Store(StoreError),
    /// The map does not cover the bytes.
    Wrong(String),
}

impl From<StoreError> for MapFault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<BadRecord> for MapFault {
    fn from(bad: BadRecord) -> Self {
        Self::Wrong(bad.to_string())
    }
}

impl From<BadKey> for MapFault {
    fn from(bad: BadKey) -> Self {
        Self::Wrong(bad.to_string())
    }
}

/// Checks that the map of a version covers exactly its bytes.
pub(super) fn check_version_map(state: &StateDb, version: &ObjectVersion) -> Result<(), MapFault> {
    let mut covered = version.extents.iter().map(|extent| extent.logical_bytes).sum();
    if version.is_paged() || version.part_count > 0 {
        let body = version.body();
        let mut pages = state.rows(&extent::row(body, 0), &extent::rows_end(body));
        while let Some((row, value)) = pages.next()? {
            let page: ExtentPage = decode(value)?;
            check_page_start(extent::key_of(row)?.1, &mut covered, &page)?;
            named_parts(state, body, &page)?;
        }
    }
    check_covered(covered, version.size)
}

/// Checks that the map of a part covers exactly its bytes.
pub(super) fn check_part_map(
    state: &StateDb,
    body: BodyId,
    number: PartNumber,
    record: &PartRecord,
) -> Result<(), MapFault> {
    let mut covered = record.extents.iter().map(|extent| extent.logical_bytes).sum();
    if record.paged_extents > 0 {
        let mut pages = state.rows(&part::page_row(body, number, 0), &part::pages_end(body, number));
        while let Some((row, value)) = pages.next()? {
            check_page_start(part::page_key_of(row)?.2, &mut covered, &decode(value)?)?;
        }
    }
    check_covered(covered, record.size)
}

fn check_page_start(first: u64, covered: &mut u64, page: &ExtentPage) -> Result<(), MapFault> {
    if first != *covered {
        return Err(MapFault::Wrong(format!(
            "a page begins at byte {first}, but the previous one ends at {covered}"
        )));
    }
    *covered += page.logical_bytes();
    Ok(())
}

fn check_covered(covered: u64, size: u64) -> Result<(), MapFault> {
    if covered == size {
        return Ok(());
    }
    Err(MapFault::Wrong(format!("extents cover {covered} of {size} bytes")))
}

fn named_parts(state: &StateDb, body: BodyId, page: &ExtentPage) -> Result<(), MapFault> {
    for named in &page.parts {
        let wrong = |what: &str| MapFault::Wrong(format!("the part {} {what}", named.number));
        let number = PartNumber::new(named.number).ok_or_else(|| wrong("has an invalid number"))?;
        let stored = state.get(&part::row(body, number))?.ok_or_else(|| wrong("is missing"))?;
        if decode::<PartRecord>(&stored)?.size != named.bytes {
            return Err(wrong("has another length than in the index"));
        }
    }
    Ok(())
}
