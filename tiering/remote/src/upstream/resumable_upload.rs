//! Multipart upload to an S3 store that can be resumed by its id, also after a crash.
//!
//! opendal does not expose the ids of its uploads, so these use the client of remote-backed buckets. The id
//! is recorded before the first part is sent. A resumed upload sends the parts that are missing: a part at
//! the store is kept if its length and its MD5 match the bytes here. If the ETags of a store are not MD5s,
//! all parts are sent again. Nothing here decides whether the object is correct: it is read back, as any
//! other.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use md5::{Digest as _, Md5};
use tokio::task::JoinSet;

use super::error::UpstreamFault;
use super::meter::UpstreamMeter;
use super::metrics::{UpstreamOp, UpstreamOutcome};
use super::throttle::ThrottleFuture;
use crate::origin::s3::S3Origin;
use crate::origin::{Origin as _, OriginContent, OriginError, OriginUploadRef, PartLine, complete_document};

/// Maximum number of parts of a listing page, as in S3.
const PAGE_PARTS: usize = 1000;

/// Upload to resume, if any, and the hook that records the id of a new one.
pub struct UploadResumption<'a> {
    /// Id of the upload that was begun for the same object before.
    pub upload_id: Option<String>,
    /// Records the id of a new upload before anything of it is sent. The id must survive a power failure when
    /// the future resolves.
    pub record_id: Box<dyn FnOnce(String) -> ThrottleFuture + Send + 'a>,
}

impl UploadResumption<'_> {
    /// Creates the state of an upload that resumes nothing and is never resumed.
    pub(super) fn never() -> Self {
        Self { upload_id: None, record_id: Box::new(|_| Box::pin(async { Ok(()) })) }
    }
}

/// Client of an S3 store.
#[derive(Clone)]
pub(super) struct ResumableUploads {
    pub(super) origin: Arc<S3Origin>,
    /// Prefix of all keys.
    pub(super) prefix: String,
}

/// Upload in progress. When dropped, it remains at the store.
pub(super) struct ResumableUpload {
    origin: Arc<S3Origin>,
    meter: Arc<UpstreamMeter>,
    target: Arc<UploadTarget>,
    /// Parts that were at the store when the upload was resumed.
    stored_parts: HashMap<u32, PartLine>,
    /// ETags of the parts that are complete.
    completed: BTreeMap<u32, String>,
    in_flight: JoinSet<Result<(u32, String), UpstreamFault>>,
    in_flight_max: usize,
    next_number: u32,
}

/// Key and id of an upload.
struct UploadTarget {
    key: String,
    id: String,
}

impl UploadTarget {
    fn upload_ref(&self) -> OriginUploadRef<'_> {
        OriginUploadRef { key: &self.key, id: &self.id }
    }
}

/// Reason why an upload was not begun.
pub(super) enum BeginUploadError {
    /// The store failed.
    Fault(UpstreamFault),
    /// The id could not be recorded.
    RecordId(io::Error),
}

impl ResumableUploads {
    /// Resumes an upload of the object `name`, or creates one.
    pub(super) async fn begin_or_resume(
        &self,
        meter: &Arc<UpstreamMeter>,
        name: &str,
        going_max: usize,
        resumed: UploadResumption<'_>,
    ) -> Result<ResumableUpload, BeginUploadError> {
        assert!(going_max > 0, "an upload sends at least one part at a time");
        let key = format!("{}{name}", self.prefix);
        let there = match resumed.upload_id {
            Some(id) => self
                .stored_parts(meter, UploadTarget { key: key.clone(), id })
                .await
                .map_err(BeginUploadError::Fault)?,
            None => None,
        };
        let (at, there) = match there {
            Some(found) => found,
            None => {
                let headers = HeaderMap::new();
                let begun =
                    metered(meter, UpstreamOp::Write, 0, self.origin.create_upload(&key, &headers)).await;
                let id =
                    begun.map_err(|error| BeginUploadError::Fault(UpstreamFault::from_origin(&error)))?.id;
                let at = UploadTarget { key, id };
                if let Err(error) = (resumed.record_id)(at.id.clone()).await {
                    // An upload whose id is not recorded would never be ended.
                    let _ = abort(&self.origin, meter, at.upload_ref()).await;
                    return Err(BeginUploadError::RecordId(error));
                }
                (at, HashMap::new())
            }
        };
        Ok(ResumableUpload {
            origin: self.origin.clone(),
            meter: meter.clone(),
            target: Arc::new(at),
            stored_parts: there,
            completed: BTreeMap::new(),
            in_flight: JoinSet::new(),
            in_flight_max: going_max,
            next_number: 1,
        })
    }

    /// Returns the parts of an upload; `None` if it cannot be resumed.
    async fn stored_parts(
        &self,
        meter: &Arc<UpstreamMeter>,
        at: UploadTarget,
    ) -> Result<Option<(UploadTarget, HashMap<u32, PartLine>)>, UpstreamFault> {
        let (mut there, mut after) = (HashMap::new(), 0);
        loop {
            let page = self.origin.list_parts(at.upload_ref(), after, PAGE_PARTS);
            let page = match metered(meter, UpstreamOp::List, 0, page).await {
                Ok(page) => page,
                Err(error) if error.is_transient() => return Err(UpstreamFault::from_origin(&error)),
                Err(error) => {
                    // The upload no longer exists, or may not be listed.
                    tracing::debug!(%error, key = at.key, "cannot resume an upload; starting it again");
                    let _ = abort(&self.origin, meter, at.upload_ref()).await;
                    return Ok(None);
                }
            };
            there.extend(page.parts.into_iter().map(|line| (line.number, line)));
            match page.next {
                Some(next) => after = next,
                None => return Ok(Some((at, there))),
            }
        }
    }

    /// Aborts an upload; a missing upload is no error.
    pub(super) async fn abort(
        &self,
        meter: &Arc<UpstreamMeter>,
        name: &str,
        id: &str,
    ) -> Result<(), UpstreamFault> {
        let key = format!("{}{name}", self.prefix);
        abort(&self.origin, meter, OriginUploadRef { key: &key, id }).await
    }
}

impl ResumableUpload {
    /// Starts to send the next part, once fewer than the maximum are in flight. A part that is already at the
    /// store is not sent.
    pub(super) async fn write(&mut self, part: Bytes) -> Result<(), UpstreamFault> {
        let number = self.next_number;
        self.next_number += 1;
        if let Some(line) = self.stored_parts.remove(&number).filter(|line| line.size == part.len() as u64) {
            let (digest, bytes) = (line.etag, part.clone());
            let md5 = tokio::task::spawn_blocking(move || md5_hex(&bytes)).await;
            if md5.is_ok_and(|md5| md5 == digest) {
                self.completed.insert(number, digest);
                return Ok(());
            }
        }
        while self.in_flight.len() >= self.in_flight_max {
            self.finish_one_part().await?;
        }
        let (origin, meter, at) = (self.origin.clone(), self.meter.clone(), self.target.clone());
        self.in_flight.spawn(async move {
            let (bytes, headers) = (part.len() as u64, HeaderMap::new());
            let put = origin.put_part(at.upload_ref(), number, &headers, OriginContent::Whole(part));
            let written = metered(&meter, UpstreamOp::Write, bytes, put)
                .await
                .map_err(|error| UpstreamFault::from_origin(&error))?;
            let etag = written.etag().ok_or_else(|| {
                UpstreamFault::UnexpectedAnswer("the response to a part has no ETag".to_owned())
            })?;
            Ok((number, etag))
        });
        Ok(())
    }

    /// Waits for one of the parts in flight.
    async fn finish_one_part(&mut self) -> Result<(), UpstreamFault> {
        if let Some(sent) = self.in_flight.join_next().await {
            let (number, etag) =
                sent.map_err(|stopped| UpstreamFault::Unreachable(stopped.to_string()))??;
            self.completed.insert(number, etag);
        }
        Ok(())
    }

    /// Waits for all parts and completes the upload.
    pub(super) async fn close(&mut self) -> Result<(), UpstreamFault> {
        while !self.in_flight.is_empty() {
            self.finish_one_part().await?;
        }
        let count = self.completed.len() as u64;
        assert!(count == u64::from(self.next_number - 1), "an upload is completed with all its parts");
        let parts = self.completed.iter().map(|(number, etag)| (*number, etag.as_str(), Vec::new()));
        let (document, headers) = (complete_document(parts), HeaderMap::new());
        let complete = self.origin.complete(self.target.upload_ref(), &headers, document);
        metered(&self.meter, UpstreamOp::Write, 0, complete)
            .await
            .map_err(|error| UpstreamFault::from_origin(&error))?;
        Ok(())
    }

    /// Aborts the upload. Parts in flight are awaited first: a part that arrives after the abort may remain
    /// for ever.
    pub(super) async fn abort(mut self) -> Result<(), UpstreamFault> {
        while self.in_flight.join_next().await.is_some() {}
        abort(&self.origin, &self.meter, self.target.upload_ref()).await
    }
}

/// Aborts an upload; a missing upload is no error.
async fn abort(
    origin: &S3Origin,
    meter: &UpstreamMeter,
    upload: OriginUploadRef<'_>,
) -> Result<(), UpstreamFault> {
    match metered(meter, UpstreamOp::Delete, 0, origin.abort(upload)).await {
        Ok(()) | Err(OriginError::NoSuchKey | OriginError::Refused { status: 404, .. }) => Ok(()),
        Err(error) => Err(UpstreamFault::from_origin(&error)),
    }
}

/// Sends a request through the meter of the store.
async fn metered<T>(
    meter: &UpstreamMeter,
    op: UpstreamOp,
    sent_bytes: u64,
    request: impl Future<Output = Result<T, OriginError>>,
) -> Result<T, OriginError> {
    let ticket = meter.begin(op, sent_bytes, 0).await;
    let answer = request.await;
    ticket.finish(answer.as_ref().map_or_else(outcome, |_| UpstreamOutcome::Ok), 0);
    answer
}

/// Returns the MD5 in the form of an ETag.
fn md5_hex(bytes: &[u8]) -> String {
    format!("{:x}", Bytes::copy_from_slice(&Md5::digest(bytes)))
}

fn outcome(error: &OriginError) -> UpstreamOutcome {
    match error {
        OriginError::Throttled(_) => UpstreamOutcome::SlowDown,
        OriginError::NoSuchKey => UpstreamOutcome::Missing,
        error if error.is_transient() => UpstreamOutcome::Failed,
        _ => UpstreamOutcome::Refused,
    }
}
