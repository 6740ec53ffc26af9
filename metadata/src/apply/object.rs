//! Changes of an object: put, delete, update. Uploads are in [`upload`](super::upload).

use super::object_target::ObjectTarget;
use super::usage::{ChargedUsage, QuotaCheck};
use super::{conditions, malformed, modified, release, usage};
use crate::view::{ApplyError, View};
use mlgw_common::limits::{EXTENT_PAGE_ENTRIES_MAX, INLINE_EXTENTS_MAX};
use mlgw_formats::command::update_object::Update;
use mlgw_formats::command::{DeleteObject, PutObject, Reject, Reply, UpdateObject, WrittenVersion};
use mlgw_formats::schema::{Extent, ExtentPage, ObjectVersion, Upload, extent};

pub(super) fn put(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    put: &PutObject,
) -> Result<Reply, ApplyError> {
    let mut version = put.version.clone();
    check_map(&version, &put.pages)?;
    let current = place.current(view)?;
    conditions::check(&put.conditions, current.as_ref())?;
    if is_in_use(view, current.as_ref(), put)? {
        return Err(Reject::BodyInUse.into());
    }
    version.seq = place.seq.0;
    version.modified_ms = modified::modified_ms(place, current.as_ref(), version.modified_ms);
    let mut first = 0;
    for page in &put.pages {
        view.put(extent::row(version.body(), first), page);
        first += page.logical_bytes();
    }
    let paged = put.pages.iter().flat_map(|page| &page.extents);
    usage::add_references(view, version.extents.iter().chain(paged))?;
    replace_current(view, place, current, None, &version, QuotaCheck::of(put))
}

/// Replaces `current` by `version`, whose map is already written. `upload` is the upload that `version`
/// completes, if any.
pub(super) fn replace_current(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    current: Option<ObjectVersion>,
    upload: Option<&Upload>,
    version: &ObjectVersion,
    check: QuotaCheck,
) -> Result<Reply, ApplyError> {
    assert_eq!(version.seq, place.seq.0, "a version has the number of the command that wrote it");
    if let Some(replaced) = &current {
        release::version(view, replaced)?;
    }
    let gone = [current.as_ref().map(ChargedUsage::of_version), upload.map(ChargedUsage::of_upload)];
    let gone: Vec<ChargedUsage<'_>> = gone.into_iter().flatten().collect();
    usage::charge(view, place, &gone, &[ChargedUsage::of_version(version)], check)?;
    view.put(place.row(), version);
    Ok(Reply::Written(written(version)))
}

/// Reply to the write of `version`.
pub(super) fn written(version: &ObjectVersion) -> WrittenVersion {
    WrittenVersion {
        seq: version.seq,
        etag: version.etag.clone(),
        size: version.size,
        modified_ms: version.modified_ms,
        versioned: version.versioned,
    }
}

/// Checks that a version and its pages map exactly its bytes.
fn check_map(version: &ObjectVersion, pages: &[ExtentPage]) -> Result<(), ApplyError> {
    if version.body_id == 0 || version.delete_marker || version.part_count != 0 {
        return Err(malformed("the put has no body of its own"));
    }
    if version.extents.len() > INLINE_EXTENTS_MAX || (!version.extents.is_empty() && !pages.is_empty()) {
        return Err(malformed("the record has too many extents"));
    }
    let full = |page: &ExtentPage| {
        page.parts.is_empty() && (1..=EXTENT_PAGE_ENTRIES_MAX).contains(&page.extents.len())
    };
    if !pages.iter().all(full) {
        return Err(malformed("the page has no extents, too many extents, or parts"));
    }
    let paged = pages.iter().flat_map(|page| &page.extents);
    check_coverage(version.extents.iter().chain(paged), version.size)
}

/// Checks that extents cover exactly `size` bytes and that none is empty.
pub(super) fn check_coverage<'e>(
    extents: impl Iterator<Item = &'e Extent>,
    size: u64,
) -> Result<(), ApplyError> {
    let mut covered = 0u64;
    for extent in extents {
        if extent.logical_bytes == 0 || extent.segment == 0 {
            return Err(malformed("an extent is empty or has no segment"));
        }
        covered = covered.checked_add(extent.logical_bytes).ok_or_else(|| malformed("extents overflow"))?;
    }
    if covered == size { Ok(()) } else { Err(malformed(format!("extents cover {covered} bytes of {size}"))) }
}

/// True if the body of `put` is this key's current version, or has pages that are in use or wait to be freed.
///
/// Body ids are allocated once, so a body that is also under another key or in an upload is an error of the
/// proposer that no row shows. A correct system can only send the same proposal twice, and that is detected
/// here. A body without pages has no rows of its own, so none are looked up.
fn is_in_use(view: &View<'_>, current: Option<&ObjectVersion>, put: &PutObject) -> Result<bool, ApplyError> {
    let body = put.version.body();
    if current.is_some_and(|version| version.body() == body) {
        return Ok(true);
    }
    Ok(!put.pages.is_empty()
        && (view.has(&extent::row(body, 0))? || view.has(&mlgw_formats::schema::release::row(body))?))
}

pub(super) fn delete(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    delete: &DeleteObject,
) -> Result<Reply, ApplyError> {
    let current = place.current(view)?;
    conditions::check(&delete.conditions, current.as_ref())?;
    let Some(version) = current else {
        return Ok(Reply::Deleted { existed: false });
    };
    release::version(view, &version)?;
    usage::charge(view, place, &[ChargedUsage::of_version(&version)], &[], QuotaCheck::Enforced)?;
    view.delete(place.row());
    Ok(Reply::Deleted { existed: true })
}

pub(super) fn update(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    update: &UpdateObject,
) -> Result<Reply, ApplyError> {
    let current = place.current(view)?;
    conditions::check(&update.conditions, current.as_ref())?;
    let mut version = current.ok_or(Reject::NoSuchKey)?;
    if version.body_id != update.expected_body {
        return Err(Reject::PreconditionFailed.into());
    }
    match &update.update {
        Some(Update::SetTags(tags)) => version.tags.clone_from(&tags.tags),
        Some(Update::Replace(replace)) => {
            version.seq = place.seq.0;
            version.headers.clone_from(&replace.headers);
            version.metadata.clone_from(&replace.metadata);
            if let Some(tags) = &replace.tags {
                version.tags.clone_from(&tags.tags);
            }
            version.modified_ms = modified::modified_ms(place, Some(&version), replace.modified_ms);
            version.storage_class.clone_from(&replace.storage_class);
        }
        None => return Err(malformed("the update has no change")),
    }
    view.put(place.row(), &version);
    Ok(Reply::Written(written(&version)))
}

#[cfg(test)]
mod tests {
    use super::{PutObject, extent, is_in_use, release};
    use crate::view::{MemoryRows, View};
    use mlgw_common::BodyId;
    use mlgw_formats::schema::{ExtentPage, ObjectVersion, ReleaseScope};

    #[test]
    fn a_body_is_in_use_while_it_is_current_or_has_pages() {
        let (rows, body) = (MemoryRows::default(), BodyId(7));
        let version = ObjectVersion { body_id: body.0, ..ObjectVersion::default() };
        let inline = PutObject { version: version.clone(), ..PutObject::default() };
        let paged = PutObject { pages: vec![ExtentPage::default()], ..inline.clone() };
        let mut view = View::new(&rows);
        for put in [&inline, &paged] {
            assert_eq!(is_in_use(&view, None, put), Ok(false));
            assert_eq!(is_in_use(&view, Some(&version), put), Ok(true), "sent twice");
        }
        view.put(extent::row(body, 0), &ExtentPage::default());
        assert_eq!(is_in_use(&view, None, &paged), Ok(true), "its pages exist");
        view.delete(extent::row(body, 0));
        release::queue(&mut view, body, ReleaseScope::Whole);
        assert_eq!(is_in_use(&view, None, &paged), Ok(true), "its pages are being freed");
    }
}
