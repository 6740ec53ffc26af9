//! Streams of appends on exclusive connections, on both sides: a body in each direction at the same time.
//!
//! A stream has a connection of its own, which ends with it. The dialing side sends its body while the body
//! of the answer is polled: whoever appends waits for the answers. On the accepting side the service reads
//! the one body in a task of its own while this one sends the other, so both share the connection under a
//! lock. A body without its end was cut off. Nothing is stored.

use crate::body::Kept;
use crate::channel::StreamClass;
use crate::error::PeerBodyError;
use crate::exclusive::ExclusiveConnection;
use crate::exclusive_body::{data_of, poll_add, poll_piece};
use crate::framed_io::FramedIo;
use crate::frames::{AnswerStatus, Frame as WireFrame, FrameKind, ReceivedFrames, RequestFrame};
use crate::frames::{put_answer, put_frame};
use crate::inbound::{InboundConnection, PeerSession};
use crate::service::{IncomingStream, PeerBody, StreamAnswer};
use crate::wire::encode_refusal;
use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use mlgw_common::limits::PEER_STREAM_HEAD_BYTES_MAX;
use mlgw_common::time::{Instant, timeout};
use parking_lot::Mutex;
use std::future::poll_fn;
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

/// A connection of which one task receives and another one sends.
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
        let piece = match received {
            Ok(Some(WireFrame::Data(data))) => return Poll::Ready(Some(Ok(Frame::data(data)))),
            Ok(Some(WireFrame::End)) => None,
            Ok(Some(_)) => Some(Err(PeerBodyError::Cut("another frame follows".to_owned()))),
            Ok(None) => Some(Err(PeerBodyError::Cut("it has no end".to_owned()))),
            Err(error) => Some(Err(PeerBodyError::Cut(error.to_string()))),
        };
        self.io = None;
        Poll::Ready(piece)
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
    let mut sent = None;
    match timeout(wait, inbound.state().services.stream(stream)).await.ok()? {
        Ok(StreamAnswer { head, body }) if head.len() <= PEER_STREAM_HEAD_BYTES_MAX => {
            put_answer(&mut io.lock().outbox, AnswerStatus::Answered, &head);
            sent = Some(body);
        }
        Ok(StreamAnswer { head, .. }) => {
            tracing::error!(bytes = head.len(), "the head of an answer of a service is too large");
            put_answer(&mut io.lock().outbox, AnswerStatus::Failed, &[]);
        }
        Err(refusal) => {
            let refusal = encode_refusal(refusal);
            put_answer(&mut io.lock().outbox, AnswerStatus::Refused, &refusal);
        }
    }
    poll_fn(|cx| poll_answer(&io, &mut sent, cx)).await;
    None
}

/// Sends what is to be sent, and the body of an answer. Ready at its end, or when it or the connection fails.
fn poll_answer(io: &SharedIo, body: &mut Option<PeerBody>, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        // The body is not polled under the lock: it may wait for what the other task has received.
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
