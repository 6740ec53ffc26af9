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

pub(crate) use calls::ListedPartRow;
pub(crate) use sign::encode;

/// A request body.
pub(crate) type ClientBody = UnsyncBoxBody<Bytes, io::Error>;

type RequestSender = SendRequest<ClientBody>;

/// The reason for which a call failed.
#[derive(Debug)]
pub(crate) enum CallFailure {
    /// The server responded with an error: the code determines whether the request took effect.
    Refused { status: StatusCode, body: String },
    /// No complete response: the request may or may not have taken effect.
    NoResponse(String),
}

impl CallFailure {
    /// The status, if there was a response.
    pub(crate) const fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.as_u16()),
            Self::NoResponse(_) => None,
        }
    }

    /// True if the request was refused because its origin does not have all earlier writes in time. How long
    /// that takes depends on the load.
    pub(crate) fn is_before_earlier_writes(&self) -> bool {
        matches!(self, Self::Refused { body, .. } if body.contains("does not have all earlier writes"))
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }
}

/// A complete response.
pub(crate) struct S3ClientResponse {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl fmt::Debug for S3ClientResponse {
    /// Formats without the body: a megabyte of it would hide everything else in a failure's report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes with {:?}", self.body.len(), self.headers)
    }
}

impl S3ClientResponse {
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
pub(crate) struct S3TestClient {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    server: SocketAddr,
    signer: sign::Signer,
    idle: Mutex<Vec<RequestSender>>,
    /// The address to connect from, for tests that depend on the source address.
    source_address: Option<IpAddr>,
}

impl S3TestClient {
    pub(crate) fn new(server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        Self::for_service("s3", server, access_key, secret_key)
    }

    /// A client of the admin API.
    pub(crate) fn admin(server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        Self::for_service("mlgw", server, access_key, secret_key)
    }

    fn for_service(service: &'static str, server: SocketAddr, access_key: &str, secret_key: &str) -> Self {
        let signer = sign::Signer::new(service, access_key, secret_key);
        Self {
            shared: Arc::new(ClientShared {
                server,
                signer,
                idle: Mutex::new(Vec::new()),
                source_address: None,
            }),
        }
    }

    /// Sends a request with a document to the admin API, and returns the document of the response.
    ///
    /// # Errors
    /// As [`S3TestClient::call`].
    pub(crate) async fn call_admin(
        &self,
        method: Method,
        path: &str,
        document: &serde_json::Value,
    ) -> Result<serde_json::Value, CallFailure> {
        let text = if document.is_null() { String::new() } else { document.to_string() };
        let host = self.shared.server.to_string();
        let request = Request::builder().method(method).uri(path).header("host", host);
        let mut request = request.body(full_body(text.clone())).expect("the request is well-formed");
        let signed = SignableBody::Bytes(text.as_bytes());
        self.shared.signer.sign_with(&mut request, self.shared.server, signed);
        let answer = self.send_and_read(request).await?;
        serde_json::from_slice(&answer.body).map_err(|error| no_response(&error))
    }

    /// The same client with another source address of this machine.
    #[must_use]
    pub(crate) fn with_source_address(self, from: IpAddr) -> Self {
        let shared = Arc::into_inner(self.shared).expect("the client is not shared yet");
        Self { shared: Arc::new(ClientShared { source_address: Some(from), ..shared }) }
    }

    /// A signed request for `path` (encoded, with its query).
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: ClientBody,
    ) -> Request<ClientBody> {
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
        let mut request = request.body(body).expect("the request is well-formed");
        self.shared.signer.sign(&mut request, self.shared.server);
        request
    }

    async fn exchange(
        &self,
        request: Request<ClientBody>,
    ) -> Result<(http::Response<Incoming>, RequestSender), CallFailure> {
        let mut sender = self.connection().await?;
        let response = sender.send_request(request).await.map_err(|error| no_response(&error))?;
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
        body: ClientBody,
    ) -> Result<S3ClientResponse, CallFailure> {
        self.send_and_read(self.request(method, path, headers, body)).await
    }

    async fn send_and_read(&self, request: Request<ClientBody>) -> Result<S3ClientResponse, CallFailure> {
        let (response, sender) = self.exchange(request).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| no_response(&error))?.to_bytes();
        self.shared.idle.lock().expect("lock is not poisoned").push(sender);
        if head.status.is_success() {
            return Ok(S3ClientResponse { headers: head.headers, body });
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        Err(CallFailure::Refused { status: head.status, body })
    }

    /// An idle connection that is still open, or a new one. On an error nothing was sent.
    async fn connection(&self) -> Result<RequestSender, CallFailure> {
        loop {
            let idle = self.shared.idle.lock().expect("lock is not poisoned").pop();
            let Some(mut sender) = idle else { break };
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let stream = self.connect().await.map_err(|error| no_response(&error))?;
        stream.set_nodelay(true).map_err(|error| no_response(&error))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| no_response(&error))?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl S3TestClient {
    async fn connect(&self) -> io::Result<TcpStream> {
        let Some(from) = self.shared.source_address else {
            return TcpStream::connect(self.shared.server).await;
        };
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        socket.connect(self.shared.server).await
    }
}

/// The whole chain of an error: hyper's own message rarely includes the error of the socket.
fn no_response(error: &dyn std::error::Error) -> CallFailure {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    CallFailure::NoResponse(message)
}

/// A body of these bytes.
pub(crate) fn full_body(bytes: impl Into<Bytes>) -> ClientBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}
