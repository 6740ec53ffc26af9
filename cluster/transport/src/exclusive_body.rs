//! Answer of a stream on an exclusive connection and its body, on both sides.

use crate::body::Kept;
use crate::error::{PeerBodyError, ServiceRefusal};
use crate::exclusive::{ExclusiveConnection, ExclusivePool};
use crate::framed_io::FramedIo;
use crate::frames::{AnswerStatus, DATA_BYTES_MAX, Frame as WireFrame, FrameKind, put_answer, put_frame};
use crate::service::{PeerBody, StreamAnswer, StreamEnd};
use crate::wire::encode_refusal;
use bytes::Bytes;
use http_body::{Body, Frame};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Body of an answer that is received. Dropped before its end, it closes the connection, so that the peer
/// gives the request up.
pub(crate) struct ExclusiveBody {
    /// `None` after the end, or after a failure.
    connection: Option<ExclusiveConnection>,
    pool: Arc<ExclusivePool>,
    _kept: Kept,
}

impl ExclusiveBody {
    /// The body of an answer whose head was received on `connection`, which returns to `pool` at its end.
    pub(crate) fn new(connection: ExclusiveConnection, pool: Arc<ExclusivePool>, kept: Kept) -> Self {
        Self { connection: Some(connection), pool, _kept: kept }
    }
}

/// The next piece of the body of an answer; `None` at its end.
pub(crate) fn poll_piece(
    connection: &mut ExclusiveConnection,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Bytes>, PeerBodyError>> {
    loop {
        match ready!(connection.io.poll_frame(cx)) {
            Ok(Some(WireFrame::Goodbye)) => connection.is_ending = true,
            received => return Poll::Ready(piece_of(received, |error| connection.facts.cause(error))),
        }
    }
}

/// The piece of a body that was received; `None` at its end. `cause` describes an error of the connection.
pub(crate) fn piece_of(
    received: io::Result<Option<WireFrame>>,
    cause: impl FnOnce(&io::Error) -> String,
) -> Result<Option<Bytes>, PeerBodyError> {
    let cut = match received {
        Ok(Some(WireFrame::Data(data))) => return Ok(Some(data)),
        Ok(Some(WireFrame::End)) => return Ok(None),
        Ok(Some(_)) => "another frame follows".to_owned(),
        Ok(None) => "it has no end".to_owned(),
        Err(error) => cause(&error),
    };
    Err(PeerBodyError::Cut(cut))
}

impl Body for ExclusiveBody {
    type Data = Bytes;
    type Error = PeerBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PeerBodyError>>> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
        let piece = ready!(poll_piece(connection, cx)).transpose();
        if !matches!(piece, Some(Ok(_)))
            && let Some(connection) = self.connection.take()
            && piece.is_none()
        {
            self.pool.put(connection);
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.connection.is_none()
    }
}

/// Adds the answer to a stream, without its body, which is returned.
pub(crate) fn put_stream_answer(io: &mut FramedIo, answer: StreamEnd) -> Option<PeerBody> {
    match answer {
        StreamEnd::Answered(StreamAnswer { head, body }) => {
            put_answer(&mut io.outbox, AnswerStatus::Answered, &head);
            return Some(body);
        }
        StreamEnd::Refused(refusal) => put_refusal(io, refusal),
        StreamEnd::Failed => put_answer(&mut io.outbox, AnswerStatus::Failed, &[]),
    }
    None
}

/// Adds the refusal of a service.
pub(crate) fn put_refusal(io: &mut FramedIo, refusal: ServiceRefusal) {
    put_answer(&mut io.outbox, AnswerStatus::Refused, &encode_refusal(refusal));
}

/// Adds pieces of a body to what is to be sent, and its end. Ready when the body has ended or failed; pending
/// without a wake-up if enough is to be sent.
pub(crate) fn poll_add(
    io: &mut FramedIo,
    body: &mut Option<PeerBody>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), PeerBodyError>> {
    while let Some(left) = body {
        if io.is_full() {
            return Poll::Pending;
        }
        match ready!(Pin::new(left).poll_frame(cx)) {
            Some(Ok(frame)) => io.put_data(data_of(frame)?),
            Some(Err(error)) => return Poll::Ready(Err(error)),
            None => {
                put_frame(&mut io.outbox, FrameKind::End, &[]);
                *body = None;
            }
        }
    }
    Poll::Ready(Ok(()))
}

/// The data of a frame of a body; trailers are not part of a body.
pub(crate) fn data_of(frame: Frame<Bytes>) -> Result<Bytes, PeerBodyError> {
    let data = frame.into_data().unwrap_or_default();
    match data.len() <= DATA_BYTES_MAX {
        true => Ok(data),
        false => Err(PeerBodyError::Failed(format!("a piece of a body has {} bytes", data.len()))),
    }
}
