//! Relocates one chunk: compare and set on one extent of a body's map.
//!
//! A chunk is named by a row of an object, of its pages, of a part or of a part's pages, whether an object
//! still has that row or the row waits to be freed. As long as a row names the chunk, its bytes count as
//! referenced, so it is moved like the others.

use super::{malformed, usage};
use crate::view::{ApplyError, View};
use mlgw_common::{BodyId, BucketId, PartNumber};
use mlgw_formats::command::{Reject, RelocateExtent, Reply};
use mlgw_formats::schema::{Extent, ExtentPage, ObjectVersion, PartRecord, extent, object, part};
use prost::Message;

pub(super) fn apply(view: &mut View<'_>, command: &RelocateExtent) -> Result<Reply, ApplyError> {
    let (from, to) = (&command.from, &command.to);
    if to.segment == 0 || to.logical_bytes != from.logical_bytes {
        return Err(malformed("the new location of the chunk is missing or has another length"));
    }
    let body = BodyId(command.body_id);
    let set = |extents: &mut [Extent]| set(extents, from, to);
    match (command.part, command.page) {
        (0, None) => {
            let row = object::row(BucketId(command.bucket_id), command.key.as_bytes());
            change(view, row, |version: &mut ObjectVersion| {
                version.body() == body && set(&mut version.extents)
            })?;
        }
        (0, Some(first)) => {
            change(view, extent::row(body, first), |page: &mut ExtentPage| set(&mut page.extents))?;
        }
        (number, page) => {
            let number =
                PartNumber::new(number).ok_or_else(|| malformed("the part number is out of range"))?;
            match page {
                None => {
                    change(view, part::row(body, number), |part: &mut PartRecord| set(&mut part.extents))?
                }
                Some(first) => {
                    let row = part::page_row(body, number, first);
                    change(view, row, |page: &mut ExtentPage| set(&mut page.extents))?;
                }
            }
        }
    }
    usage::add_references(view, [to])?;
    usage::remove_references(view, [from])?;
    Ok(Reply::Done)
}

/// Changes the record of a row; rejects the command if the row is missing or `set` does not find the chunk in
/// it.
fn change<M: Message + Default>(
    view: &mut View<'_>,
    row: Vec<u8>,
    set: impl FnOnce(&mut M) -> bool,
) -> Result<(), ApplyError> {
    let mut record: M = view.get(&row)?.ok_or(Reject::NotReferenced)?;
    if !set(&mut record) {
        return Err(Reject::NotReferenced.into());
    }
    view.put(row, &record);
    Ok(())
}

fn set(extents: &mut [Extent], from: &Extent, to: &Extent) -> bool {
    let found = extents.iter_mut().find(|extent| *extent == from);
    found.map(|extent| extent.clone_from(to)).is_some()
}
