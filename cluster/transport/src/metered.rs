//! A byte stream that counts its bytes, keeps the first error, and ends at once when it is cancelled.
//!
//! hyper reports a broken connection without its cause; the cause, such as a TLS alert of a peer that refuses
//! the certificate, is found here. A connection that this node must not use any more is cancelled here, below
//! HTTP, so that nothing of it survives: neither requests in flight nor tasks.
//!
//! A shutdown reads on until the other side has closed the stream. A socket that is closed with unread bytes
//! is reset, and the other side would not get the last bytes of an answer.

use crate::counters::ChannelMeter;
use mlgw_common::time::{Sleep, sleep};
use mlgw_trust::tls_reason;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// Longest time for which a shutdown waits until the other side closes the stream.
const LINGER_MAX: Duration = Duration::from_secs(2);

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
    closed: CancellationToken,
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

    /// Cancelled when the byte stream was dropped.
    pub(crate) const fn closed(&self) -> &CancellationToken {
        &self.closed
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
    /// Limit of the shutdown, after this side has closed the stream.
    linger: Option<Pin<Box<Sleep>>>,
    _closed: DropGuard,
}

impl<T> MeteredIo<T> {
    pub(crate) fn new(io: T, facts: StreamFacts, cancel: CancellationToken) -> Self {
        let closed = facts.closed.clone().drop_guard();
        let cancelled = Some(Box::pin(cancel.cancelled_owned()));
        Self { io, facts, cancelled, linger: None, _closed: closed }
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

    /// Counts written bytes, and keeps the error of a write.
    fn written(&self, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let (Poll::Ready(Ok(written)), Some(meter)) = (&poll, self.facts.meter.get()) {
            meter.bytes_out.fetch_add(*written as u64, Relaxed);
        }
        self.done(poll)
    }

    fn done<V>(&self, poll: Poll<io::Result<V>>) -> Poll<io::Result<V>> {
        if let Poll::Ready(Err(error)) = &poll {
            self.facts.record(error);
        }
        poll
    }
}

impl<T: AsyncRead + Unpin> MeteredIo<T> {
    /// Reads and drops what the other side sends until it closes the stream, or until the limit.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut unread = [0; 4096];
        loop {
            let is_over = self.linger.as_mut().is_some_and(|limit| limit.as_mut().poll(cx).is_ready());
            if is_over || self.check(cx).is_err() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut unread);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
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

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MeteredIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let poll = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.written(poll)
    }

    /// Several slices are one TLS record and one call of the kernel. Without this h2 copies small bodies, and
    /// sends the beginning of a large one by itself.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let poll = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.written(poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        self.done(poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            self.linger = Some(Box::pin(sleep(LINGER_MAX)));
        }
        self.poll_linger(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::{LINGER_MAX, MeteredIo, StreamFacts};
    use crate::counters::ChannelMeter;
    use mlgw_common::time::Instant;
    use std::io::IoSlice;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;
    use tokio::io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, duplex};
    use tokio::net::UnixStream;
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
    async fn slices_are_written_at_once_and_counted() {
        // Sockets take several slices at once, duplex streams do not.
        let (near, mut remote) = UnixStream::pair().unwrap();
        let (facts, meter) = (StreamFacts::default(), Arc::new(ChannelMeter::default()));
        facts.count(meter.clone());
        let mut near = MeteredIo::new(near, facts, CancellationToken::new());
        assert!(near.is_write_vectored());
        let slices = [IoSlice::new(b"frame"), IoSlice::new(b"body")];
        assert_eq!(near.write_vectored(&slices).await.unwrap(), 9);
        let mut read = [0; 9];
        remote.read_exact(&mut read).await.unwrap();
        assert_eq!((&read, meter.bytes_out.load(Relaxed)), (b"framebody", 9));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_reads_until_the_other_side_has_closed_the_stream() {
        for is_closed in [true, false] {
            let (near, mut remote) = duplex(64);
            let facts = StreamFacts::default();
            let mut near = MeteredIo::new(near, facts.clone(), CancellationToken::new());
            near.write_all(b"answer").await.unwrap();
            let begin = Instant::now();
            let shutdown = tokio::spawn(async move { near.shutdown().await });
            // More than the buffer between both: it is read.
            remote.write_all(&[7; 1000]).await.unwrap();
            tokio::task::yield_now().await;
            assert!(!shutdown.is_finished() && !facts.closed().is_cancelled());
            let mut answer = Vec::new();
            remote.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"answer");
            let _open = (!is_closed).then_some(remote);
            shutdown.await.unwrap().unwrap();
            assert_eq!(begin.elapsed() == LINGER_MAX, !is_closed);
            assert!(facts.closed().is_cancelled());
        }
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
