//! `100 Continue` for a body of length 0.
//!
//! hyper sends the interim answer when a handler first asks for the body, which is right whenever
//! there is one: a request that is refused by its head never asks. Of an empty body it knows that
//! there is nothing to ask for and ignores the expectation, and clients that count on the interim
//! answer wait for it (s3-clients, row 6). So it is put on the wire here, in front of the final
//! one. Only when hyper holds no bytes of an earlier answer back: a client that pipelines might
//! otherwise find it in the middle of that one. Then it gets the final answer alone, as it may.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Asks for the interim answer of one connection.
#[derive(Clone, Debug, Default)]
pub struct Interim(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    /// Bytes were written since the last flush: hyper may hold more of the same answer.
    unflushed: AtomicBool,
    /// The interim answer goes in front of the next bytes.
    owed: AtomicBool,
}

impl Interim {
    /// The next bytes written begin the final answer of a request that is owed an interim one.
    pub fn owe(&self) {
        if !self.0.unflushed.load(Relaxed) {
            self.0.owed.store(true, Relaxed);
        }
    }

    /// Whether everything that was written was flushed.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        !self.0.unflushed.load(Relaxed) && !self.0.owed.load(Relaxed)
    }
}

/// A connection into which interim answers are put.
#[derive(Debug)]
pub struct WithInterim<I> {
    inner: I,
    interim: Interim,
    /// What is left of one to be written.
    rest: &'static [u8],
}

impl<I: AsyncWrite + Unpin> WithInterim<I> {
    /// Puts into `inner` what `interim` asks for.
    pub const fn new(inner: I, interim: Interim) -> Self {
        Self { inner, interim, rest: &[] }
    }

    /// Writes what is owed, and notes that other bytes follow.
    fn poll_owed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.interim.0.owed.swap(false, Relaxed) {
            self.rest = CONTINUE;
        }
        while !self.rest.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, self.rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.rest = &self.rest[written..];
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
        ready!(this.poll_owed(cx))?;
        Pin::new(&mut this.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_owed(cx))?;
        Pin::new(&mut this.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// hyper flushes a connection once all it holds is written.
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
    use super::{CONTINUE, Interim, WithInterim};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn it_stands_before_the_final_answer_however_little_is_written_at_once() {
        let (mut client, server) = tokio::io::duplex(3);
        let interim = Interim::default();
        let mut connection = WithInterim::new(server, interim.clone());
        interim.owe();
        let writing = tokio::spawn(async move { connection.write_all(b"final").await });
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        writing.await.unwrap().unwrap();
        assert_eq!(got.as_bytes(), [CONTINUE, b"final"].concat());
    }

    #[tokio::test]
    async fn it_never_stands_within_another_answer() {
        let (mut client, server) = tokio::io::duplex(64);
        let interim = Interim::default();
        let mut connection = WithInterim::new(server, interim.clone());
        connection.write_all(b"one, fir").await.unwrap();
        interim.owe();
        connection.write_all(b"st half; ").await.unwrap();
        connection.flush().await.unwrap();
        connection.write_all(b"two").await.unwrap();
        drop(connection);
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "one, first half; two");
    }
}
