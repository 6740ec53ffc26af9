//! Streams of appends on exclusive connections, on both sides: a body in each direction at the same time.
//!
//! A stream has a connection of its own, which ends with it. The dialing side sends its body while the body
//! of the answer is polled: a writer of a segment always waits for the next synced length. On the accepting
//! side two futures share the connection under a lock. The one of the service reads the body of the request.
//! The other one sends the body of the answer, usually on the thread that has synced an append
//! ([decision](../../../docs/decisions/2026-11-30-inline-polls.md)). A body without its end was cut off.
//! Nothing is stored.

use crate::body::Kept;
use crate::channel::StreamClass;
use crate::error::PeerBodyError;
use crate::exclusive::ExclusiveConnection;
use crate::exclusive_body::{data_of, piece_of, poll_add, poll_piece, put_stream_answer};
use crate::framed_io::FramedIo;
use crate::frames::{AnswerStatus, FrameKind, ReceivedFrames, RequestFrame, put_answer, put_frame};
use crate::inbound::{InboundConnection, PeerSession};
use crate::service::{IncomingStream, PeerBody};
use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use mlgw_common::InlinePolls;
use mlgw_common::time::{Instant, timeout};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Body of the answer to a request for appends. Polling it also sends the body of the request. Dropped before
/// its end, it closes the connection.
pub(crate) struct AppendAnswer {
    /// `None` after the end, or after a failure.
    connection: Option<ExclusiveConnection>,
    /// The rest of the body of the request.
    sent: Option<PeerBody>,
    _kept: Kept,
}

impl AppendAnswer {
    /// The body of an answer whose head was received on `connection`, which is closed at its end. `sent` is
    /// the body of the request.
    pub(crate) const fn new(connection: ExclusiveConnection, sent: PeerBody, kept: Kept) -> Self {
        Self { connection: Some(connection), sent: Some(sent), _kept: kept }
    }
}

/// Sends as much of the body of the request as possible now.
fn send_request(
    connection: &mut ExclusiveConnection,
    sent: &mut Option<PeerBody>,
    cx: &mut Context<'_>,
) -> Result<(), PeerBodyError> {
    loop {
        if let Poll::Ready(added) = poll_add(&mut connection.io, sent, cx) {
            added?;
        }
        let is_full = connection.io.is_full();
        match connection.io.poll_send(cx) {
            Poll::Ready(Ok(())) if is_full => {}
            Poll::Ready(Ok(())) | Poll::Pending => return Ok(()),
            Poll::Ready(Err(error)) => return Err(PeerBodyError::Cut(connection.facts.cause(&error))),
        }
    }
}

impl Body for AppendAnswer {
    type Data = Bytes;
    type Error = PeerBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PeerBodyError>>> {
        let Self { connection, sent, .. } = &mut *self;
        let Some(open) = connection else { return Poll::Ready(None) };
        let piece = match send_request(open, sent, cx) {
            Ok(()) => ready!(poll_piece(open, cx)).transpose(),
            Err(error) => Some(Err(error)),
        };
        if !matches!(piece, Some(Ok(_))) {
            *connection = None;
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.connection.is_none()
    }
}

/// A connection that two futures share: one reads from it, the other one writes to it.
type SharedIo = Arc<Mutex<FramedIo>>;

/// Body of a request for appends that is received.
struct AppendRequest {
    /// `None` after the end, or after a failure.
    io: Option<SharedIo>,
}

impl Body for AppendRequest {
    type Data = Bytes;
    type Error = PeerBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PeerBodyError>>> {
        let Some(io) = &self.io else { return Poll::Ready(None) };
        let received = ready!(io.lock().poll_frame(cx));
        let piece = piece_of(received, io::Error::to_string).transpose();
        if !matches!(piece, Some(Ok(_))) {
            self.io = None;
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Serves a stream of appends to its end. `None`: the connection is not used any more.
pub(crate) async fn serve(
    mut io: FramedIo,
    inbound: &InboundConnection,
    session: &PeerSession,
    request: RequestFrame,
) -> Option<()> {
    let (class, peer) = (StreamClass::Append, session.node);
    if class.channel() != session.channel {
        put_answer(&mut io.outbox, AnswerStatus::NotUnderstood, &[]);
        io.send().await.ok()?;
        return None;
    }
    io.receive(ReceivedFrames::Body);
    let RequestFrame { service, wait, bytes: head, .. } = request;
    let io = Arc::new(Mutex::new(io));
    let body = AppendRequest { io: Some(io.clone()) }.boxed_unsync();
    let stream = IncomingStream { peer, class, service, head, body, deadline: Instant::now() + wait };
    let answer = timeout(wait, inbound.state().answer_stream(stream)).await.ok()?;
    let mut sent = put_stream_answer(&mut io.lock(), answer);
    InlinePolls::new(poll_fn(move |cx| poll_answer(&io, &mut sent, cx))).await;
    None
}

/// Sends what is to be sent, and the body of an answer. Ready at its end, or when it or the connection fails.
fn poll_answer(io: &SharedIo, body: &mut Option<PeerBody>, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        // The body is not polled under the lock: it may wait for what the other future has received.
        while let Some(left) = body.as_mut().filter(|_| !io.lock().is_full()) {
            match Pin::new(left).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match data_of(frame) {
                    Ok(data) => io.lock().put_data(data),
                    Err(_) => return Poll::Ready(()),
                },
                Poll::Ready(Some(Err(_))) => return Poll::Ready(()),
                Poll::Ready(None) => {
                    put_frame(&mut io.lock().outbox, FrameKind::End, &[]);
                    *body = None;
                }
                Poll::Pending => break,
            }
        }
        let mut io = io.lock();
        let is_full = io.is_full();
        match ready!(io.poll_send(cx)) {
            Err(_) => return Poll::Ready(()),
            Ok(()) if body.is_none() => return Poll::Ready(()),
            Ok(()) if is_full => {}
            Ok(()) => return Poll::Pending,
        }
    }
}
