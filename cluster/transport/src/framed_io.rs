//! A byte stream with frames in both directions.
//!
//! Nothing is sent or received in the background. One task uses it, except for a stream of appends: there one
//! future receives, and another one sends.

use crate::frames::{Frame, FrameDecoder, FrameKind, ReceivedFrames, put_data_head, put_frame};
use bytes::{Buf as _, Bytes, BytesMut};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::poll_read_buf;

/// Room for the bytes of one read: a request or an answer about a small object.
const READ_BYTES: usize = 8 << 10;
/// The same on connections that carry long bodies or many requests: a record of TLS, and the beginning of the
/// next.
const READ_BYTES_OF_MANY: usize = 32 << 10;
/// Bytes to be sent from which nothing is added.
pub(crate) const OUTBOX_BYTES_MAX: usize = 64 << 10;
/// Size from which data is not copied before it is sent.
const LARGE_DATA_BYTES: usize = 32 << 10;

/// A connection in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// What happened first on a connection that sends and receives.
pub(crate) enum Exchanged {
    /// Everything was sent.
    Sent,
    Frame(Frame),
    /// The peer has closed the connection.
    End,
}

/// A connection that carries frames.
pub(crate) struct FramedIo {
    io: Box<dyn Duplex>,
    decoder: FrameDecoder,
    inbox: BytesMut,
    /// Least room for the bytes of one read.
    read_bytes: usize,
    /// Frames to be sent.
    pub(crate) outbox: BytesMut,
    /// Data to be sent after the outbox, whose last frame has its head.
    large: Bytes,
    /// True until [`Self::exchange`] has sent everything.
    is_sending: bool,
}

impl FramedIo {
    pub(crate) fn new(io: impl Duplex + 'static) -> Self {
        let (inbox, outbox) = (BytesMut::new(), BytesMut::new());
        let (decoder, read_bytes, large) = (FrameDecoder::default(), READ_BYTES, Bytes::new());
        Self { io: Box::new(io), decoder, inbox, read_bytes, outbox, large, is_sending: false }
    }

    /// Receives only these frames from now on; a hello at first.
    pub(crate) const fn receive(&mut self, frames: ReceivedFrames) {
        self.decoder.receive(frames);
        self.read_bytes = match frames {
            ReceivedFrames::Body | ReceivedFrames::NumberedRequests | ReceivedFrames::NumberedAnswers => {
                READ_BYTES_OF_MANY
            }
            ReceivedFrames::Hello | ReceivedFrames::Requests | ReceivedFrames::Answers => READ_BYTES,
        };
    }

    /// Adds data to what is to be sent. Only while [`Self::is_full`] is false.
    pub(crate) fn put_data(&mut self, data: Bytes) {
        debug_assert!(self.large.is_empty(), "nothing follows large data before it is sent");
        if data.len() < LARGE_DATA_BYTES {
            if !data.is_empty() {
                put_frame(&mut self.outbox, FrameKind::Data, &[&data]);
            }
            return;
        }
        put_data_head(&mut self.outbox, data.len());
        self.large = data;
    }

    /// True if nothing more is added to what is to be sent.
    pub(crate) fn is_full(&self) -> bool {
        !self.large.is_empty() || self.outbox.len() >= OUTBOX_BYTES_MAX
    }

    /// True if [`Self::exchange`] has nothing to send.
    pub(crate) fn has_sent(&self) -> bool {
        !self.is_sending && self.outbox.is_empty() && self.large.is_empty()
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
        self.inbox.reserve(self.read_bytes);
        let read = poll_read_buf(Pin::new(&mut self.io), cx, &mut self.inbox);
        if self.inbox.is_empty() {
            // A connection that waits keeps no memory here; its socket has a buffer.
            self.inbox = BytesMut::new();
        }
        read
    }

    /// Sends everything that is to be sent.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbox.is_empty() || !self.large.is_empty() {
            let slices = [IoSlice::new(&self.outbox), IoSlice::new(&self.large)];
            let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &slices))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_outbox = written.min(self.outbox.len());
            self.outbox.advance(of_outbox);
            self.large.advance(written - of_outbox);
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Frees what is kept for further frames. Nothing is lost between two requests.
    pub(crate) fn shrink(&mut self) {
        if self.inbox.is_empty() && self.outbox.is_empty() && self.large.is_empty() {
            (self.inbox, self.outbox) = (BytesMut::new(), BytesMut::new());
        }
    }

    /// Sends everything that is to be sent.
    pub(crate) async fn send(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_send(cx)).await
    }

    /// Sends what is to be sent, and returns when that is done, or the next frame. It reads also while the
    /// socket takes nothing: otherwise two sides that both send could block each other.
    pub(crate) async fn exchange(&mut self) -> io::Result<Exchanged> {
        poll_fn(|cx| {
            if self.poll_sent(cx)?.is_ready() {
                return Poll::Ready(Ok(Exchanged::Sent));
            }
            self.poll_frame(cx).map_ok(|frame| frame.map_or(Exchanged::End, Exchanged::Frame))
        })
        .await
    }

    /// The same without reading: returns [`Exchanged::Sent`], or never if nothing is to be sent.
    pub(crate) async fn send_only(&mut self) -> io::Result<Exchanged> {
        poll_fn(|cx| self.poll_sent(cx).map_ok(|()| Exchanged::Sent)).await
    }

    /// Ready when something was sent, and everything is.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_sent() {
            return Poll::Pending;
        }
        self.is_sending = true;
        ready!(self.poll_send(cx))?;
        self.is_sending = false;
        Poll::Ready(Ok(()))
    }

    /// Returns the next frame; `None` at the end of the connection.
    pub(crate) async fn frame(&mut self) -> io::Result<Option<Frame>> {
        poll_fn(|cx| self.poll_frame(cx)).await
    }
}
