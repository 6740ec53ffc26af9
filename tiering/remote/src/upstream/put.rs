//! Stores a segment as one object, and proves it.
//!
//! An object that is there already is compared first, so that a second try sends nothing again of what
//! arrived whole. Else its parts are sent, several at a time; one that fails is sent again by itself, up to
//! its number of tries. An object appears only when all its parts are there, and counts as stored only when
//! all of it was read back and is the same. When that an upload was completed is answered with an error, the
//! object decides: it may be there all the same. An upload that is given up, by an error, by `before` or
//! because its future is dropped, is aborted, unless it is at a store that speaks S3: there it stays, and who
//! comes again with its id sends what is missing. At another one what a crash cut short begins anew, and the
//! parts that arrived are the store's to clear away.

use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use super::connect::UNFINISHED_DIR;
use super::error::{Fault, UpstreamError};
use super::metrics::add;
use super::multipart::{NotBegun, Resumed};
use super::objects::{SEGMENTS_DIR, object_name, stem};
use super::prove::{Proof, Sums};
use super::source::{Source, parts};
use super::upload::Upload;
use super::{SegmentObject, Upstream};

/// Until bytes may be read and sent, or why no more are.
pub type Wait = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
/// Called before so many bytes are read from the disk and sent; with 0 while they are read back. It waits, or
/// ends it all with an error.
pub type Before<'a> = &'a mut (dyn FnMut(u64) -> Wait + Send);

/// What it took to store a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Length of the object.
    pub object_bytes: u64,
    /// Bytes that were sent, now or before something cut the upload short: none when the object was there
    /// already. Those sent again are not counted twice.
    pub sent_bytes: u64,
}

impl Upstream {
    /// Stores the sealed segment that is in `from`. It may be asked for again, whatever came of it before,
    /// with the same key or another one; with the same key it is found when it is there. An upload that
    /// `resumed` names must be of the same bytes and the same key.
    ///
    /// # Errors
    /// When it is not stored for sure. [`UpstreamError::Corrupt`] when other bytes arrived than were sent;
    /// they are removed.
    ///
    /// # Panics
    /// When it has a key and segments are not encrypted there, or the other way round: a mistake of the
    /// caller's.
    pub async fn put_segment(
        &self,
        object: &SegmentObject<'_>,
        from: File,
        resumed: Resumed<'_>,
        mut before: Before<'_>,
    ) -> Result<Stored, UpstreamError> {
        assert_eq!(object.key.is_some(), self.encrypt, "a key for each segment, if it is to be encrypted");
        self.may_store().await?;
        let source = Arc::new(Source::new(object, from));
        let object_bytes = source.object_bytes();
        let metrics = &self.meter.metrics;
        if self.prove(object, Sums::Of(&source), &mut before).await? == Proof::Same {
            self.settle(object).await?;
            add(&metrics.puts, 1);
            add(&metrics.puts_found, 1);
            return Ok(Stored { object_bytes, sent_bytes: 0 });
        }
        self.clear_unfinished(object).await?;
        let (mut upload, sums) = self.send(object, &source, resumed, &mut before).await?;
        let closed = upload.close().await;
        if closed.is_ok() {
            self.settle(object).await?;
        }
        match (self.prove(object, Sums::Sent(&sums), &mut before).await?, closed) {
            (Proof::Same, _) => {
                upload.done();
                add(&metrics.puts, 1);
                Ok(Stored { object_bytes, sent_bytes: object_bytes })
            }
            (_, Err(fault)) => {
                self.end(upload, matches!(fault, Fault::Unreachable(_))).await;
                Err(fault.about(&self.name, object.id.segment))
            }
            (proof, Ok(())) => {
                upload.done();
                // What is left of it counts for nothing, and the next try writes over it.
                if let Err(error) = self.remove(object.id).await {
                    tracing::warn!(%error, "what arrived of a segment, damaged, was not removed");
                }
                Err(self.differs(object, proof))
            }
        }
    }

    /// Sends all parts; their checksums.
    async fn send(
        &self,
        object: &SegmentObject<'_>,
        source: &Arc<Source>,
        resumed: Resumed<'_>,
        before: &mut Before<'_>,
    ) -> Result<(Upload<'_>, Vec<u32>), UpstreamError> {
        let about = |fault: Fault| fault.about(&self.name, object.id.segment);
        let begun = self.begin_upload(&object_name(object.id), resumed).await;
        let mut upload = begun.map_err(|error| match error {
            NotBegun::Fault(fault) => about(fault),
            NotBegun::Note(source) => self.source_error(object, source),
        })?;
        let mut sums = Vec::new();
        for range in parts(source.object_bytes(), self.tuning.part_bytes) {
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
                    let may_go_on = error.is_retryable() || matches!(error, UpstreamError::Source { .. });
                    self.end(upload, may_go_on).await;
                    return Err(error);
                }
            }
        }
        Ok((upload, sums))
    }

    /// Of a directory: makes what was written survive power loss. The file itself is synced by then.
    async fn settle(&self, object: &SegmentObject<'_>) -> Result<(), UpstreamError> {
        let Some(dir) = self.dir.clone() else { return Ok(()) };
        let sync =
            move || [dir.join(SEGMENTS_DIR), dir].into_iter().try_for_each(|dir| File::open(dir)?.sync_all());
        self.blocking(object, sync).await
    }

    /// Of a directory: removes what an upload of this segment left behind that a crash cut short.
    async fn clear_unfinished(&self, object: &SegmentObject<'_>) -> Result<(), UpstreamError> {
        let Some(dir) = self.dir.clone() else { return Ok(()) };
        if self.may_destroy().await.is_err() {
            return Ok(());
        }
        // Only this incarnation's: another server may be at work on a segment of the same id.
        let begins = stem(object.id.segment, object.id.incarnation);
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

    /// Ends the work on an upload that is not done. It is aborted only with this server's mark: a server with
    /// a copy of the data directory may go on with the same upload.
    async fn end(&self, upload: Upload<'_>, may_go_on: bool) {
        if may_go_on || self.may_destroy().await.is_err() {
            upload.leave().await;
        } else {
            upload.give_up().await;
        }
    }

    async fn blocking(
        &self,
        object: &SegmentObject<'_>,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), UpstreamError> {
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.unwrap_or_else(|stopped| Err(io::Error::other(stopped)));
        done.map_err(|error| Fault::Unreachable(error.to_string()).about(&self.name, object.id.segment))
    }

    pub(super) fn source_error(&self, object: &SegmentObject<'_>, source: io::Error) -> UpstreamError {
        UpstreamError::Source { upstream: self.name.clone(), segment: object.id.segment, source }
    }

    fn differs(&self, object: &SegmentObject<'_>, proof: Proof) -> UpstreamError {
        let fault = match proof {
            Proof::Missing => "it is not there after it was stored".to_owned(),
            Proof::Length(bytes) => format!("it has {bytes} bytes instead of {}", object.object_bytes()),
            Proof::Differs(at) => format!("other bytes arrived than were sent, from {at} on"),
            Proof::Same => "it is what was sent".to_owned(),
        };
        UpstreamError::Corrupt { upstream: self.name.clone(), segment: object.id.segment, fault }
    }
}
