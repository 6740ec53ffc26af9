//! An upload to a store that speaks S3, which whoever knows its id can go on with, also after a crash.
//!
//! opendal keeps the ids of its uploads to itself, so these go by the client that bound buckets use. The id
//! is handed out before the first part is sent. Who comes back with it sends what is not there: a part that
//! is counts when its length and its MD5 are those of the bytes here. Where a store's ETags are no MD5s all
//! parts go again. Nothing here decides whether the object is right: that is read back, as any other.

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

/// Parts of one page of those that are there: as many as S3 tells at once.
const PAGE_PARTS: usize = 1000;

/// An upload that may be gone on with, and who notes the id of a new one.
pub struct Resumed<'a> {
    /// The id of the upload that was begun for the same object before.
    pub id: Option<String>,
    /// Notes the id of a new one before anything of it is sent; it must survive power loss when that is done.
    pub note: Box<dyn FnOnce(String) -> Wait + Send + 'a>,
}

impl Resumed<'_> {
    /// Nothing was begun before, and nobody goes on with what is.
    pub(super) fn never() -> Self {
        Self { id: None, note: Box::new(|_| Box::pin(async { Ok(()) })) }
    }
}

/// The way to a store that speaks S3.
#[derive(Clone)]
pub(super) struct Multiparts {
    pub(super) origin: Arc<S3Origin>,
    /// What keys begin with there.
    pub(super) prefix: String,
}

/// An upload under way. Dropped, it stays as it is there.
pub(super) struct Multipart {
    origin: Arc<S3Origin>,
    meter: Arc<Meter>,
    at: Arc<At>,
    /// Parts that were there when it was gone on with.
    there: HashMap<u32, PartLine>,
    /// ETags of parts that are there now.
    done: BTreeMap<u32, String>,
    going: JoinSet<Result<(u32, String), Fault>>,
    going_max: usize,
    next: u32,
}

/// Which upload.
struct At {
    key: String,
    id: String,
}

impl At {
    fn upload(&self) -> UploadOf<'_> {
        UploadOf { key: &self.key, id: &self.id }
    }
}

/// Why an upload was not begun.
pub(super) enum NotBegun {
    /// The store.
    Fault(Fault),
    /// Its id could not be noted.
    Note(io::Error),
}

impl Multiparts {
    /// Goes on with an upload of the object `name`, or begins one.
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
                    // Nobody would ever end it.
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

    /// The parts of an upload; nothing when it cannot be gone on with.
    async fn parts(&self, meter: &Arc<Meter>, at: At) -> Result<Option<(At, HashMap<u32, PartLine>)>, Fault> {
        let (mut there, mut after) = (HashMap::new(), 0);
        loop {
            let page = self.origin.list_parts(at.upload(), after, PAGE_PARTS);
            let page = match metered(meter, Op::List, 0, page).await {
                Ok(page) => page,
                Err(error) if error.is_transient() => return Err(Fault::of_s3(&error)),
                Err(error) => {
                    // It is gone, or may not be looked at.
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

    /// Ends an upload; that there is none is no error.
    pub(super) async fn abort(&self, meter: &Arc<Meter>, name: &str, id: &str) -> Result<(), Fault> {
        let key = format!("{}{name}", self.prefix);
        abort(&self.origin, meter, UploadOf { key: &key, id }).await
    }
}

impl Multipart {
    /// Has the next part sent; waits until few enough are under way.
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

    /// Waits for one of those under way.
    async fn settle(&mut self) -> Result<(), Fault> {
        if let Some(sent) = self.going.join_next().await {
            let (number, etag) = sent.map_err(|stopped| Fault::Unreachable(stopped.to_string()))??;
            self.done.insert(number, etag);
        }
        Ok(())
    }

    /// Waits for all parts and makes them the object.
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

    /// Ends it there. First comes to an end what is under way: a part that arrives behind the abort may stay
    /// for ever.
    pub(super) async fn abort(mut self) -> Result<(), Fault> {
        while self.going.join_next().await.is_some() {}
        abort(&self.origin, &self.meter, self.at.upload()).await
    }
}

/// Ends an upload; that there is none is no error.
async fn abort(origin: &S3Origin, meter: &Meter, upload: UploadOf<'_>) -> Result<(), Fault> {
    match metered(meter, Op::Delete, 0, origin.abort(upload)).await {
        Ok(()) | Err(OriginError::NoSuchKey | OriginError::Refused { status: 404, .. }) => Ok(()),
        Err(error) => Err(Fault::of_s3(&error)),
    }
}

/// Asks through the meter of the store.
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

/// As an ETag has it.
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
