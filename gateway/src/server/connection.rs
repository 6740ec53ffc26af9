//! One connection: HTTP/1.1 or HTTP/2, until its client is done, is overdue, or the server drains.

use super::interim::{Interim, WithInterim};
use super::watch::{Activity, Flying, Patience, Watched};
use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use mlgw_common::limits::{MIB, REQUEST_HEAD_BYTES_MAX};
use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Streams of one HTTP/2 connection at once. With the windows below it bounds what one connection
/// can make the server hold.
const STREAMS_MAX: u32 = 128;
/// HTTP/2 windows: what may be under way to us. 1 MiB fills 1 GB/s at a round trip of 1 ms.
const STREAM_WINDOW_BYTES: u32 = MIB as u32;
const CONNECTION_WINDOW_BYTES: u32 = 4 * MIB as u32;
/// Answers of one HTTP/2 stream that wait to be sent.
const STREAM_SEND_BYTES_MAX: usize = MIB as usize / 2;
/// A silent HTTP/2 client is asked for a sign of life this often, and given as long again.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Serves connections.
#[derive(Clone)]
pub struct Server {
    http: Arc<Builder<TokioExecutor>>,
    /// What clients may take.
    pub patience: Patience,
}

impl Server {
    /// A server whose clients have this much time.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        let mut http = Builder::new(TokioExecutor::new());
        // No `pipeline_flush`: it would swallow the answer to a head that cannot be read.
        // hyper takes at most 100 header lines, `REQUEST_HEADERS_MAX`. Said to it, the same limit would
        // cost every request 2,000 instructions.
        // Times are kept by the watch, which also sees connections before their first byte.
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .half_close(true)
            .max_buf_size(REQUEST_HEAD_BYTES_MAX);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(STREAM_SEND_BYTES_MAX)
            .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);
        Self { http: Arc::new(http), patience }
    }

    /// Serves one connection to its end. Once `stop` is cancelled the requests in flight are
    /// answered and the connection closes.
    pub async fn serve<I, H, F, B>(&self, io: I, stop: CancellationToken, handler: H)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let activity = Activity::new();
        let interim = Interim::default();
        let io = WithInterim::new(io, interim.clone());
        let watched = TokioIo::new(Watched::new(io, Arc::clone(&activity)));
        let of_requests = Arc::clone(&activity);
        let service = service_fn(move |request: Request<Incoming>| {
            let in_flight = of_requests.request(request.version());
            let interim = expects_in_vain(&request).then(|| interim.clone());
            // Boxed, because hyper keeps room for this future in every connection, busy or not.
            let answer = Box::pin(handler(request));
            async move {
                let answer = answer.await;
                if let Some(interim) = interim.filter(|_| answer.status().is_success()) {
                    interim.owe();
                }
                Ok::<_, Infallible>(answer.map(|body| Flying::new(body, in_flight)))
            }
        });
        let mut connection = pin!(self.http.serve_connection(watched, service));
        let mut looks = tokio::time::interval(self.patience.look_every());
        let mut stopping = false;
        loop {
            tokio::select! {
                // A client that breaks off is no event of ours.
                _ = connection.as_mut() => return,
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = looks.tick() => if let Some(overdue) = activity.overdue(&self.patience) {
                    tracing::debug!(?overdue, "a connection is closed");
                    return;
                }
            }
        }
    }
}

/// Whether the client expects `100 Continue` for a body that has no bytes.
fn expects_in_vain(request: &Request<Incoming>) -> bool {
    let expects =
        || request.headers().get(EXPECT).is_some_and(|e| e.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    request.version() == Version::HTTP_11 && request.body().is_end_stream() && expects()
}
