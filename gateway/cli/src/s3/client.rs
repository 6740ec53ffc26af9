//! Client of an S3 API: signs requests, sends them, and sends them again if that may help.

use super::failure::{Idempotency, S3Failure, WAITS};
use super::path::RemotePath;
use super::target::S3Target;
use crate::CliError;
use crate::client::{ENCODED_IN_URL, path_segment};
use crate::endpoint::ServerApi;
use crate::terminal_text::printable;
use backon::Retryable as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use mlgw_carrier::{
    Authorities, ClientSettings, Credentials, Incoming, SendError, SignableBody, SigningScope,
};
use mlgw_common::time::timeout;
use mlgw_common::{Clock as _, SystemClock};
use percent_encoding::{AsciiSet, utf8_percent_encode};
use std::cell::Cell;
use std::time::Duration;

/// Characters that are encoded in a path of several segments.
const ENCODED_IN_PATH: &AsciiSet = &ENCODED_IN_URL.remove(b'/');
/// Time limit of opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an idle connection is closed; servers close theirs after some tens of seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of an answer, besides the time to send the body.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// Time limit of a copy in the server, or of completing an upload: gigabytes on slow disks.
const LONG_TIMEOUT: Duration = Duration::from_hours(1);
/// Rate in bytes per second at which a body is sent at least.
const SEND_RATE_MIN: u64 = 64 << 10;
/// Largest document: a page of 1,000 keys of 1,024 bytes, every byte encoded, is below 4 MiB.
const DOCUMENT_BYTES_MAX: usize = 8 << 20;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct S3Request {
    method: Method,
    path: RemotePath,
    query: String,
    headers: HeaderMap,
    body: Bytes,
    idempotency: Idempotency,
    timeout: Duration,
}

impl S3Request {
    /// Returns a request for a bucket or an object, without query, headers and body.
    pub(super) fn new(method: Method, path: RemotePath) -> Self {
        Self {
            method,
            path,
            query: String::new(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            idempotency: Idempotency::Idempotent,
            timeout: ANSWER_TIMEOUT,
        }
    }

    /// Adds a parameter to the query. A name alone has an empty value.
    pub(super) fn with_query(mut self, name: &str, value: &str) -> Self {
        let mark = if self.query.is_empty() { '?' } else { '&' };
        self.query += &format!("{mark}{name}={}", path_segment(value));
        self
    }

    pub(super) fn with_header(mut self, name: &'static str, value: HeaderValue) -> Self {
        self.headers.insert(HeaderName::from_static(name), value);
        self
    }

    pub(super) fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers.extend(headers);
        self
    }

    pub(super) fn with_body(mut self, body: Bytes) -> Self {
        self.timeout += Duration::from_secs(body.len() as u64 / SEND_RATE_MIN);
        self.body = body;
        self
    }

    /// Allows a long time for the answer.
    pub(super) fn with_long_timeout(self) -> Self {
        Self { timeout: LONG_TIMEOUT, ..self }
    }

    /// Marks the request as not idempotent: a second execution is forbidden.
    pub(super) fn not_idempotent(self) -> Self {
        Self { idempotency: Idempotency::NotIdempotent, ..self }
    }
}

/// A client of one S3 API.
pub(super) struct S3Client {
    /// Its endpoint has no final `/`.
    target: S3Target,
    http: mlgw_carrier::Client<Full<Bytes>>,
    /// True if the server has answered once: a later refused connection is worth a wait.
    has_answered: Cell<bool>,
}

impl S3Client {
    /// Returns a client of `target`. Sends nothing.
    ///
    /// # Errors
    /// When the endpoint is not an HTTP URL, or the certificate authorities cannot be read.
    pub(super) fn new(target: S3Target) -> Result<Self, CliError> {
        let endpoint = ServerApi::S3.base_url(&target.endpoint)?;
        let http = mlgw_carrier::Client::new(&ClientSettings {
            authorities: Authorities::for_endpoint(target.ca_file.as_deref(), Some(&endpoint)),
            proxy: None,
            connect_timeout: CONNECT_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        });
        let http = http.map_err(|error| CliError::Usage(format!("--ca-file: {}", error.problem)))?;
        Ok(Self { target: S3Target { endpoint, ..target }, http, has_answered: Cell::new(false) })
    }

    /// Returns the error of the command for a failed request. `subject` is the bucket or object.
    pub(super) fn error(&self, failure: S3Failure, subject: &RemotePath) -> CliError {
        // Keys and messages of the server are parts of the message.
        let error = failure.error(&self.target, &subject.to_string());
        error.map_message(|message| printable(message).into_owned())
    }

    /// Sends a request. The response has a status of success, and its body is not read yet.
    ///
    /// # Errors
    /// The last failure.
    pub(super) async fn send(&self, request: &S3Request) -> Result<Response<Incoming>, S3Failure> {
        self.with_retries(request, async || self.send_once(request).await).await
    }

    /// Sends a request and reads the document of its response.
    ///
    /// # Errors
    /// The last failure; also an error document after a 200.
    pub(super) async fn document(&self, request: &S3Request) -> Result<Response<Bytes>, S3Failure> {
        self.with_retries(request, async || {
            let (head, body) = self.send_once(request).await?.into_parts();
            let document = document_of(body, request.timeout).await.map_err(S3Failure::Broken)?;
            match S3Failure::of_late_error(&document) {
                Some(failure) => Err(failure),
                None => Ok(Response::from_parts(head, document)),
            }
        })
        .await
    }

    async fn with_retries<T>(
        &self,
        request: &S3Request,
        attempt: impl AsyncFn() -> Result<T, S3Failure>,
    ) -> Result<T, S3Failure> {
        let wait = |failure: &S3Failure, longest| {
            let is_worth_a_wait = !matches!(failure, S3Failure::NoConnection(_)) || self.has_answered.get();
            failure.wait(request.idempotency, longest, random_fraction()).filter(|_| is_worth_a_wait)
        };
        (|| attempt()).retry(WAITS).adjust(wait).await
    }

    async fn send_once(&self, request: &S3Request) -> Result<Response<Incoming>, S3Failure> {
        let sent = timeout(request.timeout, self.http.send(self.signed(request)?)).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(SendError::Connect(problem))) => return Err(S3Failure::NoConnection(problem)),
            Ok(Err(SendError::Broken(problem))) => return Err(S3Failure::Broken(problem)),
            Err(_) => return Err(S3Failure::Broken("no answer within the time limit".to_owned())),
        };
        self.has_answered.set(true);
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        // An error whose document cannot be read is still reported, by its status.
        let document = document_of(body, ANSWER_TIMEOUT).await.unwrap_or_default();
        Err(S3Failure::of_response(head.status, &head.headers, &document))
    }

    fn signed(&self, request: &S3Request) -> Result<Request<Full<Bytes>>, S3Failure> {
        let invalid = |problem: String| S3Failure::Invalid(problem);
        let endpoint = &self.target.endpoint;
        let url = format!("{endpoint}{}{}", encoded_path(&request.path), request.query);
        let builder = Request::builder().method(request.method.clone()).uri(url);
        let mut signed =
            builder.body(Full::new(request.body.clone())).map_err(|error| invalid(error.to_string()))?;
        *signed.headers_mut() = request.headers.clone();
        if request.method != Method::GET && request.method != Method::HEAD {
            // S3 requires the length of an empty body too.
            signed.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(request.body.len()));
        }
        let key = &self.target.key;
        let token = key.session_token.as_ref().map(|token| token.expose().to_owned());
        let credentials = Credentials::new(&key.access_key, key.secret.expose(), token, None, "mlgw");
        let scope = SigningScope { region: &self.target.region, service: "s3", time: SystemClock.now() };
        mlgw_carrier::sign(&mut signed, signable(endpoint, &request.body), credentials, scope)
            .map_err(|error| invalid(error.to_string()))?;
        Ok(signed)
    }
}

/// Returns the part of a body that the signature covers: none of it with TLS, which protects it already.
fn signable<'a>(endpoint: &str, body: &'a Bytes) -> SignableBody<'a> {
    match endpoint.starts_with("https:") && !body.is_empty() {
        true => SignableBody::UnsignedPayload,
        false => SignableBody::Bytes(body),
    }
}

/// Reads a document.
async fn document_of(body: Incoming, limit: Duration) -> Result<Bytes, String> {
    let whole = Limited::new(body, DOCUMENT_BYTES_MAX).collect();
    match timeout(limit, whole).await {
        Ok(Ok(document)) => Ok(document.to_bytes()),
        Ok(Err(error)) => Err(mlgw_carrier::innermost(&*error)),
        Err(_) => Err("the answer stopped".to_owned()),
    }
}

/// Returns a random number from 0 to 1, so that waiting clients do not retry at the same moment.
pub(super) fn random_fraction() -> f64 {
    // Without random bytes all clients wait equally long, which does no harm.
    mlgw_common::random().map_or(0.5, |bytes| f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
}

/// Returns the path of a URL: `/`, `/bucket` or `/bucket/key`.
fn encoded_path(path: &RemotePath) -> String {
    let slash = if path.key.is_empty() { "" } else { "/" };
    let encoded = |name| utf8_percent_encode(name, ENCODED_IN_PATH);
    format!("/{}{slash}{}", encoded(&path.bucket), encoded(&path.key))
}

/// Returns an object as a copy names its source.
pub(super) fn copy_source(object: &RemotePath) -> HeaderValue {
    // Encoded text has no character that a header refuses.
    HeaderValue::from_str(&encoded_path(object)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
impl crate::canned_server::CannedServer {
    /// Returns an S3 client of this server.
    pub(super) fn client(&self) -> S3Client {
        S3Client::new(S3Target::for_test(&self.endpoint())).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::{S3Client, S3Request, copy_source, signable};
    use crate::CliError;
    use crate::s3::failure::S3Failure;
    use crate::s3::path::RemotePath;
    use crate::s3::target::S3Target;
    use bytes::Bytes;
    use http::{HeaderMap, Method, StatusCode};
    use mlgw_carrier::SignableBody;

    fn client(endpoint: &str) -> S3Client {
        S3Client::new(S3Target::for_test(endpoint)).unwrap()
    }

    #[test]
    fn keys_are_encoded_and_not_normalized() {
        let client = client("http://h:9/s3/");
        let url = |bucket: &str, key: &str| {
            let request = S3Request::new(Method::GET, RemotePath::new(bucket, key)).with_query("a", "b/+ c");
            client.signed(&request.with_query("uploads", "")).unwrap().uri().to_string()
        };
        assert_eq!(url("", ""), "http://h:9/s3/?a=b%2F%2B%20c&uploads=");
        assert_eq!(url("b", ""), "http://h:9/s3/b?a=b%2F%2B%20c&uploads=");
        let odd = "http://h:9/s3/b//a/../%C3%BC%25%20%3F/?a=b%2F%2B%20c&uploads=";
        assert_eq!(url("b", "/a/../ü% ?/"), odd);
        assert_eq!(copy_source(&RemotePath::new("b", "ü%")), "/b/%C3%BC%25");
    }

    #[test]
    fn neither_a_key_nor_the_server_controls_the_terminal() {
        let client = client("http://h:9");
        let document = "<Error><Code>Odd&#x9b;</Code><Message>m\u{9b}2J</Message></Error>";
        let refused = S3Failure::of_response(StatusCode::BAD_REQUEST, &HeaderMap::new(), document.as_bytes());
        let invalid = S3Failure::InvalidResponse("<\x1b[2J>".to_owned());
        let broken = S3Failure::Broken("\x1b[2J".to_owned());
        for failure in [refused, invalid, broken] {
            let error = client.error(failure, &RemotePath::new("b", "k\x1b[2J\nmlgw: forged"));
            let (CliError::Failed(message) | CliError::Refused(message) | CliError::Unreachable(message)) =
                error
            else {
                panic!("{error}");
            };
            assert!(!message.contains(char::is_control), "{message:?}");
        }
    }

    #[test]
    fn a_signature_covers_the_body_without_tls() {
        let body = Bytes::from("abc");
        let request = S3Request::new(Method::PUT, RemotePath::new("b", "k")).with_body(body.clone());
        let signed = client("http://h").signed(&request).unwrap();
        assert_eq!(signed.headers()["x-amz-security-token"], "token-hush");
        let hash = signed.headers()["x-amz-content-sha256"].to_str().unwrap();
        assert!(hash.starts_with("ba7816bf"), "the SHA-256 of the body: {hash}");
        assert!(matches!(signable("https://h", &body), SignableBody::UnsignedPayload));
    }
}
