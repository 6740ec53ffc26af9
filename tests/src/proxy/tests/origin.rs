//! Test origins: one based on hyper that serves bodies of any size, and one that sends a fixed text for any
//! request.
//!
//! `GET /sized/N` and `GET /chunked/N` return a body of N bytes, `GET /held` responds when the test releases
//! it, and `GET /nothing` returns 204; any other request is read in full, recorded and answered with 200.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::content::TestContent;

pub(super) type TestOriginBody = UnsyncBoxBody<Bytes, Infallible>;

/// Chunks of an odd length, so that they fall on no boundary of buffers.
const CHUNK_BYTES: usize = 10_007;

/// The body with this many bytes.
pub(super) fn body(length: usize) -> Bytes {
    TestContent { id: 5, length }.bytes()
}

pub(super) fn sized(bytes: Bytes) -> TestOriginBody {
    Full::new(bytes).boxed_unsync()
}

pub(super) fn chunked(bytes: &Bytes) -> TestOriginBody {
    let frames: Vec<_> =
        bytes.chunks(CHUNK_BYTES).map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk)))).collect();
    StreamBody::new(stream::iter(frames)).boxed_unsync()
}

/// Record of the requests with bodies.
#[derive(Default)]
struct OriginRecord {
    whole: Mutex<Vec<(String, Bytes)>>,
    broken: AtomicUsize,
    begun: AtomicUsize,
    ended: AtomicUsize,
}

#[derive(Clone)]
pub(super) struct TestOrigin {
    pub(super) addr: SocketAddr,
    record: Arc<OriginRecord>,
    gate: Arc<Semaphore>,
}

impl TestOrigin {
    pub(super) fn start(runtime: &Runtime) -> Self {
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let addr = listener.local_addr().expect("bound");
        let origin = Self { addr, record: Arc::default(), gate: Arc::new(Semaphore::new(0)) };
        runtime.spawn(origin.clone().listen(listener));
        origin
    }

    /// Paths and bodies that were received in full.
    pub(super) fn received(&self) -> Vec<(String, Bytes)> {
        self.record.whole.lock().expect("lock is not poisoned").clone()
    }

    /// Number of bodies that broke off.
    pub(super) fn broken_bodies(&self) -> usize {
        self.record.broken.load(Ordering::SeqCst)
    }

    /// Number of requests in progress.
    pub(super) fn requests_in_progress(&self) -> usize {
        self.record.begun.load(Ordering::SeqCst) - self.record.ended.load(Ordering::SeqCst)
    }

    /// Number of all requests received.
    pub(super) fn request_count(&self) -> usize {
        self.record.begun.load(Ordering::SeqCst)
    }

    /// Releases this many requests for `/held`.
    pub(super) fn release_held(&self, requests: usize) {
        self.gate.add_permits(requests);
    }

    async fn listen(self, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            tokio::spawn(self.clone().serve(stream));
        }
    }

    async fn serve(self, stream: TcpStream) {
        let service = service_fn(|request| {
            let origin = self.clone();
            async move { Ok::<_, Infallible>(origin.answer(request).await) }
        });
        // A client that closes its connection is not an error here.
        drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<TestOriginBody> {
        let _at_work = RequestInProgress::begin(&self.record);
        let path = request.uri().path().to_owned();
        let length = path.rsplit('/').next().and_then(|end| end.parse().ok()).unwrap_or(0);
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let answer = Response::builder().header("etag", "\"true\"").header("X-Odd", "Kept  as is");
        let answer = match path.split('/').nth(1) {
            Some("sized") if is_read => answer.body(sized(body(length))),
            Some("chunked") if is_read => answer.body(chunked(&body(length))),
            Some("nothing") => answer.status(204).body(sized(Bytes::new())),
            Some("held") => {
                self.gate.acquire().await.expect("never closed").forget();
                answer.body(sized(Bytes::from("let go")))
            }
            _ => {
                self.take(path, request.into_body()).await;
                answer.body(sized(Bytes::from("taken")))
            }
        };
        answer.expect("the answer is well-formed")
    }

    async fn take(&self, path: String, body: Incoming) {
        match body.collect().await {
            Ok(body) => {
                self.record.whole.lock().expect("lock is not poisoned").push((path, body.to_bytes()));
            }
            Err(_) => _ = self.record.broken.fetch_add(1, Ordering::SeqCst),
        }
    }
}

/// Counts a request as ended, however it ends.
struct RequestInProgress<'a>(&'a OriginRecord);

impl<'a> RequestInProgress<'a> {
    fn begin(notes: &'a OriginRecord) -> Self {
        notes.begun.fetch_add(1, Ordering::SeqCst);
        Self(notes)
    }
}

impl Drop for RequestInProgress<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// An origin for one connection. It responds to a head with this text, and closes immediately if `closes`,
/// otherwise when the other side does. The received bytes come out of the channel.
pub(super) fn scripted(answer: &'static str, closes: bool) -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let addr = listener.local_addr().expect("bound");
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        while !received.windows(4).any(|window| window == b"\r\n\r\n") {
            let read = stream.read(&mut buffer).expect("a request");
            received.extend_from_slice(&buffer[..read]);
        }
        stream.write_all(answer.as_bytes()).expect("sent");
        if !closes {
            // A reset ends the stream as well as a close.
            drop(stream.read_to_end(&mut received));
        }
        sender.send(received).ok();
    });
    (addr, receiver)
}
