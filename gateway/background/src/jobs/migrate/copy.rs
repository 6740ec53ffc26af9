//! Copies one key from the old origin to the new one.
//!
//! Bytes are streamed from one origin to the other. The digests that the old origin states, an MD5 or a
//! checksum of the whole object, are sent along, so that the new origin accepts no other bytes. Where the new
//! origin assigns another ETag, the copy carries the old ETag in its mark, so that readers see no change.
//!
//! At any time the new origin has either one complete version under a key or none.

use crate::writeback::add_digests;
use backon::{BackoffBuilder as _, ExponentialBuilder, Retryable as _};
use bytes::BytesMut;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use md5::{Digest as _, Md5};
use mlgw_cache::writeback::record::{Timelines, WriteMark, unmarked};
use mlgw_common::hex;
use mlgw_common::limits::{PART_BYTES_MIN, PART_NUMBER_MAX};
use mlgw_formats::schema::{Bucket, EtagKind, ObjectVersion, Pair};
use mlgw_remote::origin::{
    GetQuery, ListQuery, ObjectPart, Origin, OriginBody, OriginContent, OriginError, OriginObject,
    OriginUploadRef, Streamed, UploadsQuery, complete_document,
};
use mlgw_wire::origin_headers::OriginHeaders;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Size above which objects are sent in parts, and the smallest size of a part.
const PART_BYTES: u64 = 64 << 20;
/// Maximum number of parts of an object: fewer than S3 allows.
const PARTS_MAX: u64 = 9_000;
/// Parts of an object sent in parallel.
const PARTS_AT_ONCE: usize = 4;
/// Size up to which objects are buffered in memory, so that they can be sent again.
const WHOLE_BYTES_MAX: u64 = 1 << 20;
/// Waits before the seven retries of a key: 0.2, 0.4, … 6.4 s.
const WAITS: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(200))
    .with_max_delay(Duration::from_millis(6400))
    .with_max_times(7);
/// Consecutive digest mismatches after which the ETag does not count as an MD5. Flipped bits would differ
/// between attempts.
const DIGEST_MISMATCHES_MAX: u32 = 3;

const _: () = assert!(PARTS_MAX <= PART_NUMBER_MAX as u64, "every part has a number that S3 allows");
const _: () = assert!(PART_BYTES >= PART_BYTES_MIN, "no part is smaller than S3 allows");

/// Uploads on a page.
const PAGE_UPLOADS: usize = 1000;

/// An origin, restricted to the keys with a prefix.
#[derive(Clone)]
pub(super) struct MigrationSide {
    pub(super) origin: Arc<dyn Origin>,
    pub(super) prefix: String,
}

impl MigrationSide {
    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Aborts all uploads below the prefix. At the target of a migration these are leftovers of an earlier
    /// run, because there is no other writer.
    pub(super) async fn abort_uploads(&self) -> Result<(), OriginError> {
        let keys = ListQuery { prefix: self.prefix.clone(), max_keys: PAGE_UPLOADS, ..ListQuery::default() };
        let mut query = UploadsQuery { keys, ..UploadsQuery::default() };
        loop {
            let page = match self.origin.list_uploads(&query).await {
                // An origin without this operation has no uploads to abort.
                Err(OriginError::Refused { status: 501, .. }) => return Ok(()),
                page => page?,
            };
            for upload in &page.uploads {
                self.origin.abort(OriginUploadRef { key: &upload.key, id: &upload.id }).await?;
            }
            let Some((key, id)) = page.next.filter(|_| !page.uploads.is_empty()) else { return Ok(()) };
            // The next page begins after these uploads: an origin may list aborted ones for a while.
            (query.keys.start_after, query.id_marker) = (key, id);
        }
    }
}

/// Copies objects from one origin to another.
pub(super) struct MigrationCopier {
    pub(super) from: MigrationSide,
    pub(super) to: MigrationSide,
    pub(super) bucket: Arc<Bucket>,
    /// The incarnation that marks objects, and the earlier ones.
    pub(super) timelines: Arc<Timelines>,
    /// True if every object gets a mark, as write-back buckets require to recognize their own writes.
    pub(super) marks_all: bool,
    /// True once an object was found whose ETag looks like an MD5 and is none; other objects then need fewer
    /// futile attempts.
    pub(super) has_opaque_etags: AtomicBool,
}

/// Result of copying a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MigrationCopyOutcome {
    /// The copy was identical already.
    Same,
    /// The object was copied.
    Moved {
        /// Bytes of the object.
        bytes: u64,
    },
    /// The object is gone at the old origin, and was deleted at the new one.
    Deleted,
}

/// Parameters of sending an object.
#[derive(Clone, Copy)]
struct MigrationSendMethod {
    /// True to send a mark with the object's ETag.
    marked: bool,
    /// MD5 to send, computed from an earlier read; if absent, the object's ETag, if that may be an MD5.
    md5: Option<[u8; 16]>,
    /// Number of digest mismatches reported by the new origin.
    mismatches: u32,
}

impl MigrationCopier {
    /// Copies a key, unless the listed versions indicate that the copy is identical.
    pub(super) async fn compare(
        &self,
        key: &str,
        from: &ObjectVersion,
        to: Option<&ObjectVersion>,
    ) -> Result<MigrationCopyOutcome, OriginError> {
        // A copy that is older than the object is stale.
        let Some(to) = to.filter(|to| to.size == from.size && to.modified_ms >= from.modified_ms) else {
            return self.copy(key).await;
        };
        let is_same = (|| self.is_same(key, from, to)).retry(WAITS).when(OriginError::is_transient);
        if is_same.await? { Ok(MigrationCopyOutcome::Same) } else { self.copy(key).await }
    }

    /// Returns true if objects with equal listings are identical.
    async fn is_same(
        &self,
        key: &str,
        from: &ObjectVersion,
        to: &ObjectVersion,
    ) -> Result<bool, OriginError> {
        let (here, there) = (self.from.key(key), self.to.key(key));
        if from.etag != to.etag || self.marks_all {
            let shown = match self.from.origin.head(&here).await {
                Ok(object) => unmarked(&object).map_or(object.etag, |shown| shown.etag),
                Err(OriginError::NoSuchKey) => return Ok(false),
                Err(error) => return Err(error),
            };
            let copied = match self.to.origin.head(&there).await {
                Ok(object) => unmarked(&object).map(|shown| shown.etag),
                Err(OriginError::NoSuchKey) => return Ok(false),
                Err(error) => return Err(error),
            };
            if copied != Some(shown) {
                return Ok(false);
            }
        }
        Ok(tags(&*self.from.origin, &here).await? == tags(&*self.to.origin, &there).await?)
    }

    /// Copies the present state of a key.
    pub(super) async fn copy(&self, key: &str) -> Result<MigrationCopyOutcome, OriginError> {
        let mut how = MigrationSendMethod { marked: self.marks_all, md5: None, mismatches: 0 };
        let mut waits = WAITS.build();
        loop {
            let error = match self.try_copy(key, &mut how).await {
                Ok(Some(carried)) => {
                    self.has_opaque_etags.fetch_or(how.md5.is_some(), Relaxed);
                    return Ok(carried);
                }
                // The result differed from the object; the next attempt uses other parameters.
                Ok(None) => continue,
                Err(error) => error,
            };
            let is_other = matches!(&error, OriginError::Refused { code, .. } if code == "BadDigest");
            how.mismatches += u32::from(is_other);
            let refused_max = if self.has_opaque_etags.load(Relaxed) { 1 } else { DIGEST_MISMATCHES_MAX };
            if is_other && how.mismatches >= refused_max {
                // Origins that encrypt objects may state an MD5-like ETag that is no MD5. The digest is then
                // computed by two reads, which must agree.
                let (first, second) = (self.digest(key).await.ok(), self.digest(key).await.ok());
                how = MigrationSendMethod { marked: true, md5: first.filter(|_| first == second), ..how };
            }
            let is_repeated = error.is_transient() || error == OriginError::Changed || is_other;
            let Some(wait) = waits.next().filter(|_| is_repeated) else { return Err(error) };
            mlgw_common::time::sleep(wait).await;
        }
    }

    /// Attempts to copy a key; `None` if another attempt with changed parameters is required.
    async fn try_copy(
        &self,
        key: &str,
        how: &mut MigrationSendMethod,
    ) -> Result<Option<MigrationCopyOutcome>, OriginError> {
        let (here, there) = (self.from.key(key), self.to.key(key));
        let got = match self.from.origin.get(&here, &GetQuery::unconditional(ObjectPart::Whole)).await {
            Ok(got) => got,
            Err(OriginError::NoSuchKey) => {
                self.to.origin.delete(&there, &OriginHeaders::default()).await?;
                return Ok(Some(MigrationCopyOutcome::Deleted));
            }
            Err(error) => return Err(error),
        };
        let OriginObject { object, body, .. } = got;
        let shown = unmarked(&object).unwrap_or_else(|| object.clone());
        how.marked |= object.size > PART_BYTES || hex::decode::<16>(shown.etag.as_bytes()).is_none();
        let mut headers = OriginHeaders::default();
        let tags = tags(&*self.from.origin, &here).await?;
        let like = ObjectVersion { tags, ..shown.clone() };
        headers.describe(&like);
        if how.marked {
            WriteMark::of_moved_object(&self.bucket, &self.timelines, &object).put(&mut headers);
        }
        if object.size > PART_BYTES {
            drop(body);
            self.copy_large(&here, &there, &object, &headers).await?;
        } else {
            let etag = how.md5.map_or_else(|| object.etag.clone(), |md5| hex::text(&md5));
            // A computed MD5 is sent as such, no matter what kind of ETag the object has.
            let etag_kind = if how.md5.is_some() { EtagKind::Plain.into() } else { like.etag_kind };
            add_digests(&ObjectVersion { etag, etag_kind, ..like }, &mut headers);
            let content = content(body, object.size).await?;
            let written = self.to.origin.put(&there, &headers, content).await?;
            if !how.marked && written.etag().as_ref() != Some(&shown.etag) {
                how.marked = true;
                return Ok(None);
            }
        }
        Ok(Some(MigrationCopyOutcome::Moved { bytes: object.size }))
    }

    /// Returns the MD5 of the bytes that the old origin sends.
    async fn digest(&self, key: &str) -> Result<[u8; 16], OriginError> {
        let got =
            self.from.origin.get(&self.from.key(key), &GetQuery::unconditional(ObjectPart::Whole)).await?;
        let md5 = got.body.try_fold(Md5::new(), |md5, piece| async move { Ok(md5.chain_update(&piece)) });
        Ok(md5.await?.finalize().into())
    }

    /// Copies a large object in parts.
    async fn copy_large(
        &self,
        here: &str,
        there: &str,
        object: &ObjectVersion,
        headers: &OriginHeaders,
    ) -> Result<(), OriginError> {
        let id = self.to.origin.create_upload(there, headers).await?.id;
        let upload = OriginUploadRef { key: there, id: &id };
        let done = self.copy_parts(here, upload, object).await;
        if done.is_err() {
            // A failed abort is repeated at the end of the migration.
            let _ = self.to.origin.abort(upload).await;
        }
        done
    }

    async fn copy_parts(
        &self,
        here: &str,
        upload: OriginUploadRef<'_>,
        object: &ObjectVersion,
    ) -> Result<(), OriginError> {
        let parts = ranges(object.size).into_iter().zip(1..);
        let parts: Vec<_> =
            parts.map(|(range, number)| self.copy_part(here, upload, object, number, range)).collect();
        let etags: Vec<String> = stream::iter(parts).buffered(PARTS_AT_ONCE).try_collect().await?;
        assert_eq!(etags.len(), ranges(object.size).len(), "an upload completes with all of its parts");
        let parts = etags.iter().zip(1..).map(|(etag, number)| (number, etag.as_str(), Vec::new()));
        self.to.origin.complete(upload, &OriginHeaders::default(), complete_document(parts)).await?;
        Ok(())
    }

    /// Copies a part. Returns its ETag.
    async fn copy_part(
        &self,
        here: &str,
        upload: OriginUploadRef<'_>,
        object: &ObjectVersion,
        number: u32,
        range: Range<u64>,
    ) -> Result<String, OriginError> {
        let part = ObjectPart::Range { first: range.start, end: range.end };
        let query = GetQuery { if_match: Some(object.etag.clone()), ..GetQuery::unconditional(part) };
        let send = || async {
            let got = self.from.origin.get(here, &query).await?;
            if got.object.etag != object.etag || got.range != range {
                return Err(OriginError::Changed);
            }
            let content = content(got.body, range.end - range.start).await?;
            self.to.origin.put_part(upload, number, &OriginHeaders::default(), content).await
        };
        let written = send.retry(WAITS).when(OriginError::is_transient).await?;
        written
            .etag()
            .ok_or_else(|| OriginError::InvalidResponse("the response for a part has no ETag".to_owned()))
    }
}

/// Returns the tags of an object; empty if the origin does not support tags or the object is gone.
async fn tags(origin: &dyn Origin, key: &str) -> Result<Vec<Pair>, OriginError> {
    match origin.tags(key).await {
        Err(OriginError::Refused { status: 501, .. } | OriginError::NoSuchKey) => Ok(Vec::new()),
        tags => tags,
    }
}

/// Returns the content to send, buffered if it is small.
async fn content(body: OriginBody, bytes: u64) -> Result<OriginContent, OriginError> {
    if bytes > WHOLE_BYTES_MAX {
        return Ok(OriginContent::Streaming(Streamed { bytes, pieces: body, trailer: None }));
    }
    let whole: BytesMut = body
        .try_fold(BytesMut::new(), |mut whole, piece| async move {
            whole.extend_from_slice(&piece);
            Ok(whole)
        })
        .await?;
    if whole.len() as u64 != bytes {
        return Err(OriginError::Unreachable(format!("received {} of {bytes} bytes", whole.len())));
    }
    Ok(OriginContent::Whole(whole.freeze()))
}

/// Returns the byte ranges of the parts of an object.
fn ranges(bytes: u64) -> Vec<Range<u64>> {
    let part_bytes = bytes.div_ceil(PARTS_MAX).max(PART_BYTES);
    (0..bytes.div_ceil(part_bytes)).map(|n| n * part_bytes..((n + 1) * part_bytes).min(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::{ListQuery, MigrationSide, PART_BYTES, PARTS_MAX, ranges};
    use mlgw_formats::schema::ObjectVersion;
    use mlgw_remote::origin::{
        GetQuery, ListPage, Origin, OriginError, OriginFuture, OriginMetrics, OriginObject, OriginUploadRef,
        UploadLine, UploadPage, UploadsQuery,
    };
    use parking_lot::Mutex;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use std::sync::Arc;

    const UPLOADS: [&str; 5] = ["a", "b", "c", "d", "e"];

    /// An origin that lists two uploads a page, and aborted ones too.
    #[derive(Default)]
    struct StaleListing {
        aborted: Mutex<Vec<String>>,
    }

    impl Origin for StaleListing {
        fn list<'a>(&'a self, _: &'a ListQuery) -> OriginFuture<'a, ListPage> {
            Box::pin(async { Err(OriginError::NoSuchBucket) })
        }

        fn head<'a>(&'a self, _: &'a str) -> OriginFuture<'a, ObjectVersion> {
            Box::pin(async { Err(OriginError::NoSuchKey) })
        }

        fn get<'a>(&'a self, _: &'a str, _: &'a GetQuery) -> OriginFuture<'a, OriginObject> {
            Box::pin(async { Err(OriginError::NoSuchKey) })
        }

        fn name(&self) -> &str {
            "stale"
        }

        fn metrics(&self) -> OriginMetrics {
            OriginMetrics::default()
        }

        fn abort<'a>(&'a self, upload: OriginUploadRef<'a>) -> OriginFuture<'a, ()> {
            self.aborted.lock().push(upload.key.to_owned());
            assert!(self.aborted.lock().len() <= UPLOADS.len(), "an upload is aborted twice");
            Box::pin(async { Ok(()) })
        }

        fn list_uploads<'a>(&'a self, query: &'a UploadsQuery) -> OriginFuture<'a, UploadPage> {
            let begin = UPLOADS.partition_point(|key| **key <= *query.keys.start_after);
            let end = UPLOADS.len().min(begin + 2);
            let line = |key: &&str| UploadLine { key: (*key).to_owned(), ..UploadLine::default() };
            let uploads = UPLOADS[begin..end].iter().map(line).collect();
            let next = (end < UPLOADS.len()).then(|| (UPLOADS[end - 1].to_owned(), String::new()));
            Box::pin(async { Ok(UploadPage { uploads, next, ..UploadPage::default() }) })
        }
    }

    #[tokio::test]
    async fn each_upload_is_aborted_once_although_the_origin_lists_it_afterwards() {
        let origin = Arc::new(StaleListing::default());
        let side = MigrationSide { origin: origin.clone(), prefix: String::new() };
        side.abort_uploads().await.unwrap();
        assert_eq!(*origin.aborted.lock(), UPLOADS);
    }

    proptest! {
        #[test]
        fn parts_cover_an_object_and_are_not_too_many(bytes in PART_BYTES + 1..(5u64 << 40) + 1) {
            let parts = ranges(bytes);
            prop_assert!(parts.len() as u64 <= PARTS_MAX && parts.len() > 1);
            prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, bytes));
            for two in parts.windows(2) {
                prop_assert!(two[0].end == two[1].start && two[0].end - two[0].start >= PART_BYTES);
            }
        }
    }
}
