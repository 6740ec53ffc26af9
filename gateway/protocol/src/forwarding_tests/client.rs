//! A client over TCP that writes the bytes of HTTP/1.1 itself, so that a test sees each of them.

use aws_sigv4::http_request::SignableBody;
use http::request::Parts;
use mlgw_testing::signer::RequestToSign;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A connection.
pub(super) struct TestClient {
    pub(super) stream: BufReader<TcpStream>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct TestAnswer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Number of interim answers before it.
    pub(super) interim: usize,
}

impl TestAnswer {
    /// Returns the value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Returns the body as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Returns the signed head of a request with this body.
pub(super) fn signed(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Parts {
    let length = body.len().to_string();
    let mut all = headers.to_vec();
    if !body.is_empty() || method == "PUT" || method == "POST" {
        all.push(("content-length", &length));
    }
    RequestToSign {
        method,
        target,
        headers: &all,
        body: SignableBody::Bytes(body),
        ..RequestToSign::default()
    }
    .sign()
    .0
}

impl TestClient {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self { stream: BufReader::new(TcpStream::connect(address).await.unwrap()) }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).await.unwrap();
    }

    pub(super) async fn send_head(&mut self, head: &Parts) {
        let mut text = format!("{} {} HTTP/1.1\r\n", head.method, head.uri).into_bytes();
        for (name, value) in &head.headers {
            text.extend_from_slice(name.as_str().as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        self.send(&text).await;
    }

    /// Sends a request with its body and reads the answer.
    pub(super) async fn request(&mut self, head: &Parts, body: &[u8]) -> TestAnswer {
        self.send_head(head).await;
        self.send(body).await;
        self.answer(head.method.as_str()).await
    }

    /// Signs and sends a request and reads the answer.
    pub(super) async fn call(&mut self, method: &str, target: &str, body: &[u8]) -> TestAnswer {
        self.request(&signed(method, target, &[], body), body).await
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.ok().filter(|bytes| *bytes > 0)?;
        Some(line.trim_end().to_owned())
    }

    /// Reads the head of an answer. Returns `None` if the connection ends instead.
    pub(super) async fn answer_head(&mut self) -> Option<TestAnswer> {
        let mut interim = 0;
        loop {
            let status = self.line().await?.split(' ').nth(1)?.parse().ok()?;
            let mut headers = Vec::new();
            loop {
                let line = self.line().await?;
                let Some((name, value)) = line.split_once(": ") else { break };
                headers.push((name.to_owned(), value.to_owned()));
            }
            if status != 100 {
                return Some(TestAnswer { status, headers, body: Vec::new(), interim });
            }
            interim += 1;
        }
    }

    /// Reads an answer to a request with this method.
    pub(super) async fn answer(&mut self, method: &str) -> TestAnswer {
        let mut answer = self.answer_head().await.expect("an answer");
        let has_none = method == "HEAD" || matches!(answer.status, 204 | 304);
        let length = answer.header("content-length").map(|length| length.parse().unwrap());
        if let Some(length) = length.filter(|_| !has_none) {
            answer.body = vec![0; length];
            self.stream.read_exact(&mut answer.body).await.unwrap();
        }
        answer
    }

    /// Waits for the end of the connection. Returns true if it came without further bytes.
    pub(super) async fn has_ended(&mut self) -> bool {
        self.stream.read_u8().await.is_err()
    }
}
