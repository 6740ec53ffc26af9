//! An S3 client that sends each request exactly once.
//!
//! No retries, no redirects, no reading ahead: a request was acknowledged if and only if its call
//! returned well, which is what the crash tests have to know. Bodies are unsigned payloads, so the server
//! sees the bytes as they are sent.

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

/// Why a call did not return well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered with an error: whether the request took effect depends on the code.
    Refused { status: StatusCode, body: String },
    /// No whole answer: the request may or may not have taken effect.
    Lost(String),
}

impl Failure {
    /// The status, when there was an answer.
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

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl fmt::Debug for Answer {
    /// Without the body: a megabyte of it hides everything else in a failure's report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes with {:?}", self.body.len(), self.headers)
    }
}

impl Answer {
    /// A header as text, which may be any that is UTF-8.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| std::str::from_utf8(value.as_bytes()).ok())
    }

    /// The ETag without its quotes.
    pub(crate) fn etag(&self) -> String {
        self.header("etag").unwrap_or_default().trim_matches('"').to_owned()
    }
}

/// Talks to one server; cheap to clone. Connections are reused, one request at a time on each.
#[derive(Clone)]
pub(crate) struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    signer: sign::Signer,
    idle: Mutex<Vec<Sender>>,
    /// The address to connect from, where it matters who asks.
    from: Option<IpAddr>,
}

impl Client {
    pub(crate) fn new(server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        Self::of_service("s3", server, access_key, secret_key)
    }

    /// One that talks to the admin API.
    pub(crate) fn of_admin(server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        Self::of_service("mlgw", server, access_key, secret_key)
    }

    fn of_service(service: &'static str, server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        let signer = sign::Signer::new(service, access_key, secret_key);
        Self { shared: Arc::new(Shared { server, signer, idle: Mutex::new(Vec::new()), from: None }) }
    }

    /// Asks the admin API, with a document, and returns that of the answer.
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

    /// The same client at another address of this machine.
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
        // hyper leaves it out where a body is empty.
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

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// No whole answer came, or one with an error status.
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

    /// An idle connection that still stands, or a new one. Nothing was sent when this fails.
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

/// The whole chain of an error: hyper's own message rarely says what the socket did.
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
