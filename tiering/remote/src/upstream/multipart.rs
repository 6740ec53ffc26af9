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

use super::error::Fault;
use super::meter::Meter;
use super::metrics::{Op, Outcome};
use super::put::Wait;
use crate::origin::s3::S3Origin;
use crate::origin::{Content, Origin as _, OriginError, PartLine, UploadOf, complete_document};

/// Maximum number of parts of a listing page, as in S3.
const PAGE_PARTS: usize = 1000;

/// Upload to resume, if any, and the hook that records the id of a new one.
pub struct Resumed<'a> {
    /// Id of the upload that was begun for the same object before.
    pub id: Option<String>,
    /// Records the id of a new upload before anything of it is sent. The id must survive a power failure when
    /// the future resolves.
    pub note: Box<dyn FnOnce(String) -> Wait + Send + 'a>,
}

impl Resumed<'_> {
    /// Creates the state of an upload that resumes nothing and is never resumed.
    pub(super) fn never() -> Self {
        Self { id: None, note: Box::new(|_| Box::pin(async { Ok(()) })) }
    }
}

/// Client of an S3 store.
#[derive(Clone)]
pub(super) struct Multiparts {
    pub(super) origin: Arc<S3Origin>,
    /// Prefix of all keys.
    pub(super) prefix: String,
}

/// Upload in progress. When dropped, it remains at the store.
pub(super) struct Multipart {
    origin: Arc<S3Origin>,
    meter: Arc<Meter>,
    at: Arc<At>,
    /// Parts that were at the store when the upload was resumed.
    there: HashMap<u32, PartLine>,
    /// ETags of the parts that are complete.
    done: BTreeMap<u32, String>,
    going: JoinSet<Result<(u32, String), Fault>>,
    going_max: usize,
    next: u32,
}

/// Key and id of an upload.
struct At {
    key: String,
    id: String,
}

impl At {
    fn upload(&self) -> UploadOf<'_> {
        UploadOf { key: &self.key, id: &self.id }
    }
}

/// Reason why an upload was not begun.
pub(super) enum NotBegun {
    /// The store failed.
    Fault(Fault),
    /// The id could not be recorded.
    Note(io::Error),
}

impl Multiparts {
    /// Resumes an upload of the object `name`, or creates one.
    pub(super) async fn begin(
        &self,
        meter: &Arc<Meter>,
        name: &str,
        going_max: usize,
        resumed: Resumed<'_>,
    ) -> Result<Multipart, NotBegun> {
        let key = format!("{}{name}", self.prefix);
        let there = match resumed.id {
            Some(id) => self.parts(meter, At { key: key.clone(), id }).await.map_err(NotBegun::Fault)?,
            None => None,
        };
        let (at, there) = match there {
            Some(found) => found,
            None => {
                let headers = HeaderMap::new();
                let begun = metered(meter, Op::Write, 0, self.origin.create_upload(&key, &headers)).await;
                let id = begun.map_err(|error| NotBegun::Fault(Fault::of_s3(&error)))?.id;
                let at = At { key, id };
                if let Err(error) = (resumed.note)(at.id.clone()).await {
                    // An upload whose id is not recorded would never be ended.
                    let _ = abort(&self.origin, meter, at.upload()).await;
                    return Err(NotBegun::Note(error));
                }
                (at, HashMap::new())
            }
        };
        Ok(Multipart {
            origin: self.origin.clone(),
            meter: meter.clone(),
            at: Arc::new(at),
            there,
            done: BTreeMap::new(),
            going: JoinSet::new(),
            going_max,
            next: 1,
        })
    }

    /// Returns the parts of an upload; `None` if it cannot be resumed.
    async fn parts(&self, meter: &Arc<Meter>, at: At) -> Result<Option<(At, HashMap<u32, PartLine>)>, Fault> {
        let (mut there, mut after) = (HashMap::new(), 0);
        loop {
            let page = self.origin.list_parts(at.upload(), after, PAGE_PARTS);
            let page = match metered(meter, Op::List, 0, page).await {
                Ok(page) => page,
                Err(error) if error.is_transient() => return Err(Fault::of_s3(&error)),
                Err(error) => {
                    // The upload no longer exists, or may not be listed.
                    tracing::debug!(%error, key = at.key, "an upload cannot be gone on with, and begins anew");
                    let _ = abort(&self.origin, meter, at.upload()).await;
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
    pub(super) async fn abort(&self, meter: &Arc<Meter>, name: &str, id: &str) -> Result<(), Fault> {
        let key = format!("{}{name}", self.prefix);
        abort(&self.origin, meter, UploadOf { key: &key, id }).await
    }
}

impl Multipart {
    /// Starts to send the next part, once fewer than the maximum are in flight. A part that is already at the
    /// store is not sent.
    pub(super) async fn write(&mut self, part: Bytes) -> Result<(), Fault> {
        let number = self.next;
        self.next += 1;
        if let Some(line) = self.there.remove(&number).filter(|line| line.size == part.len() as u64) {
            let (digest, bytes) = (line.etag, part.clone());
            let md5 = tokio::task::spawn_blocking(move || md5(&bytes)).await;
            if md5.is_ok_and(|md5| md5 == digest) {
                self.done.insert(number, digest);
                return Ok(());
            }
        }
        while self.going.len() >= self.going_max {
            self.settle().await?;
        }
        let (origin, meter, at) = (self.origin.clone(), self.meter.clone(), self.at.clone());
        self.going.spawn(async move {
            let (bytes, headers) = (part.len() as u64, HeaderMap::new());
            let put = origin.put_part(at.upload(), number, &headers, Content::Whole(part));
            let written =
                metered(&meter, Op::Write, bytes, put).await.map_err(|error| Fault::of_s3(&error))?;
            let etag = written.etag().ok_or_else(|| Fault::Answer("a part without an ETag".to_owned()))?;
            Ok((number, etag))
        });
        Ok(())
    }

    /// Waits for one of the parts in flight.
    async fn settle(&mut self) -> Result<(), Fault> {
        if let Some(sent) = self.going.join_next().await {
            let (number, etag) = sent.map_err(|stopped| Fault::Unreachable(stopped.to_string()))??;
            self.done.insert(number, etag);
        }
        Ok(())
    }

    /// Waits for all parts and completes the upload.
    pub(super) async fn close(&mut self) -> Result<(), Fault> {
        while !self.going.is_empty() {
            self.settle().await?;
        }
        let parts = self.done.iter().map(|(number, etag)| (*number, etag.as_str(), Vec::new()));
        let (document, headers) = (complete_document(parts), HeaderMap::new());
        let complete = self.origin.complete(self.at.upload(), &headers, document);
        metered(&self.meter, Op::Write, 0, complete).await.map_err(|error| Fault::of_s3(&error))?;
        Ok(())
    }

    /// Aborts the upload. Parts in flight are awaited first: a part that arrives after the abort may remain
    /// for ever.
    pub(super) async fn abort(mut self) -> Result<(), Fault> {
        while self.going.join_next().await.is_some() {}
        abort(&self.origin, &self.meter, self.at.upload()).await
    }
}

/// Aborts an upload; a missing upload is no error.
async fn abort(origin: &S3Origin, meter: &Meter, upload: UploadOf<'_>) -> Result<(), Fault> {
    match metered(meter, Op::Delete, 0, origin.abort(upload)).await {
        Ok(()) | Err(OriginError::NoSuchKey | OriginError::Refused { status: 404, .. }) => Ok(()),
        Err(error) => Err(Fault::of_s3(&error)),
    }
}

/// Sends a request through the meter of the store.
async fn metered<T>(
    meter: &Meter,
    op: Op,
    sent_bytes: u64,
    ask: impl Future<Output = Result<T, OriginError>>,
) -> Result<T, OriginError> {
    let ticket = meter.begin(op, sent_bytes, 0).await;
    let answer = ask.await;
    ticket.end(answer.as_ref().map_or_else(outcome, |_| Outcome::Ok), 0);
    answer
}

/// Returns the MD5 in the form of an ETag.
fn md5(bytes: &[u8]) -> String {
    format!("{:x}", Bytes::copy_from_slice(&Md5::digest(bytes)))
}

fn outcome(error: &OriginError) -> Outcome {
    match error {
        OriginError::Throttled(_) => Outcome::SlowDown,
        OriginError::NoSuchKey => Outcome::Missing,
        error if error.is_transient() => Outcome::Failed,
        _ => Outcome::Refused,
    }
}
