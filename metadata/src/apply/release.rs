//! Frees rows and references that are no longer used: small ones at once, large ones through the release
//! queue.
//!
//! A body in the `release` queue is already invisible to every reader; only its counters and rows are left.
//! Each step visits a bounded number of rows and leaves its progress in the queue, so no work is repeated
//! after a crash.

use super::usage;
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::limits::{EXTENT_PAGE_ENTRIES_MAX, JOB_ROWS_MAX, PART_NUMBER_MAX};
use mlgw_common::{BodyId, PartNumber};
use mlgw_formats::command::{ReleaseBody, Reply};
use mlgw_formats::schema::{
    ExtentPage, ObjectVersion, PartRecord, Release, ReleaseScope, decode, extent, part,
};
use std::collections::BTreeSet;

/// Frees a version's body.
pub(super) fn version(view: &mut View<'_>, version: &ObjectVersion) -> Result<(), StoreError> {
    usage::remove_references(view, &version.extents)?;
    if version.is_paged() || version.part_count > 0 {
        queue(view, version.body(), ReleaseScope::Whole);
    }
    Ok(())
}

/// Adds a body to the release queue. The new scope must include that of an entry that is already queued.
pub(super) fn queue(view: &mut View<'_>, body: BodyId, scope: ReleaseScope) {
    let release = Release { scope: scope as i32, after_part: 0 };
    view.put(mlgw_formats::schema::release::row(body), &release);
}

/// Frees a part: its row and its pages (5 GiB in 1 MiB extents are 40 pages). Returns the number of freed
/// rows.
pub(super) fn part(
    view: &mut View<'_>,
    body: BodyId,
    number: PartNumber,
    part: &PartRecord,
) -> Result<usize, StoreError> {
    usage::remove_references(view, &part.extents)?;
    view.delete(part::row(body, number));
    let mut rows = 1;
    if part.paged_extents > 0 {
        let pages_max = part.paged_extents as usize / EXTENT_PAGE_ENTRIES_MAX + 1;
        let start = part::page_row(body, number, 0);
        for (row, value) in view.range(&start, &part::pages_end(body, number), pages_max)? {
            let page: ExtentPage = decode(&value)?;
            usage::remove_references(view, &page.extents)?;
            view.delete(row);
            rows += 1;
        }
    }
    Ok(rows)
}

/// Performs one step of freeing a queued body.
pub(super) fn step(view: &mut View<'_>, command: ReleaseBody) -> Result<Reply, ApplyError> {
    let body = BodyId(command.body_id);
    let row = mlgw_formats::schema::release::row(body);
    let Some(mut release) = view.get::<Release>(&row)? else {
        return Ok(Reply::StepDone { more: false });
    };
    if command.scope.is_some_and(|scope| scope != release.scope) {
        return Ok(Reply::StepDone { more: false });
    }
    let rows_max = (command.rows_max as usize).clamp(1, JOB_ROWS_MAX);
    let more = match release.scope() {
        ReleaseScope::Whole => release_whole(view, body, rows_max)?,
        ReleaseScope::UnnamedParts => release_unnamed_parts(view, body, rows_max, &mut release)?,
    };
    if more {
        view.put(row, &release);
    } else {
        view.delete(row);
    }
    Ok(Reply::StepDone { more })
}

fn release_whole(view: &mut View<'_>, body: BodyId, rows_max: usize) -> Result<bool, StoreError> {
    let mut left = rows_max;
    for (row, value) in view.range(&extent::row(body, 0), &extent::rows_end(body), left)? {
        let page: ExtentPage = decode(&value)?;
        usage::remove_references(view, &page.extents)?;
        view.delete(row);
        left -= 1;
    }
    for (row, value) in view.range(&part::rows_start(body), &part::rows_end(body), left)? {
        if left == 0 {
            return Ok(true);
        }
        let (_, number) = part::key_of(&row)?;
        left = left.saturating_sub(part(view, body, number, &decode(&value)?)?);
    }
    Ok(left == 0)
}

fn release_unnamed_parts(
    view: &mut View<'_>,
    body: BodyId,
    rows_max: usize,
    release: &mut Release,
) -> Result<bool, StoreError> {
    let named = named_parts(view, body)?;
    let after = u16::try_from(release.after_part).unwrap_or(u16::MAX);
    let mut left = rows_max;
    for (row, value) in view.range(&part::row_after(body, after), &part::rows_end(body), rows_max)? {
        if left == 0 {
            return Ok(true);
        }
        let (_, number) = part::key_of(&row)?;
        release.after_part = u32::from(number.get());
        let rows =
            if named.contains(&release.after_part) { 1 } else { part(view, body, number, &decode(&value)?)? };
        left = left.saturating_sub(rows);
    }
    Ok(left == 0)
}

fn named_parts(view: &View<'_>, body: BodyId) -> Result<BTreeSet<u32>, StoreError> {
    let pages_max = PART_NUMBER_MAX as usize / EXTENT_PAGE_ENTRIES_MAX + 1;
    let mut named = BTreeSet::new();
    for (_, value) in view.range(&extent::row(body, 0), &extent::rows_end(body), pages_max)? {
        let page: ExtentPage = decode(&value)?;
        named.extend(page.parts.iter().map(|part| part.number));
    }
    Ok(named)
}
