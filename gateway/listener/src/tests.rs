//! Tests of connections to a listener with a test handler.

mod proxied;
mod room;
mod unread;

use super::{ConnectionListener, Peer, ProbeSlots, bind};
use crate::connection::HttpServer;
use crate::pace::PacedRequestBody;
use crate::proxies::TrustedProxies;
use crate::watch::{ClientTimeouts, MinimumTransferRate};
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mlgw_config::{Address, SettingType as _};
use mlgw_objects::memory::RequestMemory;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Pieces of 64 KiB of the answer to `/large`, more than the system's buffers take.
const LARGE_PIECES: usize = 1024;
const LONG: Duration = Duration::from_secs(60);
const PATIENT: ClientTimeouts =
    ClientTimeouts { head: LONG, idle: LONG, min_rate: MinimumTransferRate { window: LONG, rate_min: 0 } };

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Permits for the handlers of `/wait` to proceed.
    go_on: Arc<Semaphore>,
    /// Handlers of `/wait` that have begun.
    begun: Arc<AtomicUsize>,
    /// Pieces of `/large` that were requested.
    handed_out: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

async fn start(connections_max: usize, patience: ClientTimeouts) -> Running {
    start_with(connections_max, patience, RequestMemory::new(0, 100, None)).await
}

async fn start_with(connections_max: usize, patience: ClientTimeouts, memory: RequestMemory) -> Running {
    start_as(connections_max, patience, memory, false, 0).await
}

async fn start_as(
    connections_max: usize,
    patience: ClientTimeouts,
    memory: RequestMemory,
    makes_room: bool,
    probe_slots: usize,
) -> Running {
    let listener = bind("s3.listen", &Address::from_text("127.0.0.1:0").unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, tasks, go_on) = (CancellationToken::new(), TaskTracker::new(), Arc::new(Semaphore::new(0)));
    let listener = ConnectionListener {
        listener,
        certificate: None,
        connections_max,
        makes_room,
        probe_slots: (probe_slots > 0).then(|| ProbeSlots {
            connections_max: probe_slots,
            timeouts: patience,
            memory: RequestMemory::new(0, 100, None),
        }),
        refusals_max: 256,
        server: HttpServer::new(patience),
        memory,
        proxies: TrustedProxies::default(),
        metrics: None,
        stop: stop.clone(),
        tasks: tasks.clone(),
    };
    let (gate, handed_out) = (go_on.clone(), Arc::<AtomicUsize>::default());
    let (begun, count) = (Arc::<AtomicUsize>::default(), handed_out.clone());
    let begins = begun.clone();
    let accepting =
        tokio::spawn(listener.accept(move |request: http::Request<PacedRequestBody>, peer: Peer| {
            let (gate, handed_out, begins) = (gate.clone(), count.clone(), begins.clone());
            async move {
                if request.uri().path().starts_with("/wait") {
                    begins.fetch_add(1, Relaxed);
                    gate.acquire().await.unwrap().forget();
                }
                match request.uri().path() {
                    _ if peer.is_probe_only => return refused("/spare"),
                    "/large" => return Response::new(large(handed_out).boxed_unsync()),
                    path @ ("/refuse" | "/bare") => return refused(path),
                    "/wait/refuse" => return refused("/refuse"),
                    _ => {}
                }
                let read = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
                let text = read.unwrap_or_else(|fault| Bytes::from(fault.to_string()));
                Response::new(Full::new(text).boxed_unsync())
            }
        }));
    Running { address, stop, tasks, go_on, begun, handed_out, accepting }
}

/// Body of the answer to `/refuse`.
const REFUSED: &str = "no";

/// Returns an answer without reading the body. The status for `/bare` has no body.
fn refused(path: &str) -> Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from_static(REFUSED.as_bytes())).boxed_unsync());
    *response.status_mut() = if path == "/bare" { StatusCode::NOT_MODIFIED } else { StatusCode::FORBIDDEN };
    response
}

/// Returns a long body whose pieces are available immediately and counted as they are taken.
fn large(handed_out: Arc<AtomicUsize>) -> impl http_body::Body<Data = Bytes, Error = Infallible> + Send {
    let piece = Bytes::from(vec![7; 64 << 10]);
    StreamBody::new(futures_util::stream::iter((0..LARGE_PIECES).map(move |_| {
        handed_out.fetch_add(1, Relaxed);
        Ok(http_body::Frame::data(piece.clone()))
    })))
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Reads until `end` or the end of the stream.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut got = Vec::new();
    let mut bytes = [0; 1024];
    while !String::from_utf8_lossy(&got).contains(end) {
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(n) => got.extend_from_slice(&bytes[..n]),
        }
    }
    String::from_utf8_lossy(&got).into_owned()
}

#[tokio::test]
async fn the_connection_beyond_the_limit_is_answered_slow_down_and_closed() {
    let server = start(1, PATIENT).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    send(&mut first, "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello").await;
    assert!(read_until(&mut first, "hello").await.starts_with("HTTP/1.1 200"));
    let mut second = TcpStream::connect(server.address).await.unwrap();
    send(&mut second, "GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    second.shutdown().await.unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("Retry-After: 1"), "{answer}");
    assert!(answer.contains("<Code>SlowDown</Code>"), "{answer}");
    send(&mut first, "GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert!(
        read_until(&mut first, "\r\n\r\n").await.starts_with("HTTP/1.1 200"),
        "the first connection continues"
    );
}

#[tokio::test]
async fn a_drain_answers_requests_in_flight_and_accepts_no_new_ones() {
    let server = start(10, PATIENT).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    send(&mut busy, "GET /wait HTTP/1.1\r\nhost: h\r\n\r\n").await;
    let mut probe = TcpStream::connect(server.address).await.unwrap();
    send(&mut probe, "GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    read_until(&mut probe, "\r\n\r\n").await;
    server.stop.cancel();
    server.accepting.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "the listener is closed");
    assert_eq!(read_until(&mut idle, "never").await, "", "an idle connection is closed");
    server.go_on.add_permits(1);
    assert!(read_until(&mut busy, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    server.tasks.close();
    server.tasks.wait().await;
}

#[tokio::test]
async fn a_client_that_is_slow_in_any_way_is_closed() {
    let short = Duration::from_millis(1);
    for (patience, text) in [
        (ClientTimeouts { idle: short, ..PATIENT }, ""),
        (ClientTimeouts { head: short, ..PATIENT }, "GET / HT"),
        (ClientTimeouts { head: short, ..PATIENT }, "PRI * HTTP"),
    ] {
        let server = start(10, patience).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        send(&mut stream, text).await;
        let got = mlgw_common::time::timeout(LONG, read_until(&mut stream, "never")).await.unwrap();
        assert!(!got.contains("200 OK"), "{text:?}: {got}");
    }
}

const TOO_SLOW: &str = "the client sends its body too slowly";

/// Limits with a body window of one millisecond.
const HURRIED: ClientTimeouts = ClientTimeouts {
    min_rate: MinimumTransferRate { window: Duration::from_millis(1), rate_min: u64::MAX },
    ..PATIENT
};

#[tokio::test]
async fn a_body_that_does_not_arrive_is_answered_with_a_timeout() {
    let server = start(10, HURRIED).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    send(&mut stream, "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nab").await;
    let got = mlgw_common::time::timeout(LONG, read_until(&mut stream, "never")).await.unwrap();
    assert!(got.ends_with(TOO_SLOW), "{got}");
}

/// Opens an HTTP/2 client with the usual window of 64 KiB.
async fn http2(
    address: SocketAddr,
) -> (http2::SendRequest<BoxBody<Bytes, Infallible>>, tokio::task::JoinHandle<hyper::Result<()>>) {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    (sender, tokio::spawn(connection))
}

#[tokio::test]
async fn a_stalled_body_on_http2_is_answered_and_other_requests_proceed() {
    let server = start(10, HURRIED).await;
    let (mut sender, _connection) = http2(server.address).await;
    let stalled =
        StreamBody::new(futures_util::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>());
    let request = http::Request::put("http://h/").body(stalled.boxed()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), TOO_SLOW);
    // Without a body, because a busy machine might not send one in time either.
    let request = http::Request::get("http://h/refuse").body(Full::default().boxed()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), REFUSED);
}

#[tokio::test]
async fn an_answer_on_http2_that_its_client_does_not_read_closes_the_connection() {
    let server = start(10, HURRIED).await;
    let (mut sender, connection) = http2(server.address).await;
    let request = http::Request::get("http://h/large").body(Full::default().boxed()).unwrap();
    let unread = sender.send_request(request).await.unwrap();
    let ended = mlgw_common::time::timeout(LONG, connection).await;
    assert!(ended.is_ok(), "the connection is closed");
    assert!(unread.into_body().collect().await.is_err(), "its response is cut off");
}

#[tokio::test]
async fn connections_take_turns_if_there_is_one_active_slot() {
    let server = start_with(10, PATIENT, RequestMemory::new(0, 1, None)).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    let mut second = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..2 {
        for stream in [&mut first, &mut second] {
            send(stream, "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nok").await;
            assert!(read_until(stream, "\r\n\r\nok").await.starts_with("HTTP/1.1 200"));
        }
    }
}

#[tokio::test]
async fn bytes_of_the_next_request_before_an_idle_phase_are_not_lost() {
    let server = start_with(10, PATIENT, RequestMemory::new(0, 1, None)).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    send(&mut first, "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nokPUT / HTTP/1.1\r\nho").await;
    assert!(read_until(&mut first, "\r\n\r\nok").await.starts_with("HTTP/1.1 200"));
    // A second connection makes the first one idle.
    let mut second = TcpStream::connect(server.address).await.unwrap();
    send(&mut second, "GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    mlgw_common::time::sleep(Duration::from_millis(1200)).await;
    send(&mut first, "st: h\r\ncontent-length: 4\r\n\r\nmore").await;
    assert!(read_until(&mut first, "\r\n\r\nmore").await.starts_with("HTTP/1.1 200"));
    assert!(read_until(&mut second, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn the_remainder_of_a_refused_body_is_not_parsed_as_a_request_while_others_wait_for_memory() {
    let server = start_with(10, PATIENT, RequestMemory::new(0, 1, None)).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    send(&mut first, "PUT /wait/refuse HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\n\r\n").await;
    while server.begun.load(Relaxed) == 0 {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
    let mut second = TcpStream::connect(server.address).await.unwrap();
    send(&mut second, "GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    mlgw_common::time::sleep(Duration::from_millis(100)).await;
    server.go_on.add_permits(1);
    let answer = read_until(&mut first, REFUSED).await;
    assert!(answer.contains("connection: close"), "{answer}");
    assert!(read_until(&mut second, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    let rest = "GET / HTTP/1.1\r\nhost: h\r\n\r\n".repeat(3);
    // The connection may be closed by then.
    drop(first.write_all(rest.as_bytes()).await);
    let mut more = Vec::new();
    drop(first.read_to_end(&mut more).await);
    assert_eq!(String::from_utf8_lossy(&more), "", "no response follows the last one");
}

#[tokio::test]
async fn an_answer_that_is_not_read_is_not_buffered_in_memory() {
    let server = start(10, PATIENT).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    send(&mut stream, "GET /large HTTP/1.1\r\nhost: h\r\n\r\n").await;
    read_until(&mut stream, "\r\n\r\n").await;
    let handed_out = server.handed_out.load(Relaxed);
    assert!(handed_out < LARGE_PIECES, "the system's buffers contain a part of it; the rest is not buffered");
}

#[tokio::test]
async fn continue_is_sent_when_expected_also_for_an_empty_body() {
    let server = start(10, PATIENT).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for body in ["ok", "", "more"] {
        let length = body.len();
        let head =
            format!("PUT / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n");
        send(&mut stream, &head).await;
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).await.unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n", "{body:?}");
        send(&mut stream, body).await;
        let answer = read_until(&mut stream, &format!("\r\n\r\n{body}")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{body:?}: {answer}");
    }
}

#[tokio::test]
async fn a_busy_port_is_refused_with_its_setting_and_advice() {
    let server = start(1, PATIENT).await;
    let address = Address { host: "127.0.0.1".into(), port: server.address.port() };
    let refused = bind("admin.listen", &address).await.unwrap_err().to_string();
    assert!(refused.contains("(admin.listen)") && refused.contains("ddress already in use"), "{refused}");
    assert!(refused.ends_with("stop the process that uses it, or choose another port"), "{refused}");
}
