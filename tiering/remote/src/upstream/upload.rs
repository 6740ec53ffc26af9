//! Upload in progress, part by part.
//!
//! At an S3 store the upload can be resumed ([`super::resumable_upload`]). At other stores it bypasses
//! opendal's buffering: each write is one part of the given size, and several parts are in flight at the same
//! time; opendal keeps a failed part and sends it again separately. A write or a close that is cancelled
//! halfway leaves the upload unchanged, so that it can still be aborted. An upload that is dropped before it
//! is complete is aborted. An upload that cannot be aborted, above all after a crash, is left to the store's
//! own rules.

use bytes::Bytes;
use opendal::options::WriteOptions;
use opendal::raw::OpWrite;
use opendal::raw::oio::{self, Write as _};
use tokio::sync::Mutex;

use super::Upstream;
use super::error::UpstreamFault;
use super::metrics::UpstreamOp;
use super::resumable_upload::{BeginUploadError, ResumableUpload, UploadResumption};

/// Upload in progress.
pub(super) enum SegmentUpload<'a> {
    /// Upload that can be resumed.
    Resumable(Box<ResumableUpload>),
    /// Upload that cannot be resumed.
    OneShot(OneShotUpload<'a>),
}

/// Upload that this process completes or abandons.
pub(super) struct OneShotUpload<'a> {
    upstream: &'a Upstream,
    /// `None` once the upload is complete or aborted. The lock is never contended, because one task works on
    /// an upload at a time.
    writer: Mutex<Option<oio::Writer>>,
}

impl Upstream {
    /// Begins or resumes the storage of an object.
    pub(super) async fn begin_upload(
        &self,
        name: &str,
        resumed: UploadResumption<'_>,
    ) -> Result<SegmentUpload<'_>, BeginUploadError> {
        let Some(multiparts) = &self.resumable_uploads else {
            return self.begin_once(name).map(SegmentUpload::OneShot).map_err(BeginUploadError::Fault);
        };
        let begun =
            multiparts.begin_or_resume(&self.meter, name, self.tuning.concurrent_parts, resumed).await?;
        Ok(SegmentUpload::Resumable(Box::new(begun)))
    }

    /// Begins the storage of an object. Nothing is sent before its second part is written.
    fn begin_once(&self, name: &str) -> Result<OneShotUpload<'_>, UpstreamFault> {
        let (service, context) = (self.operator.service(), self.operator.context());
        let options = WriteOptions { concurrent: self.tuning.concurrent_parts, ..WriteOptions::default() };
        let writer = OpWrite::from_options(&service.capability_dyn(), options)
            .and_then(|(options, _)| service.write_dyn(context, name, options))
            .map_err(|error| self.fault_of(&error))?;
        Ok(OneShotUpload { upstream: self, writer: Mutex::new(Some(writer)) })
    }
}

impl SegmentUpload<'_> {
    /// Sends a part, or queues it.
    pub(super) async fn write(&mut self, part: Bytes) -> Result<(), UpstreamFault> {
        match self {
            Self::Resumable(upload) => upload.write(part).await,
            Self::OneShot(upload) => upload.write(part).await,
        }
    }

    /// Waits for all parts and completes the object.
    pub(super) async fn close(&mut self) -> Result<(), UpstreamFault> {
        match self {
            Self::Resumable(upload) => upload.close().await,
            Self::OneShot(upload) => upload.close().await,
        }
    }

    /// Marks the upload as complete: nothing is aborted.
    pub(super) fn mark_complete(self) {
        if let Self::OneShot(upload) = self {
            upload.done();
        }
    }

    /// Leaves an upload that can be resumed; aborts any other. If the abort fails, the parts are left to the
    /// store's own rules.
    pub(super) async fn suspend(self) {
        if let Self::OneShot(upload) = self {
            log_failed_abort(upload.abort().await);
        }
    }

    /// Aborts the upload, because a resumed one would fail in the same way.
    pub(super) async fn give_up(self) {
        log_failed_abort(self.abort().await);
    }

    /// Aborts the upload.
    ///
    /// # Errors
    /// The abort failed.
    pub(super) async fn abort(self) -> Result<(), UpstreamFault> {
        match self {
            Self::Resumable(upload) => upload.abort().await,
            Self::OneShot(upload) => upload.abort().await,
        }
    }
}

fn log_failed_abort(aborted: Result<(), UpstreamFault>) {
    if let Err(fault) = aborted {
        tracing::debug!(fault = fault.into_message(), "failed to abort an upload");
    }
}

impl OneShotUpload<'_> {
    async fn write(&self, part: Bytes) -> Result<(), UpstreamFault> {
        let bytes = part.len() as u64;
        let write = || async {
            match &mut *self.writer.lock().await {
                Some(writer) => writer.write(part.clone().into()).await,
                None => Ok(()),
            }
        };
        self.upstream.with_retries(UpstreamOp::Write, bytes, 0, write).await
    }

    async fn close(&self) -> Result<(), UpstreamFault> {
        let close = || async {
            match &mut *self.writer.lock().await {
                Some(writer) => writer.close().await.map(drop),
                None => Ok(()),
            }
        };
        self.upstream.with_retries(UpstreamOp::Write, 0, 0, close).await
    }

    fn done(mut self) {
        *self.writer.get_mut() = None;
    }

    async fn abort(mut self) -> Result<(), UpstreamFault> {
        match self.writer.get_mut().take() {
            Some(writer) => abort(writer).await.map_err(|error| self.upstream.fault_of(&error)),
            None => Ok(()),
        }
    }
}

impl Drop for OneShotUpload<'_> {
    fn drop(&mut self) {
        if let (Some(writer), Ok(runtime)) =
            (self.writer.get_mut().take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async {
                if let Err(error) = abort(writer).await {
                    tracing::debug!(error = error.message(), "failed to abort an upload");
                }
            });
        }
    }
}

async fn abort(mut writer: oio::Writer) -> opendal::Result<()> {
    writer.abort().await
}
