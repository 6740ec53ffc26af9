//! Requests on a multiplexed connection that a peer made: many at a time, each in a task of its own.
//!
//! Invariants are those of [`crate::inbound`]: no service is reached before the handshake passed, and nothing
//! but a short hello is read until then. A request that the peer cancels, and all of them when the connection
//! ends, are given up. Answers that the socket does not take are not collected from their tasks, and the peer
//! has at most [`REQUESTS_MAX`] requests in flight, so the bytes in memory have a limit.
//!
//! An answer has the whole body if that is short and complete soon. Otherwise the rest waits for the peer
//! ([`crate::continuations`]).
//!
//! At a stop the peer gets a goodbye, and what it sent before it could read that is still served.

use crate::body::Chained;
use crate::channel::StreamClass;
use crate::continuations::KEPT_MAX;
use crate::error::PeerBodyError;
use crate::exclusive_body::data_of;
use crate::exclusive_serve::{GOODBYE_WAIT, HEAD_WAIT, answer_hello};
use crate::framed_io::{Duplex, Exchanged, FramedIo};
use crate::frames::{
    AnswerStatus, Frame, FrameKind, NUMBERED_BODY_BYTES_MAX, NumberedAnswerHead, NumberedRequest,
    ReceivedFrames, put_frame, put_numbered_answer,
};
use crate::handshake::HANDSHAKE_LIMIT;
use crate::inbound::InboundConnection;
use crate::multiplexed::REQUESTS_MAX;
use crate::peer::ConnectionKind;
use crate::service::{IncomingStream, PeerBody, StreamAnswer};
use crate::state::TransportState;
use crate::wire::encode_refusal;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, Empty};
use mlgw_common::NodeId;
use mlgw_common::limits::PEER_STREAM_HEAD_BYTES_MAX;
use mlgw_common::time::{Instant, sleep_until, timeout};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::task::{AbortHandle, JoinSet};

/// Serves a connection until it ends.
pub(crate) async fn serve(io: impl Duplex + 'static, inbound: Arc<InboundConnection>) {
    tokio::select! {
        _ = serve_requests(FramedIo::new(io), &inbound) => {}
        () = inbound.state().ended.cancelled() => {}
    }
}

/// Serves requests until `None`: the connection ends.
async fn serve_requests(mut io: FramedIo, inbound: &InboundConnection) -> Option<()> {
    let hello = answer_hello(&mut io, inbound, ConnectionKind::Multiplexed);
    let session = timeout(HANDSHAKE_LIMIT, hello).await.ok()??;
    if session.channel != StreamClass::Request.channel() {
        return None;
    }
    io.receive(ReceivedFrames::NumberedRequests);
    let (state, peer, requests) = (inbound.state().clone(), session.node, JoinSet::new());
    ServedConnection { io, state, peer, requests, running: BTreeMap::new(), ends_at: None }.run().await
}

/// A connection whose handshake passed.
struct ServedConnection {
    io: FramedIo,
    state: Arc<TransportState>,
    peer: NodeId,
    /// The requests without an answer in the outbox.
    requests: JoinSet<NumberedParts>,
    /// Those that were not cancelled, by their numbers.
    running: BTreeMap<u32, AbortHandle>,
    /// End of the time for requests that cross the goodbye.
    ends_at: Option<Instant>,
}

impl ServedConnection {
    async fn run(mut self) -> Option<()> {
        loop {
            tokio::select! {
                biased;
                exchanged = self.io.exchange() => match exchanged.ok()? {
                    Exchanged::Sent => {}
                    Exchanged::Frame(frame) => self.receive(frame)?,
                    Exchanged::End => return None,
                },
                Some(answered) = self.requests.join_next(), if !self.io.is_full() => {
                    answered.into_iter().for_each(|answered| self.add(answered));
                    self.gather().await;
                }
                () = self.state.stopping.cancelled(), if self.ends_at.is_none() => {
                    put_frame(&mut self.io.outbox, FrameKind::Goodbye, &[]);
                    self.ends_at = Some(Instant::now() + GOODBYE_WAIT);
                }
                () = end_of(self.ends_at), if self.requests.is_empty() && self.io.has_sent() => return None,
            }
        }
    }

    /// Begins or cancels a request; `None` if the peer has too many.
    fn receive(&mut self, frame: Frame) -> Option<()> {
        match frame {
            Frame::NumberedRequest(request) if self.requests.len() < 2 * REQUESTS_MAX => {
                let number = request.number;
                let answering = numbered_answer(self.state.clone(), self.peer, request);
                self.running.insert(number, self.requests.spawn(answering));
                Some(())
            }
            Frame::Cancel(number) => {
                self.running.remove(&number).inspect(AbortHandle::abort);
                Some(())
            }
            _ => None,
        }
    }

    /// Adds an answer to what is to be sent.
    fn add(&mut self, answered: NumberedParts) {
        let NumberedParts { number, parts } = answered;
        self.running.remove(&number);
        let AnswerParts { status, rest, head, pieces } = parts;
        let of = NumberedAnswerHead { number, status, rest };
        put_numbered_answer(&mut self.io.outbox, of, &head, &pieces);
    }

    /// Adds the answers that are ready once the other tasks of this thread had a turn: one write carries them
    /// all.
    async fn gather(&mut self) {
        tokio::task::yield_now().await;
        while !self.io.is_full()
            && let Some(Some(answered)) = self.requests.join_next().now_or_never()
        {
            answered.into_iter().for_each(|answered| self.add(answered));
        }
    }
}

/// Returns at `at`; never without it.
async fn end_of(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// An answer that is not encoded.
struct AnswerParts {
    status: AnswerStatus,
    /// The key of the rest of the body; zero if there is none.
    rest: u64,
    head: Bytes,
    /// The body, or its beginning.
    pieces: Vec<Bytes>,
}

/// An answer with the number of its request.
struct NumberedParts {
    number: u32,
    parts: AnswerParts,
}

impl AnswerParts {
    const fn without_body(status: AnswerStatus, head: Bytes) -> Self {
        Self { status, rest: 0, head, pieces: Vec::new() }
    }
}

/// Answers a request, also if its service panics.
async fn numbered_answer(
    state: Arc<TransportState>,
    peer: NodeId,
    request: NumberedRequest,
) -> NumberedParts {
    let number = request.number;
    let answered = AssertUnwindSafe(answer(state, peer, request)).catch_unwind().await;
    let parts = answered.unwrap_or_else(|_| {
        tracing::error!("a service panicked");
        AnswerParts::without_body(AnswerStatus::Failed, Bytes::new())
    });
    NumberedParts { number, parts }
}

/// Answers a request.
async fn answer(state: Arc<TransportState>, peer: NodeId, request: NumberedRequest) -> AnswerParts {
    let NumberedRequest { service, wait, head, .. } = request;
    let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let (class, deadline) = (StreamClass::Request, Instant::now() + wait);
    let stream = IncomingStream { peer, class, service, head, body, deadline };
    match state.answer_stream(stream).await {
        Ok(StreamAnswer { head, body }) if head.len() <= PEER_STREAM_HEAD_BYTES_MAX => {
            with_body(&state, peer, head, body).await
        }
        Ok(StreamAnswer { head, .. }) => {
            tracing::error!(bytes = head.len(), "the head of an answer of a service is too large");
            AnswerParts::without_body(AnswerStatus::Failed, Bytes::new())
        }
        Err(refusal) => AnswerParts::without_body(AnswerStatus::Refused, encode_refusal(refusal)),
    }
}

/// The answer with the body, or with its beginning and the key of the rest.
async fn with_body(
    state: &Arc<TransportState>,
    peer: NodeId,
    head: Bytes,
    mut body: PeerBody,
) -> AnswerParts {
    let mut begin = BodyBegin::default();
    if let Ok(Err(error)) = timeout(HEAD_WAIT, begin.read(&mut body)).await {
        tracing::debug!(%error, "the body of an answer failed");
        return AnswerParts::without_body(AnswerStatus::Failed, Bytes::new());
    }
    let BodyBegin { pieces, next, is_whole, .. } = begin;
    if is_whole {
        return AnswerParts { status: AnswerStatus::Answered, rest: 0, head, pieces };
    }
    match keep(state, peer, Chained::new(next, Some(body)).boxed_unsync()) {
        Some(rest) => AnswerParts { status: AnswerStatus::Answered, rest, head, pieces },
        None => AnswerParts::without_body(AnswerStatus::Failed, Bytes::new()),
    }
}

/// Keeps the rest of a body for its peer, and returns the key.
fn keep(state: &Arc<TransportState>, peer: NodeId, body: PeerBody) -> Option<u64> {
    let key = state.continuations.keep(peer, body)?;
    let of = state.clone();
    state.tasks.spawn(async move {
        let _ = timeout(KEPT_MAX, of.ended.cancelled()).await;
        of.continuations.expire(key);
    });
    Some(key)
}

/// The beginning of a body.
#[derive(Default)]
struct BodyBegin {
    pieces: Vec<Bytes>,
    bytes: usize,
    /// The first piece that does not fit.
    next: Bytes,
    /// True if no more follows.
    is_whole: bool,
}

impl BodyBegin {
    /// Reads until the end, or until a piece does not fit.
    async fn read(&mut self, body: &mut PeerBody) -> Result<(), PeerBodyError> {
        while let Some(frame) = body.frame().await {
            let piece = data_of(frame?)?;
            if self.bytes + piece.len() > NUMBERED_BODY_BYTES_MAX {
                self.next = piece;
                return Ok(());
            }
            self.bytes += piece.len();
            self.pieces.push(piece);
        }
        self.is_whole = true;
        Ok(())
    }
}
