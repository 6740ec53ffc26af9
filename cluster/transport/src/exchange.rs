//! Calls and streams of this node to a peer.

use crate::append_stream::AppendAnswer;
use crate::body::{Chained, Kept, ReceivedBody, SentBody};
use crate::channel::{Channel, StreamClass};
use crate::connection::OpenConnection;
use crate::counters::Raised;
use crate::error::{CallError, NotSent, UnknownOutcome};
use crate::exclusive::{ExclusiveConnection, ExclusivePool};
use crate::exclusive_body::ExclusiveBody;
use crate::exclusive_dial::{take_or_dial, take_or_wait};
use crate::frames::{AnswerStatus, NumberedAnswer, NumberedRequest, RequestFrame, RequestTarget};
use crate::multiplexed::{RequestInFlight, SHARED_FROM};
use crate::multiplexed_dial::queue_or_dial;
use crate::peer::PeerState;
use crate::redial::connection;
use crate::rests::{KEPT_MAX, REST_OF_BODY};
use crate::service::{PeerBody, StreamAnswer};
use crate::state::TransportState;
use crate::wire::{
    ANSWERED, BUSY, FAILED, NOT_UNDERSTOOD, PeerTarget, REFUSED, content_length, decode_refusal, read_head,
};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use mlgw_common::NodeId;
use mlgw_common::limits::{
    HANDSHAKE_BYTES_MAX, PEER_CALL_BYTES_MAX, PEER_EXCLUSIVE_REQUEST_BYTES_MAX, PEER_STREAM_HEAD_BYTES_MAX,
};
use mlgw_common::time::{Instant, timeout_at};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Attempts to hand a request to a connection: a connection may close between its choice and its use.
const ATTEMPTS: usize = 3;

/// Longest time that a stream of appends waits for a connection of its own: a third of the time that its
/// writer waits for a follower.
const OWN_CONNECTION_WAIT: Duration = Duration::from_millis(300);

/// A peer and a channel of it, with the time at which the caller stops waiting.
struct CallPath<'a> {
    state: &'a Arc<TransportState>,
    peer: Arc<PeerState>,
    channel: Channel,
    deadline: Instant,
}

/// Head of an answer, and the connection on which it came.
struct AnswerHead {
    connection: Arc<OpenConnection>,
    response: Response<Incoming>,
}

/// Call of a service of a peer.
pub(crate) struct OutgoingCall {
    pub(crate) node: NodeId,
    pub(crate) channel: Channel,
    pub(crate) service: u16,
    pub(crate) body: Bytes,
    pub(crate) deadline: Instant,
}

/// Stream to a service of a peer.
pub(crate) struct OutgoingStream {
    pub(crate) node: NodeId,
    pub(crate) class: StreamClass,
    pub(crate) service: u16,
    pub(crate) head: Bytes,
    pub(crate) body: PeerBody,
    pub(crate) deadline: Instant,
}

/// Sends a call and returns its answer.
///
/// # Errors
/// See [`CallError`].
pub(crate) async fn call(state: &Arc<TransportState>, call: OutgoingCall) -> Result<Bytes, CallError> {
    let path = CallPath::new(state, call.node, call.channel, call.deadline)?;
    path.check_length(call.body.len(), PEER_CALL_BYTES_MAX)?;
    let link = path.peer.link(call.channel);
    let _permit = path.permit(&link.calls).await?;
    let _in_flight = Raised::new(path.peer.meter(call.channel).clone(), |meter| &meter.calls_in_flight);
    if call.body.len() <= PEER_EXCLUSIVE_REQUEST_BYTES_MAX
        && let Some(exclusive) = path.exclusive().await?
    {
        return path.call(exclusive, call.service, call.body).await;
    }
    let target = PeerTarget::Call { service: call.service };
    let request = target.request(SentBody::whole(call.body), call.deadline);
    let answer = path.send(request).await?;
    path.answered(answer).await
}

/// Opens a stream and returns its answer, whose body goes on while that of the request is sent.
///
/// # Errors
/// See [`CallError`].
pub(crate) async fn open(
    state: &Arc<TransportState>,
    stream: OutgoingStream,
) -> Result<StreamAnswer, CallError> {
    let path = CallPath::new(state, stream.node, stream.class.channel(), stream.deadline)?;
    let kept = path.begin_stream(stream.class, stream.head.len()).await?;
    if stream.class == StreamClass::Request && stream.body.is_end_stream() {
        return path.open_alone(stream, kept).await;
    }
    if stream.class == StreamClass::Append
        && let Some(connection) = path.own_connection().await?
    {
        return path.open_append(connection, stream, Box::new(kept)).await;
    }
    // The future of a request is moved several times, so those of rare cases are kept apart.
    Box::pin(path.open_shared(stream, kept)).await
}

/// Opens the stream of a read, which has no body and may share a connection with others.
///
/// # Errors
/// See [`CallError`].
pub(crate) async fn read(
    state: &Arc<TransportState>,
    stream: OutgoingStream,
) -> Result<StreamAnswer, CallError> {
    let path = CallPath::new(state, stream.node, stream.class.channel(), stream.deadline)?;
    let kept = path.begin_stream(stream.class, stream.head.len()).await?;
    match path.multiplexed(&stream.head, stream.service).await? {
        Some(request) => path.open_multiplexed(request, stream, kept).await,
        None => path.open_alone(stream, kept).await,
    }
}

/// An exclusive connection, and the pool to which it returns.
struct TakenConnection {
    connection: ExclusiveConnection,
    pool: Arc<ExclusivePool>,
}

/// Permit and gauge of a stream, held by both of its halves.
struct StreamInFlight {
    _permit: OwnedSemaphorePermit,
    _raised: Raised,
}

impl<'a> CallPath<'a> {
    fn new(
        state: &'a Arc<TransportState>,
        node: NodeId,
        channel: Channel,
        deadline: Instant,
    ) -> Result<Self, CallError> {
        let not_sent = |reason| Err(CallError::NotSent { node, reason });
        if state.ended.is_cancelled() {
            return not_sent(NotSent::Stopping);
        }
        if node == state.node {
            return not_sent(NotSent::OwnNode);
        }
        if state.rules.removed().contains(&node) {
            return not_sent(NotSent::Removed);
        }
        Ok(Self { state, peer: state.peer(node), channel, deadline })
    }

    fn not_sent(&self, reason: NotSent) -> CallError {
        CallError::NotSent { node: self.peer.node, reason }
    }

    fn unknown(&self, reason: UnknownOutcome) -> CallError {
        CallError::Unknown { node: self.peer.node, reason }
    }

    fn bad_answer(&self, reason: &str) -> CallError {
        self.unknown(UnknownOutcome::BadAnswer(reason.to_owned()))
    }

    fn broken(&self, connection: &OpenConnection, error: &dyn std::error::Error) -> CallError {
        self.unknown(UnknownOutcome::Broken(connection.facts.cause(error)))
    }

    fn check_length(&self, bytes: usize, limit: usize) -> Result<(), CallError> {
        if bytes > limit {
            return Err(self.not_sent(NotSent::TooLarge { bytes, limit }));
        }
        Ok(())
    }

    /// Takes the permit of a stream, and counts it.
    async fn begin_stream(
        &self,
        class: StreamClass,
        head_bytes: usize,
    ) -> Result<Arc<StreamInFlight>, CallError> {
        self.check_length(head_bytes, PEER_STREAM_HEAD_BYTES_MAX)?;
        let permits = self.peer.link(self.channel).streams(class);
        let permit = match class {
            // Its client is answered at once that the node is busy. A wait would use up the time for a
            // verdict. The same holds for a segment, which can be followed by another node.
            StreamClass::Request | StreamClass::Append => self.permit_now(permits)?,
            StreamClass::Transfer => self.permit(permits).await?,
        };
        let raised = Raised::new(self.peer.meter(self.channel).clone(), |meter| &meter.streams_in_flight);
        Ok(Arc::new(StreamInFlight { _permit: permit, _raised: raised }))
    }

    async fn permit(&self, permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, CallError> {
        match timeout_at(self.deadline, permits.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(self.not_sent(NotSent::Stopping)),
            Err(_) => Err(self.not_sent(NotSent::Busy(self.channel))),
        }
    }

    fn permit_now(&self, permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, CallError> {
        permits.clone().try_acquire_owned().map_err(|_| self.not_sent(NotSent::Busy(self.channel)))
    }

    /// Takes an exclusive connection; `None` if none is idle.
    async fn exclusive(&self) -> Result<Option<TakenConnection>, CallError> {
        let beside = connection(self.state, &self.peer, self.channel, self.deadline).await?;
        let pool = beside.exclusive.clone();
        let taken = take_or_dial(self.state, &self.peer, self.channel, &beside);
        Ok(taken.map(|connection| TakenConnection { connection, pool }))
    }

    /// Takes or makes an exclusive connection, which does not return to the others; `None` if that is not
    /// possible.
    async fn own_connection(&self) -> Result<Option<ExclusiveConnection>, CallError> {
        let beside = connection(self.state, &self.peer, self.channel, self.deadline).await?;
        // Without it there is time for a shared connection.
        let until = self.deadline.min(Instant::now() + OWN_CONNECTION_WAIT);
        Ok(take_or_wait(self.state, &self.peer, self.channel, &beside, until).await)
    }

    /// Sends a call on an exclusive connection.
    async fn call(&self, taken: TakenConnection, service: u16, body: Bytes) -> Result<Bytes, CallError> {
        let TakenConnection { mut connection, pool } = taken;
        let request = self.request(RequestTarget::Call, service, body);
        let answer = connection.ask(&request, self.deadline).await;
        let (status, bytes) = answer.map_err(|reason| self.unknown(reason))?;
        pool.put(connection);
        self.answer_of(status, bytes)
    }

    /// Opens a stream without a body on an exclusive connection. The body of the answer has `kept` until it
    /// ends.
    async fn open(
        &self,
        taken: TakenConnection,
        stream: OutgoingStream,
        kept: Kept,
    ) -> Result<StreamAnswer, CallError> {
        let TakenConnection { mut connection, pool } = taken;
        let request = self.request(RequestTarget::Stream, stream.service, stream.head);
        let answer = connection.ask(&request, self.deadline).await;
        let (status, bytes) = answer.map_err(|reason| self.unknown(reason))?;
        let head = match self.answer_of(status, bytes) {
            Ok(head) => head,
            Err(error) => {
                pool.put(connection);
                return Err(error);
            }
        };
        let body = ExclusiveBody::new(connection, pool, kept).boxed_unsync();
        Ok(StreamAnswer { head, body })
    }

    /// Queues a stream without a body on the multiplexed connection; `None` if that takes none now, or if
    /// few streams are in flight.
    async fn multiplexed(&self, head: &Bytes, service: u16) -> Result<Option<RequestInFlight>, CallError> {
        if self.peer.meter(self.channel).streams_in_flight.load(Relaxed) < SHARED_FROM {
            return Ok(None);
        }
        let beside = connection(self.state, &self.peer, self.channel, self.deadline).await?;
        let wait = self.deadline.saturating_duration_since(Instant::now());
        let request = NumberedRequest { number: 0, service, wait, head: head.clone() };
        Ok(queue_or_dial(self.state, &self.peer, self.channel, &beside, request))
    }

    /// Waits for the answer of a queued stream, and opens another one for the rest of its body. The body has
    /// `kept` until it ends.
    async fn open_multiplexed(
        &self,
        request: RequestInFlight,
        stream: OutgoingStream,
        kept: Arc<StreamInFlight>,
    ) -> Result<StreamAnswer, CallError> {
        let answered = request.answer(self.deadline).await.map_err(|reason| self.unknown(reason))?;
        let NumberedAnswer { fields, head, body: start } = answered;
        let head = self.answer_of(fields.status, head)?;
        let rest = match fields.rest {
            0 => None,
            key => Some(self.open_rest(key, stream, kept.clone()).await?),
        };
        Ok(StreamAnswer { head, body: Chained::new(start, rest, Some(Box::new(kept))).boxed_unsync() })
    }

    /// Opens a stream for the rest of a body. The service has carried the request out, so no error means that
    /// nothing was done.
    async fn open_rest(
        &self,
        key: u64,
        stream: OutgoingStream,
        kept: Arc<StreamInFlight>,
    ) -> Result<PeerBody, CallError> {
        let deadline = self.deadline.max(Instant::now() + KEPT_MAX);
        let path = Self { state: self.state, peer: self.peer.clone(), channel: self.channel, deadline };
        let head = Bytes::copy_from_slice(&key.to_be_bytes());
        let rest = OutgoingStream { service: REST_OF_BODY, head, deadline, ..stream };
        match path.open_alone(rest, kept).await {
            Ok(opened) => Ok(opened.body),
            Err(error @ CallError::Unknown { .. }) => Err(error),
            Err(error) => Err(self.unknown(UnknownOutcome::Broken(error.to_string()))),
        }
    }

    /// Opens a stream without a body on a connection that it has for itself, or on the shared one.
    async fn open_alone(
        &self,
        stream: OutgoingStream,
        kept: Arc<StreamInFlight>,
    ) -> Result<StreamAnswer, CallError> {
        match self.exclusive().await? {
            Some(exclusive) => self.open(exclusive, stream, Box::new(kept)).await,
            None => Box::pin(self.open_shared(stream, kept)).await,
        }
    }

    /// Opens a stream on the shared connection.
    async fn open_shared(
        &self,
        stream: OutgoingStream,
        kept: Arc<StreamInFlight>,
    ) -> Result<StreamAnswer, CallError> {
        let keep = || -> Vec<Kept> { vec![Box::new(kept.clone())] };
        let (accepted, gate) = oneshot::channel();
        let (answer_half, other_half) = oneshot::channel();
        let target = PeerTarget::Stream { class: stream.class, service: stream.service };
        let body = SentBody::request(&stream.head, stream.body, gate, other_half, keep());
        let answer = self.send(target.request(body, stream.deadline)).await?;
        let AnswerHead { connection, mut response } = answer;
        if response.status() != ANSWERED {
            return Err(self.not_answered(AnswerHead { connection, response }).await);
        }
        let head = timeout_at(stream.deadline, read_head(response.body_mut())).await;
        let head = head.map_err(|_| self.unknown(UnknownOutcome::Deadline))?;
        let found = head.map_err(|error| self.broken(&connection, &error))?;
        // The caller's body is sent from here on. It needs no gate if it is empty, and is gone if the peer
        // has ended the stream.
        let _ = accepted.send(());
        let body = ReceivedBody::new(found.rest, response.into_body(), Some(answer_half), keep());
        Ok(StreamAnswer { head: found.head, body: body.boxed_unsync() })
    }

    /// Opens a stream of appends on an exclusive connection of its own. The body of the answer has `kept`
    /// until it ends.
    async fn open_append(
        &self,
        mut connection: ExclusiveConnection,
        stream: OutgoingStream,
        kept: Kept,
    ) -> Result<StreamAnswer, CallError> {
        let request = self.request(RequestTarget::Append, stream.service, stream.head);
        let answer = connection.ask(&request, self.deadline).await;
        let (status, bytes) = answer.map_err(|reason| self.unknown(reason))?;
        let head = self.answer_of(status, bytes)?;
        let body = AppendAnswer::new(connection, stream.body, kept).boxed_unsync();
        Ok(StreamAnswer { head, body })
    }

    fn request(&self, target: RequestTarget, service: u16, bytes: Bytes) -> RequestFrame {
        let wait = self.deadline.saturating_duration_since(Instant::now());
        RequestFrame { target, service, wait, bytes }
    }

    /// The answer of a service on an exclusive connection, or the error that takes its place.
    fn answer_of(&self, status: AnswerStatus, bytes: Bytes) -> Result<Bytes, CallError> {
        match status {
            AnswerStatus::Answered => Ok(bytes),
            AnswerStatus::Refused => Err(self.refused(&bytes)),
            AnswerStatus::Failed => Err(self.bad_answer("its service failed")),
            AnswerStatus::NotUnderstood => {
                Err(self.not_sent(NotSent::NotUnderstood(NOT_UNDERSTOOD.as_u16())))
            }
        }
    }

    fn refused(&self, bytes: &[u8]) -> CallError {
        match decode_refusal(bytes) {
            Some(refusal) => CallError::Refused { node: self.peer.node, refusal },
            None => self.bad_answer("its refusal cannot be decoded"),
        }
    }

    /// Sends a request and waits for the head of its answer.
    async fn send(&self, mut request: Request<SentBody>) -> Result<AnswerHead, CallError> {
        for _ in 0..ATTEMPTS {
            let connection = connection(self.state, &self.peer, self.channel, self.deadline).await?;
            let mut sender = connection.sender.clone();
            match timeout_at(self.deadline, sender.try_send_request(request)).await {
                Err(_) => return Err(self.unknown(UnknownOutcome::Deadline)),
                Ok(Ok(response)) => return Ok(AnswerHead { connection, response }),
                Ok(Err(mut failed)) => match failed.take_message() {
                    // hyper returns the request if it did not begin to send it.
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(&connection, failed.error())),
                },
            }
        }
        Err(self.not_sent(NotSent::Closed(self.channel)))
    }

    /// Bytes of the answer of a call.
    async fn answered(&self, answer: AnswerHead) -> Result<Bytes, CallError> {
        if answer.response.status() != ANSWERED {
            return Err(self.not_answered(answer).await);
        }
        self.collect(answer, PEER_CALL_BYTES_MAX).await
    }

    /// Bytes of a complete answer.
    async fn collect(&self, answer: AnswerHead, limit: usize) -> Result<Bytes, CallError> {
        let AnswerHead { connection, response } = answer;
        let length = content_length(response.headers());
        let body = Limited::new(response.into_body(), limit).collect();
        match timeout_at(self.deadline, body).await {
            Ok(Ok(collected)) => {
                let bytes = collected.to_bytes();
                // A stream that is reset may look like the end of the body.
                if length == Some(bytes.len()) {
                    Ok(bytes)
                } else {
                    Err(self.bad_answer("it is not complete"))
                }
            }
            Ok(Err(error)) => Err(self.broken(&connection, &*error)),
            Err(_) => Err(self.unknown(UnknownOutcome::Deadline)),
        }
    }

    /// Error of an answer that is no answer of a service.
    async fn not_answered(&self, answer: AnswerHead) -> CallError {
        match answer.response.status() {
            BUSY => self.not_sent(NotSent::Busy(self.channel)),
            FAILED => self.bad_answer("its service failed"),
            REFUSED => match self.collect(answer, HANDSHAKE_BYTES_MAX).await {
                Ok(bytes) => self.refused(&bytes),
                Err(error) => error,
            },
            other => self.not_sent(NotSent::NotUnderstood(other.as_u16())),
        }
    }
}
