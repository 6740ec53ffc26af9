//! HTTP by hand, for requests that a well-behaved client would not send: slow, cut short, or far too long.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use mlgw_common::time::sleep;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::content::TestContent;
use crate::s3::{ClientBody, S3TestClient, full_body};

/// Pause between two pieces of a body that is read slowly.
const PIECE_PAUSE: Duration = Duration::from_millis(100);
/// Such pauses in a second.
const PIECES_PER_SECOND: usize = 10;

/// A request on a connection of its own, and its response.
pub(crate) struct RawExchange {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
}

/// A response: its status, its head and as much of the body as was read.
#[derive(Debug)]
pub(crate) struct RawHttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// Body bytes that arrived with the head.
    pub(crate) body: Vec<u8>,
}

impl RawHttpResponse {
    /// The announced length of the body.
    pub(crate) fn content_length(&self) -> usize {
        let line = self.head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().to_owned())
        });
        line.and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

impl RawExchange {
    /// Connects and sends the head of a signed request that announces `length` body bytes.
    pub(crate) async fn begin(
        client: &S3TestClient,
        server: SocketAddr,
        method: Method,
        path: &str,
        length: u64,
    ) -> std::io::Result<Self> {
        let request = client.request(method, path, &[("content-length", length.to_string())], full_body(""));
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (reader, mut writer) = stream.into_split();
        writer.write_all(head_text(&request).as_bytes()).await?;
        Ok(Self { reader, writer })
    }

    /// Begins a PUT of an object with this content, and sends all but the last `rest` bytes.
    pub(crate) async fn begin_put(
        client: &S3TestClient,
        server: SocketAddr,
        path: &str,
        content: TestContent,
        rest: usize,
    ) -> std::io::Result<Self> {
        let mut put = Self::begin(client, server, Method::PUT, path, content.length as u64).await?;
        put.send(&content.bytes()[..content.length - rest]).await?;
        Ok(put)
    }

    /// Sends body bytes, in pieces of any size.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.writer.write_all(bytes).await
    }

    /// Sends body bytes until all are sent, or until a response arrives first, as from a server that refuses
    /// the request.
    pub(crate) async fn send_or_answer(&mut self, bytes: &[u8]) -> std::io::Result<Option<RawHttpResponse>> {
        let Self { reader, writer } = self;
        tokio::select! {
            biased;
            answer = read_answer(reader) => answer.map(Some),
            sent = writer.write_all(bytes) => match sent {
                Ok(()) => Ok(None),
                // The server may have closed the connection after its response, which is still to be read.
                Err(_) => read_answer(reader).await.map(Some),
            },
        }
    }

    /// Waits for the head of the response.
    pub(crate) async fn answer(&mut self) -> std::io::Result<RawHttpResponse> {
        read_answer(&mut self.reader).await
    }

    /// Reads `bytes` more and drops them.
    pub(crate) async fn skip(&mut self, bytes: usize) -> std::io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            match self.read_some(left).await? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => left -= read,
            }
        }
        Ok(())
    }

    /// Reads the available bytes, at most `bytes`, and drops them. Returns their number.
    pub(crate) async fn read_some(&mut self, bytes: usize) -> std::io::Result<usize> {
        let mut drops = vec![0; bytes.min(64 << 10)];
        self.reader.read(&mut drops).await
    }

    /// Reads the rest of a response's body and returns the whole body.
    pub(crate) async fn read_rest(&mut self, answer: &RawHttpResponse) -> std::io::Result<Vec<u8>> {
        let mut body = answer.body.clone();
        let before = body.len();
        body.resize(answer.content_length(), 0);
        self.reader.read_exact(&mut body[before..]).await?;
        Ok(body)
    }

    /// Reads the rest of a response's body, at most `bytes_per_second`, and returns the whole body.
    /// `progress` has the bytes that were read so far.
    pub(crate) async fn read_rest_slowly(
        &mut self,
        answer: &RawHttpResponse,
        bytes_per_second: usize,
        progress: &AtomicUsize,
    ) -> std::io::Result<Vec<u8>> {
        let (mut body, length) = (answer.body.clone(), answer.content_length());
        while body.len() < length {
            let before = body.len();
            body.resize(length.min(before + bytes_per_second / PIECES_PER_SECOND), 0);
            self.reader.read_exact(&mut body[before..]).await?;
            progress.store(body.len(), Ordering::Relaxed);
            sleep(PIECE_PAUSE).await;
        }
        Ok(body)
    }
}

/// The head of a request as it is sent.
pub(crate) fn head_text(request: &Request<ClientBody>) -> String {
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        let value = value.to_str().expect("a test header");
        write!(head, "{name}: {value}\r\n").expect("a String takes all");
    }
    head + "\r\n"
}

async fn read_answer(reader: &mut OwnedReadHalf) -> std::io::Result<RawHttpResponse> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if reader.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "closed without an answer"));
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    // An interim response (100 Continue) is skipped.
    if status == 100 {
        return Box::pin(read_answer(reader)).await;
    }
    Ok(RawHttpResponse { status, head, body: bytes[end + 4..].to_vec() })
}
