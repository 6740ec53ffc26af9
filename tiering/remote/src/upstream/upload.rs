//! An upload under way, part by part.
//!
//! At a store that speaks S3 it can be gone on with (`multipart.rs`). At another one it goes past opendal's
//! own buffering: each write is one part, as it was cut, several of which are under way at once; one that
//! fails is kept by opendal and sent again by itself. A write or a close that was given up in the middle
//! leaves the upload as it was, so that it can still be aborted. Dropped before it is done it is aborted.
//! What cannot be aborted, after a crash above all, is left to the store's own rules.

use bytes::Bytes;
use opendal::options::WriteOptions;
use opendal::raw::OpWrite;
use opendal::raw::oio::{self, Write as _};
use tokio::sync::Mutex;

use super::Upstream;
use super::error::Fault;
use super::metrics::Op;
use super::multipart::{Multipart, NotBegun, Resumed};

/// An upload under way.
pub(super) enum Upload<'a> {
    /// One that can be gone on with.
    Multipart(Box<Multipart>),
    /// One that cannot.
    Once(Once<'a>),
}

/// One that is done by this process or not at all.
pub(super) struct Once<'a> {
    upstream: &'a Upstream,
    /// None once it is done or aborted. Nobody ever waits for it: an upload is worked on by one at a time.
    writer: Mutex<Option<oio::Writer>>,
}

impl Upstream {
    /// Begins to store an object, or goes on.
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

    /// Begins to store an object. Nothing is sent before its second part is there.
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
    /// Sends a part, or has it wait for its turn.
    pub(super) async fn write(&mut self, part: Bytes) -> Result<(), Fault> {
        match self {
            Self::Multipart(upload) => upload.write(part).await,
            Self::Once(upload) => upload.write(part).await,
        }
    }

    /// Waits for all parts and makes them the object.
    pub(super) async fn close(&mut self) -> Result<(), Fault> {
        match self {
            Self::Multipart(upload) => upload.close().await,
            Self::Once(upload) => upload.close().await,
        }
    }

    /// Nothing of it is to be taken back.
    pub(super) fn done(self) {
        if let Self::Once(upload) = self {
            upload.done();
        }
    }

    /// Leaves it to be gone on with, if that can be; else takes it back. What cannot be taken back stays for
    /// the store's own rules to clear away.
    pub(super) async fn leave(self) {
        if let Self::Once(upload) = self {
            told(upload.abort().await);
        }
    }

    /// Takes it back: going on with it would fail likewise.
    pub(super) async fn give_up(self) {
        told(self.abort().await);
    }

    /// Takes it back, and says whether that was done.
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
