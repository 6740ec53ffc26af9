//! Write-through to the origin: a write is acknowledged when the origin has it.
//!
//! Invariants: the known metadata of a key expires at the moment a write of it begins, and is forgotten
//! before the write is acknowledged, so that a later read contacts the origin. A write whose response proves
//! nothing is acknowledged after a HEAD that shows it. A write that was cancelled or whose outcome is unknown
//! may have been executed.

use super::BoundBucket;
use super::order::{Outcome, Ticket};
use crate::copies::is_same;
use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use mlgw_common::ObjectKey;
use mlgw_formats::schema::{Copy, ObjectVersion, Pair};
use mlgw_remote::origin::{
    Begun, Content, Document, Made, OriginError, PartPage, UploadOf, UploadPage, UploadsQuery, Written,
};
use std::sync::Arc;

/// Header of the mark of a write to a bucket in write-back mode; the mark is stored as user metadata.
pub const MARK_HEADER: HeaderName = HeaderName::from_static("x-amz-meta-mlgw-write");
/// User metadata name of [`MARK_HEADER`].
pub const MARK: &str = "mlgw-write";

impl BoundBucket {
    /// Writes a whole object.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn put(
        &self,
        key: &ObjectKey,
        headers: &HeaderMap,
        content: Content,
    ) -> Result<Written, OriginError> {
        let change = self.change(key);
        let length = content.length();
        let sent = self.origin.put(&self.there(key), headers, content).await;
        change.end(match sent {
            Ok(written) if written.is_unproven => {
                let etag = written.etag().unwrap_or_default();
                let mark = headers.get(MARK_HEADER).and_then(|mark| mark.to_str().ok());
                let expected = Expected { etag: &etag, length: Some(length), mark };
                self.confirm(key, &expected).await.map(|()| written)
            }
            other => other,
        })
    }

    /// Checks that the origin shows the object that it acknowledged.
    ///
    /// # Errors
    /// [`OriginError::Unconfirmed`] if it does not, or cannot be reached.
    async fn confirm(&self, key: &ObjectKey, expected: &Expected<'_>) -> Result<(), OriginError> {
        let unconfirmed = |why: String| Err(OriginError::Unconfirmed(why));
        let found = match self.origin.head(&self.there(key)).await {
            Ok(found) => found,
            Err(OriginError::NoSuchKey) => return unconfirmed("it has no such object after it".to_owned()),
            Err(error) => return unconfirmed(format!("it could not be asked whether it has it: {error}")),
        };
        match expected.difference(&found) {
            None => Ok(()),
            Some(difference) => unconfirmed(format!("what it shows after it has {difference}")),
        }
    }

    /// Deletes an object. A missing object is no error.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn delete(&self, key: &ObjectKey, headers: &HeaderMap) -> Result<Written, OriginError> {
        let change = self.change(key);
        change.end(self.origin.delete(&self.there(key), headers).await)
    }

    /// Returns the metadata at the origin, regardless of local metadata.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn look(&self, key: &ObjectKey) -> Result<ObjectVersion, OriginError> {
        self.origin.head(&self.there(key)).await
    }

    /// True if both buckets have the same upstream, so that one can be copied to the other there.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
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
    ) -> Result<Made, OriginError> {
        let change = self.change(key);
        change.end(self.origin.copy(&self.there(key), &from.there(source), headers).await)
    }

    /// Returns the tags of an object.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn tags(&self, key: &ObjectKey) -> Result<Vec<Pair>, OriginError> {
        self.origin.tags(&self.there(key)).await
    }

    /// Replaces the tags of an object. Of the local metadata only the number of tags changes.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn set_tags(&self, key: &ObjectKey, tags: &[Pair]) -> Result<(), OriginError> {
        let ticket = self.ticket(key);
        let set = self.origin.set_tags(&self.there(key), tags).await;
        self.inner.moving.note(self.id, key);
        let count = set.is_ok().then_some(tags.len()).and_then(|count| u32::try_from(count).ok());
        self.note_tag_count(key, count, ticket);
        set
    }

    /// Records the number of tags of an object; if it is unknown, the metadata is marked as expired. If the
    /// key was written meanwhile, nothing is recorded, because the new object has its own tags.
    fn note_tag_count(&self, key: &ObjectKey, count: Option<u32>, ticket: Ticket) {
        self.inner.order.with(ticket, self.id, key, self.inner.clock.now(), |holds| {
            let Some(mut copy) = self.inner.copies.find(self.id, key).filter(|_| holds) else { return };
            match count {
                Some(count) => copy.object.tag_count = count,
                None => copy.validated_ms = 0,
            }
            self.inner.copies.note(self.id, key, copy);
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
    pub async fn attributes(&self, key: &ObjectKey, headers: &HeaderMap) -> Result<Document, OriginError> {
        self.origin.attributes(&self.there(key), headers).await
    }

    /// Creates a multipart upload.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn create_upload(&self, key: &ObjectKey, headers: &HeaderMap) -> Result<Begun, OriginError> {
        self.origin.create_upload(&self.there(key), headers).await
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
        content: Content,
    ) -> Result<Written, OriginError> {
        let upload = UploadOf { key: &self.there(key), id };
        self.origin.put_part(upload, number, headers, content).await
    }

    /// Writes a part of the upload `id` as a copy from a bucket with the same upstream.
    ///
    /// # Errors
    /// The errors of the origin.
    pub async fn copy_part(
        &self,
        (key, id, number): (&ObjectKey, &str, u32),
        from: &Self,
        source: &ObjectKey,
        headers: &HeaderMap,
    ) -> Result<Made, OriginError> {
        let upload = UploadOf { key: &self.there(key), id };
        self.origin.copy_part(upload, number, &from.there(source), headers).await
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
    ) -> Result<Made, OriginError> {
        let change = self.change(key);
        let there = self.there(key);
        let made = self.origin.complete(UploadOf { key: &there, id }, headers, document).await;
        change.end(match made {
            // The ETag of a multipart object is opaque.
            Ok(made) => {
                let expected = Expected { etag: &made.etag, length: None, mark: None };
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
        self.origin.abort(UploadOf { key: &self.there(key), id }).await
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
        self.origin.list_parts(UploadOf { key: &self.there(key), id }, after, max).await
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
                OriginError::Nonsense(format!("{name:?} does not begin with {:?}", self.prefix))
            })?;
        }
        Ok(page)
    }

    /// Begins a write of a key.
    fn change(&self, key: &ObjectKey) -> Change<'_> {
        let inner = &self.inner;
        let (ticket, known) = inner.order.begin(self.id, key, || {
            inner.absent.remove(&(self.id, key.clone()));
            let known = inner.copies.find(self.id, key)?;
            inner.copies.note(self.id, key, Copy { validated_ms: 0, ..known.clone() });
            Some(known)
        });
        Change { bucket: self, key: key.clone(), ticket, known, outcome: Outcome::Unknown }
    }
}

/// Properties that the origin must show after a write that its response does not prove.
struct Expected<'a> {
    /// ETag of the response.
    etag: &'a str,
    /// Length of the bytes sent, if known.
    length: Option<u64>,
    /// Mark sent with the write, if any.
    mark: Option<&'a str>,
}

impl Expected<'_> {
    /// Describes the first difference between an object and the expectation.
    fn difference(&self, found: &ObjectVersion) -> Option<String> {
        let mark = found.metadata.iter().find(|pair| pair.name == MARK).map(|pair| pair.value.as_str());
        if let Some(length) = self.length.filter(|length| *length != found.size) {
            return Some(format!("{} bytes instead of {length}", found.size));
        }
        if self.mark.is_some() && mark != self.mark {
            return Some("another mark or none".to_owned());
        }
        // An object with the mark is this very write, whatever its ETag is.
        let is_other = self.mark.is_none() && found.etag != self.etag;
        is_other.then(|| format!("the ETag {:?} instead of {:?}", found.etag, self.etag))
    }
}

/// Write in flight. Dropping it means that it was cancelled and may have been executed.
struct Change<'a> {
    bucket: &'a BoundBucket,
    key: ObjectKey,
    ticket: Ticket,
    /// Metadata known when the write began.
    known: Option<Copy>,
    outcome: Outcome,
}

impl Change<'_> {
    /// Ends the write with this result.
    fn end<T>(mut self, done: Result<T, OriginError>) -> Result<T, OriginError> {
        self.outcome = match &done {
            Ok(_) => Outcome::Done,
            Err(error) if error.is_undone() => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        };
        done
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let BoundBucket { inner, id, .. } = self.bucket;
        let now = inner.clock.now();
        inner.moving.note(*id, &self.key);
        inner.order.end(self.ticket, (*id, &self.key), self.outcome, now, |changed| match changed {
            true => {
                inner.copies.forget(*id, &self.key);
                inner.absent.remove(&(*id, self.key.clone()));
            }
            false => self.restore(),
        });
    }
}

impl Change<'_> {
    /// Restores the validity of the earlier metadata, for its remaining time, unless the origin has reported
    /// another version since.
    fn restore(&self) {
        let BoundBucket { inner, id, .. } = self.bucket;
        let Some(known) = &self.known else { return };
        let now_known = inner.copies.find(*id, &self.key);
        let Some(copy) = now_known.filter(|copy| is_same(&copy.object, &known.object)) else { return };
        let validated_ms = known.validated_ms.max(copy.validated_ms);
        inner.copies.note(*id, &self.key, Copy { validated_ms, ..copy });
    }
}
