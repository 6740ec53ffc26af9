//! A byte stream that counts its bytes, keeps the first error, and ends at once when it is cancelled.
//!
//! hyper reports a broken connection without its cause; the cause, such as a TLS alert of a peer that refuses
//! the certificate, is found here. A connection that this node must not use any more is cancelled here, below
//! HTTP, so that nothing of it survives: neither requests in flight nor tasks.

use crate::counters::ChannelMeter;
use mlgw_trust::tls_reason;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// First error of a byte stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamFailure {
    pub(crate) text: String,
    /// True if TLS failed, or the peer sent an alert.
    pub(crate) is_tls: bool,
}

/// Facts about a byte stream. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamFacts {
    meter: Arc<OnceLock<Arc<ChannelMeter>>>,
    failure: Arc<OnceLock<StreamFailure>>,
}

impl StreamFacts {
    /// Counts from now on.
    pub(crate) fn count(&self, meter: Arc<ChannelMeter>) {
        let first = self.meter.set(meter);
        debug_assert!(first.is_ok(), "a connection has one peer");
    }

    pub(crate) fn failure(&self) -> Option<&StreamFailure> {
        self.failure.get()
    }

    /// The cause of the failure, or `otherwise`.
    pub(crate) fn cause(&self, otherwise: &dyn std::error::Error) -> String {
        self.failure().map_or_else(|| otherwise.to_string(), |failure| failure.text.clone())
    }

    fn record(&self, error: &io::Error) {
        let tls = tls_error(error);
        let text = tls.map_or_else(|| error.to_string(), tls_reason);
        let _ = self.failure.set(StreamFailure { text, is_tls: tls.is_some() });
    }
}

/// The error of TLS in an error of a byte stream.
pub(crate) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Byte stream with facts.
#[derive(Debug)]
pub(crate) struct MeteredIo<T> {
    io: T,
    facts: StreamFacts,
    /// `None` after it was cancelled.
    cancelled: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl<T> MeteredIo<T> {
    pub(crate) fn new(io: T, facts: StreamFacts, cancel: CancellationToken) -> Self {
        Self { io, facts, cancelled: Some(Box::pin(cancel.cancelled_owned())) }
    }

    /// An error if this stream was cancelled. The caller's task wakes when it is.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(cancelled) = &mut self.cancelled {
            if cancelled.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.cancelled = None;
        }
        let error = io::Error::new(io::ErrorKind::ConnectionAborted, "this node closed the connection");
        self.facts.record(&error);
        Err(error)
    }

    fn done<V>(&self, poll: Poll<io::Result<V>>) -> Poll<io::Result<V>> {
        if let Poll::Ready(Err(error)) = &poll {
            self.facts.record(error);
        }
        poll
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for MeteredIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(cx, buffer);
        if let Some(meter) = self.facts.meter.get() {
            meter.bytes_in.fetch_add((buffer.filled().len() - before) as u64, Relaxed);
        }
        self.done(poll)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for MeteredIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let poll = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let (Poll::Ready(Ok(written)), Some(meter)) = (&poll, self.facts.meter.get()) {
            meter.bytes_out.fetch_add(*written as u64, Relaxed);
        }
        self.done(poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        self.done(poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{MeteredIo, StreamFacts};
    use crate::counters::ChannelMeter;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn bytes_are_counted_from_the_moment_the_peer_is_known() {
        let (near, mut remote) = duplex(64);
        let (facts, meter) = (StreamFacts::default(), Arc::new(ChannelMeter::default()));
        let mut near = MeteredIo::new(near, facts.clone(), CancellationToken::new());
        near.write_all(b"before").await.unwrap();
        facts.count(meter.clone());
        near.write_all(b"after").await.unwrap();
        remote.write_all(b"abc").await.unwrap();
        near.read_exact(&mut [0; 3]).await.unwrap();
        assert_eq!((meter.bytes_out.load(Relaxed), meter.bytes_in.load(Relaxed)), (5, 3));
    }

    #[tokio::test]
    async fn a_cancelled_stream_fails_even_while_it_waits() {
        let (near, _remote) = duplex(64);
        let (facts, cancel) = (StreamFacts::default(), CancellationToken::new());
        let mut near = MeteredIo::new(near, facts.clone(), cancel.clone());
        let waiting = tokio::spawn(async move { (near.read_u8().await, near.write_u8(1).await) });
        tokio::task::yield_now().await;
        cancel.cancel();
        let (read, written) = waiting.await.unwrap();
        assert!(read.is_err() && written.is_err());
        let failure = facts.failure().unwrap();
        assert!(failure.text.contains("this node closed") && !failure.is_tls);
    }
}
