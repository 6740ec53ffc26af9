//! Test clients: a raw one that records every byte up to the point where a connection breaks, and one based
//! on hyper that reuses its connection.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;

use super::WAIT_MAX;
use super::origin::{TestOriginBody, sized};

/// All bytes that came back on a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RawResponse {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl RawResponse {
    pub(super) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    pub(super) fn has(&self, line: &str) -> bool {
        self.head.lines().any(|found| found.eq_ignore_ascii_case(line))
    }
}

/// Connects, sends this request and reads until the other side closes or resets the connection.
pub(super) fn raw(proxy: SocketAddr, request: &str, body: &[u8]) -> RawResponse {
    let mut stream = TcpStream::connect(proxy).expect("connected");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("set");
    // A client that is cut off may not be able to send everything.
    let _sent = stream.write_all(&[request.as_bytes(), body].concat());
    let mut received = Vec::new();
    let _ended = stream.read_to_end(&mut received);
    let end = received.windows(4).position(|window| window == b"\r\n\r\n").map_or(0, |end| end + 4);
    let body = received.split_off(end);
    RawResponse { head: String::from_utf8(received).expect("a head is text"), body }
}

/// A GET on a connection of its own.
pub(super) fn raw_get(proxy: SocketAddr, path: &str) -> RawResponse {
    raw(proxy, &format!("GET {path} HTTP/1.1\r\nhost: origin\r\nconnection: close\r\n\r\n"), b"")
}

/// A PUT on a connection of its own.
pub(super) fn raw_put(proxy: SocketAddr, path: &str, body: &[u8]) -> RawResponse {
    let length = body.len();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: origin\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    raw(proxy, &head, body)
}

/// The payload of a chunked body.
pub(super) fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n").expect("the line of a size");
        let size = std::str::from_utf8(&body[..end]).expect("text");
        let size = usize::from_str_radix(size, 16).expect("a size");
        payload.extend_from_slice(&body[end + 2..][..size]);
        assert_eq!(&body[end + 2 + size..][..2], b"\r\n");
        body = &body[end + 4 + size..];
        if size == 0 {
            assert_eq!(body, b"", "nothing follows the last chunk");
            return payload;
        }
    }
}

/// A connection that is reused for several requests.
pub(super) struct TestCaller(SendRequest<TestOriginBody>);

/// A complete response.
#[derive(Debug)]
pub(super) struct CallerResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl TestCaller {
    pub(super) async fn connect(proxy: SocketAddr) -> Self {
        let stream = tokio::net::TcpStream::connect(proxy).await.expect("connected");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("connected");
        tokio::spawn(connection);
        Self(sender)
    }

    /// # Errors
    /// No complete response arrived.
    pub(super) async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: TestOriginBody,
    ) -> hyper::Result<CallerResponse> {
        let request = Request::builder().method(method).uri(path).header("host", "origin").body(body);
        self.0.ready().await?;
        let answer = self.0.send_request(request.expect("the request is well-formed")).await?;
        let (head, body) = answer.into_parts();
        Ok(CallerResponse {
            status: head.status,
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        })
    }

    pub(super) async fn get(&mut self, path: &str) -> hyper::Result<CallerResponse> {
        self.call(Method::GET, path, sized(Bytes::new())).await
    }
}
