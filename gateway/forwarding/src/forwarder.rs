//! Finds a member that accepts a request, sends the body of the client and returns the member's answer.
//!
//! Until a member accepts, each attempt is free: the next member is tried after a refusal, a failure or the
//! time limit. Afterwards there is no second attempt, because the first may have been carried out.

use crate::answer::{AnswerDecoder, AnswerFrame, ForwardedAnswerHead};
use crate::counters::{ForwardCounters, count};
use crate::failure::ForwardFailure;
use crate::gate::{BodyGate, BodyOpening};
use crate::head::{DeclaredBody, ForwardedContext, HeadError, encode_head};
use crate::health::MemberHealth;
use crate::reads::{READS_TOGETHER, ReadInFlight, ReadsInFlight};
use crate::route::{CandidateQueue, MapEpoch, RangeMembers, RoutePreference};
use crate::streams::{
    MemberBody, MemberStreams, OpenedStream, PolledFrame, StreamFault, StreamOpenError, empty_body,
    poll_bytes,
};
use crate::verdict::RoutingVerdict;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::EXPECT;
use http::request::Parts;
use http::{Method, Response, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_common::limits::{FORWARD_ACCEPT_WAIT_MS, FORWARD_VERDICT_WAIT_MS};
use mlgw_common::time::{Instant, timeout_at};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::headers::head_too_large;
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

const VERDICT_WAIT: Duration = Duration::from_millis(FORWARD_VERDICT_WAIT_MS);
const ACCEPT_WAIT: Duration = Duration::from_millis(FORWARD_ACCEPT_WAIT_MS);

/// Returns true if a member waits for the release of a request before it carries it out. A read without a
/// body changes nothing, so it need not wait.
#[must_use]
pub fn is_released_later(method: &Method, body: DeclaredBody) -> bool {
    !is_read(method) || body != DeclaredBody::Empty
}

/// Returns true if requests with this method change nothing.
const fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Returns true if the body of a request is sent to the member only when its handler reads it.
#[must_use]
pub fn is_body_awaited(head: &Parts, body: DeclaredBody) -> bool {
    let expects =
        head.headers.get(EXPECT).is_some_and(|e| e.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    expects && head.version == Version::HTTP_11 && body != DeclaredBody::Empty
}

/// A request to forward.
pub struct OutgoingRequest<'a, B> {
    /// Its head, as received.
    pub head: &'a Parts,
    /// Facts for the member.
    pub context: ForwardedContext,
    /// The members that may serve it.
    pub group: &'a RangeMembers,
    /// The node that has the rows for it, as this node knows. It is tried although the range map does not
    /// have it, as while a group moves.
    pub owner: Option<NodeId>,
    /// Number of the request, which spreads changes over the members of a group without a known leader.
    pub turn: u64,
    /// Time for which it has waited on this node. It is part of the longest time until a member accepts it.
    pub waited: Duration,
    /// Its body, not read yet.
    pub body: B,
}

/// The answer of a member.
pub struct ForwardedResponse {
    /// The member.
    pub member: NodeId,
    /// Its answer.
    pub response: Response<ForwardedBody>,
}

/// Forwards requests.
pub struct Forwarder {
    own: NodeId,
    streams: Arc<dyn MemberStreams>,
    health: MemberHealth,
    reads: ReadsInFlight,
    newest_epoch: AtomicU64,
    /// Counters of forwarded requests.
    pub counters: Arc<ForwardCounters>,
}

/// How a request is forwarded.
#[derive(Clone, Copy)]
struct RequestKind {
    /// It counts as a read of its member.
    is_read: bool,
    /// The member carries it out when it is released.
    gated: bool,
}

/// A stream on which a member has accepted the request.
struct AcceptedStream<B> {
    member: NodeId,
    gate: Option<BodyGate<B>>,
    answer: MemberBody,
    read: Option<ReadInFlight>,
}

/// Failure of the attempts so far. The last one is reported, unless it hides the reason of an earlier one.
struct FailedAttempt {
    failure: ForwardFailure,
    cause: String,
    /// Leader that the member named.
    leader: Option<NodeId>,
}

impl FailedAttempt {
    fn new(failure: ForwardFailure, member: NodeId, cause: impl Display) -> Self {
        Self { failure, cause: format!("node {member}: {cause}"), leader: None }
    }

    /// The failure to report after an attempt that followed others.
    fn following(earlier: Option<Self>, last: Self) -> Self {
        match earlier {
            Some(earlier) if earlier.failure.is_reported_over(last.failure) => earlier,
            _ => last,
        }
    }
}

impl Forwarder {
    /// Returns the forwarder of the node `own`, which counts in `counters`.
    #[must_use]
    pub fn new(own: NodeId, streams: Arc<dyn MemberStreams>, counters: Arc<ForwardCounters>) -> Self {
        let (health, reads) = (MemberHealth::default(), ReadsInFlight::default());
        Self { own, streams, health, reads, newest_epoch: AtomicU64::new(0), counters }
    }

    /// Returns the highest epoch that a member has named. If it is higher than that of the node's own range
    /// map, the map is out of date.
    #[must_use]
    pub fn newest_epoch(&self) -> MapEpoch {
        MapEpoch(self.newest_epoch.load(Relaxed))
    }

    /// Forwards a request and returns the head of its answer. Dropping the future, or the body of the answer,
    /// cancels the request at the member.
    ///
    /// # Errors
    /// `ServiceUnavailable` with a [`ForwardFailure`]; the error of the client's body;
    /// `RequestHeaderSectionTooLarge`.
    pub async fn forward<B>(&self, request: OutgoingRequest<'_, B>) -> Result<ForwardedResponse, S3Error>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        S3Error: From<B::Error>,
    {
        let OutgoingRequest { head, context, group, owner, turn, waited, body } = request;
        let until = Instant::now() + ACCEPT_WAIT.saturating_sub(waited);
        let declared = context.body;
        let encoded = encode_head(head, &context).map_err(|error| match error {
            HeadError::TooLong(_) | HeadError::Headers(_) => head_too_large(),
            other => S3Error::internal(other),
        })?;
        let is_read = is_read(&head.method);
        let (preference, turn) = match is_read {
            true => (RoutePreference::Any, self.own.get()),
            false => (RoutePreference::Leader, turn),
        };
        let now = Instant::now();
        let is_suspect = |member| self.health.is_suspect(member, now) || self.streams.is_stopping(member);
        let mut candidates = CandidateQueue::new(group, preference, turn, self.own, is_suspect);
        if is_read {
            candidates.prefer_below(READS_TOGETHER, |member| self.reads.count(member));
        }
        if let Some(owner) = owner.filter(|owner| !group.has_node(*owner)) {
            candidates.add(owner, is_suspect(owner));
        }
        let gated = is_released_later(&head.method, declared);
        let accepted = self.find_member(candidates, &encoded, RequestKind { is_read, gated }, until).await?;
        count(&self.counters.accepted);
        if let Some(gate) = &accepted.gate {
            let opening = match is_body_awaited(head, declared) {
                true => BodyOpening::OnDemand,
                false => BodyOpening::AtRelease,
            };
            gate.release(body, opening);
        }
        let member = accepted.member;
        let answered = receive_head(accepted).await;
        let response = answered.inspect_err(|error| {
            if error.code() == Code::ServiceUnavailable {
                count(&self.counters.lost);
                self.health.record_failure(member, Instant::now());
            }
        })?;
        Ok(ForwardedResponse { member, response })
    }

    /// Tries the candidates until one accepts the request.
    async fn find_member<B>(
        &self,
        mut candidates: CandidateQueue,
        head: &Bytes,
        kind: RequestKind,
        until: Instant,
    ) -> Result<AcceptedStream<B>, S3Error>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        S3Error: From<B::Error>,
    {
        let mut last = None;
        while let Some(member) = candidates.next().filter(|_| Instant::now() < until) {
            match self.attempt(member, head, kind, until).await {
                Ok(accepted) => return Ok(accepted),
                Err(failed) => {
                    tracing::debug!(member = member.get(), cause = failed.cause, "a member did not accept");
                    failed.leader.into_iter().for_each(|leader| candidates.prefer(leader));
                    last = Some(FailedAttempt::following(last, failed));
                }
            }
        }
        count(&self.counters.not_accepted);
        let failed = last.unwrap_or_else(|| {
            let (failure, cause) = match Instant::now() < until {
                true => (ForwardFailure::NoMember, "the range map has no other member"),
                false => (ForwardFailure::Unreachable, "the request has waited on this node for too long"),
            };
            FailedAttempt { failure, cause: cause.to_owned(), leader: None }
        });
        Err(failed.failure.error(failed.cause))
    }

    /// Sends the head to one member and waits for its verdict.
    async fn attempt<B>(
        &self,
        member: NodeId,
        head: &Bytes,
        kind: RequestKind,
        until: Instant,
    ) -> Result<AcceptedStream<B>, FailedAttempt>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        S3Error: From<B::Error>,
    {
        let read = kind.is_read.then(|| self.reads.begin(member));
        let (gate, body) = match kind.gated {
            true => {
                let (gate, body) = BodyGate::new();
                (Some(gate), MemberBody::new(body))
            }
            false => (None, empty_body()),
        };
        let opened = self.open(member, head, body, until).await?;
        let verdict =
            RoutingVerdict::decode(&opened.head).map_err(|error| self.unreachable(member, error))?;
        self.health.record_success(member);
        let (counter, failed) = match verdict {
            RoutingVerdict::Accepted { epoch } => {
                self.newest_epoch.fetch_max(epoch.0, Relaxed);
                return Ok(AcceptedStream { member, gate, answer: opened.body, read });
            }
            RoutingVerdict::NotMine { leader, epoch } => {
                self.newest_epoch.fetch_max(epoch.0, Relaxed);
                let cause = format!("the map of epoch {} names another owner", epoch.0);
                let failed = FailedAttempt::new(ForwardFailure::NotOwned, member, cause);
                (&self.counters.not_mine, FailedAttempt { leader, ..failed })
            }
            RoutingVerdict::Busy { reason } => {
                (&self.counters.busy, FailedAttempt::new(ForwardFailure::Busy, member, reason))
            }
            RoutingVerdict::Unconfirmed { cause, reason } => {
                let failure = ForwardFailure::Unconfirmed(cause);
                (&self.counters.busy, FailedAttempt::new(failure, member, reason))
            }
            RoutingVerdict::Refused { reason } => {
                (&self.counters.refused, FailedAttempt::new(ForwardFailure::Refused, member, reason))
            }
        };
        count(counter);
        Err(failed)
    }

    /// Opens a stream to a member, with the time limit of a verdict.
    async fn open(
        &self,
        member: NodeId,
        head: &Bytes,
        body: MemberBody,
        until: Instant,
    ) -> Result<OpenedStream, FailedAttempt> {
        let until = until.min(Instant::now() + VERDICT_WAIT);
        match timeout_at(until, self.streams.open(member, head.clone(), body)).await {
            Ok(Ok(opened)) => Ok(opened),
            // The streams are in use by other requests, so nothing is known against the member.
            Ok(Err(StreamOpenError::Busy(cause))) => {
                count(&self.counters.busy);
                Err(FailedAttempt::new(ForwardFailure::Busy, member, cause))
            }
            Ok(Err(error @ (StreamOpenError::NotSent(_) | StreamOpenError::Lost(_)))) => {
                Err(self.unreachable(member, error))
            }
            Err(_) => Err(self.unreachable(member, "no verdict in time")),
        }
    }

    /// Records an attempt without a verdict.
    fn unreachable(&self, member: NodeId, cause: impl Display) -> FailedAttempt {
        count(&self.counters.unreachable);
        self.health.record_failure(member, Instant::now());
        FailedAttempt::new(ForwardFailure::Unreachable, member, cause)
    }
}

/// Waits for the head of the answer. An error of the client's body ends the wait.
async fn receive_head<B>(accepted: AcceptedStream<B>) -> Result<Response<ForwardedBody>, S3Error>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    S3Error: From<B::Error>,
{
    let AcceptedStream { member, gate, mut answer, mut read } = accepted;
    let (mut decoder, lost) = (AnswerDecoder::default(), |cause: &dyn Display| {
        ForwardFailure::Lost.error(format!("node {member}: {cause}"))
    });
    let head = loop {
        match decoder.next_frame().map_err(|error| lost(&error))? {
            Some(AnswerFrame::Head(head)) => break head,
            Some(AnswerFrame::BodyRequest) => gate.iter().for_each(BodyGate::open_body),
            None => {
                let piece = match &gate {
                    Some(gate) => tokio::select! {
                        biased;
                        fault = gate.fault() => return Err(fault),
                        piece = next_piece(&mut answer) => piece,
                    },
                    None => next_piece(&mut answer).await,
                };
                let fault = || gate.as_ref().and_then(BodyGate::take_fault);
                let piece = piece.map_err(|error| fault().unwrap_or_else(|| lost(&error)))?;
                decoder.feed(piece.ok_or_else(|| lost(&"the answer ended before its head"))?);
            }
        }
    };
    if let Some(gate) = &gate {
        gate.withhold_rest();
    }
    let ForwardedAnswerHead { status, headers, body_bytes } = head;
    read.iter_mut().for_each(|read| read.set_body_bytes(body_bytes));
    let kept: Option<Box<dyn Send>> = match gate {
        Some(gate) => Some(Box::new(gate)),
        None => None,
    };
    let mut body =
        ForwardedBody { first: decoder.into_rest(), left: body_bytes, answer, _gate: kept, _read: read };
    if body_bytes == Some(0) {
        body.read_end();
    }
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Returns the next bytes of an answer.
async fn next_piece(answer: &mut MemberBody) -> Result<Option<Bytes>, StreamFault> {
    poll_fn(|cx| poll_bytes(answer, cx)).await.transpose()
}

/// The body of an answer does not have its announced length.
#[derive(Debug, thiserror::Error)]
#[error("the answer of the member broke off or is too long: {left} bytes are left")]
struct WrongLength {
    left: u64,
}

/// Body of a member's answer. Dropping it cancels the request at the member.
pub struct ForwardedBody {
    /// Bytes that arrived with the head.
    first: Bytes,
    /// Bytes that follow, if their number is known.
    left: Option<u64>,
    answer: MemberBody,
    /// Keeps the request's direction of the stream open until the answer has ended.
    _gate: Option<Box<dyn Send>>,
    _read: Option<ReadInFlight>,
}

impl ForwardedBody {
    /// Returns the remaining bytes, if their number is known.
    #[must_use]
    pub const fn left_bytes(&self) -> Option<u64> {
        self.left
    }

    fn count(&mut self, bytes: Bytes) -> Result<Frame<Bytes>, StreamFault> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(bytes.len() as u64).ok_or(WrongLength { left: *left })?;
            if *left == 0 {
                self.read_end();
            }
        }
        Ok(Frame::data(bytes))
    }

    /// Reads the end of the stream if it has arrived, as it does with the last bytes. A stream that is
    /// dropped before its end has to be reset.
    fn read_end(&mut self) {
        // The announced bytes are complete, whatever follows.
        let _ = self.answer.frame().now_or_never();
    }
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = StreamFault;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = self.get_mut();
        if !this.first.is_empty() {
            let first = std::mem::take(&mut this.first);
            return Poll::Ready(Some(this.count(first)));
        }
        if this.left == Some(0) {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(poll_bytes(&mut this.answer, cx)) {
            Some(Ok(bytes)) => Some(this.count(bytes)),
            Some(Err(error)) => Some(Err(error)),
            None => this.left.map(|left| Err(WrongLength { left }.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
