//! Multipart uploads: create, put a part, complete, abort.

use super::object::{check_coverage, replace_current, written};
use super::object_target::ObjectTarget;
use super::usage::{ChargedUsage, QuotaCheck};
use super::{conditions, malformed, modified, release, usage};
use crate::view::{ApplyError, View};
use mlgw_common::limits::{EXTENT_PAGE_ENTRIES_MAX, OBJECT_BYTES_MAX, PART_BYTES_MIN, PART_NUMBER_MAX};
use mlgw_common::{BodyId, PartNumber};
use mlgw_formats::command::{AbortUpload, CompleteUpload, CreateUpload, NamedPart, PutPart, Reject, Reply};
use mlgw_formats::schema::part::PART_INLINE_EXTENTS_MAX;
use mlgw_formats::schema::{
    ExtentPage, ObjectVersion, PartRange, PartRecord, ReleaseScope, Upload, decode, extent, part, upload,
};

pub(super) fn create(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    create: &CreateUpload,
) -> Result<Reply, ApplyError> {
    let mut upload = create.upload.clone();
    if upload.body_id == 0 || upload.key.as_bytes() != place.key {
        return Err(malformed("the upload has no body, or belongs to another key"));
    }
    let row = upload::row(place.bucket, place.key, upload.body());
    let current = place.current(view)?;
    let used = current.is_some_and(|version| version.body_id == upload.body_id);
    if used || view.has(&row)? || view.has(&mlgw_formats::schema::release::row(upload.body()))? {
        return Err(Reject::BodyInUse.into());
    }
    upload.part_bytes = 0;
    view.put(row, &upload);
    usage::charge(view, place, &[], &[ChargedUsage::of_upload(&upload)], QuotaCheck::Enforced)?;
    Ok(Reply::Done)
}

pub(super) fn put_part(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    put: &PutPart,
) -> Result<Reply, ApplyError> {
    let number = PartNumber::new(put.number).ok_or_else(|| malformed("the part number is out of range"))?;
    let body = BodyId(put.body_id);
    let row = upload::row(place.bucket, place.key, body);
    let mut upload: Upload = view.get(&row)?.ok_or(Reject::NoSuchUpload)?;
    check_coverage(put.part.extents.iter(), put.part.size)?;
    let replaced: Option<PartRecord> = view.get(&part::row(body, number))?;
    let replaced_bytes = replaced.as_ref().map_or(0, |part| part.size);
    if let Some(replaced) = &replaced {
        release::part(view, body, number, replaced)?;
    }
    usage::add_references(view, &put.part.extents)?;
    write_part(view, body, number, PartRecord { seq: place.seq.0, ..put.part.clone() });
    upload.part_bytes = upload.part_bytes - replaced_bytes + put.part.size;
    view.put(row, &upload);
    let (gone, come) =
        (ChargedUsage::of_parts(&upload, replaced_bytes), ChargedUsage::of_parts(&upload, put.part.size));
    usage::charge(view, place, &[gone], &[come], QuotaCheck::Enforced)?;
    Ok(Reply::Part { seq: place.seq.0 })
}

fn write_part(view: &mut View<'_>, body: BodyId, number: PartNumber, mut part: PartRecord) {
    part.paged_extents = 0;
    if part.extents.len() > PART_INLINE_EXTENTS_MAX {
        let extents = std::mem::take(&mut part.extents);
        part.paged_extents = u32::try_from(extents.len()).unwrap_or(u32::MAX);
        let mut first = 0;
        for chunk in extents.chunks(EXTENT_PAGE_ENTRIES_MAX) {
            let page = ExtentPage { extents: chunk.to_vec(), parts: Vec::new() };
            view.put(part::page_row(body, number, first), &page);
            first += page.logical_bytes();
        }
    }
    view.put(part::row(body, number), &part);
}

pub(super) fn complete(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    complete: &CompleteUpload,
) -> Result<Reply, ApplyError> {
    let body = BodyId(complete.body_id);
    let current = place.current(view)?;
    if let Some(version) = current.as_ref().filter(|version| version.body() == body && body.0 != 0) {
        return Ok(Reply::Written(written(version)));
    }
    let upload_row = upload::row(place.bucket, place.key, body);
    let upload: Upload = view.get(&upload_row)?.ok_or(Reject::NoSuchUpload)?;
    conditions::check(&complete.conditions, current.as_ref())?;
    let stored = stored_parts(view, body)?;
    let index = part_index(&stored, &complete.parts)?;
    let size = index.iter().map(|part| part.bytes).sum();
    if size > OBJECT_BYTES_MAX {
        return Err(Reject::TooLarge.into());
    }
    write_index(view, body, &index);
    if stored.len() > index.len() {
        release::queue(view, body, ReleaseScope::UnnamedParts);
    }
    view.delete(upload_row);
    let modified_ms = modified::modified_ms(place, current.as_ref(), complete.modified_ms);
    let version =
        ObjectVersion { modified_ms, ..version_of(upload.clone(), complete, place, size, index.len()) };
    replace_current(view, place, current, Some(&upload), &version, QuotaCheck::Enforced)
}

fn version_of(
    upload: Upload,
    complete: &CompleteUpload,
    place: ObjectTarget<'_>,
    size: u64,
    parts: usize,
) -> ObjectVersion {
    ObjectVersion {
        seq: place.seq.0,
        body_id: upload.body_id,
        size,
        modified_ms: complete.modified_ms,
        etag: complete.etag.clone(),
        versioned: false,
        delete_marker: false,
        headers: [upload.headers, complete.headers.clone()].concat(),
        metadata: upload.metadata,
        tags: upload.tags,
        checksums: complete.checksums.clone(),
        storage_class: upload.storage_class,
        owner: upload.owner,
        extents: Vec::new(),
        part_count: u32::try_from(parts).unwrap_or(u32::MAX),
        encryption: upload.encryption,
        retention: upload.retention,
        legal_hold: upload.legal_hold,
        imported: None,
        payer: upload.payer,
        etag_kind: 0,
        tag_count: 0,
    }
}

/// Number, sequence number and length of a stored part.
type StoredPart = (u32, u64, u64);

fn stored_parts(view: &View<'_>, body: BodyId) -> Result<Vec<StoredPart>, ApplyError> {
    let rows = view.range(&part::rows_start(body), &part::rows_end(body), PART_NUMBER_MAX as usize)?;
    let mut parts = Vec::with_capacity(rows.len());
    for (row, value) in rows {
        let (_, number) = part::key_of(&row)?;
        let part: PartRecord = decode(&value)?;
        parts.push((u32::from(number.get()), part.seq, part.size));
    }
    Ok(parts)
}

/// The part index, if the named parts are stored, unchanged, in order and large enough.
fn part_index(stored: &[StoredPart], named: &[NamedPart]) -> Result<Vec<PartRange>, ApplyError> {
    if named.is_empty() {
        return Err(malformed("the complete command names no part"));
    }
    let mut index = Vec::with_capacity(named.len());
    let mut before = 0;
    for (at, part) in named.iter().enumerate() {
        let invalid = Reject::InvalidPart { number: part.number };
        if part.number <= before {
            return Err(invalid.into());
        }
        before = part.number;
        let found = stored.binary_search_by_key(&part.number, |stored| stored.0);
        let &(number, seq, bytes) = found.ok().and_then(|at| stored.get(at)).ok_or(invalid.clone())?;
        if seq != part.seq {
            return Err(invalid.into());
        }
        if bytes < PART_BYTES_MIN && at + 1 < named.len() {
            return Err(Reject::PartTooSmall { number, size: bytes }.into());
        }
        index.push(PartRange { number, bytes });
    }
    Ok(index)
}

fn write_index(view: &mut View<'_>, body: BodyId, index: &[PartRange]) {
    let mut first = 0;
    for parts in index.chunks(EXTENT_PAGE_ENTRIES_MAX) {
        let page = ExtentPage { extents: Vec::new(), parts: parts.to_vec() };
        view.put(extent::row(body, first), &page);
        first += page.logical_bytes();
    }
}

pub(super) fn abort(
    view: &mut View<'_>,
    place: ObjectTarget<'_>,
    abort: AbortUpload,
) -> Result<Reply, ApplyError> {
    let body = BodyId(abort.body_id);
    let row = upload::row(place.bucket, place.key, body);
    let upload: Upload = view.get(&row)?.ok_or(Reject::NoSuchUpload)?;
    view.delete(row);
    release::queue(view, body, ReleaseScope::Whole);
    usage::charge(view, place, &[ChargedUsage::of_upload(&upload)], &[], QuotaCheck::Enforced)?;
    Ok(Reply::Done)
}

#[cfg(test)]
mod tests {
    use crate::apply::{apply, seq_of};
    use crate::catalogue::testing::{delete, put, version};
    use crate::view::{MemoryRows, View};
    use mlgw_common::BodyId;
    use mlgw_formats::command::{
        Change, Command, CompleteUpload, CreateUpload, MirrorBucket, NamedPart, ObjectChange, ObjectCommand,
        PutPart, Reject, Reply,
    };
    use mlgw_formats::schema::{PartRecord, Upload};

    /// The body of the upload.
    const BODY: u64 = 2;

    /// A key of a bucket, and the index of the last command.
    struct UploadedKey {
        rows: MemoryRows,
        index: u64,
    }

    impl UploadedKey {
        fn apply(&mut self, change: Change) -> Result<Reply, Reject> {
            self.index += 1;
            let mut view = View::new(&self.rows);
            let reply = apply(&mut view, &Command::from(change), seq_of(self.index, 0)).unwrap();
            let (changes, _) = view.into_changes();
            self.rows.write(changes);
            reply
        }

        fn change(&mut self, change: ObjectChange) -> Result<Reply, Reject> {
            let (key, change) = ("k".to_owned(), Some(change));
            let on = ObjectCommand { bucket_id: 1, epoch: 1, key, change, ..ObjectCommand::default() };
            self.apply(Change::Object(on))
        }

        /// Returns a key with a completed upload, the command that completed it, and the reply to that.
        fn completed() -> (Self, ObjectChange, Reply) {
            let mut key = Self { rows: MemoryRows::default(), index: 0 };
            let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
            key.apply(Change::MirrorBucket(mirror)).unwrap();
            let upload = Upload { body_id: BODY, key: "k".into(), ..Upload::default() };
            key.change(ObjectChange::CreateUpload(CreateUpload { upload })).unwrap();
            let extents = version(BodyId(BODY), 7).extents;
            let part = PartRecord { size: 7, extents, ..PartRecord::default() };
            let put = ObjectChange::PutPart(PutPart { body_id: BODY, number: 1, part });
            let Ok(Reply::Part { seq }) = key.change(put) else { panic!("the part is stored") };
            let parts = vec![NamedPart { number: 1, seq }];
            let complete =
                CompleteUpload { body_id: BODY, parts, modified_ms: 5, ..CompleteUpload::default() };
            let complete = ObjectChange::CompleteUpload(complete);
            let reply = key.change(complete.clone()).unwrap();
            (key, complete, reply)
        }
    }

    #[test]
    fn a_repeated_complete_has_the_same_reply_and_changes_nothing_while_its_object_is_current() {
        let (mut key, complete, reply) = UploadedKey::completed();
        let rows = key.rows.clone();
        for _ in 0..3 {
            assert_eq!(key.change(complete.clone()), Ok(reply.clone()));
            assert_eq!(key.rows, rows);
        }
    }

    #[test]
    fn a_repeated_complete_undoes_no_later_write_and_no_later_delete() {
        for later in [put(version(BodyId(3), 1)), delete()] {
            let (mut key, complete, _) = UploadedKey::completed();
            key.change(later).unwrap();
            let rows = key.rows.clone();
            assert_eq!(key.change(complete), Err(Reject::NoSuchUpload));
            assert_eq!(key.rows, rows);
        }
    }
}
