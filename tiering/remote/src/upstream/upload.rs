//! Upload in progress, part by part.
//!
//! At an S3 store the upload can be resumed ([`super::multipart`]). At other stores it bypasses opendal's
//! buffering: each write is one part of the given size, and several parts are in flight at the same time;
//! opendal keeps a failed part and sends it again separately. A write or a close that is cancelled halfway
//! leaves the upload unchanged, so that it can still be aborted. An upload that is dropped before it is
//! complete is aborted. An upload that cannot be aborted, above all after a crash, is left to the store's own
//! rules.

use bytes::Bytes;
use opendal::options::WriteOptions;
use opendal::raw::OpWrite;
use opendal::raw::oio::{self, Write as _};
use tokio::sync::Mutex;

use super::Upstream;
use super::error::Fault;
use super::metrics::Op;
use super::multipart::{Multipart, NotBegun, Resumed};

/// Upload in progress.
pub(super) enum Upload<'a> {
    /// Upload that can be resumed.
    Multipart(Box<Multipart>),
    /// Upload that cannot be resumed.
    Once(Once<'a>),
}

/// Upload that this process completes or abandons.
pub(super) struct Once<'a> {
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
        resumed: Resumed<'_>,
    ) -> Result<Upload<'_>, NotBegun> {
        let Some(multiparts) = &self.multiparts else {
            return self.begin_once(name).map(Upload::Once).map_err(NotBegun::Fault);
        };
        let begun = multiparts.begin(&self.meter, name, self.tuning.parts_at_once, resumed).await?;
        Ok(Upload::Multipart(Box::new(begun)))
    }

    /// Begins the storage of an object. Nothing is sent before its second part is written.
    fn begin_once(&self, name: &str) -> Result<Once<'_>, Fault> {
        let (service, context) = (self.operator.service(), self.operator.context());
        let options = WriteOptions { concurrent: self.tuning.parts_at_once, ..WriteOptions::default() };
        let writer = OpWrite::from_options(&service.capability_dyn(), options)
            .and_then(|(options, _)| service.write_dyn(context, name, options))
            .map_err(|error| Fault::of(&error, self.has_http()))?;
        Ok(Once { upstream: self, writer: Mutex::new(Some(writer)) })
    }
}

impl Upload<'_> {
    /// Sends a part, or queues it.
    pub(super) async fn write(&mut self, part: Bytes) -> Result<(), Fault> {
        match self {
            Self::Multipart(upload) => upload.write(part).await,
            Self::Once(upload) => upload.write(part).await,
        }
    }

    /// Waits for all parts and completes the object.
    pub(super) async fn close(&mut self) -> Result<(), Fault> {
        match self {
            Self::Multipart(upload) => upload.close().await,
            Self::Once(upload) => upload.close().await,
        }
    }

    /// Marks the upload as complete: nothing is aborted.
    pub(super) fn done(self) {
        if let Self::Once(upload) = self {
            upload.done();
        }
    }

    /// Leaves an upload that can be resumed; aborts any other. If the abort fails, the parts are left to the
    /// store's own rules.
    pub(super) async fn leave(self) {
        if let Self::Once(upload) = self {
            told(upload.abort().await);
        }
    }

    /// Aborts the upload, because a resumed one would fail in the same way.
    pub(super) async fn give_up(self) {
        told(self.abort().await);
    }

    /// Aborts the upload.
    ///
    /// # Errors
    /// The abort failed.
    pub(super) async fn abort(self) -> Result<(), Fault> {
        match self {
            Self::Multipart(upload) => upload.abort().await,
            Self::Once(upload) => upload.abort().await,
        }
    }
}

fn told(aborted: Result<(), Fault>) {
    if let Err(fault) = aborted {
        tracing::debug!(fault = fault.words(), "an upload was not aborted");
    }
}

impl Once<'_> {
    async fn write(&self, part: Bytes) -> Result<(), Fault> {
        let bytes = part.len() as u64;
        let write = || async {
            match &mut *self.writer.lock().await {
                Some(writer) => writer.write(part.clone().into()).await,
                None => Ok(()),
            }
        };
        self.upstream.ask(Op::Write, bytes, 0, write).await
    }

    async fn close(&self) -> Result<(), Fault> {
        let close = || async {
            match &mut *self.writer.lock().await {
                Some(writer) => writer.close().await.map(drop),
                None => Ok(()),
            }
        };
        self.upstream.ask(Op::Write, 0, 0, close).await
    }

    fn done(mut self) {
        *self.writer.get_mut() = None;
    }

    async fn abort(mut self) -> Result<(), Fault> {
        match self.writer.get_mut().take() {
            Some(writer) => abort(writer).await.map_err(|error| Fault::of(&error, self.upstream.has_http())),
            None => Ok(()),
        }
    }
}

impl Drop for Once<'_> {
    fn drop(&mut self) {
        if let (Some(writer), Ok(runtime)) =
            (self.writer.get_mut().take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async {
                if let Err(error) = abort(writer).await {
                    tracing::debug!(error = error.message(), "an upload was not aborted");
                }
            });
        }
    }
}

async fn abort(mut writer: oio::Writer) -> opendal::Result<()> {
    writer.abort().await
}
