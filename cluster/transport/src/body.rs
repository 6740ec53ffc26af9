//! Bodies of streams and calls on their way: framed heads, the gate before a body, and complete ends.
//!
//! Invariants: the body of a stream is not polled before its gate is open. A received body ends with `None`
//! only after the trailer of its end; everything else is an error. When the receiver of an answer gives up,
//! the body of the request fails too, so the other side learns of it.

use crate::error::PeerBodyError;
use crate::service::PeerBody;
use crate::wire::{end_trailer, frame_head, is_end};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Empty};
use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// State held while a body exists, such as permits; dropped with it.
pub(crate) type Kept = Box<dyn Any + Send>;

/// A body that is sent: the bytes of a call, or a head and the body of a stream.
pub(crate) enum SentBody {
    /// Bytes of known length.
    Whole(Option<Bytes>),
    /// A stream.
    Stream(SentStream),
}

/// Stream that is sent.
pub(crate) struct SentStream {
    head: Option<Bytes>,
    gate: Option<oneshot::Receiver<()>>,
    /// Ends with an error if the other half of the stream was dropped before its end.
    other_half: Option<oneshot::Receiver<()>>,
    body: PeerBody,
    ended: bool,
    _kept: Vec<Kept>,
}

impl SentBody {
    /// Bytes of known length.
    pub(crate) const fn whole(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes))
    }

    /// Head and body of an answer.
    pub(crate) fn answer(head: &[u8], body: PeerBody, kept: Vec<Kept>) -> Self {
        let head = Some(frame_head(head));
        Self::Stream(SentStream { head, gate: None, other_half: None, body, ended: false, _kept: kept })
    }

    /// Head and body of a request; the body is sent after the gate has opened, and fails when the answer,
    /// which holds `other_half`, is dropped before its end. The end of an empty body follows the head at
    /// once: the peer may answer completely before the gate opens, and would have to reset the stream.
    pub(crate) fn request(
        head: &[u8],
        body: PeerBody,
        gate: oneshot::Receiver<()>,
        other_half: oneshot::Receiver<()>,
        kept: Vec<Kept>,
    ) -> Self {
        let head = Some(frame_head(head));
        let (gate, other_half) = ((!body.is_end_stream()).then_some(gate), Some(other_half));
        Self::Stream(SentStream { head, gate, other_half, body, ended: false, _kept: kept })
    }
}

/// Result of a poll of a body.
type PolledFrame = Poll<Option<Result<Frame<Bytes>, PeerBodyError>>>;

impl SentStream {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let gave_up = || Poll::Ready(Some(Err(PeerBodyError::Failed("its stream was given up".to_owned()))));
        if let Some(gate) = &mut self.gate {
            match Pin::new(gate).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => self.gate = None,
                Poll::Ready(Err(_)) => return gave_up(),
            }
        }
        if let Some(other_half) = &mut self.other_half {
            match Pin::new(other_half).poll(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.other_half = None,
                Poll::Ready(Err(_)) => return gave_up(),
            }
        }
        loop {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers are of the transport alone.
                    let Ok(piece) = frame.into_data() else { continue };
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.ended = true;
                    return Poll::Ready(Some(Ok(Frame::trailers(end_trailer()))));
                }
            }
        }
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = PeerBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) => stream.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Stream(stream) => stream.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// A body of a stream that is received.
pub(crate) struct ReceivedBody<B> {
    rest: Bytes,
    body: B,
    ended: bool,
    /// Sent at the clean end, dropped otherwise.
    other_half: Option<oneshot::Sender<()>>,
    _kept: Vec<Kept>,
}

impl<B> ReceivedBody<B> {
    /// `rest` came with the head; `other_half` is notified at the clean end.
    pub(crate) const fn new(
        rest: Bytes,
        body: B,
        other_half: Option<oneshot::Sender<()>>,
        kept: Vec<Kept>,
    ) -> Self {
        Self { rest, body, ended: false, other_half, _kept: kept }
    }
}

impl<B> Body for ReceivedBody<B>
where
    B: Body<Data = Bytes, Error: std::error::Error> + Unpin,
{
    type Data = Bytes;
    type Error = PeerBodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = &mut *self;
        if !this.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.rest)))));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        let frame = match std::task::ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(PeerBodyError::Cut(error.to_string())))),
            None => {
                let cut = PeerBodyError::Cut("it has no end".to_owned());
                return Poll::Ready(Some(Err(cut)));
            }
        };
        match frame.into_data() {
            Ok(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            Err(frame) if frame.trailers_ref().is_some_and(is_end) => {
                this.ended = true;
                if let Some(other_half) = this.other_half.take() {
                    let _ = other_half.send(());
                }
                Poll::Ready(None)
            }
            Err(_) => Poll::Ready(Some(Err(PeerBodyError::Cut("it has another end".to_owned())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.rest.is_empty()
    }
}

/// A body without bytes.
pub(crate) fn empty_body() -> PeerBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that begins with bytes that are here.
pub(crate) struct Chained {
    first: Bytes,
    /// `None` after its end, or if nothing follows.
    rest: Option<PeerBody>,
    _kept: Option<Kept>,
}

impl Chained {
    pub(crate) const fn new(first: Bytes, rest: Option<PeerBody>, kept: Option<Kept>) -> Self {
        Self { first, rest, _kept: kept }
    }
}

impl Body for Chained {
    type Data = Bytes;
    type Error = PeerBodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.first)))));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let polled = std::task::ready!(Pin::new(rest).poll_frame(cx));
        if polled.is_none() {
            self.rest = None;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }
}

#[cfg(test)]
mod tests;
