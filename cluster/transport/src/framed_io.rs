//! A byte stream with frames in both directions.
//!
//! One task uses it. Nothing is sent or received in the background.

use crate::frames::{Frame, FrameDecoder, ReceivedFrames};
use bytes::{Buf as _, BytesMut};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Room for the bytes of one read.
const READ_BYTES: usize = 8 << 10;
/// Bytes to be sent from which nothing is added.
pub(crate) const OUTBOX_BYTES_MAX: usize = 64 << 10;

/// A connection in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection that carries frames.
pub(crate) struct FramedIo {
    io: Box<dyn Duplex>,
    decoder: FrameDecoder,
    inbox: BytesMut,
    /// Frames to be sent.
    pub(crate) outbox: BytesMut,
}

impl FramedIo {
    pub(crate) fn new(io: impl Duplex + 'static) -> Self {
        let (inbox, outbox) = (BytesMut::new(), BytesMut::new());
        Self { io: Box::new(io), decoder: FrameDecoder::default(), inbox, outbox }
    }

    /// Receives only these frames from now on; a hello at first.
    pub(crate) const fn receive(&mut self, frames: ReceivedFrames) {
        self.decoder.receive(frames);
    }

    /// Returns the next frame; `None` at the end of the connection.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame>>> {
        loop {
            let found = self.decoder.next(&mut self.inbox);
            if let Some(frame) = found.map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))? {
                return Poll::Ready(Ok(Some(frame)));
            }
            if ready!(self.poll_read(cx))? == 0 {
                return Poll::Ready(Ok(None));
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut read = [0; READ_BYTES];
        let mut buffer = ReadBuf::new(&mut read);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        self.inbox.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Sends everything that is to be sent.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbox.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.outbox))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outbox.advance(written);
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Frees what is kept for further frames. Nothing is lost between two requests.
    pub(crate) fn shrink(&mut self) {
        if self.inbox.is_empty() && self.outbox.is_empty() {
            (self.inbox, self.outbox) = (BytesMut::new(), BytesMut::new());
        }
    }

    /// Sends everything that is to be sent.
    pub(crate) async fn send(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_send(cx)).await
    }

    /// Returns the next frame; `None` at the end of the connection.
    pub(crate) async fn frame(&mut self) -> io::Result<Option<Frame>> {
        poll_fn(|cx| self.poll_frame(cx)).await
    }
}
