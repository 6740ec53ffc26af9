//! `100 Continue` for a body of length 0.
//!
//! hyper sends the interim answer when a handler first polls the body. This is right for every body with
//! bytes: a request that is refused by its head is never polled. For an empty body hyper ignores the
//! expectation, and clients that count on the interim answer wait for it. This module therefore writes it
//! before the final answer. It does so only if hyper has no bytes of an earlier answer buffered, because a
//! client that pipelines could otherwise receive it in the middle of that answer. In that case the client
//! gets the final answer alone, which the protocol allows.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Requests the interim answer of one connection. Clones share the request.
#[derive(Clone, Debug, Default)]
pub struct InterimRequest(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    /// True if bytes were written since the last flush. hyper may have more of the same answer buffered.
    unflushed: AtomicBool,
    /// True if the interim answer is due before the next bytes.
    is_due: AtomicBool,
}

impl InterimRequest {
    /// Marks the next bytes written as the final answer of a request that is owed an interim one.
    pub fn request(&self) {
        if !self.0.unflushed.load(Relaxed) {
            self.0.is_due.store(true, Relaxed);
        }
    }

    /// Returns true if all written bytes were flushed and no interim answer is due.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        !self.0.unflushed.load(Relaxed) && !self.0.is_due.load(Relaxed)
    }
}

/// A connection into which interim answers are inserted.
#[derive(Debug)]
pub struct WithInterim<I> {
    inner: I,
    interim: InterimRequest,
    /// Remaining bytes of an interim answer.
    remaining: &'static [u8],
}

impl<I: AsyncWrite + Unpin> WithInterim<I> {
    /// Wraps `inner` and inserts the answers that `interim` requests.
    pub const fn new(inner: I, interim: InterimRequest) -> Self {
        Self { inner, interim, remaining: &[] }
    }

    /// Writes the interim answer if it is due, and records that other bytes follow.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.interim.0.is_due.swap(false, Relaxed) {
            self.remaining = CONTINUE;
        }
        while !self.remaining.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, self.remaining))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.remaining = &self.remaining[written..];
        }
        self.interim.0.unflushed.store(true, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for WithInterim<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for WithInterim<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_interim(cx))?;
        Pin::new(&mut this.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_interim(cx))?;
        Pin::new(&mut this.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// Flushes the connection. hyper calls it after all its buffered bytes are written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.interim.0.unflushed.store(false, Relaxed);
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{CONTINUE, InterimRequest, WithInterim};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn the_interim_answer_precedes_the_final_answer_if_writes_are_short() {
        let (mut client, server) = tokio::io::duplex(3);
        let interim = InterimRequest::default();
        let mut connection = WithInterim::new(server, interim.clone());
        interim.request();
        let writing = tokio::spawn(async move { connection.write_all(b"final").await });
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        writing.await.unwrap().unwrap();
        assert_eq!(got.as_bytes(), [CONTINUE, b"final"].concat());
    }

    #[tokio::test]
    async fn the_interim_answer_is_never_written_within_another_answer() {
        let (mut client, server) = tokio::io::duplex(64);
        let interim = InterimRequest::default();
        let mut connection = WithInterim::new(server, interim.clone());
        connection.write_all(b"one, fir").await.unwrap();
        interim.request();
        connection.write_all(b"st half; ").await.unwrap();
        connection.flush().await.unwrap();
        connection.write_all(b"two").await.unwrap();
        drop(connection);
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "one, first half; two");
    }
}
