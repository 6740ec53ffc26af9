//! The subset of HTTP/1.1 that the origin needs: requests with a length, responses of any form.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;

/// A request.
pub(super) struct FaultyOriginRequest {
    pub(super) method: String,
    /// The key without the bucket, percent-decoded.
    pub(super) key: String,
    pub(super) query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

impl FaultyOriginRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the headers that an object keeps.
    pub(super) fn stored_headers(&self) -> Vec<(String, String)> {
        let is_kept = |name: &str| name == "content-type" || name.starts_with("x-amz-meta-");
        self.headers.iter().filter(|(name, _)| is_kept(name)).cloned().collect()
    }
}

/// Framing and pace of a response's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FaultyBodyFraming {
    /// With a Content-Length.
    #[default]
    Plain,
    /// In chunks, without a length.
    Chunked,
    /// Ten bytes at a time, 200 ms apart.
    Slow,
}

/// A response.
#[derive(Default)]
pub(super) struct FaultyOriginResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) sending: FaultyBodyFraming,
    /// The connection is closed instead of this response.
    pub(super) is_dropped: bool,
}

impl FaultyOriginResponse {
    pub(super) fn of(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn body(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }
    }

    pub(super) fn error(status: u16, code: &str) -> Self {
        let document = format!("<Error><Code>{code}</Code><Message>No.</Message></Error>");
        Self::of(status).with("content-type", "application/xml").body(document)
    }
}

/// Serves the requests of a connection until it ends.
pub(super) fn serve(stream: TcpStream, answer: impl Fn(&FaultyOriginRequest) -> FaultyOriginResponse) {
    stream.set_nodelay(true).expect("set");
    let mut reader = BufReader::new(stream.try_clone().expect("another handle"));
    while let Some(request) = read(&mut reader) {
        let answered = answer(&request);
        let is_head = request.method == "HEAD";
        if answered.is_dropped || send(&stream, &answered, is_head).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<FaultyOriginRequest> {
    let line = line(reader)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
    let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    });
    let (key, query) = (decoded(key), query.collect());
    let mut headers = Vec::new();
    loop {
        let line = self::line(reader)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = FaultyOriginRequest { method, key, query, headers, body: Bytes::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let is_chunked = request.header("content-encoding").is_some_and(|coding| coding.contains("aws-chunked"));
    request.body = if is_chunked { unchunked(&body) } else { body.into() };
    Some(request)
}

fn line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
    Some(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// Returns the payload of an aws-chunked body.
fn unchunked(mut framed: &[u8]) -> Bytes {
    let mut payload = Vec::new();
    loop {
        let end = framed.windows(2).position(|pair| pair == b"\r\n").expect("a chunk's head");
        let size = String::from_utf8_lossy(&framed[..end]).into_owned();
        let size = usize::from_str_radix(size.split(';').next().unwrap_or(""), 16).expect("its size");
        if size == 0 {
            return payload.into();
        }
        payload.extend_from_slice(&framed[end + 2..end + 2 + size]);
        framed = &framed[end + 4 + size..];
    }
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn send(mut stream: &TcpStream, answer: &FaultyOriginResponse, is_head: bool) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Said\r\n", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let has_length = answer.headers.iter().any(|(name, _)| name == "content-length");
    match answer.sending {
        _ if answer.status == 204 || has_length => {}
        FaultyBodyFraming::Chunked => head += "transfer-encoding: chunked\r\n",
        FaultyBodyFraming::Plain | FaultyBodyFraming::Slow => {
            head += &format!("content-length: {}\r\n", answer.body.len())
        }
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    if is_head || answer.status == 204 {
        return Ok(());
    }
    match answer.sending {
        FaultyBodyFraming::Plain => stream.write_all(&answer.body),
        FaultyBodyFraming::Chunked => {
            for piece in answer.body.chunks(1 << 16) {
                stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
                stream.write_all(piece)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")
        }
        FaultyBodyFraming::Slow => answer.body.chunks(10).try_for_each(|piece| {
            mlgw_common::time::block_for(Duration::from_millis(200));
            stream.write_all(piece)
        }),
    }
}
