//! An upload under way, part by part, which is taken back unless it is done.
//!
//! This goes past opendal's own buffering: each write is one part, as it was cut, several of which are under way at once; one that fails is kept by
//! opendal and sent again by itself. A write or a close that was given up in the middle leaves the upload as it was, so that it can still be
//! aborted. What cannot be aborted, after a crash above all, is left to the store's own rules.

use bytes::Bytes;
use opendal::options::WriteOptions;
use opendal::raw::OpWrite;
use opendal::raw::oio::{self, Write as _};
use tokio::sync::Mutex;

use super::Upstream;
use super::error::Fault;
use super::metrics::Op;

/// An upload under way; dropped before it is done, it is aborted.
pub(super) struct Upload<'a> {
    upstream: &'a Upstream,
    /// None once it is done or aborted. Nobody ever waits for it: an upload is worked on by one at a time.
    writer: Mutex<Option<oio::Writer>>,
}

impl Upstream {
    /// Begins to store an object. Nothing is sent before its second part is there.
    pub(super) fn begin_upload(&self, name: &str) -> Result<Upload<'_>, Fault> {
        let (service, context) = (self.operator.service(), self.operator.context());
        let options = WriteOptions { concurrent: self.tuning.parts_at_once, ..WriteOptions::default() };
        let writer = OpWrite::from_options(&service.capability_dyn(), options)
            .and_then(|(options, _)| service.write_dyn(context, name, options))
            .map_err(|error| Fault::of(&error, self.has_http()))?;
        Ok(Upload { upstream: self, writer: Mutex::new(Some(writer)) })
    }
}

impl Upload<'_> {
    /// Sends a part, or has it wait for its turn.
    pub(super) async fn write(&self, part: Bytes) -> Result<(), Fault> {
        let bytes = part.len() as u64;
        let write = || async {
            match &mut *self.writer.lock().await {
                Some(writer) => writer.write(part.clone().into()).await,
                None => Ok(()),
            }
        };
        self.upstream.ask(Op::Write, bytes, 0, write).await
    }

    /// Waits for all parts and makes them the object.
    pub(super) async fn close(&self) -> Result<(), Fault> {
        let close = || async {
            match &mut *self.writer.lock().await {
                Some(writer) => writer.close().await.map(drop),
                None => Ok(()),
            }
        };
        self.upstream.ask(Op::Write, 0, 0, close).await
    }

    /// Nothing of it is to be taken back.
    pub(super) fn done(mut self) {
        *self.writer.get_mut() = None;
    }

    /// Takes it back.
    pub(super) async fn abort(mut self) -> Result<(), Fault> {
        match self.writer.get_mut().take() {
            Some(writer) => abort(writer).await.map_err(|error| Fault::of(&error, self.upstream.has_http())),
            None => Ok(()),
        }
    }
}

impl Drop for Upload<'_> {
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
