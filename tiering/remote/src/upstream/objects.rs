//! Objects by name: the naming of segments in a store, existence, deletion and listing.
//!
//! Names that do not belong to a segment are ignored, because the prefix may have been used before.

use backon::Retryable as _;
use mlgw_common::Incarnation;
use mlgw_common::ids::SegmentId;

use super::error::{UpstreamError, UpstreamFault};
use super::metrics::{UpstreamOp, UpstreamOutcome, add};
use super::{ObjectId, Upstream};

/// Directory of segments, below the prefix.
pub(super) const SEGMENTS_DIR: &str = "segments/";

/// Returns the name of an object, below the prefix.
pub(super) fn object_name(id: ObjectId) -> String {
    format!("{SEGMENTS_DIR}{}", file_name(id))
}

/// Returns the last component of the name.
fn file_name(id: ObjectId) -> String {
    format!("{}{:016x}.seg", name_prefix(id.segment, id.incarnation), id.copy)
}

/// Returns the common prefix of the names of all objects of a segment that an incarnation stored.
pub(super) fn name_prefix(segment: SegmentId, incarnation: Incarnation) -> String {
    match incarnation {
        Incarnation(0) => format!("{:016x}-", segment.0),
        Incarnation(incarnation) => format!("{:016x}-{incarnation:016x}-", segment.0),
    }
}

/// Parses the name of an object; `None` if it is not one.
fn parse_file_name(name: &str) -> Option<ObjectId> {
    let (segment, rest) = name.strip_suffix(".seg")?.split_once('-')?;
    let (incarnation, copy) = rest.split_once('-').unwrap_or(("0", rest));
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (segment, incarnation) = (SegmentId(number(segment)?), Incarnation(number(incarnation)?));
    let id = ObjectId { segment, incarnation, copy: number(copy)? };
    (file_name(id) == name).then_some(id)
}

impl Upstream {
    /// Returns the length of an object; `None` if it does not exist. Most stores answer the same if the
    /// bucket does not exist; a read distinguishes the two cases.
    ///
    /// # Errors
    /// The store cannot be reached or rejects the request.
    pub async fn length(&self, id: ObjectId) -> Result<Option<u64>, UpstreamError> {
        let name = object_name(id);
        match self.with_retries(UpstreamOp::Stat, 0, 0, || self.operator.stat(&name)).await {
            Ok(found) => Ok(Some(found.content_length())),
            Err(UpstreamFault::Missing) => Ok(None),
            Err(fault) => Err(fault.into_error(&self.name, id.segment)),
        }
    }

    /// Deletes an object; a missing object is no error.
    ///
    /// # Errors
    /// The store cannot be reached or rejects the request; [`UpstreamError::NotOwner`] if the prefix does not
    /// carry this server's mark.
    pub async fn remove(&self, id: ObjectId) -> Result<(), UpstreamError> {
        self.check_may_delete().await?;
        let name = object_name(id);
        match self.with_retries(UpstreamOp::Delete, 0, 0, || self.operator.delete(&name)).await {
            Ok(()) | Err(UpstreamFault::Missing) => Ok(()),
            Err(fault) => Err(fault.into_error(&self.name, id.segment)),
        }
    }

    /// Aborts an upload that is not resumed; a missing upload is no error.
    ///
    /// # Errors
    /// Those of [`Upstream::remove`].
    pub async fn abort(&self, id: ObjectId, upload: &str) -> Result<(), UpstreamError> {
        self.check_may_delete().await?;
        let Some(multiparts) = &self.resumable_uploads else { return Ok(()) };
        let aborted = multiparts.abort(&self.meter, &object_name(id), upload).await;
        aborted.map_err(|fault| fault.into_error(&self.name, id.segment))
    }

    /// Returns all objects of segments, in no order.
    ///
    /// # Errors
    /// The store cannot be reached or rejects the request.
    pub async fn list(&self) -> Result<Vec<ObjectId>, UpstreamError> {
        // No segment is concerned; id 0 is never assigned.
        self.list_all().await.map_err(|fault| fault.into_error(&self.name, SegmentId(0)))
    }

    pub(super) async fn list_all(&self) -> Result<Vec<ObjectId>, UpstreamFault> {
        match self.with_retries(UpstreamOp::List, 0, 0, || self.operator.list(SEGMENTS_DIR)).await {
            Ok(entries) => Ok(entries.iter().filter_map(|entry| parse_file_name(entry.name())).collect()),
            // A directory in which nothing was ever stored.
            Err(UpstreamFault::Missing) => Ok(Vec::new()),
            Err(fault) => Err(fault),
        }
    }

    /// Runs `work`, with retries while that may help.
    pub(super) async fn with_retries<T, W>(
        &self,
        op: UpstreamOp,
        sent_bytes: u64,
        requested_bytes: u64,
        mut work: impl FnMut() -> W,
    ) -> Result<T, UpstreamFault>
    where
        W: IntoFuture<Output = opendal::Result<T>>,
    {
        let mut tries = 0;
        let done = (|| self.run_once(op, sent_bytes, requested_bytes, work()))
            .retry(self.tuning.waits())
            .when(opendal::Error::is_temporary)
            .notify(|error, _| {
                tries += 1;
                add(&self.meter.metrics.retries, 1);
                tracing::debug!(
                    upstream = self.name,
                    op = op.name(),
                    tries,
                    error = error.message(),
                    "again"
                );
            })
            .await;
        done.map_err(|error| self.fault_of(&error))
    }

    /// Runs one try. A store with HTTP meters each request on the wire; one without HTTP is metered here.
    async fn run_once<T>(
        &self,
        op: UpstreamOp,
        sent_bytes: u64,
        requested_bytes: u64,
        work: impl IntoFuture<Output = opendal::Result<T>>,
    ) -> opendal::Result<T> {
        if self.has_http() {
            return work.into_future().await;
        }
        let ticket = self.meter.begin(op, sent_bytes, requested_bytes).await;
        let done = work.into_future().await;
        match &done {
            Ok(_) => ticket.finish(UpstreamOutcome::Ok, requested_bytes),
            Err(error) => ticket.finish(UpstreamFault::from_directory(error).outcome(), 0),
        }
        done
    }
}
