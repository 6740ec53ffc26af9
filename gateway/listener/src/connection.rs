//! One connection: HTTP/1.1 or HTTP/2, until its client closes it, is overdue, or the server drains.
//!
//! A connection is active or idle. An idle connection is only a socket and a task. The state of the HTTP
//! library (buffers that grew with its largest body) is dropped shortly after its last answer and created
//! again when the next byte arrives. An active connection takes a slot of the memory for connections. When
//! others wait for a slot, it becomes idle as soon as it can.

use super::framing::{AmbiguousFraming, FramedConnection};
use super::interim::{InterimRequest, WithInterim};
use super::linger::linger;
use super::pace::PacedRequestBody;
use super::refusal;
use super::room::ConnectionState;
use super::scratch::read_some;
use super::unread::{AnswerAction, DelayedAnswer, RequestFraming, UnreadBodySlot, finish_answer};
use super::watch::{ClientTimeouts, InFlight, TrackedBody, WatchedConnection};
use super::withheld::{Withheld, Withholding};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mlgw_common::limits::{
    ACTIVE_CONNECTION_BYTES, BLOCK_BYTES, MIB, REQUEST_HEAD_BYTES_MAX, REQUEST_HEADERS_MAX, SMALL_BODY_BYTES,
};
use mlgw_objects::ResourceShortage;
use mlgw_objects::memory::{Account, ActiveSlot, MemoryGrant, UnverifiedSlot};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::headers::head_too_large;
use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

/// First bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of an incomplete head that an idle connection buffers. Few heads are longer.
const IDLE_HEAD_BYTES_MAX: usize = 8 << 10;
const _: () = assert!(PREFACE.len() < IDLE_HEAD_BYTES_MAX, "an idle connection recognizes HTTP/2");
/// Silence after which a connection becomes idle. Clients with work send their next request sooner.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Time that a connection lingers after the server stops.
const DRAIN_LINGER: Duration = Duration::from_secs(1);
/// Interval of pings to a silent HTTP/2 client, and the time limit of each answer.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Header lines and bytes of a head that are read in order to refuse it with a complete answer. The limits of
/// accepted heads are lower, see [`mlgw_wire::headers::check_size`].
const WIDE_HEAD_LINES: usize = 2 * REQUEST_HEADERS_MAX;
const WIDE_HEAD_BYTES: usize = 2 * REQUEST_HEAD_BYTES_MAX;
/// Blocks charged for such a head: its bytes, and for each line 64 bytes while it is parsed and 110 in the
/// map of headers.
const WIDE_HEAD_BLOCKS: u32 = 8;
/// The limit of a head over HTTP/2, where a line counts 32 bytes more than it has.
const HEADER_LIST_BYTES: u32 = (WIDE_HEAD_BYTES + 32 * WIDE_HEAD_LINES) as u32;

const _: () = assert!(
    WIDE_HEAD_BYTES + WIDE_HEAD_LINES * (64 + 110) <= WIDE_HEAD_BLOCKS as usize * BLOCK_BYTES as usize
);

/// Limits of the memory of an HTTP/2 connection.
struct Http2Limits {
    /// Requests at a time.
    streams: u32,
    /// Bytes of bodies in flight to the server, over all requests. 1 MiB fills 1 GB/s at a round trip of 1
    /// ms.
    window_bytes: u32,
    /// Bytes of one answer that wait to be sent.
    send_bytes: usize,
    /// Blocks charged for all of it.
    blocks: u32,
}

/// Limits with plenty of memory.
const WIDE: Http2Limits =
    Http2Limits { streams: 128, window_bytes: MIB as u32, send_bytes: 128 << 10, blocks: 48 };
/// Limits with little memory.
const NARROW: Http2Limits =
    Http2Limits { streams: 16, window_bytes: BLOCK_BYTES as u32, send_bytes: 16 << 10, blocks: 5 };

/// Limits with no memory beyond the slot of an active connection.
const SINGLE: Http2Limits =
    Http2Limits { streams: 1, window_bytes: 16 << 10, send_bytes: 16 << 10, blocks: 0 };

impl Http2Limits {
    /// Returns true if the charge covers the window and a small answer to each request.
    const fn is_covered(&self) -> bool {
        let answers = self.streams as u64 * SMALL_BODY_BYTES as u64;
        let charged = ACTIVE_CONNECTION_BYTES + self.blocks as u64 * BLOCK_BYTES;
        self.window_bytes as u64 + answers <= charged
    }
}

const _: () = assert!(WIDE.is_covered() && NARROW.is_covered() && SINGLE.is_covered());

/// Serves connections. Clones share the HTTP settings.
#[derive(Clone)]
pub struct HttpServer {
    http1: Arc<http1::Builder>,
    /// Settings for a connection whose head is too large for `http1`.
    large_head: Arc<http1::Builder>,
    /// Time limits of clients.
    pub timeouts: ClientTimeouts,
}

type ConnectionIo<I> = WatchedConnection<Withholding<WithInterim<I>>>;

/// Future of the answer to one request, polled by hyper. The handler's future is kilobytes large, so it is
/// boxed when it is created and never moved.
struct PendingAnswer<F, B> {
    answer: Pin<Box<F>>,
    in_flight: Option<InFlight>,
    interim: Option<InterimRequest>,
    framing: RequestFraming,
    is_head: bool,
    /// Slot for the handler's unread body, and the account of a connection that may wait for it.
    unread: Option<(UnreadBodySlot<body::Incoming>, Account, Arc<ConnectionState>)>,
    /// An answer that waits for the unread body.
    delayed: Option<Box<DelayedAnswer<body::Incoming, B>>>,
}

impl<F: Future<Output = Response<B>>, B: Body + Unpin> Future for PendingAnswer<F, B> {
    type Output = Result<Response<TrackedBody<B>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let version = self.framing.version;
        if let Some(finishing) = &mut self.delayed {
            let answer = ready!(finishing.poll(version, cx));
            self.delayed = None;
            return self.finish(answer);
        }
        let answer = ready!(self.answer.as_mut().poll(cx));
        if let Some(interim) = self.interim.take().filter(|_| answer.status().is_success()) {
            interim.request();
        }
        let Some((rest, account, seat)) = self.unread.take() else { return self.finish(answer) };
        match finish_answer(&rest, self.framing, &seat, account.memory(), answer) {
            AnswerAction::Send(answer) => self.finish(answer),
            AnswerAction::Wait(mut finishing) => {
                let polled = finishing.poll(version, cx);
                if polled.is_pending() {
                    self.delayed = Some(finishing);
                }
                self.finish(ready!(polled))
            }
        }
    }
}

impl<F, B: Body> PendingAnswer<F, B> {
    fn finish(&mut self, answer: Response<B>) -> Poll<Result<Response<TrackedBody<B>>, Infallible>> {
        // An answer is taken once.
        let Some(in_flight) = self.in_flight.take() else { return Poll::Pending };
        if self.framing.version <= Version::HTTP_11 && (self.framing.closes || is_close(answer.headers())) {
            in_flight.mark_last();
        }
        Poll::Ready(Ok(match self.is_head {
            true => wire_answer_to_head(answer, in_flight),
            false => wire_answer(answer, in_flight),
        }))
    }
}

/// Returns the answer as it is sent. Those of some statuses have no body in any version of HTTP. All others
/// carry the length of their body if it is known, also if it is 0. hyper ensures both in HTTP/1.1 only.
fn wire_answer<B: Body>(mut answer: Response<B>, in_flight: InFlight) -> Response<TrackedBody<B>> {
    if is_bare(&answer) {
        return answer.map(|_| TrackedBody::new(None, in_flight));
    }
    // hyper adds the length of any other body.
    if answer.body().size_hint().exact() == Some(0) {
        answer.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(0));
    }
    answer.map(|body| TrackedBody::new(Some(body), in_flight))
}

/// Returns the answer to a HEAD as it is sent: without a body, and with the length that the body of a GET
/// would have.
fn wire_answer_to_head<B: Body>(mut answer: Response<B>, in_flight: InFlight) -> Response<TrackedBody<B>> {
    // An empty body of a HEAD's answer was left out, so its length is not known.
    let length = answer.body().size_hint().exact().filter(|bytes| *bytes > 0);
    if let Some(bytes) = length.filter(|_| !is_bare(&answer)) {
        answer.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(bytes));
    }
    answer.map(|_| TrackedBody::new(None, in_flight))
}

fn is_bare<B>(answer: &Response<B>) -> bool {
    matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Classification of the first bytes of the next request of an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStart {
    /// Few enough bytes that the connection may stay idle.
    Short,
    /// A whole head, or bytes that cannot be a head.
    Head,
    /// A part of a long head.
    Long,
    /// The preface of HTTP/2.
    Multiplexed,
}

impl RequestStart {
    /// Classifies `bytes`. Empty lines before a head belong to it, as hyper skips them.
    fn of(bytes: &[u8]) -> Self {
        if bytes.starts_with(PREFACE) {
            return Self::Multiplexed;
        }
        let begun = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
        let ends = |end: &[u8]| memchr::memmem::find(&bytes[begun..], end).is_some();
        let is_no_request = bytes.get(begun).is_some_and(|byte| !byte.is_ascii_alphanumeric());
        if PREFACE.starts_with(bytes) {
            Self::Short
        } else if is_no_request || ends(b"\n\r\n") || ends(b"\n\n") {
            Self::Head
        } else if bytes.len() >= IDLE_HEAD_BYTES_MAX {
            Self::Long
        } else {
            Self::Short
        }
    }
}

/// State of a connection besides its bytes.
struct ConnectionContext {
    state: Arc<ConnectionState>,
    interim: InterimRequest,
    withheld: Withheld,
    account: Account,
    stop: CancellationToken,
    timeouts: ClientTimeouts,
}

/// Slots that a connection occupies while it is active.
struct RequestSlots {
    _active: ActiveSlot,
    /// Slot for a request whose head is long and not verified yet.
    _unverified: Option<UnverifiedSlot>,
}

/// Outcome of the active phase of a connection.
enum ActivePhaseEnd<I> {
    /// The connection is closed.
    Closed,
    /// The connection is idle. Its client may send more later.
    Idle(ConnectionIo<I>),
    /// hyper refused a head. The bytes that hyper has read of it are put back.
    Refused(ConnectionIo<I>, S3Error),
    /// The server has ended the connection. The client may not have read the last answer yet.
    Lingering(ConnectionIo<I>),
}

impl HttpServer {
    /// Returns a server with these time limits for clients.
    #[must_use]
    pub fn new(timeouts: ClientTimeouts) -> Self {
        // By default hyper takes at most 100 header lines. Any explicit limit costs every request 2,000
        // instructions, and a larger limit more, so it is set only on connections that need it.
        let mut wide = http1_builder();
        wide.max_headers(WIDE_HEAD_LINES).max_buf_size(WIDE_HEAD_BYTES);
        Self { http1: Arc::new(http1_builder()), large_head: Arc::new(wide), timeouts }
    }

    /// Returns the same server with other time limits for clients.
    #[must_use]
    pub fn with_timeouts(&self, timeouts: ClientTimeouts) -> Self {
        Self { http1: Arc::clone(&self.http1), large_head: Arc::clone(&self.large_head), timeouts }
    }

    /// Serves one connection to its end, within the memory of `account`. After `stop` is cancelled, the
    /// requests in flight are answered and the connection closes. When it must make room for others, it
    /// closes unless a request is in flight.
    pub async fn serve<I, H, F, B>(
        &self,
        io: I,
        state: Arc<ConnectionState>,
        account: Account,
        stop: CancellationToken,
        handler: H,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        H: Fn(Request<PacedRequestBody>) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let (interim, withheld) = (InterimRequest::default(), Withheld::default());
        let io = Withholding::new(WithInterim::new(io, interim.clone()), withheld.clone());
        let mut io = WatchedConnection::new(io, Arc::clone(&state.activity));
        let context = ConnectionContext { state, interim, withheld, account, stop, timeouts: self.timeouts };
        // Memory for a head that is too large for most connections.
        let mut large_head_memory: Option<MemoryGrant> = None;
        while let Some(first) = context.first_bytes(&mut io).await {
            let kind = RequestStart::of(&first);
            io.put_back(&first);
            drop(first);
            let slots = tokio::select! {
                slots = context.acquire_slots(kind) => slots,
                // Its request was not read yet.
                () = context.state.room_needed.cancelled() => return,
            };
            // Both futures are boxed, so that an idle connection reserves no space for them.
            let ended = match slots {
                Ok(slots) if kind == RequestStart::Multiplexed => {
                    Box::pin(context.serve_http2(io, slots, handler.clone())).await
                }
                Ok(slots) => {
                    let http = if large_head_memory.is_some() { &self.large_head } else { &self.http1 };
                    Box::pin(context.serve_http1(http, io, slots, &handler)).await
                }
                Err(error) => {
                    if kind != RequestStart::Multiplexed {
                        Box::pin(refusal::send(io, error, refusal::REFUSAL_TIMEOUT)).await;
                    }
                    return;
                }
            };
            match ended {
                ActivePhaseEnd::Idle(resting) => (io, large_head_memory) = (resting, None),
                ActivePhaseEnd::Refused(refused, error) => {
                    let is_larger =
                        error.code() == Code::RequestHeaderSectionTooLarge && large_head_memory.is_none();
                    let reserve = || context.account.try_reserve(WIDE_HEAD_BLOCKS);
                    match is_larger.then(reserve).flatten() {
                        Some(held) => (io, large_head_memory) = (refused, Some(held)),
                        None => {
                            let error = if is_larger { context.memory_shortage() } else { error };
                            return Box::pin(refusal::send(refused, error, refusal::REFUSAL_TIMEOUT)).await;
                        }
                    }
                }
                ActivePhaseEnd::Lingering(ending) => return Box::pin(context.linger(ending)).await,
                ActivePhaseEnd::Closed => return,
            }
        }
    }
}

/// Returns the settings of HTTP/1.1.
fn http1_builder() -> http1::Builder {
    let mut http1 = http1::Builder::new();
    // `pipeline_flush` stays off: it would buffer a whole body in memory for a slow reader, and
    // discard the answer to a head that cannot be parsed.
    // Time limits are kept by the watch, which also covers connections before their first byte.
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .half_close(true)
        .max_buf_size(REQUEST_HEAD_BYTES_MAX);
    http1
}

impl ConnectionContext {
    /// Waits for the head of the next request, for [`IDLE_HEAD_BYTES_MAX`] of it, or for the preface of
    /// HTTP/2. Returns `None` if the connection ends instead.
    async fn first_bytes<I>(&self, io: &mut ConnectionIo<I>) -> Option<Vec<u8>>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let mut bytes = Vec::new();
        let mut looks = mlgw_common::time::interval(self.timeouts.check_interval());
        while RequestStart::of(&bytes) == RequestStart::Short {
            let room = IDLE_HEAD_BYTES_MAX.saturating_sub(bytes.len());
            assert!(room > 0, "a short beginning leaves room for more");
            tokio::select! {
                read = read_some(io, room, |more| bytes.extend_from_slice(more)) => match read {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                },
                () = self.stop.cancelled() => return None,
                () = self.state.room_needed.cancelled() => return None,
                _ = looks.tick() => if self.is_overdue() {
                    return None;
                }
            }
        }
        Some(bytes)
    }

    /// Counts a request without memory for its head, and returns its error.
    fn memory_shortage(&self) -> S3Error {
        self.account.count_throttled();
        ResourceShortage::Memory.into()
    }

    /// Acquires the slots for a request with this beginning.
    async fn acquire_slots(&self, beginning: RequestStart) -> Result<RequestSlots, S3Error> {
        let unverified =
            (beginning == RequestStart::Long).then(|| self.account.unverified_slot()).transpose()?;
        Ok(RequestSlots { _active: self.account.activate().await?, _unverified: unverified })
    }

    /// Serves HTTP/1.1 until no request has arrived for [`IDLE_AFTER`].
    async fn serve_http1<I, H, F, B>(
        &self,
        http: &http1::Builder,
        io: ConnectionIo<I>,
        _slots: RequestSlots,
        handler: &H,
    ) -> ActivePhaseEnd<I>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        H: Fn(Request<PacedRequestBody>) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let service = service_fn(self.request_service(handler.clone()));
        let mut connection = http.serve_connection(TokioIo::new(FramedConnection::new(io)), service);
        let mut looks = mlgw_common::time::interval(self.timeouts.check_interval().min(IDLE_AFTER));
        let (mut stopping, mut kept) = (false, false);
        loop {
            let at_work = poll_fn(|cx| match self.poll(&mut connection, cx) {
                Poll::Ready(over) => Poll::Ready(Some(over)),
                Poll::Pending if self.must_yield_slot() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            let rests = tokio::select! {
                // A connection broken by the client is not logged.
                over = at_work => match over {
                    Some(over) => {
                        let parts = connection.into_parts();
                        let (io, uncertain) = parts.io.into_inner().into_parts();
                        return self.ended(over, io, &parts.read_buf, uncertain).await;
                    }
                    None => true,
                },
                () = self.stop.cancelled(), if !stopping => {
                    stopping = true;
                    Pin::new(&mut connection).graceful_shutdown();
                    false
                }
                () = self.state.room_needed.cancelled(), if !kept => {
                    kept = self.state.activity.has_request();
                    if !kept {
                        return ActivePhaseEnd::Closed;
                    }
                    false
                }
                _ = looks.tick() => {
                    if self.is_overdue() {
                        return ActivePhaseEnd::Closed;
                    }
                    self.is_done() && self.has_been_quiet()
                }
            };
            if rests && !stopping {
                let parts = connection.into_parts();
                let (mut io, _) = parts.io.into_inner().into_parts();
                io.put_back(&parts.read_buf);
                return ActivePhaseEnd::Idle(io);
            }
        }
    }

    /// Ends an HTTP/1.1 connection that hyper has ended. `read` are the bytes that hyper has read ahead.
    async fn ended<I: AsyncRead + AsyncWrite + Unpin>(
        &self,
        over: hyper::Result<()>,
        mut io: ConnectionIo<I>,
        read: &[u8],
        uncertain: Option<AmbiguousFraming>,
    ) -> ActivePhaseEnd<I> {
        let refused = over.err().filter(|error| error.is_parse() && self.withheld.take_refusal());
        match (uncertain, refused) {
            (Some(uncertain), _) => {
                Box::pin(refusal::send(io, uncertain.refusal(), refusal::REFUSAL_TIMEOUT)).await;
                ActivePhaseEnd::Closed
            }
            (None, Some(error)) => {
                io.put_back(read);
                ActivePhaseEnd::Refused(io, refusal_of(&error))
            }
            (None, None) => {
                if self.withheld.release() {
                    // A client that does not accept a few hundred bytes within a second is considered gone.
                    let _ = mlgw_common::time::timeout(IDLE_AFTER, io.flush()).await;
                }
                if io.has_ended() { ActivePhaseEnd::Closed } else { ActivePhaseEnd::Lingering(io) }
            }
        }
    }

    /// Polls an HTTP/1.1 connection. Bytes that were withheld but are no refusal of hyper are sent.
    fn poll<C: Future<Output = hyper::Result<()>> + Unpin>(
        &self,
        connection: &mut C,
        cx: &mut Context<'_>,
    ) -> Poll<hyper::Result<()>> {
        let polled = Pin::new(&mut *connection).poll(cx);
        if polled.is_pending() && self.withheld.release() {
            return Pin::new(connection).poll(cx);
        }
        polled
    }

    /// Serves HTTP/2 to the end of the connection.
    async fn serve_http2<I, H, F, B>(
        &self,
        io: ConnectionIo<I>,
        _slots: RequestSlots,
        handler: H,
    ) -> ActivePhaseEnd<I>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        H: Fn(Request<PacedRequestBody>) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        self.state.activity.set_http2();
        let (limits, _held) = self.http2_limits();
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .initial_stream_window_size(limits.window_bytes)
            .initial_connection_window_size(limits.window_bytes)
            .max_send_buf_size(limits.send_bytes)
            .max_header_list_size(HEADER_LIST_BYTES)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);
        let service = service_fn(self.request_service(handler));
        let mut connection = pin!(http.serve_connection(TokioIo::new(io), service));
        let mut looks = mlgw_common::time::interval(self.timeouts.check_interval().min(IDLE_AFTER));
        let (mut stopping, mut kept) = (false, false);
        loop {
            tokio::select! {
                _ = connection.as_mut() => return ActivePhaseEnd::Closed,
                () = self.stop.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = self.state.room_needed.cancelled(), if !kept => {
                    kept = self.state.activity.has_request();
                    if !kept {
                        return ActivePhaseEnd::Closed;
                    }
                }
                // The connection is idle and occupies a slot that others wait for.
                _ = looks.tick() => if self.is_overdue() || self.must_yield_slot() && self.has_been_quiet() {
                    return ActivePhaseEnd::Closed;
                }
            }
        }
    }

    /// Returns the limits of an HTTP/2 connection, with the memory for them.
    fn http2_limits(&self) -> (&'static Http2Limits, Option<MemoryGrant>) {
        let held = |width: &'static Http2Limits| Some((width, self.account.try_reserve(width.blocks)?));
        let granted = held(&WIDE).or_else(|| held(&NARROW));
        granted.map_or((&SINGLE, None), |(width, held)| (width, Some(held)))
    }

    /// Passes requests to `handler` and attaches the watch to their bodies and answers.
    fn request_service<H, F, B>(
        &self,
        handler: H,
    ) -> impl Fn(Request<body::Incoming>) -> PendingAnswer<F, B> + use<H, F, B>
    where
        H: Fn(Request<PacedRequestBody>) -> F,
        F: Future<Output = Response<B>>,
    {
        let (seat, interim, pace) = (Arc::clone(&self.state), self.interim.clone(), self.timeouts.min_rate);
        let account = self.account.clone();
        move |request| {
            let in_flight = Some(seat.activity.request());
            let framing = RequestFraming {
                version: request.version(),
                expects: expects_continue(&request),
                closes: is_last_request(&request),
            };
            let interim = expects_continue_without_body(&request, framing).then(|| interim.clone());
            let is_head = request.method() == Method::HEAD;
            let (head, body) = request.into_parts();
            let (body, rest) = PacedRequestBody::new(body, pace, || seat.activity.request());
            let answer = Box::pin(handler(Request::from_parts(head, body)));
            let rest = rest.map(|rest| (rest, account.clone(), Arc::clone(&seat)));
            PendingAnswer { answer, in_flight, interim, framing, is_head, unread: rest, delayed: None }
        }
    }

    /// Waits until the client has read its last answer, within time limits.
    async fn linger<I: AsyncRead + AsyncWrite + Unpin>(&self, io: ConnectionIo<I>) {
        tokio::select! {
            () = linger(io) => {}
            () = self.state.room_needed.cancelled() => {}
            () = async {
                self.stop.cancelled().await;
                mlgw_common::time::sleep(DRAIN_LINGER).await;
            } => {}
        }
    }

    /// Returns true if every answer is sent, no further bytes have arrived, and another request may follow.
    fn is_done(&self) -> bool {
        !self.state.activity.is_ending() && self.state.activity.is_quiet() && self.interim.is_flushed()
    }

    fn has_been_quiet(&self) -> bool {
        self.state.activity.quiet_for().is_some_and(|quiet| quiet >= IDLE_AFTER)
    }

    /// Returns true if the connection has no request in flight while others wait for its slot. A part of the
    /// next head is kept when the connection becomes idle.
    fn must_yield_slot(&self) -> bool {
        let activity = &self.state.activity;
        let is_idle = activity.has_no_pending_answer() && !activity.is_ending();
        self.account.memory().is_short() && is_idle && self.interim.is_flushed()
    }

    fn is_overdue(&self) -> bool {
        let overdue = self.state.activity.overdue(&self.timeouts);
        if let Some(overdue) = overdue {
            tracing::debug!(?overdue, "closed an overdue connection");
        }
        overdue.is_some()
    }
}

/// Returns the answer to a head that hyper refuses.
fn refusal_of(error: &hyper::Error) -> S3Error {
    match error.is_parse_too_large() {
        true => head_too_large(),
        false => {
            S3Error::new(Code::InvalidRequest).message("The head of the request is not well-formed HTTP.")
        }
    }
}

/// Returns true if the client sends no request after this one.
fn is_last_request(request: &Request<body::Incoming>) -> bool {
    request.version() <= Version::HTTP_10 || is_close(request.headers())
}

/// Returns true if `Connection` has the option `close`.
fn is_close(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).iter();
    let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

fn expects_continue(request: &Request<body::Incoming>) -> bool {
    request.headers().get(EXPECT).is_some_and(|e| e.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Returns true if the client expects `100 Continue` for a body that has no bytes.
fn expects_continue_without_body(request: &Request<body::Incoming>, framing: RequestFraming) -> bool {
    framing.expects && framing.version == Version::HTTP_11 && request.body().is_end_stream()
}

#[cfg(test)]
mod tests;
