//! Watches a connection and closes it when its client exceeds a time limit.
//!
//! One rule covers every way to be slow, measured on the bytes of the connection: a head that is not
//! completed, an answer that is read too slowly or not at all, a connection without requests. (A body that
//! does not arrive is handled by its request, see [`super::pace`].) The watch knows which side is awaited, so
//! a request that takes long because of the server is never cut. On HTTP/2 a client may stop reading one
//! answer while others proceed, so each answer is also watched separately.

use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};
use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Minimum rate of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumTransferRate {
    /// Duration of waiting over which the rate is measured.
    pub window: Duration,
    /// Mean bytes per second in a window.
    pub rate_min: u64,
}

impl MinimumTransferRate {
    /// Returns the bytes that must arrive in a window, at least 1.
    #[must_use]
    pub fn bytes_min(&self) -> u64 {
        let millis = u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX);
        (self.rate_min.saturating_mul(millis) / 1000).max(1)
    }
}

/// Time limits of clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientTimeouts {
    /// Time from the first byte of a request to the end of its head.
    pub head: Duration,
    /// Time without any request.
    pub idle: Duration,
    /// Minimum rate of sending a body or reading an answer.
    pub min_rate: MinimumTransferRate,
}

impl ClientTimeouts {
    /// Returns the interval between checks: at most a quarter of the smallest limit, within 50 ms and 5 s.
    #[must_use]
    pub fn check_interval(&self) -> Duration {
        let least = self.head.min(self.idle).min(self.min_rate.window);
        (least / 4).clamp(Duration::from_millis(50), Duration::from_secs(5))
    }
}

/// Reason of closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The head of a request was not completed in time.
    Head,
    /// There was no request.
    Idle,
    /// An answer was read too slowly or not at all.
    Answer,
}

/// Activity of a connection. Times are milliseconds since it opened, plus one. 0 means never.
#[derive(Debug)]
pub struct Activity {
    opened: Instant,
    in_flight: AtomicUsize,
    /// True if a complete head was ever received.
    had_request: AtomicBool,
    /// True if an answer waits for the remainder of its request's body.
    awaits_body: AtomicBool,
    /// True if an answer was the last one of the connection.
    is_ending: AtomicBool,
    is_http2: AtomicBool,
    last_ms: AtomicU64,
    head_since_ms: AtomicU64,
    write_waits_since_ms: AtomicU64,
    /// Time waited for the client in the present window, and the bytes that it took in that time.
    write_waited_ms: AtomicU64,
    written_bytes: AtomicU64,
    /// The answers of an HTTP/2 connection that are being sent.
    streams: Mutex<Vec<Weak<StreamProgress>>>,
}

/// An answer on an HTTP/2 connection.
#[derive(Debug, Default)]
struct StreamProgress {
    /// Time since which its client has not taken the bytes handed out. 0 while the client waits for the
    /// server.
    since_ms: AtomicU64,
    bytes: AtomicU64,
}

impl Activity {
    /// Returns the activity of a connection that opens now.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            in_flight: AtomicUsize::new(0),
            had_request: AtomicBool::new(false),
            awaits_body: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            last_ms: AtomicU64::new(1),
            head_since_ms: AtomicU64::new(0),
            write_waits_since_ms: AtomicU64::new(0),
            write_waited_ms: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            streams: Mutex::default(),
        })
    }

    /// Marks the connection as HTTP/2, with many requests at a time.
    pub fn set_http2(&self) {
        self.is_http2.store(true, Relaxed);
        self.head_since_ms.store(0, Relaxed);
    }

    fn now_ms(&self) -> u64 {
        1 + u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// Records a complete head. The request is in flight until the returned value is dropped.
    #[must_use]
    pub fn request(self: &Arc<Self>) -> InFlight {
        self.head_since_ms.store(0, Relaxed);
        self.had_request.store(true, Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Returns true if a complete head was ever received.
    #[must_use]
    pub fn had_request(&self) -> bool {
        self.had_request.load(Relaxed)
    }

    /// Records that an answer waits for the remainder of its request's body.
    pub fn begin_body_wait(&self) {
        self.awaits_body.store(true, Relaxed);
    }

    /// Records that no answer waits for the remainder of a body.
    pub fn end_body_wait(&self) {
        self.awaits_body.store(false, Relaxed);
    }

    /// Returns true if the connection ends with an answer that was begun. No request follows it, and further
    /// bytes are not the beginning of one.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Relaxed)
    }

    /// Returns the time for which closing the connection would have lost no request. It is `None` unless the
    /// connection is idle or its answer waits for the remainder of an unneeded body.
    #[must_use]
    pub fn removable_for(&self) -> Option<Duration> {
        self.quiet_for().or_else(|| self.awaits_body.load(Relaxed).then_some(Duration::ZERO))
    }

    /// Returns true if a request is in flight.
    #[must_use]
    pub fn has_request(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    /// Returns true if there is no request in flight, no part of a head, and no answer that waits for the
    /// client.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let none = |since: &AtomicU64| since.load(Relaxed) == 0;
        self.in_flight.load(Relaxed) == 0 && none(&self.head_since_ms) && none(&self.write_waits_since_ms)
    }

    /// Returns true if no request is in flight and no answer is being sent. A part of the next head may have
    /// arrived.
    #[must_use]
    pub fn has_no_pending_answer(&self) -> bool {
        self.in_flight.load(Relaxed) == 0 && self.write_waits_since_ms.load(Relaxed) == 0
    }

    /// Returns the time for which the connection has been quiet, or `None` if it is not.
    #[must_use]
    pub fn quiet_for(&self) -> Option<Duration> {
        let quiet = self.is_quiet().then(|| self.now_ms().saturating_sub(self.last_ms.load(Relaxed)));
        quiet.map(Duration::from_millis)
    }

    /// Returns the time limit that the client has exceeded, if any.
    #[must_use]
    pub fn overdue(&self, timeouts: &ClientTimeouts) -> Option<Overdue> {
        let now = self.now_ms();
        let over = |since: u64, limit: Duration| {
            since != 0 && Duration::from_millis(now.saturating_sub(since)) > limit
        };
        if self.is_read_too_slowly(now, &timeouts.min_rate)
            || self.has_stalled_stream(now, &timeouts.min_rate)
        {
            return Some(Overdue::Answer);
        }
        if self.in_flight.load(Relaxed) > 0 || self.write_waits_since_ms.load(Relaxed) != 0 {
            return None;
        }
        if over(self.head_since_ms.load(Relaxed), timeouts.head) {
            return Some(Overdue::Head);
        }
        over(self.last_ms.load(Relaxed), timeouts.idle).then_some(Overdue::Idle)
    }

    /// Returns true if the connection's bytes were taken too slowly, at the end of a window of waiting.
    fn is_read_too_slowly(&self, now: u64, pace: &MinimumTransferRate) -> bool {
        let since = self.write_waits_since_ms.load(Relaxed);
        let waiting = if since == 0 { 0 } else { now.saturating_sub(since) };
        let waited = Duration::from_millis(self.write_waited_ms.load(Relaxed) + waiting);
        if waited <= pace.window {
            return false;
        }
        if self.written_bytes.swap(0, Relaxed) < pace.bytes_min() {
            return true;
        }
        self.write_waited_ms.store(0, Relaxed);
        if since != 0 {
            self.write_waits_since_ms.store(now, Relaxed);
        }
        false
    }

    /// Returns true if an HTTP/2 answer was not read for a window plus the time that its bytes may take.
    fn has_stalled_stream(&self, now: u64, pace: &MinimumTransferRate) -> bool {
        let mut streams = self.streams.lock();
        streams.retain(|sending| sending.strong_count() > 0);
        let held_back = |sending: Arc<StreamProgress>| {
            let since = sending.since_ms.load(Relaxed);
            let bytes = sending.bytes.load(Relaxed);
            let allowed = pace.window + Duration::from_secs(bytes / pace.rate_min.max(1));
            since != 0 && Duration::from_millis(now.saturating_sub(since)) > allowed
        };
        streams.iter().filter_map(Weak::upgrade).any(held_back)
    }

    fn record_read(&self, bytes: usize) {
        if bytes > 0 && self.in_flight.load(Relaxed) == 0 && !self.is_http2.load(Relaxed) {
            let _ = self.head_since_ms.compare_exchange(0, self.now_ms(), Relaxed, Relaxed);
        }
    }

    fn record_write(&self, bytes: usize) {
        let since = self.write_waits_since_ms.load(Relaxed);
        if since != 0 {
            self.write_waited_ms.fetch_add(self.now_ms().saturating_sub(since), Relaxed);
            self.write_waits_since_ms.store(0, Relaxed);
        }
        if self.write_waited_ms.load(Relaxed) != 0 {
            self.written_bytes.fetch_add(bytes as u64, Relaxed);
        }
    }

    fn record_write_wait(&self) {
        if self.write_waits_since_ms.load(Relaxed) == 0 {
            self.write_waits_since_ms.store(self.now_ms(), Relaxed);
        }
    }
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<Activity>);

impl InFlight {
    /// Records that the connection ends with the answer to this request.
    pub fn mark_last(&self) {
        self.0.is_ending.store(true, Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.last_ms.store(self.0.now_ms(), Relaxed);
        let before = self.0.in_flight.fetch_sub(1, Relaxed);
        assert!(before > 0, "a request that ends was in flight");
    }
}

/// A connection that records its activity.
#[derive(Debug)]
pub struct WatchedConnection<I> {
    inner: I,
    activity: Arc<Activity>,
    /// Bytes that were put back and are read again.
    pushed_back: Bytes,
    /// True if the client has closed its side.
    ended: bool,
}

impl<I> WatchedConnection<I> {
    /// Records the activity of `inner`.
    pub const fn new(inner: I, activity: Arc<Activity>) -> Self {
        Self { inner, activity, pushed_back: Bytes::new(), ended: false }
    }

    /// Returns true if the client has closed its side, or the connection broke.
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Puts back `bytes`, the last that were read, to be read again.
    pub fn put_back(&mut self, bytes: &[u8]) {
        // A copy, because a slice would keep its whole buffer alive.
        self.pushed_back = [bytes, &self.pushed_back].concat().into();
    }

    fn after_write(&self, polled: &Poll<io::Result<usize>>) {
        match polled {
            Poll::Ready(written) => self.activity.record_write(*written.as_ref().unwrap_or(&0)),
            Poll::Pending => self.activity.record_write_wait(),
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for WatchedConnection<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.pushed_back.is_empty() {
            let bytes = this.pushed_back.len().min(buf.remaining());
            buf.put_slice(&this.pushed_back[..bytes]);
            this.pushed_back = Bytes::copy_from_slice(&this.pushed_back[bytes..]);
            this.activity.record_read(bytes);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        this.ended = matches!(polled, Poll::Ready(_)) && read == 0 && buf.remaining() > 0;
        this.activity.record_read(read);
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for WatchedConnection<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.after_write(&polled);
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write_vectored(cx, slices);
        this.after_write(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// The body of an answer. Its request is in flight until the body is dropped.
#[derive(Debug)]
pub struct TrackedBody<B> {
    /// `None` for an answer without a body on the wire.
    body: Option<B>,
    request: InFlight,
    /// State of the answer on an HTTP/2 connection.
    sending: Option<Arc<StreamProgress>>,
}

impl<B> TrackedBody<B> {
    /// Ties the request to the body of its answer, if there is one.
    pub fn new(body: Option<B>, request: InFlight) -> Self {
        let sending = request.0.is_http2.load(Relaxed).then(Arc::<StreamProgress>::default);
        if let Some(sending) = &sending {
            request.0.streams.lock().push(Arc::downgrade(sending));
        }
        Self { body, request, sending }
    }
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if let Some(sending) = &this.sending {
            let frame = match &polled {
                Poll::Ready(Some(Ok(frame))) => frame.data_ref(),
                _ => None,
            };
            sending.bytes.store(frame.map_or(0, |data| data.remaining() as u64), Relaxed);
            sending.since_ms.store(frame.map_or(0, |_| this.request.0.now_ms()), Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::{Activity, ClientTimeouts, MinimumTransferRate, Overdue, TrackedBody, WatchedConnection};
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    /// Limits of zero: any wait is overdue after a millisecond.
    const NONE: ClientTimeouts = ClientTimeouts {
        head: Duration::ZERO,
        idle: Duration::ZERO,
        min_rate: MinimumTransferRate { window: Duration::ZERO, rate_min: 0 },
    };
    const LONG: Duration = Duration::from_secs(3600);

    /// Waits until the connection is two milliseconds old, so that a time of 1 ms is exceeded.
    fn age(activity: &Activity) {
        while activity.opened.elapsed() < Duration::from_millis(3) {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_window_requires_its_share_of_bytes_and_at_least_one() {
        let of = |millis, rate_min| {
            MinimumTransferRate { window: Duration::from_millis(millis), rate_min }.bytes_min()
        };
        assert_eq!((of(60_000, 1024), of(500, 1000), of(60_000, 0)), (61_440, 500, 1));
    }

    #[test]
    fn a_connection_without_requests_is_idle() {
        let activity = Activity::new();
        age(&activity);
        assert_eq!(activity.overdue(&NONE), Some(Overdue::Idle));
        assert_eq!(activity.overdue(&ClientTimeouts { idle: LONG, ..NONE }), None);
        assert!(activity.quiet_for().is_some_and(|quiet| quiet >= Duration::from_millis(2)));
    }

    #[tokio::test]
    async fn a_head_counts_from_its_first_byte_to_its_end() {
        let (mut client, server) = tokio::io::duplex(64);
        let activity = Activity::new();
        let mut watched = WatchedConnection::new(server, activity.clone());
        client.write_all(b"GET").await.unwrap();
        let mut bytes = [0; 3];
        watched.read_exact(&mut bytes).await.unwrap();
        assert!(!activity.is_quiet());
        activity.head_since_ms.store(1, Relaxed);
        age(&activity);
        let patience = ClientTimeouts { idle: LONG, ..NONE };
        assert_eq!(activity.overdue(&patience), Some(Overdue::Head));
        let _request = activity.request();
        assert_eq!(activity.overdue(&patience), None);
    }

    #[tokio::test]
    async fn http2_keep_alive_frames_count_neither_as_a_head_nor_as_a_request() {
        let (mut client, server) = tokio::io::duplex(64);
        let activity = Activity::new();
        activity.set_http2();
        let mut watched = WatchedConnection::new(server, activity.clone());
        client.write_all(b"PING").await.unwrap();
        let mut bytes = [0; 4];
        watched.read_exact(&mut bytes).await.unwrap();
        age(&activity);
        assert_eq!(activity.overdue(&NONE), Some(Overdue::Idle));
    }

    /// Returns a connection whose client does not read, with an answer that waits since its first
    /// millisecond.
    async fn stuck() -> (DuplexStream, Arc<Activity>, WatchedConnection<DuplexStream>) {
        let (client, server) = tokio::io::duplex(4);
        let activity = Activity::new();
        let mut watched = WatchedConnection::new(server, activity.clone());
        tokio::select! {
            biased;
            _ = watched.write_all(b"more than fits") => panic!("it does not fit"),
            () = std::future::ready(()) => {}
        }
        assert_ne!(activity.write_waits_since_ms.load(Relaxed), 0);
        activity.write_waits_since_ms.store(1, Relaxed);
        age(&activity);
        (client, activity, watched)
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_is_overdue() {
        let (_client, activity, _watched) = stuck().await;
        assert!(!activity.is_quiet());
        assert_eq!(activity.overdue(&NONE), Some(Overdue::Answer));
    }

    #[tokio::test]
    async fn an_answer_that_is_read_too_slowly_is_overdue_and_one_that_keeps_the_pace_is_not() {
        for (rate_min, verdict) in [(1, None), (4000, Some(Overdue::Answer))] {
            let (mut client, activity, mut watched) = stuck().await;
            let mut bytes = [0; 3];
            client.read_exact(&mut bytes).await.unwrap();
            assert_eq!(watched.write(b"the").await.unwrap(), 3);
            // The answer has waited for all of a window of one second.
            activity.write_waited_ms.store(1001, Relaxed);
            let min_rate = MinimumTransferRate { window: Duration::from_secs(1), rate_min };
            assert_eq!(activity.overdue(&ClientTimeouts { head: LONG, idle: LONG, min_rate }), verdict);
        }
    }

    #[tokio::test]
    async fn one_answer_of_many_that_is_held_back_is_overdue_once_it_was_handed_out() {
        let activity = Activity::new();
        activity.set_http2();
        let mut answer = TrackedBody::new(Some(Full::new(Bytes::from_static(b"answer"))), activity.request());
        age(&activity);
        assert_eq!(activity.overdue(&NONE), None, "nothing was handed out");
        assert!(answer.frame().await.is_some());
        answer.sending.as_ref().unwrap().since_ms.store(1, Relaxed);
        let in_seconds = |rate_min| ClientTimeouts {
            min_rate: MinimumTransferRate { window: Duration::ZERO, rate_min },
            ..NONE
        };
        assert_eq!(activity.overdue(&in_seconds(1)), None, "its bytes may take six seconds");
        assert_eq!(activity.overdue(&in_seconds(1000)), Some(Overdue::Answer));
        drop(answer);
        assert!(activity.streams.lock().iter().all(|sending| sending.strong_count() == 0));
    }
}
