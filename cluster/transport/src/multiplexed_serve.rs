//! Requests on a multiplexed connection that a peer made: many at a time, each in a task of its own.
//!
//! Invariants are those of [`crate::inbound`]: no service is reached before the handshake passed, and nothing
//! but a short hello is read until then. A request that the peer cancels is given up, and all of them are
//! when the connection ends. At most [`RUNNING_MAX`] requests have no answer on its way; then nothing more is
//! read. Answers that the socket does not take stay with their tasks. So the bytes in memory have a limit.
//!
//! An answer has the whole body if that is short and complete soon. Otherwise the rest waits for the peer
//! ([`crate::rests`]).
//!
//! At a stop the peer gets a goodbye, and what it sent before it could read that is still served. A rest that
//! was not requested before is lost; it is of a read, which another node serves.

use crate::body::{Chained, empty_body};
use crate::channel::StreamClass;
use crate::error::PeerBodyError;
use crate::exclusive_body::data_of;
use crate::exclusive_serve::{GOODBYE_WAIT, HEAD_WAIT, answer_hello};
use crate::framed_io::{Duplex, Exchanged, FramedIo};
use crate::frames::{
    AnswerFields, AnswerStatus, Frame, FrameKind, NUMBERED_BODY_BYTES_MAX, NumberedRequest, ReceivedFrames,
    put_frame, put_numbered_answer,
};
use crate::handshake::HANDSHAKE_LIMIT;
use crate::inbound::InboundConnection;
use crate::multiplexed::REQUESTS_MAX;
use crate::peer::ConnectionKind;
use crate::rests::{KEPT_MAX, KeptRest};
use crate::service::{IncomingStream, PeerBody, StreamAnswer, StreamEnd};
use crate::state::TransportState;
use crate::wire::{DEADLINE_MAX, encode_refusal};
use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, sleep_until, timeout};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::task::{AbortHandle, JoinSet};

/// Requests without an answer on its way from which nothing more is read: those that the peer may have in
/// flight, and as many that it has cancelled.
const RUNNING_MAX: usize = 2 * REQUESTS_MAX;

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
    let (running, rests) = (BTreeMap::new(), VecDeque::new());
    let ends = ConnectionEnd::Open;
    ServedConnection { io, state, peer, requests, running, rests, ends }.run().await
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
    /// Numbers of the last answers with a rest, and its key. The peer may cancel a request whose answer it
    /// has not read.
    rests: VecDeque<(u32, u64)>,
    ends: ConnectionEnd,
}

/// How far the end of a connection is.
enum ConnectionEnd {
    Open,
    /// The goodbye is being sent.
    Goodbye,
    /// Requests that cross it are served until then.
    At(Instant),
}

impl ServedConnection {
    async fn run(mut self) -> Option<()> {
        loop {
            let (running, is_full) = (self.requests.len(), self.io.is_full());
            let may_end = running == 0 && self.io.has_sent();
            tokio::select! {
                exchanged = exchange(&mut self.io, running) => match exchanged.ok()? {
                    Exchanged::Sent => {
                        if matches!(self.ends, ConnectionEnd::Goodbye) {
                            self.ends = ConnectionEnd::At(Instant::now() + GOODBYE_WAIT);
                        }
                    }
                    Exchanged::Frame(frame) => self.receive(frame)?,
                    Exchanged::End => return None,
                },
                Some(answered) = self.requests.join_next(), if !is_full => {
                    answered.into_iter().for_each(|answered| self.add(answered));
                    self.gather().await;
                }
                () = self.state.stopping.cancelled(), if matches!(self.ends, ConnectionEnd::Open) => {
                    put_frame(&mut self.io.outbox, FrameKind::Goodbye, &[]);
                    self.ends = ConnectionEnd::Goodbye;
                }
                () = end_of(&self.ends), if may_end => return None,
            }
        }
    }

    /// Begins or cancels a request.
    fn receive(&mut self, frame: Frame) -> Option<()> {
        match frame {
            Frame::NumberedRequest(request) => {
                let number = request.number;
                let answering = numbered_answer(self.state.clone(), self.peer, request);
                self.running.insert(number, self.requests.spawn(answering));
            }
            Frame::Cancel(number) => match self.running.remove(&number) {
                Some(request) => request.abort(),
                None => self.drop_rest(number),
            },
            _ => return None,
        }
        Some(())
    }

    /// Drops the rest of an answer that the peer has not read.
    fn drop_rest(&mut self, number: u32) {
        if let Some((_, key)) = self.rests.iter().find(|(of, _)| *of == number) {
            self.state.rests.remove(self.peer, *key);
        }
    }

    /// Adds an answer to what is to be sent, unless its request was cancelled when it was ready.
    fn add(&mut self, answered: NumberedParts) {
        let NumberedParts { number, parts } = answered;
        let AnswerParts { status, rest, head, pieces } = parts;
        if self.running.remove(&number).is_none() {
            self.state.rests.remove(self.peer, rest);
            return;
        }
        if rest != 0 {
            self.rests.truncate(RUNNING_MAX - 1);
            self.rests.push_front((number, rest));
        }
        let fields = AnswerFields { number, status, rest };
        put_numbered_answer(&mut self.io.outbox, fields, &head, &pieces);
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

/// Sends, and receives unless so many requests are running that nothing more is read.
async fn exchange(io: &mut FramedIo, running: usize) -> io::Result<Exchanged> {
    if running < RUNNING_MAX { io.exchange().await } else { io.send_only().await }
}

/// Returns when a connection ends.
async fn end_of(ends: &ConnectionEnd) {
    match ends {
        ConnectionEnd::At(at) => sleep_until(*at).await,
        ConnectionEnd::Open | ConnectionEnd::Goodbye => std::future::pending().await,
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

    const fn failed() -> Self {
        Self::without_body(AnswerStatus::Failed, Bytes::new())
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
        AnswerParts::failed()
    });
    NumberedParts { number, parts }
}

/// Answers a request.
async fn answer(state: Arc<TransportState>, peer: NodeId, request: NumberedRequest) -> AnswerParts {
    let NumberedRequest { service, wait, head, .. } = request;
    let body = empty_body();
    let (class, deadline) = (StreamClass::Request, Instant::now() + wait.min(DEADLINE_MAX));
    let stream = IncomingStream { peer, class, service, head, body, deadline };
    match state.answer_stream(stream).await {
        StreamEnd::Answered(StreamAnswer { head, body }) => with_body(&state, peer, head, body).await,
        StreamEnd::Refused(refusal) => {
            AnswerParts::without_body(AnswerStatus::Refused, encode_refusal(refusal))
        }
        StreamEnd::Failed => AnswerParts::failed(),
    }
}

/// The answer with the body, or with its beginning and the key of the rest.
async fn with_body(
    state: &Arc<TransportState>,
    peer: NodeId,
    head: Bytes,
    mut body: PeerBody,
) -> AnswerParts {
    let mut start = BodyStart::default();
    if let Ok(Err(error)) = timeout(HEAD_WAIT, start.read(&mut body)).await {
        tracing::debug!(%error, "the body of an answer failed");
        return AnswerParts::failed();
    }
    let BodyStart { pieces, next, is_whole, .. } = start;
    if is_whole {
        return AnswerParts { status: AnswerStatus::Answered, rest: 0, head, pieces };
    }
    match keep(state, peer, Chained::new(next, Some(body), None).boxed_unsync()) {
        Some(rest) => AnswerParts { status: AnswerStatus::Answered, rest, head, pieces },
        None => AnswerParts::failed(),
    }
}

/// Keeps the rest of a body for its peer, and returns the key.
fn keep(state: &Arc<TransportState>, peer: NodeId, body: PeerBody) -> Option<u64> {
    let KeptRest { key, begins_sweep } = state.rests.keep(peer, body)?;
    if begins_sweep {
        let of = state.clone();
        state.tasks.spawn(async move {
            while timeout(KEPT_MAX / 4, of.ended.cancelled()).await.is_err() && of.rests.sweep() {}
        });
    }
    Some(key)
}

/// The beginning of a body.
#[derive(Default)]
struct BodyStart {
    pieces: Vec<Bytes>,
    bytes: usize,
    /// The first piece that does not fit.
    next: Bytes,
    /// True if no more follows.
    is_whole: bool,
}

impl BodyStart {
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
