//! Storage of a segment as one object, with proof.
//!
//! An object that already exists is compared first, so that a second attempt does not resend what arrived
//! intact. Otherwise its parts are sent, several concurrently; a failed part is retried separately, up to the
//! maximum number of tries. An object appears only when all its parts are stored, and counts as stored only
//! when all of it was read back and is identical. If completing an upload returns an error, the object
//! decides, because it may exist nevertheless.
//!
//! An upload that is given up, because of an error, of `before` or of a dropped future, is aborted, except at
//! an S3 store: there it remains, and a later attempt with its id sends the missing parts. At other stores an
//! upload that a crash interrupted begins anew, and the store's own rules remove the parts that arrived.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::error::{UpstreamError, UpstreamFault};
use super::metrics::add;
use super::objects::{SEGMENTS_DIR, name_prefix, object_name};
use super::operator::UNFINISHED_DIR;
use super::proof::{ExpectedSums, Proof};
use super::resumable_upload::{BeginUploadError, UploadResumption};
use super::source::{SegmentSource, part_ranges};
use super::throttle::ThrottleHook;
use super::upload::SegmentUpload;
use super::{SegmentObject, Upstream};

/// Cost of storing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredSegment {
    /// Length of the object.
    pub object_bytes: u64,
    /// Bytes that were sent, now or before an interruption: 0 if the object already existed. Bytes that were
    /// sent again count once.
    pub sent_bytes: u64,
}

impl Upstream {
    /// Stores the sealed segment in the file `from`. The call may be repeated after any result, with the same
    /// key or another one; with the same key an object that already exists is reused. An upload that
    /// `resumed` names must be of the same bytes and the same key.
    ///
    /// # Errors
    /// The segment is not proven to be stored. [`UpstreamError::Corrupt`] if other bytes arrived than were
    /// sent; the object is then deleted.
    ///
    /// # Panics
    /// The presence of a key does not match the encryption setting of the upstream: a mistake of the caller.
    pub async fn put_segment(
        &self,
        object: &SegmentObject<'_>,
        from: File,
        resumed: UploadResumption<'_>,
        mut before: ThrottleHook<'_>,
    ) -> Result<StoredSegment, UpstreamError> {
        assert_eq!(object.key.is_some(), self.encrypt, "each segment has a key if the upstream encrypts");
        self.check_may_store().await?;
        let source = Arc::new(SegmentSource::new(object, from));
        let object_bytes = source.object_bytes();
        let metrics = &self.meter.metrics;
        if self.prove(object, ExpectedSums::Source(&source), &mut before).await? == Proof::Same {
            self.sync_directories(object).await?;
            add(&metrics.puts, 1);
            add(&metrics.puts_already_present, 1);
            return Ok(StoredSegment { object_bytes, sent_bytes: 0 });
        }
        self.clear_unfinished(object).await?;
        let (mut upload, sums) = self.send(object, &source, resumed, &mut before).await?;
        let closed = upload.close().await;
        if closed.is_ok() {
            self.sync_directories(object).await?;
        }
        match (self.prove(object, ExpectedSums::Sent(&sums), &mut before).await?, closed) {
            (Proof::Same, _) => {
                upload.mark_complete();
                add(&metrics.puts, 1);
                Ok(StoredSegment { object_bytes, sent_bytes: object_bytes })
            }
            (_, Err(fault)) => {
                match fault {
                    UpstreamFault::Unreachable(_) => upload.suspend().await,
                    _ => self.abandon_upload(upload).await,
                }
                Err(fault.into_error(&self.name, object.id.segment))
            }
            (proof, Ok(())) => {
                upload.mark_complete();
                // A damaged rest counts for nothing, and the next attempt overwrites it.
                if let Err(error) = self.remove(object.id).await {
                    tracing::warn!(%error, "failed to remove the damaged copy of a segment");
                }
                Err(self.corrupt_error(object, proof))
            }
        }
    }

    /// Sends all parts. Returns the upload and the checksums of its parts.
    async fn send(
        &self,
        object: &SegmentObject<'_>,
        source: &Arc<SegmentSource>,
        resumed: UploadResumption<'_>,
        before: &mut ThrottleHook<'_>,
    ) -> Result<(SegmentUpload<'_>, Vec<u32>), UpstreamError> {
        let about = |fault: UpstreamFault| fault.into_error(&self.name, object.id.segment);
        let begun = self.begin_upload(&object_name(object.id), resumed).await;
        let mut upload = begun.map_err(|error| match error {
            BeginUploadError::Fault(fault) => about(fault),
            BeginUploadError::RecordId(source) => self.source_error(object, source),
        })?;
        let mut sums = Vec::new();
        for range in part_ranges(source.object_bytes(), self.tuning.part_bytes) {
            let sent = async {
                let failed = |source| self.source_error(object, source);
                before(range.end - range.start).await.map_err(failed)?;
                let part = source.part(range).await.map_err(failed)?;
                upload.write(part.bytes).await.map_err(about)?;
                Ok::<u32, UpstreamError>(part.sum)
            };
            match sent.await {
                Ok(sum) => sums.push(sum),
                Err(error) => {
                    if error.is_retryable() || matches!(error, UpstreamError::Source { .. }) {
                        upload.suspend().await;
                    } else {
                        self.abandon_upload(upload).await;
                    }
                    return Err(error);
                }
            }
        }
        Ok((upload, sums))
    }

    /// Directory upstreams only: syncs the directories so that the file survives a power failure. The file
    /// itself is already synced.
    async fn sync_directories(&self, object: &SegmentObject<'_>) -> Result<(), UpstreamError> {
        let Some(dir) = self.dir.clone() else { return Ok(()) };
        let sync =
            move || [dir.join(SEGMENTS_DIR), dir].into_iter().try_for_each(|dir| File::open(dir)?.sync_all());
        self.blocking(object, sync).await
    }

    /// Directory upstreams only: deletes the unfinished files that interrupted uploads of this segment left
    /// behind.
    async fn clear_unfinished(&self, object: &SegmentObject<'_>) -> Result<(), UpstreamError> {
        let Some(dir) = self.dir.clone() else { return Ok(()) };
        if self.check_may_delete().await.is_err() {
            return Ok(());
        }
        // Only files of this incarnation are deleted, because another server may be storing a segment with
        // the same id.
        let begins = name_prefix(object.id.segment, object.id.incarnation);
        let clear = move || {
            for entry in std::fs::read_dir(dir.join(UNFINISHED_DIR))? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(&begins) {
                    std::fs::remove_file(entry.path())?;
                }
            }
            Ok(())
        };
        self.blocking(object, clear).await
    }

    /// Ends an upload that will not be resumed. It is aborted only if the prefix carries this server's mark:
    /// a server with a copy of the data directory may resume the same upload.
    async fn abandon_upload(&self, upload: SegmentUpload<'_>) {
        match self.check_may_delete().await {
            Ok(()) => upload.give_up().await,
            Err(_) => upload.suspend().await,
        }
    }

    async fn blocking(
        &self,
        object: &SegmentObject<'_>,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), UpstreamError> {
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.unwrap_or_else(|stopped| Err(io::Error::other(stopped)));
        done.map_err(|error| {
            UpstreamFault::Unreachable(error.to_string()).into_error(&self.name, object.id.segment)
        })
    }

    pub(super) fn source_error(&self, object: &SegmentObject<'_>, source: io::Error) -> UpstreamError {
        UpstreamError::Source { upstream: self.name.clone(), segment: object.id.segment, source }
    }

    fn corrupt_error(&self, object: &SegmentObject<'_>, proof: Proof) -> UpstreamError {
        let fault = match proof {
            Proof::Missing => "it does not exist after it was stored".to_owned(),
            Proof::Length(bytes) => format!("it has {bytes} bytes instead of {}", object.object_bytes()),
            Proof::Differs(at) => format!("the stored bytes differ from those sent, from {at} on"),
            Proof::Same => "it matches the sent data".to_owned(),
        };
        UpstreamError::Corrupt { upstream: self.name.clone(), segment: object.id.segment, fault }
    }
}
