//! 512 MiB of memory under clients that send requests and do not read the responses, over HTTP/1.1 and
//! HTTP/2, and under clients that keep idle connections after a request. Each request is served or refused
//! with 503, the server is never killed, and small requests of another client are served throughout.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use http::Method;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::cgroup::MemoryLimit;
use super::memory::raise_open_files;
use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::raw::RawExchange;
use crate::s3::{S3TestClient, full_body};
use crate::server::{ACCESS_KEY, SECRET_KEY, ServerProcess, ServerSetup};

const MEMORY_BYTES: u64 = 512 << 20;
const LARGE: TestContent = TestContent { id: 1, length: 32 << 20 };
const SMALL: TestContent = TestContent { id: 2, length: 4000 };
/// Readers whose first pieces alone would take more than a third of the memory.
const READERS: usize = 2_000;
/// Slow readers that continue to the end while the others keep their memory.
const FINISHED: usize = 4;
const HTTP2_CONNECTIONS: usize = 4;
const STREAMS: usize = 100;
const IDLE_CONNECTIONS: usize = 5_000;
/// Requests of the well-behaved client.
const NORMAL_REQUESTS: usize = 100;

#[test]
fn clients_that_do_not_read_do_not_block_others() {
    let limit = match MemoryLimit::new(MEMORY_BYTES) {
        Ok(limit) => limit,
        Err(why) => return eprintln!("SKIPPED the slow readers: cgroups cannot be created here: {why}"),
    };
    raise_open_files();
    let dir = tempfile::tempdir_in(super::on_disk()).expect("a directory");
    let mut server = ServerSetup::new(dir.path().join("mlgw-data"))
        .with("limits.idle_timeout", "10m")
        .with("limits.body_timeout", "10m")
        .with_preparation("ulimit -n 20000 || exit 98")
        .with_preparation(&limit.enter())
        .start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("create bucket");
        client.put(BUCKET, "large", full_body(LARGE.bytes())).await.expect("put object");
        client.put(BUCKET, "small", full_body(SMALL.bytes())).await.expect("put object");
        let readers = slow_readers(&client, server.s3).await;
        server.assert_running("with slow readers");
        normal_traffic(&server).await;
        finish_some(readers).await;
        let held = stalls_on_http2(&client, server.s3).await;
        server.assert_running("with stalls on HTTP/2");
        normal_traffic(&server).await;
        drop(held);
        let staying = open_idle_after_request(&client, server.s3).await;
        eprintln!("readers: {} of {IDLE_CONNECTIONS} connections stay after a request", staying.len());
        normal_traffic(&server).await;
    });
    eprintln!("readers: at most {} MiB of {} taken", limit.peak() >> 20, MEMORY_BYTES >> 20);
    assert_eq!(limit.kills(), 0, "{}", server.log());
    server.stop();
}

/// Requests the large object many times and reads the first bytes only. Returns each open exchange with its
/// remaining bytes.
async fn slow_readers(client: &S3TestClient, server: SocketAddr) -> Vec<(RawExchange, usize)> {
    let ask = |_| async move {
        let target = format!("/{BUCKET}/large");
        let mut exchange =
            RawExchange::begin(client, server, Method::GET, &target, 0).await.expect("connected");
        let answer = exchange.answer().await.expect("answered");
        assert!([200, 503].contains(&answer.status), "a slow reader gets {}", answer.status);
        (answer.status == 200).then(|| (exchange, LARGE.length - answer.body.len()))
    };
    let outcomes: Vec<_> = iter(0..READERS).map(ask).buffer_unordered(READERS).collect().await;
    let served: Vec<(RawExchange, usize)> = outcomes.into_iter().flatten().collect();
    eprintln!("readers: {} of {READERS} are served, the others got 503", served.len());
    assert!(served.len() > FINISHED);
    served
}

/// Reads a few bodies to the end.
async fn finish_some(readers: Vec<(RawExchange, usize)>) {
    for (mut exchange, left) in readers.into_iter().take(FINISHED) {
        exchange.skip(left).await.expect("the rest of the body");
    }
}

/// Sends requests of another client from another address; each must be served.
async fn normal_traffic(server: &ServerProcess) {
    let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let client = S3TestClient::new(server.s3, ACCESS_KEY, SECRET_KEY).with_source_address(address);
    for id in 0..NORMAL_REQUESTS as u64 {
        let content = TestContent { id: 1000 + id, ..SMALL };
        client
            .put(BUCKET, "normal", full_body(content.bytes()))
            .await
            .expect("a small PUT beside slow clients");
        let body = client.get(BUCKET, "normal").await.expect("a small GET beside slow clients").body;
        assert_eq!(content.difference(&body), None);
    }
}

/// Opens HTTP/2 connections with many responses each that are never read. The returned value keeps them
/// open.
async fn stalls_on_http2(client: &S3TestClient, server: SocketAddr) -> Vec<StalledConnection> {
    let connections = (0..HTTP2_CONNECTIONS).map(|_| stall_on_http2(client, server));
    let stalled: Vec<StalledConnection> = futures_util::future::join_all(connections).await;
    let served: usize = stalled.iter().map(|stalled| stalled.answers.len()).sum();
    eprintln!("readers: {served} of {} answers on HTTP/2 begun", HTTP2_CONNECTIONS * STREAMS);
    assert!(served > 0);
    stalled
}

/// A connection with its unread responses.
struct StalledConnection {
    _sender: http2::SendRequest<Empty<Bytes>>,
    _connection: tokio::task::JoinHandle<hyper::Result<()>>,
    answers: Vec<http::Response<Incoming>>,
}

async fn stall_on_http2(client: &S3TestClient, server: SocketAddr) -> StalledConnection {
    let stream = TokioIo::new(TcpStream::connect(server).await.expect("connected"));
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let ask = |_| {
        let mut sender = sender.clone();
        let signed = client.request(Method::GET, &format!("/{BUCKET}/large"), &[], full_body(""));
        let mut request = http::Request::get(format!("http://{server}/{BUCKET}/large"));
        for (name, value) in signed.headers().iter().filter(|(name, _)| *name != "host") {
            request = request.header(name, value);
        }
        let request = request.body(Empty::new()).expect("a test request");
        async move { sender.send_request(request).await.expect("every stream is answered") }
    };
    let answers: Vec<_> = iter(0..STREAMS).map(ask).buffer_unordered(STREAMS).collect().await;
    for answer in &answers {
        assert!([200, 503].contains(&answer.status().as_u16()), "a stream gets {}", answer.status());
    }
    let answers = answers.into_iter().filter(|answer| answer.status() == 200).collect();
    StalledConnection { _sender: sender, _connection: connection, answers }
}

/// Opens connections that read their response and stay open.
async fn open_idle_after_request(client: &S3TestClient, server: SocketAddr) -> Vec<RawExchange> {
    let ask = |_| async move {
        let target = format!("/{BUCKET}/small");
        let mut exchange =
            RawExchange::begin(client, server, Method::GET, &target, 0).await.expect("connected");
        let answer = exchange.answer().await.expect("answered");
        if answer.status == 503 {
            return None;
        }
        let body = exchange.read_rest(&answer).await.expect("the body");
        assert_eq!(SMALL.difference(&body), None);
        Some(exchange)
    };
    let outcomes: Vec<_> = iter(0..IDLE_CONNECTIONS).map(ask).buffer_unordered(64).collect().await;
    let stayed: Vec<RawExchange> = outcomes.into_iter().flatten().collect();
    assert_eq!(stayed.len(), IDLE_CONNECTIONS, "idle connections do not block others");
    stayed
}
