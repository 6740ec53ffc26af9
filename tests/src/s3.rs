//! An S3 client that sends each request exactly once.
//!
//! No retries, no redirects, no read-ahead: a request was acknowledged if and only if its call returned `Ok`,
//! which the crash tests depend on. Bodies are unsigned payloads, so the server sees the bytes as they are
//! sent.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use aws_sigv4::http_request::SignableBody;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};

use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};

mod calls;
mod sign;
mod xml;

pub(crate) use calls::PartListed;
pub(crate) use sign::encode;

/// A request body.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

type Sender = SendRequest<Body>;

/// The reason for which a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server responded with an error: the code determines if the request took effect.
    Refused { status: StatusCode, body: String },
    /// No complete response: the request may or may not have taken effect.
    Lost(String),
}

impl Failure {
    /// The status, if there was a response.
    pub(crate) const fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.as_u16()),
            Self::Lost(_) => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }
}

/// A complete response.
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl fmt::Debug for Answer {
    /// Formats without the body: a megabyte of it would hide everything else in a failure's report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes with {:?}", self.body.len(), self.headers)
    }
}

impl Answer {
    /// A header as text, which may be any valid UTF-8.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| std::str::from_utf8(value.as_bytes()).ok())
    }

    /// The ETag without its quotes.
    pub(crate) fn etag(&self) -> String {
        self.header("etag").unwrap_or_default().trim_matches('"').to_owned()
    }
}

/// A client of one server; cheap to clone. Connections are reused, with one request at a time on each.
#[derive(Clone)]
pub(crate) struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    signer: sign::Signer,
    idle: Mutex<Vec<Sender>>,
    /// The address to connect from, for tests that depend on the source address.
    from: Option<IpAddr>,
}

impl Client {
    pub(crate) fn new(server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        Self::of_service("s3", server, access_key, secret_key)
    }

    /// A client of the admin API.
    pub(crate) fn of_admin(server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        Self::of_service("mlgw", server, access_key, secret_key)
    }

    fn of_service(service: &'static str, server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        let signer = sign::Signer::new(service, access_key, secret_key);
        Self { shared: Arc::new(Shared { server, signer, idle: Mutex::new(Vec::new()), from: None }) }
    }

    /// Sends a request with a document to the admin API, and returns the document of the response.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        document: &serde_json::Value,
    ) -> Result<serde_json::Value, Failure> {
        let text = if document.is_null() { String::new() } else { document.to_string() };
        let host = self.shared.server.to_string();
        let request = Request::builder().method(method).uri(path).header("host", host);
        let mut request = request.body(whole(text.clone())).expect("our own request is well-formed");
        let signed = SignableBody::Bytes(text.as_bytes());
        self.shared.signer.sign_with(&mut request, self.shared.server, signed);
        let answer = self.answered(request).await?;
        serde_json::from_slice(&answer.body).map_err(|error| lost(&error))
    }

    /// The same client with another source address of this machine.
    #[must_use]
    pub(crate) fn with_address(self, from: IpAddr) -> Self {
        let shared = Arc::into_inner(self.shared).expect("a client that nobody shares yet");
        Self { shared: Arc::new(Shared { from: Some(from), ..shared }) }
    }

    /// A signed request for `path` (encoded, with its query).
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Body,
    ) -> Request<Body> {
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("host", self.shared.server.to_string());
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        // hyper omits this header if a body is empty.
        let is_given = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        if method == Method::PUT && !is_given && body.size_hint().exact() == Some(0) {
            request = request.header("content-length", "0");
        }
        let mut request = request.body(body).expect("our own request is well-formed");
        self.shared.signer.sign(&mut request, self.shared.server);
        request
    }

    async fn exchange(&self, request: Request<Body>) -> Result<(http::Response<Incoming>, Sender), Failure> {
        let mut sender = self.connection().await?;
        let response = sender.send_request(request).await.map_err(|error| lost(&error))?;
        Ok((response, sender))
    }

    /// Sends a request and reads the complete response.
    ///
    /// # Errors
    /// No complete response arrived, or its status is an error.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Body,
    ) -> Result<Answer, Failure> {
        self.answered(self.request(method, path, headers, body)).await
    }

    async fn answered(&self, request: Request<Body>) -> Result<Answer, Failure> {
        let (response, sender) = self.exchange(request).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| lost(&error))?.to_bytes();
        self.shared.idle.lock().expect("no panic while held").push(sender);
        if head.status.is_success() {
            return Ok(Answer { headers: head.headers, body });
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        Err(Failure::Refused { status: head.status, body })
    }

    /// An idle connection that is still open, or a new one. On an error nothing was sent.
    async fn connection(&self) -> Result<Sender, Failure> {
        loop {
            let idle = self.shared.idle.lock().expect("no panic while held").pop();
            let Some(mut sender) = idle else { break };
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let stream = self.connect().await.map_err(|error| lost(&error))?;
        stream.set_nodelay(true).map_err(|error| lost(&error))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| lost(&error))?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl Client {
    async fn connect(&self) -> io::Result<TcpStream> {
        let Some(from) = self.shared.from else { return TcpStream::connect(self.shared.server).await };
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        socket.connect(self.shared.server).await
    }
}

/// The whole chain of an error: hyper's own message rarely includes the error of the socket.
fn lost(error: &dyn std::error::Error) -> Failure {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    Failure::Lost(message)
}

/// A body of these bytes.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}
