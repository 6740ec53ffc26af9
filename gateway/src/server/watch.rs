//! Watches a connection: what its client does not do in time closes it.
//!
//! One rule for every way to be slow, where the bytes pass: a head that does not come to its end, a
//! body that stalls, an answer that is not read, a connection that nobody uses. The watch sees
//! which side is waited for, so a request that takes long because of us is never cut. HTTP/2 always
//! waits for its client's frames, so there a stalled body is left to the pings of the protocol.

use http_body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How long a client may take for what.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first byte of a request to the end of its head.
    pub head: Duration,
    /// Without any request.
    pub idle: Duration,
    /// For the next bytes of a body, or to take the next bytes of an answer.
    pub body: Duration,
}

impl Patience {
    /// How often a connection is looked at: often enough that nothing takes a quarter longer.
    #[must_use]
    pub fn look_every(&self) -> Duration {
        let least = self.head.min(self.idle).min(self.body);
        (least / 4).clamp(Duration::from_millis(50), Duration::from_secs(5))
    }
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The head of a request did not come to its end.
    Head,
    /// There was no request.
    Idle,
    /// The next bytes of a body did not come.
    Body,
    /// An answer was not read.
    Answer,
}

/// What a connection has done. Times are milliseconds since it opened, plus one; 0 is never.
#[derive(Debug)]
pub struct Activity {
    opened: Instant,
    in_flight: AtomicUsize,
    multiplexed: AtomicBool,
    last_ms: AtomicU64,
    head_since_ms: AtomicU64,
    read_waits_since_ms: AtomicU64,
    write_waits_since_ms: AtomicU64,
}

impl Activity {
    /// Of a connection that opens now.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            in_flight: AtomicUsize::new(0),
            multiplexed: AtomicBool::new(false),
            last_ms: AtomicU64::new(1),
            head_since_ms: AtomicU64::new(0),
            read_waits_since_ms: AtomicU64::new(0),
            write_waits_since_ms: AtomicU64::new(0),
        })
    }

    fn now_ms(&self) -> u64 {
        1 + u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// A request's head has come; it is in flight until the value is dropped.
    #[must_use]
    pub fn request(self: &Arc<Self>, version: http::Version) -> InFlight {
        self.multiplexed.store(version == http::Version::HTTP_2, Relaxed);
        self.head_since_ms.store(0, Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
        InFlight(Arc::clone(self))
    }

    /// What the client has kept waiting for longer than `patience` allows, if anything.
    #[must_use]
    pub fn overdue(&self, patience: &Patience) -> Option<Overdue> {
        let now = self.now_ms();
        let over = |since: &AtomicU64, limit: Duration| {
            let since = since.load(Relaxed);
            since != 0 && Duration::from_millis(now.saturating_sub(since)) > limit
        };
        if over(&self.write_waits_since_ms, patience.body) {
            return Some(Overdue::Answer);
        }
        if self.in_flight.load(Relaxed) > 0 {
            let waits = !self.multiplexed.load(Relaxed) && over(&self.read_waits_since_ms, patience.body);
            return waits.then_some(Overdue::Body);
        }
        if over(&self.head_since_ms, patience.head) {
            return Some(Overdue::Head);
        }
        over(&self.last_ms, patience.idle).then_some(Overdue::Idle)
    }

    fn read(&self, bytes: usize) {
        let now = self.now_ms();
        self.read_waits_since_ms.store(0, Relaxed);
        self.last_ms.store(now, Relaxed);
        if bytes > 0 && self.in_flight.load(Relaxed) == 0 {
            let _ = self.head_since_ms.compare_exchange(0, now, Relaxed, Relaxed);
        }
    }

    fn wrote(&self) {
        self.write_waits_since_ms.store(0, Relaxed);
        self.last_ms.store(self.now_ms(), Relaxed);
    }

    fn waits(&self, since: &AtomicU64) {
        if since.load(Relaxed) == 0 {
            since.store(self.now_ms(), Relaxed);
        }
    }
}

/// A request in flight, while this lives.
#[derive(Debug)]
pub struct InFlight(Arc<Activity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.last_ms.store(self.0.now_ms(), Relaxed);
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

/// A connection whose bytes are watched.
#[derive(Debug)]
pub struct Watched<I> {
    inner: I,
    activity: Arc<Activity>,
}

impl<I> Watched<I> {
    /// Watches `inner`.
    pub const fn new(inner: I, activity: Arc<Activity>) -> Self {
        Self { inner, activity }
    }

    fn after_write(&self, polled: &Poll<io::Result<usize>>) {
        match polled {
            Poll::Ready(_) => self.activity.wrote(),
            Poll::Pending => self.activity.waits(&self.activity.write_waits_since_ms),
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(cx, buf);
        match &polled {
            Poll::Ready(_) => this.activity.read(buf.filled().len() - before),
            Poll::Pending => this.activity.waits(&this.activity.read_waits_since_ms),
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
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

/// The body of an answer; its request is in flight until it is dropped.
#[derive(Debug)]
pub struct Flying<B> {
    body: B,
    _request: InFlight,
}

impl<B> Flying<B> {
    /// Ties the request to the body of its answer.
    pub const fn new(body: B, request: InFlight) -> Self {
        Self { body, _request: request }
    }
}

impl<B: Body + Unpin> Body for Flying<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::{Activity, Overdue, Patience, Watched};
    use http::Version;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// No patience: what is waited for at all is overdue once a millisecond has passed.
    const NONE: Patience = Patience { head: Duration::ZERO, idle: Duration::ZERO, body: Duration::ZERO };
    const LONG: Duration = Duration::from_secs(3600);

    /// Lets the connection be two milliseconds old, so that "since 1 ms" is over.
    fn age(activity: &Activity) {
        while activity.opened.elapsed() < Duration::from_millis(3) {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_connection_that_nobody_uses_is_idle() {
        let activity = Activity::new();
        age(&activity);
        assert_eq!(activity.overdue(&NONE), Some(Overdue::Idle));
        assert_eq!(activity.overdue(&Patience { idle: LONG, ..NONE }), None);
    }

    #[tokio::test]
    async fn a_head_counts_from_its_first_byte_to_its_end() {
        let (mut client, server) = tokio::io::duplex(64);
        let activity = Activity::new();
        let mut watched = Watched::new(server, activity.clone());
        client.write_all(b"GET").await.unwrap();
        let mut bytes = [0; 3];
        watched.read_exact(&mut bytes).await.unwrap();
        activity.head_since_ms.store(1, Relaxed);
        age(&activity);
        let patience = Patience { idle: LONG, ..NONE };
        assert_eq!(activity.overdue(&patience), Some(Overdue::Head));
        let _request = activity.request(Version::HTTP_11);
        assert_eq!(activity.overdue(&patience), None);
    }

    #[tokio::test]
    async fn a_body_that_stalls_is_overdue_but_our_own_work_is_not() {
        let (_client, server) = tokio::io::duplex(64);
        let activity = Activity::new();
        let mut watched = Watched::new(server, activity.clone());
        let request = activity.request(Version::HTTP_11);
        age(&activity);
        assert_eq!(activity.overdue(&NONE), None, "nothing is asked of the client");
        let mut byte = [0];
        tokio::select! {
            biased;
            _ = watched.read(&mut byte) => panic!("there is nothing to read"),
            () = std::future::ready(()) => {}
        }
        activity.read_waits_since_ms.store(1, Relaxed);
        assert_eq!(activity.overdue(&NONE), Some(Overdue::Body));
        drop(request);
        let _request = activity.request(Version::HTTP_2);
        assert_eq!(activity.overdue(&NONE), None, "HTTP/2 always waits for frames");
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_is_overdue() {
        let (_client, server) = tokio::io::duplex(4);
        let activity = Activity::new();
        let mut watched = Watched::new(server, activity.clone());
        let _request = activity.request(Version::HTTP_2);
        tokio::select! {
            biased;
            _ = watched.write_all(b"more than fits") => panic!("it does not fit"),
            () = std::future::ready(()) => {}
        }
        assert_ne!(activity.write_waits_since_ms.load(Relaxed), 0);
        activity.write_waits_since_ms.store(1, Relaxed);
        age(&activity);
        assert_eq!(activity.overdue(&NONE), Some(Overdue::Answer));
    }
}
