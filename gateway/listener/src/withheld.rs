//! Holds back the answers that hyper generates: a bare status line for a head that it refuses.
//!
//! An S3 client expects an `<Error>` document with a request id, and this server may accept a head with too
//! many lines for hyper. hyper has no hook for either. It writes its answer, flushes and reports an error,
//! all in one poll. Therefore an answer that looks like one of hyper's own is held back until the end of the
//! poll. If hyper has reported an error by then, the connection's task answers instead
//! ([`Withheld::take_refusal`]). If not, the bytes belong to a handler's answer and are sent as they are
//! ([`Withheld::release`]).
//!
//! Invariant: withheld bytes are sent before any that follow, unless they were taken as a refusal.

use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The beginning, the end and the header lines of a refusal by hyper. It has no body.
const BEGIN: &[u8] = b"HTTP/1.1 4";
const WITHIN: &[u8] = b"connection: close\r\n";
const END: &[u8] = b"\r\n\r\n";
/// Upper bound of the length of a refusal by hyper.
const REFUSAL_BYTES_MAX: usize = 256;

const NOTHING: u8 = 0;
const HELD: u8 = 1;
const RELEASED: u8 = 2;

/// The withheld bytes of one connection. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Withheld(Arc<WithheldState>);

#[derive(Debug, Default)]
struct WithheldState {
    state: AtomicU8,
    bytes: Mutex<Vec<u8>>,
}

impl Withheld {
    /// Releases the withheld bytes for the next flush. Returns true if there are any.
    #[must_use]
    pub fn release(&self) -> bool {
        self.0.state.compare_exchange(HELD, RELEASED, Relaxed, Relaxed).is_ok()
    }

    /// Drops the withheld bytes, which were a refusal by hyper. Returns true if there were any.
    #[must_use]
    pub fn take_refusal(&self) -> bool {
        let was_held = self.0.state.compare_exchange(HELD, NOTHING, Relaxed, Relaxed).is_ok();
        if was_held {
            self.0.bytes.lock().clear();
        }
        was_held
    }

    fn has_state(&self, state: u8) -> bool {
        self.0.state.load(Relaxed) == state
    }

    fn hold(&self, bytes: &[u8]) -> usize {
        let mut held = self.0.bytes.lock();
        assert!(held.is_empty(), "one answer is withheld at a time");
        held.extend_from_slice(bytes);
        drop(held);
        self.0.state.store(HELD, Relaxed);
        bytes.len()
    }
}

/// A connection on which refusals by hyper are withheld.
#[derive(Debug)]
pub struct Withholding<I> {
    inner: I,
    withheld: Withheld,
    /// True if no bytes were written since the last flush, so the next bytes begin an answer.
    is_fresh: bool,
}

impl<I: AsyncWrite + Unpin> Withholding<I> {
    /// Wraps `inner` and stores refusals by hyper in `withheld`.
    pub const fn new(inner: I, withheld: Withheld) -> Self {
        Self { inner, withheld, is_fresh: true }
    }

    /// Writes withheld bytes that were released, or that are followed by more and hence are no refusal.
    fn poll_released(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.withheld.has_state(NOTHING) {
            return Poll::Ready(Ok(()));
        }
        let mut bytes = self.withheld.0.bytes.lock();
        self.withheld.0.state.store(RELEASED, Relaxed);
        while !bytes.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &bytes))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            bytes.drain(..written);
        }
        self.withheld.0.state.store(NOTHING, Relaxed);
        Poll::Ready(Ok(()))
    }

    /// Returns true if `bytes` may be a refusal by hyper.
    fn looks_like_refusal(&self, bytes: &[u8]) -> bool {
        self.is_fresh
            && bytes.len() <= REFUSAL_BYTES_MAX
            && bytes.starts_with(BEGIN)
            && bytes.ends_with(END)
            && bytes.windows(WITHIN.len()).any(|within| within == WITHIN)
            && self.withheld.has_state(NOTHING)
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Withholding<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Withholding<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.looks_like_refusal(bytes) {
            return Poll::Ready(Ok(this.withheld.hold(bytes)));
        }
        ready!(this.poll_released(cx))?;
        this.is_fresh = false;
        Pin::new(&mut this.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // A refusal is written in one piece.
        if let [whole] = slices
            && this.looks_like_refusal(whole)
        {
            return Poll::Ready(Ok(this.withheld.hold(whole)));
        }
        ready!(this.poll_released(cx))?;
        this.is_fresh = false;
        Pin::new(&mut this.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.withheld.has_state(HELD) {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_released(cx))?;
        this.is_fresh = true;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    /// Shuts down the connection, unless bytes are withheld. hyper shuts it down after its refusal, but the
    /// answer that replaces the refusal must still be sent.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.withheld.has_state(HELD) {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_released(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{Withheld, Withholding};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const BARE: &[u8] = b"HTTP/1.1 431 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const ANSWER: &[u8] = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n";

    #[tokio::test]
    async fn a_refusal_is_held_back_and_another_answer_is_sent_instead() {
        let (mut client, server) = tokio::io::duplex(256);
        let withheld = Withheld::default();
        let mut connection = Withholding::new(server, withheld.clone());
        connection.write_all(BARE).await.unwrap();
        connection.flush().await.unwrap();
        connection.shutdown().await.unwrap();
        assert!(withheld.take_refusal() && !withheld.take_refusal() && !withheld.release());
        connection.write_all(b"another answer").await.unwrap();
        connection.shutdown().await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"another answer");
    }

    #[tokio::test]
    async fn other_answers_are_not_held_back() {
        for other in
            ["HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", "HTTP/1.1 404 Not Found\r\n\r\n", "HTTP/1.1 4"]
        {
            let (mut client, server) = tokio::io::duplex(256);
            let withheld = Withheld::default();
            let mut connection = Withholding::new(server, withheld.clone());
            connection.write_all(other.as_bytes()).await.unwrap();
            assert!(!withheld.release(), "{other}");
            drop(connection);
            let mut got = String::new();
            client.read_to_string(&mut got).await.unwrap();
            assert_eq!(got, other);
        }
    }

    #[tokio::test]
    async fn bytes_that_only_look_like_a_refusal_are_sent_in_order_if_writes_are_short() {
        for piece in [1, 7, 4096] {
            let (mut client, server) = tokio::io::duplex(piece);
            let withheld = Withheld::default();
            let mut connection = Withholding::new(server, withheld.clone());
            let writing = tokio::spawn(async move {
                for begin in [ANSWER, BARE] {
                    connection.write_all(begin).await.unwrap();
                    connection.flush().await.unwrap();
                    assert!(withheld.release());
                    connection.flush().await.unwrap();
                    assert!(!withheld.release());
                    connection.write_all(b"body HTTP/1.1 4").await.unwrap();
                    connection.write_all(BARE).await.unwrap();
                    assert!(!withheld.release(), "it does not begin an answer");
                    connection.flush().await.unwrap();
                }
                connection.write_all(BARE).await.unwrap();
                connection.write_all(b"more").await.unwrap();
                assert!(!withheld.take_refusal(), "hyper writes nothing after a refusal");
                connection.shutdown().await.unwrap();
            });
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
            writing.await.unwrap();
            let answer = |begin: &[u8]| [begin, b"body HTTP/1.1 4", BARE].concat();
            let expected = [answer(ANSWER), answer(BARE)].concat();
            assert_eq!(got, [&expected[..], BARE, b"more"].concat());
        }
    }
}
