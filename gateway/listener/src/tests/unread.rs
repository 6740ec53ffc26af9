//! Tests of requests that are refused while their bodies are in flight, over HTTP/1.1 and HTTP/2.
//!
//! One rule holds for HTTP/1.1: an answer either announces the close of its connection, or the next request
//! on the connection is answered. The choice depends on when bytes arrive, so most tests accept both.

use super::{LONG, PATIENT, REFUSED, http2, read_until, send, start, start_with};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::{iter, pending};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use mlgw_common::limits::REQUEST_HEADERS_MAX;
use mlgw_common::time::{sleep, timeout};
use mlgw_objects::memory::RequestMemory;
use mlgw_objects::{ObjectMetrics, ResourceShortage};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Arrival of the body of a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyArrival {
    AtOnce,
    InPieces,
    Late,
    /// After the answer.
    Afterwards,
    Never,
}

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusedBodyLength {
    ContentLength,
    Chunked,
}

fn framed(bytes: usize, length: RefusedBodyLength) -> (String, Vec<u8>) {
    let body = vec![b'x'; bytes];
    match length {
        RefusedBodyLength::ContentLength => (format!("content-length: {bytes}\r\n"), body),
        RefusedBodyLength::Chunked => {
            let head = format!("{bytes:x}\r\n").into_bytes();
            ("transfer-encoding: chunked\r\n".into(), [head, body, b"\r\n0\r\n\r\n".to_vec()].concat())
        }
    }
}

async fn write_as(stream: &mut TcpStream, body: &[u8], comes: BodyArrival) {
    match comes {
        // A refusal may close the connection while bytes are still written.
        BodyArrival::AtOnce => drop(stream.write_all(body).await),
        BodyArrival::InPieces => {
            for piece in body.chunks(body.len().div_ceil(7)) {
                drop(stream.write_all(piece).await);
                sleep(Duration::from_millis(2)).await;
            }
        }
        BodyArrival::Late => {
            sleep(Duration::from_millis(50)).await;
            drop(stream.write_all(body).await);
        }
        BodyArrival::Afterwards | BodyArrival::Never => {}
    }
}

/// Sends a request that is refused, then a second one if the answer permits it. Returns true if the
/// connection was kept.
async fn refused_then_reused(
    address: SocketAddr,
    bytes: usize,
    length: RefusedBodyLength,
    comes: BodyArrival,
) -> bool {
    let what = format!("{bytes} bytes, {length:?}, {comes:?}");
    let (header, body) = framed(bytes, length);
    let mut stream = TcpStream::connect(address).await.unwrap();
    send(&mut stream, &format!("PUT /refuse HTTP/1.1\r\nhost: h\r\n{header}\r\n")).await;
    write_as(&mut stream, &body, comes).await;
    let answer = read_until(&mut stream, &format!("\r\n\r\n{REFUSED}")).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.ends_with(REFUSED), "{what}: {answer}");
    if comes == BodyArrival::Afterwards {
        drop(stream.write_all(&body).await);
    }
    if answer.contains("connection: close") {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(rest.is_empty(), "{what}: nothing follows the last answer");
        return false;
    }
    send(&mut stream, "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\nnext").await;
    let next = read_until(&mut stream, "\r\n\r\nnext").await;
    assert!(next.starts_with("HTTP/1.1 200"), "{what}: a connection that was kept answers: {next:?}");
    true
}

#[tokio::test]
async fn a_connection_is_kept_or_its_close_is_announced() {
    let server = start(1000, PATIENT).await;
    let mut cases = Vec::new();
    for bytes in [1, 400, 20_000, 200_000, 300_000, 3_000_000] {
        for length in [RefusedBodyLength::ContentLength, RefusedBodyLength::Chunked] {
            for comes in [
                BodyArrival::AtOnce,
                BodyArrival::InPieces,
                BodyArrival::Late,
                BodyArrival::Afterwards,
                BodyArrival::Never,
            ] {
                cases.push(async move {
                    let kept = refused_then_reused(server.address, bytes, length, comes);
                    (bytes, length, comes, timeout(LONG, kept).await.unwrap())
                });
            }
        }
    }
    for (bytes, length, comes, kept) in join_all(cases).await {
        if comes == BodyArrival::Never || bytes > 256 << 10 {
            assert!(!kept, "{bytes} bytes, {length:?}, {comes:?}");
        }
    }
}

#[tokio::test]
async fn a_small_body_that_has_arrived_keeps_its_connection() {
    let server = start(10, PATIENT).await;
    for length in [RefusedBodyLength::ContentLength, RefusedBodyLength::Chunked] {
        for bytes in [1, 1000] {
            let (header, body) = framed(bytes, length);
            let head = format!("PUT /refuse HTTP/1.1\r\nhost: h\r\n{header}\r\n");
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            for _ in 0..3 {
                stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
                let answer = read_until(&mut stream, &format!("\r\n\r\n{REFUSED}")).await;
                assert!(answer.starts_with("HTTP/1.1 403") && !answer.contains("close"), "{answer}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_waits_for_continue_sends_no_body_and_the_connection_closes() {
    let server = start(10, PATIENT).await;
    for sends in [false, true] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = "PUT /refuse HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        send(&mut stream, head).await;
        if sends {
            drop(stream.write_all(b"hello").await);
        }
        let answer = timeout(LONG, read_until(&mut stream, "never")).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn a_client_that_reads_only_after_sending_everything_reads_its_answer() {
    let server = start(10, PATIENT).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let body = vec![0; 40 << 20];
    send(&mut stream, &format!("PUT /refuse HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n", body.len()))
        .await;
    timeout(LONG, stream.write_all(&body)).await.unwrap().expect("all of it is read");
    let answer = read_until(&mut stream, "never").await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.ends_with(REFUSED), "{answer}");
}

#[tokio::test]
async fn a_malformed_head_is_answered_while_more_of_it_arrives() {
    let server = start(10, PATIENT).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let endless = format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}", "y".repeat(8 << 20));
    timeout(LONG, stream.write_all(endless.as_bytes())).await.unwrap().expect("all of it is read");
    let answer = read_until(&mut stream, "never").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("RequestHeaderSectionTooLarge"), "{answer}");
}

#[tokio::test]
async fn a_large_head_without_memory_is_answered_slow_down_and_counted() {
    let metrics = Arc::<ObjectMetrics>::default();
    let memory = RequestMemory::new(0, 100, Some(Arc::clone(&metrics)));
    let accounts: Vec<_> = (0..64).map(|_| memory.account(Ipv4Addr::LOCALHOST.into())).collect();
    let taken: Vec<_> = accounts.iter().flat_map(|one| std::iter::from_fn(|| one.try_reserve(1))).collect();
    let server = start_with(10, PATIENT, memory.clone()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let lines = "x-more: 1\r\n".repeat(REQUEST_HEADERS_MAX);
    send(&mut stream, &format!("GET / HTTP/1.1\r\nhost: h\r\n{lines}\r\n")).await;
    let answer = read_until(&mut stream, "</Error>").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("<Code>SlowDown</Code>"), "{answer}");
    assert_eq!(metrics.throttled()[ResourceShortage::Memory as usize], 1);
    drop(taken);
}

#[tokio::test]
async fn an_empty_answer_carries_its_length_in_every_version() {
    let server = start(10, PATIENT).await;
    let (mut sender, _connection) = http2(server.address).await;
    let request = http::Request::put("http://h/").body(pieces(0, BodyArrival::AtOnce).boxed()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.headers()["content-length"], "0");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    send(&mut stream, "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n").await;
    assert!(read_until(&mut stream, "\r\n\r\n").await.contains("content-length: 0\r\n"));
}

/// Returns the pieces that an HTTP/2 client sends, the first immediately.
fn pieces(
    bytes: usize,
    comes: BodyArrival,
) -> impl http_body::Body<Data = Bytes, Error = Infallible> + Send + Sync {
    let pieces = if comes == BodyArrival::InPieces { 7 } else { 1 };
    let wait = Duration::from_millis(if comes == BodyArrival::Late { 50 } else { 0 });
    let sent = if comes == BodyArrival::Never { 0 } else { pieces };
    let data = iter(0..sent).then(move |_| async move {
        sleep(wait).await;
        Ok(Frame::data(Bytes::from(vec![b'x'; bytes / pieces])))
    });
    let open = iter((comes == BodyArrival::Never).then_some(pending())).flatten();
    StreamBody::new(data.chain(open))
}

#[tokio::test]
async fn a_refusal_on_http2_reaches_its_client_and_the_connection_stays_open() {
    let server = start(10, PATIENT).await;
    let (sender, _connection) = http2(server.address).await;
    let mut cases = Vec::new();
    for comes in [BodyArrival::AtOnce, BodyArrival::InPieces, BodyArrival::Late, BodyArrival::Never] {
        for bytes in [400, 20_000, 300_000, 5_000_000] {
            let mut sender = sender.clone();
            cases.push(async move {
                let body = pieces(bytes, comes).boxed();
                let request = http::Request::put("http://h/refuse").body(body).unwrap();
                let answer = timeout(LONG, sender.send_request(request)).await.unwrap();
                let answer = answer.unwrap_or_else(|error| panic!("{bytes} bytes, {comes:?}: {error}"));
                assert_eq!(answer.status(), 403);
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), REFUSED);
            });
        }
    }
    join_all(cases).await;
    let mut sender = sender;
    let next = http::Request::put("http://h/").body(pieces(7, BodyArrival::AtOnce).boxed()).unwrap();
    let answer = sender.send_request(next).await.expect("the connection continues");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "xxxxxxx");
}

#[tokio::test]
async fn answers_without_a_body_have_none_in_any_version() {
    let server = start(10, PATIENT).await;
    for (method, path, status, length) in
        [("HEAD", "/refuse", 403, Some("2")), ("HEAD", "/bare", 304, None), ("GET", "/bare", 304, None)]
    {
        let (mut sender, _connection) = http2(server.address).await;
        for _ in 0..2 {
            let request = http::Request::builder().method(method).uri(format!("http://h{path}"));
            let answer =
                sender.send_request(request.body(pieces(0, BodyArrival::AtOnce).boxed()).unwrap()).await;
            let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
            assert_eq!(answer.status(), status);
            let content_length = answer.headers().get("content-length").map(|value| value.to_str().unwrap());
            assert_eq!(content_length, length, "{method} {path}");
            assert!(answer.into_body().collect().await.expect("no frame of DATA").to_bytes().is_empty());
        }
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        send(&mut stream, &format!("{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")).await;
        let answer = read_until(&mut stream, "never").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
        let content_length = answer.lines().find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(content_length, length, "{method} {path}: {answer}");
    }
}
