//! Extents of objects and uploads, from the rows of a state.

use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::RowReader as _;
use mlgw_common::{BodyId, BucketId, PartNumber};
use mlgw_formats::key::{BadKey, Family};
use mlgw_formats::schema::{
    BadRecord, Extent, ExtentPage, ObjectVersion, PartRecord, decode, extent, object, part, upload, version,
};
use std::ops::ControlFlow;

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

/// A place in the extents of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentPosition {
    family: Family,
    /// Row of the object, version or upload.
    row: Vec<u8>,
    place: BodyPlace,
}

/// A place in a body, in the order in which its extents are visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct BodyPlace {
    /// The part; `None` outside of parts, which comes first.
    part: Option<PartNumber>,
    /// Offset in the body, or in the part.
    offset: u64,
}

/// Families of the rows that have bodies.
const BODY_FAMILIES: [Family; 3] = [Family::Object, Family::Version, Family::Upload];

/// Result of a visit of some extents: the place before which it ended, unless it is complete.
type Visited = Result<ControlFlow<BodyPlace>, StoreError>;

/// A function that is called with extents, until it breaks before one of them.
type Visit<'v> = &'v mut dyn FnMut(&ReferencedExtent<'_>) -> ControlFlow<()>;

/// Calls `each` with every extent that objects, versions and uploads of `state` reference.
pub(crate) fn each_extent(
    state: &StateDb,
    each: &mut dyn FnMut(&ReferencedExtent<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut failed = None;
    each_extent_from(state, None, &mut |extent| match each(extent) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failed.map_or(Ok(()), Err)
}

/// Calls `each` with the extents that objects, versions and uploads of `state` reference, from `from` on,
/// until it breaks. Returns the position of the extent before which it did; `None` at the end. A body that
/// was replaced since `from` was returned may be visited in part only.
pub(crate) fn each_extent_from(
    state: &StateDb,
    from: Option<&ExtentPosition>,
    each: Visit<'_>,
) -> Result<Option<ExtentPosition>, StoreError> {
    let families = BODY_FAMILIES.into_iter();
    for family in families.skip_while(|family| from.is_some_and(|from| from.family != *family)) {
        let from = from.filter(|from| from.family == family);
        let start = from.map_or_else(|| family.start(), |from| from.row.clone());
        let mut rows = state.rows(&start, &family.end());
        while let Some((row, value)) = rows.next()? {
            let begun = from.filter(|from| from.row == row);
            let start = begun.map(|from| from.place).unwrap_or_default();
            if let ControlFlow::Break(place) = visit_row(state, family, row, value, start, each)? {
                return Ok(Some(ExtentPosition { family, row: row.to_vec(), place }));
            }
        }
    }
    Ok(None)
}

/// Visits the extents of one row and of its body, from `start` on.
fn visit_row(
    state: &StateDb,
    family: Family,
    row: &[u8],
    value: &[u8],
    start: BodyPlace,
    each: Visit<'_>,
) -> Visited {
    if family == Family::Upload {
        let (bucket, key, body) = upload::key_of(row)?;
        return parts(state, ExtentVisitor { bucket, key: &key, body, part: None, offset: 0, start }, each);
    }
    let (bucket, key) = if family == Family::Version {
        let (bucket, key, _) = version::key_of(row)?;
        (bucket, key)
    } else {
        object::key_of(row)?
    };
    let record: ObjectVersion = decode(value)?;
    let body = record.body();
    let mut whole = ExtentVisitor { bucket, key: &key, body, part: None, offset: 0, start };
    if let ended @ ControlFlow::Break(_) = whole.extents(&record.extents, each) {
        return Ok(ended);
    }
    if record.part_count > 0 {
        return parts(state, whole, each);
    }
    if record.is_paged() {
        let mut pages = state.rows(&extent::row(body, 0), &extent::rows_end(body));
        if start.offset > 0 {
            pages.seek_for_prev(&extent::row(body, start.offset));
        }
        while let Some((row, page)) = pages.next()? {
            whole.offset = extent::key_of(row)?.1;
            if let ended @ ControlFlow::Break(_) = whole.extents(&decode::<ExtentPage>(page)?.extents, each) {
                return Ok(ended);
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Iterates over the extents of one body or part, in order.
#[derive(Clone, Copy)]
struct ExtentVisitor<'a> {
    bucket: BucketId,
    key: &'a [u8],
    body: BodyId,
    part: Option<PartNumber>,
    offset: u64,
    /// Extents before this place are skipped.
    start: BodyPlace,
}

impl ExtentVisitor<'_> {
    fn extents(&mut self, extents: &[Extent], each: Visit<'_>) -> ControlFlow<BodyPlace> {
        for extent in extents {
            let Self { bucket, key, body, part, offset, start } = *self;
            let place = BodyPlace { part, offset };
            let is_due = place >= start;
            if is_due && each(&ReferencedExtent { bucket, key, body, part, offset, extent }).is_break() {
                return ControlFlow::Break(place);
            }
            self.offset += extent.logical_bytes;
        }
        ControlFlow::Continue(())
    }
}

/// All stored parts of a body, including those that its index does not name and that wait to be freed.
fn parts(state: &StateDb, whole: ExtentVisitor<'_>, each: Visit<'_>) -> Visited {
    let (body, start) = (whole.body, whole.start);
    let first = start.part.map_or_else(|| part::rows_start(body), |number| part::row(body, number));
    let mut rows = state.rows(&first, &part::rows_end(body));
    while let Some((row, value)) = rows.next()? {
        let (_, number) = part::key_of(row)?;
        let record: PartRecord = decode(value)?;
        let mut walk = ExtentVisitor { part: Some(number), offset: 0, ..whole };
        if let ended @ ControlFlow::Break(_) = walk.extents(&record.extents, each) {
            return Ok(ended);
        }
        if record.paged_extents > 0 {
            let mut pages = state.rows(&part::page_row(body, number, 0), &part::pages_end(body, number));
            if start.part == Some(number) {
                pages.seek_for_prev(&part::page_row(body, number, start.offset));
            }
            while let Some((row, page)) = pages.next()? {
                walk.offset = part::page_key_of(row)?.2;
                let page: ExtentPage = decode(page)?;
                if let ended @ ControlFlow::Break(_) = walk.extents(&page.extents, each) {
                    return Ok(ended);
                }
            }
        }
    }
    Ok(ControlFlow::Continue(()))
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
