//! Write-through to the origin: a write is acknowledged when the origin has it.
//!
//! Invariants: the known metadata of a key expires at the moment a write of it begins, and is forgotten
//! before the write is acknowledged, so that a later read contacts the origin. A write whose response proves
//! nothing is acknowledged after a HEAD that shows it. A write that was cancelled or whose outcome is unknown
//! may have been executed.

use super::CachedBucket;
use super::write_order::{OriginWriteOutcome, WriteTicket};
use crate::copies::is_same_version;
use crate::writeback::record::{WRITE_MARK_HEADER, WRITE_MARK_NAME};
use bytes::Bytes;
use http::HeaderMap;
use mlgw_common::ObjectKey;
use mlgw_formats::schema::{CopyRecord, ObjectVersion, Pair};
use mlgw_remote::origin::{
    CreatedOriginUpload, OriginContent, OriginCopyReceipt, OriginDocument, OriginError, OriginUploadRef,
    OriginWriteReceipt, PartPage, UploadPage, UploadsQuery,
};
use std::sync::Arc;
use std::time::Duration;

/// Status by which a proxy before an origin reports that the origin did not answer in time.
const GATEWAY_TIMEOUT: u16 = 504;

impl CachedBucket {
    /// Writes a whole object.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn put(
        &self,
        key: &ObjectKey,
        headers: &HeaderMap,
        content: OriginContent,
    ) -> Result<OriginWriteReceipt, OriginError> {
        let change = self.begin_change(key);
        let length = content.length();
        let sent = self.origin.put(&self.origin_key(key), headers, content).await;
        change.end(match sent {
            Ok(written) if written.is_unproven => {
                let etag = written.etag().unwrap_or_default();
                let mark = headers.get(WRITE_MARK_HEADER).and_then(|mark| mark.to_str().ok());
                let expected = ExpectedObject { etag: &etag, length: Some(length), mark };
                self.confirm(key, &expected).await.map(|()| written)
            }
            other => other,
        })
    }

    /// Checks that the origin shows the object that it acknowledged.
    ///
    /// # Errors
    /// [`OriginError::Unconfirmed`] if it does not, or cannot be reached.
    async fn confirm(&self, key: &ObjectKey, expected: &ExpectedObject<'_>) -> Result<(), OriginError> {
        let unconfirmed = |why: String| Err(OriginError::Unconfirmed(why));
        let found = match self.origin.head(&self.origin_key(key)).await {
            Ok(found) => found,
            Err(OriginError::NoSuchKey) => {
                return unconfirmed("the object does not exist after the write".to_owned());
            }
            Err(error) => return unconfirmed(format!("the check after the write failed: {error}")),
        };
        match expected.difference(&found) {
            None => Ok(()),
            Some(difference) => unconfirmed(format!("after the write the object has {difference}")),
        }
    }

    /// Deletes an object. A missing object is no error.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn delete(
        &self,
        key: &ObjectKey,
        headers: &HeaderMap,
    ) -> Result<OriginWriteReceipt, OriginError> {
        let change = self.begin_change(key);
        change.end(self.origin.delete(&self.origin_key(key), headers).await)
    }

    /// Returns the metadata at the origin, regardless of local metadata.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn head_origin(&self, key: &ObjectKey) -> Result<ObjectVersion, OriginError> {
        self.origin.head(&self.origin_key(key)).await
    }

    /// Returns the time for which the origin may still execute a write of the key that it did not answer in
    /// time. Such a write would undo one that is sent now.
    #[must_use]
    pub fn unanswered_for(&self, key: &ObjectKey) -> Option<Duration> {
        self.inner.write_order.unanswered_for(self.id, key, self.inner.clock.now())
    }

    /// True if both buckets have the same upstream, so that one can be copied to the other there.
    #[must_use]
    pub fn has_same_upstream(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.origin, &other.origin)
    }

    /// Copies an object of a bucket with the same upstream.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn copy(
        &self,
        key: &ObjectKey,
        from: &Self,
        source: &ObjectKey,
        headers: &HeaderMap,
    ) -> Result<OriginCopyReceipt, OriginError> {
        let change = self.begin_change(key);
        change.end(self.origin.copy(&self.origin_key(key), &from.origin_key(source), headers).await)
    }

    /// Returns the tags of an object.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn tags(&self, key: &ObjectKey) -> Result<Vec<Pair>, OriginError> {
        self.origin.tags(&self.origin_key(key)).await
    }

    /// Replaces the tags of an object. Of the local metadata only the number of tags changes.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn set_tags(&self, key: &ObjectKey, tags: &[Pair]) -> Result<(), OriginError> {
        // Nothing becomes valid by it, so late writes of another node do not matter.
        let ticket = self.own_writes_ticket(key);
        let set = self.origin.set_tags(&self.origin_key(key), tags).await;
        self.inner.rebinding.record_write(self.id, key);
        let count = set.is_ok().then_some(tags.len()).and_then(|count| u32::try_from(count).ok());
        self.record_tag_count(key, count, ticket);
        set
    }

    /// Records the number of tags of an object; if it is unknown, the metadata is marked as expired. If the
    /// key was written meanwhile, nothing is recorded, because the new object has its own tags.
    fn record_tag_count(&self, key: &ObjectKey, count: Option<u32>, ticket: WriteTicket) {
        self.inner.write_order.apply(ticket, self.id, key, self.inner.clock.now(), |holds| {
            let Some(mut copy) = self.inner.copies.find(self.id, key).filter(|_| holds) else { return };
            match count {
                Some(count) => copy.object.tag_count = count,
                None => copy.validated_ms = 0,
            }
            self.inner.copies.record_metadata(self.id, key, copy);
        });
    }

    /// Returns the locally known ETag of an object, whatever its age.
    #[must_use]
    pub fn known_etag(&self, key: &ObjectKey) -> Option<String> {
        self.inner.copies.find(self.id, key).map(|copy| copy.object.etag)
    }

    /// Returns the answer to GetObjectAttributes.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn attributes(
        &self,
        key: &ObjectKey,
        headers: &HeaderMap,
    ) -> Result<OriginDocument, OriginError> {
        self.origin.attributes(&self.origin_key(key), headers).await
    }

    /// Creates a multipart upload.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn create_upload(
        &self,
        key: &ObjectKey,
        headers: &HeaderMap,
    ) -> Result<CreatedOriginUpload, OriginError> {
        self.origin.create_upload(&self.origin_key(key), headers).await
    }

    /// Writes a part of the upload `id`.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn put_part(
        &self,
        key: &ObjectKey,
        id: &str,
        number: u32,
        headers: &HeaderMap,
        content: OriginContent,
    ) -> Result<OriginWriteReceipt, OriginError> {
        let upload = OriginUploadRef { key: &self.origin_key(key), id };
        self.origin.put_part(upload, number, headers, content).await
    }

    /// Writes part `number` of the upload `id` as a copy from a bucket with the same upstream.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn copy_part(
        &self,
        key: &ObjectKey,
        id: &str,
        number: u32,
        from: &Self,
        source: &ObjectKey,
        headers: &HeaderMap,
    ) -> Result<OriginCopyReceipt, OriginError> {
        let upload = OriginUploadRef { key: &self.origin_key(key), id };
        self.origin.copy_part(upload, number, &from.origin_key(source), headers).await
    }

    /// Completes the upload `id` from the parts that a CompleteMultipartUpload document names.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn complete(
        &self,
        key: &ObjectKey,
        id: &str,
        headers: &HeaderMap,
        document: Bytes,
    ) -> Result<OriginCopyReceipt, OriginError> {
        let change = self.begin_change(key);
        let there = self.origin_key(key);
        let made = self.origin.complete(OriginUploadRef { key: &there, id }, headers, document).await;
        change.end(match made {
            // The ETag of a multipart object is opaque.
            Ok(made) => {
                let expected = ExpectedObject { etag: &made.etag, length: None, mark: None };
                self.confirm(key, &expected).await.map(|()| made)
            }
            other => other,
        })
    }

    /// Aborts the upload `id`; its parts are discarded.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn abort(&self, key: &ObjectKey, id: &str) -> Result<(), OriginError> {
        self.origin.abort(OriginUploadRef { key: &self.origin_key(key), id }).await
    }

    /// Lists parts of the upload `id` whose number is greater than `after`.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn list_parts(
        &self,
        key: &ObjectKey,
        id: &str,
        after: u32,
        max: usize,
    ) -> Result<PartPage, OriginError> {
        self.origin.list_parts(OriginUploadRef { key: &self.origin_key(key), id }, after, max).await
    }

    /// Lists multipart uploads in progress.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn list_uploads(&self, mut query: UploadsQuery) -> Result<UploadPage, OriginError> {
        let there = |name: &str| format!("{}{name}", self.prefix);
        query.keys.prefix = there(&query.keys.prefix);
        if !query.keys.start_after.is_empty() {
            query.keys.start_after = there(&query.keys.start_after);
        }
        let mut page = self.origin.list_uploads(&query).await?;
        let keys = page.uploads.iter_mut().map(|upload| &mut upload.key);
        let next = page.next.iter_mut().map(|(key, _)| key);
        for name in keys.chain(&mut page.groups).chain(next) {
            let here = name.strip_prefix(&*self.prefix).map(str::to_owned);
            *name = here.ok_or_else(|| {
                OriginError::InvalidResponse(format!("{name:?} does not begin with {:?}", self.prefix))
            })?;
        }
        Ok(page)
    }

    /// Begins a write of a key.
    fn begin_change(&self, key: &ObjectKey) -> WriteInFlight<'_> {
        let inner = &self.inner;
        let (ticket, known) = inner.write_order.begin(self.id, key, || {
            inner.absent.remove(&(self.id, key.clone()));
            let known = inner.copies.find(self.id, key)?;
            inner.copies.record_metadata(self.id, key, CopyRecord { validated_ms: 0, ..known.clone() });
            Some(known)
        });
        WriteInFlight {
            bucket: self,
            key: key.clone(),
            ticket,
            known_before: known,
            outcome: OriginWriteOutcome::Unknown,
        }
    }
}

/// Properties that the origin must show after a write that its response does not prove.
struct ExpectedObject<'a> {
    /// ETag of the response.
    etag: &'a str,
    /// Length of the bytes sent, if known.
    length: Option<u64>,
    /// Mark sent with the write, if any.
    mark: Option<&'a str>,
}

impl ExpectedObject<'_> {
    /// Describes the first difference between an object and the expectation.
    fn difference(&self, found: &ObjectVersion) -> Option<String> {
        let mark =
            found.metadata.iter().find(|pair| pair.name == WRITE_MARK_NAME).map(|pair| pair.value.as_str());
        if let Some(length) = self.length.filter(|length| *length != found.size) {
            return Some(format!("{} bytes instead of {length}", found.size));
        }
        if self.mark.is_some() && mark != self.mark {
            return Some("another write mark or none".to_owned());
        }
        // An object with the mark is this very write, whatever its ETag is.
        let is_other = self.mark.is_none() && found.etag != self.etag;
        is_other.then(|| format!("the ETag {:?} instead of {:?}", found.etag, self.etag))
    }
}

/// Write in flight. Dropping it means that it was cancelled and may have been executed.
struct WriteInFlight<'a> {
    bucket: &'a CachedBucket,
    key: ObjectKey,
    ticket: WriteTicket,
    /// Metadata known when the write began.
    known_before: Option<CopyRecord>,
    outcome: OriginWriteOutcome,
}

impl WriteInFlight<'_> {
    /// Ends the write with this result.
    fn end<T>(mut self, done: Result<T, OriginError>) -> Result<T, OriginError> {
        self.outcome = match &done {
            Ok(_) => OriginWriteOutcome::Done,
            Err(error) if error.is_undone() => OriginWriteOutcome::Refused,
            Err(OriginError::TimedOut | OriginError::Failed(GATEWAY_TIMEOUT)) => {
                OriginWriteOutcome::Unanswered
            }
            Err(_) => OriginWriteOutcome::Unknown,
        };
        done
    }
}

impl Drop for WriteInFlight<'_> {
    fn drop(&mut self) {
        let CachedBucket { inner, id, .. } = self.bucket;
        let now = inner.clock.now();
        inner.rebinding.record_write(*id, &self.key);
        inner.write_order.end(self.ticket, *id, &self.key, self.outcome, now, |changed| match changed {
            true => {
                inner.copies.forget(*id, &self.key);
                inner.absent.remove(&(*id, self.key.clone()));
            }
            false => self.restore(),
        });
    }
}

impl WriteInFlight<'_> {
    /// Restores the validity of the earlier metadata, for its remaining time, unless the origin has reported
    /// another version since.
    fn restore(&self) {
        let CachedBucket { inner, id, .. } = self.bucket;
        let Some(known) = &self.known_before else { return };
        let now_known = inner.copies.find(*id, &self.key);
        let Some(copy) = now_known.filter(|copy| is_same_version(&copy.object, &known.object)) else {
            return;
        };
        let validated_ms = known.validated_ms.max(copy.validated_ms);
        inner.copies.record_metadata(*id, &self.key, CopyRecord { validated_ms, ..copy });
    }
}
