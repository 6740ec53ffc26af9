//! Requests on a connection that a peer made.
//!
//! Invariant: no service is reached before the handshake passed, except `join` on a connection without a
//! certificate, which has nothing but it. Permits bound the calls, their bytes and the streams.

use crate::body::{Kept, ReceivedBody, SentBody};
use crate::channel::{Channel, StreamClass};
use crate::error::ServiceRefusal;
use crate::handshake::{BadHandshake, HandshakeRefusal, Hello, encode_answer};
use crate::link::{StreamPermits, stream_permits};
use crate::metered::StreamFacts;
use crate::peer::{ConnectionKind, Registration};
use crate::service::{IncomingCall, IncomingStream, StreamAnswer, StreamEnd};
use crate::state::TransportState;
use crate::wire::{
    ANSWERED, BUSY, FAILED, NOT_UNDERSTOOD, PeerTarget, REFUSED, content_length, deadline, encode_refusal,
    read_head, response,
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, request};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use mlgw_common::NodeId;
use mlgw_common::limits::{
    HANDSHAKE_BYTES_MAX, JOIN_BYTES_MAX, PEER_CALL_BYTES_IN_FLIGHT_MAX, PEER_CALL_BYTES_MAX, PEER_CALLS_MAX,
};
use mlgw_common::time::{Instant, timeout_at};
use mlgw_trust::CertifiedNode;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Connection of a peer, or of a node that joins.
pub(crate) struct InboundConnection {
    state: Arc<TransportState>,
    from: SocketAddr,
    certified: Option<CertifiedNode>,
    facts: StreamFacts,
    cancel: CancellationToken,
    session: OnceLock<PeerSession>,
    /// Held until the handshake passed, or the connection ends.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// True after a request to join.
    joined: AtomicBool,
    /// Cancelled when no request after the present ones is answered.
    last_answer: CancellationToken,
}

/// State of a connection whose handshake passed.
pub(crate) struct PeerSession {
    pub(crate) node: NodeId,
    pub(crate) channel: Channel,
    calls: Arc<Semaphore>,
    call_bytes: Arc<Semaphore>,
    streams: StreamPermits,
    _registered: Registration,
}

/// A response without an answer of a service.
fn empty(status: StatusCode) -> Response<SentBody> {
    response(status, SentBody::whole(Bytes::new()))
}

fn refused(refusal: ServiceRefusal) -> Response<SentBody> {
    response(REFUSED, SentBody::whole(encode_refusal(refusal)))
}

impl InboundConnection {
    pub(crate) fn new(
        state: Arc<TransportState>,
        from: SocketAddr,
        certified: Option<CertifiedNode>,
        facts: StreamFacts,
        cancel: CancellationToken,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let (session, last_answer) = (OnceLock::new(), CancellationToken::new());
        let (permit, joined) = (Mutex::new(Some(permit)), AtomicBool::new(false));
        Self { state, from, certified, facts, cancel, session, permit, joined, last_answer }
    }

    pub(crate) const fn state(&self) -> &Arc<TransportState> {
        &self.state
    }

    pub(crate) const fn has_certificate(&self) -> bool {
        self.certified.is_some()
    }

    /// True if the handshake passed.
    pub(crate) fn is_accepted(&self) -> bool {
        self.session.get().is_some()
    }

    /// True if the handshake passed, or a request to join has arrived. A stop waits for nothing else.
    pub(crate) fn is_in_use(&self) -> bool {
        self.is_accepted() || self.joined.load(Relaxed)
    }

    pub(crate) const fn last_answer(&self) -> &CancellationToken {
        &self.last_answer
    }

    /// Answers a request.
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Response<SentBody> {
        let (head, body) = request.into_parts();
        let target = PeerTarget::of_path(head.uri.path()).filter(|_| head.method == Method::POST);
        match (target, self.certified, self.session.get()) {
            (Some(PeerTarget::Handshake), Some(certified), None) => self.handshake(certified, body).await,
            (Some(PeerTarget::Join), None, _) => self.join(body).await,
            (Some(PeerTarget::Call { service }), _, Some(session)) => {
                self.call(session, service, &head, body).await
            }
            (Some(PeerTarget::Stream { class, service }), _, Some(session)) => {
                self.stream(session, StreamTarget { class, service }, &head, body).await
            }
            _ => {
                if !self.is_accepted() {
                    self.last_answer.cancel();
                }
                empty(NOT_UNDERSTOOD)
            }
        }
    }

    async fn handshake(&self, certified: CertifiedNode, body: Incoming) -> Response<SentBody> {
        let bytes = Limited::new(body, HANDSHAKE_BYTES_MAX).collect().await;
        let answer = match bytes {
            Ok(bytes) => self.answer_hello(certified, &bytes.to_bytes(), ConnectionKind::Shared).await,
            Err(_) => {
                let too_long = BadHandshake::TooLong(HANDSHAKE_BYTES_MAX + 1);
                self.note_refusal(certified, Err(too_long.into()))
            }
        };
        response(ANSWERED, SentBody::whole(answer.into()))
    }

    /// The answer to the hello of a peer on a connection with frames. [`Self::session`] is there if it
    /// accepts the peer.
    pub(crate) async fn framed_hello(&self, hello: &[u8], kind: ConnectionKind) -> Vec<u8> {
        match self.certified {
            Some(certified) => self.answer_hello(certified, hello, kind).await,
            None => encode_answer(&Err(BadHandshake::Field("certificate").into())),
        }
    }

    /// The session, if the handshake passed.
    pub(crate) fn session(&self) -> Option<&PeerSession> {
        self.session.get()
    }

    async fn answer_hello(&self, certified: CertifiedNode, hello: &[u8], kind: ConnectionKind) -> Vec<u8> {
        let answer = self.judge(certified, hello, kind).await;
        self.note_refusal(certified, answer)
    }

    fn note_refusal(&self, certified: CertifiedNode, answer: Result<Hello, HandshakeRefusal>) -> Vec<u8> {
        if let Err(refusal) = &answer {
            self.last_answer.cancel();
            let (node, from) = (certified.node, self.from);
            tracing::warn!(%node, %from, %refusal, "refused a node");
        }
        encode_answer(&answer)
    }

    /// Accepts the hello of a peer and returns the own one.
    async fn judge(
        &self,
        certified: CertifiedNode,
        hello: &[u8],
        kind: ConnectionKind,
    ) -> Result<Hello, HandshakeRefusal> {
        let hello = Hello::decode(hello)?;
        let peer = self.state.accept(certified, &hello).await?;
        let (start, channel) = (hello.start, hello.channel);
        let registered = peer.register(&self.state.rules, start, channel, kind, self.cancel.clone())?;
        let session = PeerSession {
            node: peer.node,
            channel: hello.channel,
            calls: Arc::new(Semaphore::new(PEER_CALLS_MAX)),
            call_bytes: Arc::new(Semaphore::new(PEER_CALL_BYTES_IN_FLIGHT_MAX)),
            streams: stream_permits(),
            _registered: registered,
        };
        if self.session.set(session).is_err() {
            return Err(BadHandshake::Field("second hello").into());
        }
        let meter = peer.meter(hello.channel);
        if kind == ConnectionKind::Shared {
            meter.accepted.fetch_add(1, Relaxed);
        }
        self.facts.count(meter.clone());
        *self.permit.lock() = None;
        Ok(self.state.hello(hello.channel))
    }

    /// Answers the one request of a node without a certificate.
    async fn join(&self, body: Incoming) -> Response<SentBody> {
        // One request a connection, whose permit is held until the connection ends.
        if self.joined.swap(true, Relaxed) {
            return empty(NOT_UNDERSTOOD);
        }
        self.last_answer.cancel();
        if !self.state.joins.lock().is_within(Instant::now()) {
            return empty(BUSY);
        }
        let Ok(bytes) = Limited::new(body, JOIN_BYTES_MAX).collect().await else {
            return empty(StatusCode::PAYLOAD_TOO_LARGE);
        };
        match self.state.services.join(self.from, bytes.to_bytes()).await {
            Ok(answer) if answer.len() <= JOIN_BYTES_MAX => response(ANSWERED, SentBody::whole(answer)),
            Ok(_) => empty(FAILED),
            Err(refusal) => refused(refusal),
        }
    }

    async fn call(
        &self,
        session: &PeerSession,
        service: u16,
        head: &request::Parts,
        body: Incoming,
    ) -> Response<SentBody> {
        let Some(deadline) = deadline(head, Instant::now()) else { return empty(NOT_UNDERSTOOD) };
        let Some(length) = content_length(&head.headers) else { return empty(StatusCode::LENGTH_REQUIRED) };
        if length > PEER_CALL_BYTES_MAX {
            return empty(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let Ok(permit) = session.calls.clone().try_acquire_owned() else { return empty(BUSY) };
        // The window of a connection is that of all its streams, so one that waits here stops no other.
        let units = u32::try_from(length).unwrap_or(u32::MAX);
        let permit_of_bytes =
            timeout_at(deadline, session.call_bytes.clone().acquire_many_owned(units)).await;
        let Ok(Ok(permit_of_bytes)) = permit_of_bytes else { return empty(BUSY) };
        let Ok(Ok(bytes)) = timeout_at(deadline, Limited::new(body, length).collect()).await else {
            return empty(NOT_UNDERSTOOD);
        };
        let body = bytes.to_bytes();
        if body.len() != length {
            return empty(NOT_UNDERSTOOD);
        }
        let call = IncomingCall { peer: session.node, channel: session.channel, service, body, deadline };
        match self.carry_out(call, CallPermits { _call: permit, _bytes: permit_of_bytes }).await {
            CallEnd::Answered(answer) => response(ANSWERED, SentBody::whole(answer)),
            CallEnd::Refused(refusal) => refused(refusal),
            CallEnd::Failed => empty(FAILED),
        }
    }

    /// Carries out a call in a task of its own, which goes on if the caller gives up. It has the permits
    /// meanwhile.
    pub(crate) async fn carry_out(&self, call: IncomingCall, permits: impl Send + 'static) -> CallEnd {
        let (services, ended) = (self.state.services.clone(), self.state.ended.clone());
        let work = self.state.tasks.spawn(async move {
            let _permits = permits;
            let call = services.call(call);
            tokio::select! {
                answer = call => Some(answer),
                () = ended.cancelled() => None,
            }
        });
        match work.await {
            Ok(Some(Ok(answer))) if answer.len() <= PEER_CALL_BYTES_MAX => CallEnd::Answered(answer),
            Ok(Some(Ok(answer))) => {
                tracing::error!(bytes = answer.len(), "the answer of a service is too large");
                CallEnd::Failed
            }
            Ok(Some(Err(refusal))) => CallEnd::Refused(refusal),
            Ok(None) => CallEnd::Failed,
            Err(error) => {
                tracing::error!(%error, "a service failed");
                CallEnd::Failed
            }
        }
    }

    async fn stream(
        &self,
        session: &PeerSession,
        target: StreamTarget,
        head: &request::Parts,
        mut body: Incoming,
    ) -> Response<SentBody> {
        let Some(deadline) = deadline(head, Instant::now()) else { return empty(NOT_UNDERSTOOD) };
        // Each class has its connection: its limit is one of the peer, and log entries share theirs with
        // appends only.
        if target.class.channel() != session.channel {
            return empty(NOT_UNDERSTOOD);
        }
        let permits = session.streams[target.class.index()].clone();
        let Ok(permit) = permits.try_acquire_owned() else { return empty(BUSY) };
        let Ok(Ok(found)) = timeout_at(deadline, read_head(&mut body)).await else {
            return empty(NOT_UNDERSTOOD);
        };
        let permit = Arc::new(permit);
        let keep = || -> Vec<Kept> { vec![Box::new(permit.clone())] };
        let body = ReceivedBody::new(found.rest, body, None, keep()).boxed_unsync();
        let StreamTarget { class, service } = target;
        let stream = IncomingStream { peer: session.node, class, service, head: found.head, body, deadline };
        match self.state.answer_stream(stream).await {
            StreamEnd::Answered(StreamAnswer { head, body }) => {
                response(ANSWERED, SentBody::answer(&head, body, keep()))
            }
            StreamEnd::Refused(refusal) => refused(refusal),
            StreamEnd::Failed => empty(FAILED),
        }
    }
}

/// How a call ended.
pub(crate) enum CallEnd {
    Answered(Bytes),
    Refused(ServiceRefusal),
    /// The service panicked, or its answer is too large.
    Failed,
}

/// Permits of one call.
struct CallPermits {
    _call: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

/// Service of a stream.
#[derive(Clone, Copy)]
struct StreamTarget {
    class: StreamClass,
    service: u16,
}
