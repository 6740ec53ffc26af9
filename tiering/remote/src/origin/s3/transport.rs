//! Connections to an S3 origin: kept alive, with or without TLS, through a proxy if one is configured; and
//! how long anything may take.

use super::outgoing::{Sent, Turn};
use crate::origin::rate::LeastRate;
use crate::origin::{Body, OriginError};
use crate::upstream::UpstreamSettings;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{Request, Response, Uri};
use http_body_util::BodyStream;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use mlgw_common::hide_url_secrets;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::error::Error;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an origin may take to copy an object or to put one together: gigabytes at some tens of megabytes
/// a second.
const LONG_TIMEOUT: Duration = Duration::from_mins(5);
/// How long a connection that nobody uses is kept; origins close theirs after some tens of seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections that are kept though nobody uses them.
const IDLE_MAX: usize = 256;

/// Connections to one origin.
pub(super) struct Transport {
    client: Connections,
    timeout: Duration,
}

enum Connections {
    Direct(Client<HttpsConnector<HttpConnector>, Sent>),
    Proxied(Client<HttpsConnector<Tunnel<HttpConnector>>, Sent>),
}

impl Transport {
    /// Connections as an upstream's settings say.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn new(settings: &UpstreamSettings) -> Result<Self, String> {
        let mut http = HttpConnector::new();
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_nodelay(true);
        http.enforce_http(false);
        let tls = tls(settings.ca_file.as_deref())?;
        let https =
            || HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http().enable_http1();
        let client = match &settings.proxy {
            None => Connections::Direct(builder().build(https().wrap_connector(http))),
            Some(proxy) => {
                let shown = hide_url_secrets(proxy);
                let uri: Uri = proxy.parse().map_err(|error| format!("its proxy {shown:?}: {error}"))?;
                let tunnel = Tunnel::new(uri, http);
                Connections::Proxied(builder().build(https().wrap_connector(tunnel)))
            }
        };
        Ok(Self { client, timeout: settings.timeout })
    }

    /// Sends a request; the head of its answer. The origin may take so long as its upstream's settings say
    /// whenever it is its turn, or longer for what takes `long`.
    pub(super) async fn send(
        &self,
        request: Request<Sent>,
        turn: &Turn,
        long: bool,
    ) -> Result<Response<Incoming>, OriginError> {
        let patience = if long { self.timeout.max(LONG_TIMEOUT) } else { self.timeout };
        let answer = async {
            match &self.client {
                Connections::Direct(client) => client.request(request).await,
                Connections::Proxied(client) => client.request(request).await,
            }
        };
        let mut answer = pin!(answer);
        loop {
            let left = turn.left(patience).ok_or(OriginError::TimedOut)?;
            let Ok(answer) = tokio::time::timeout(left, &mut answer).await else { continue };
            return answer.map_err(|error| match error.is_connect() {
                true => OriginError::Unreachable(innermost(&error)),
                false => OriginError::Broken(innermost(&error)),
            });
        }
    }

    /// A body, which must have `length` bytes.
    pub(super) fn body(&self, incoming: Incoming, length: u64) -> Body {
        let frames = Frames::new(incoming, self.timeout);
        futures_util::stream::try_unfold((frames, length), move |(mut frames, left)| async move {
            match frames.next().await? {
                Some(bytes) => {
                    let left = left.checked_sub(bytes.len() as u64);
                    let left = left.ok_or_else(|| OriginError::Nonsense("more bytes than it said".into()))?;
                    Ok(Some((bytes, (frames, left))))
                }
                None if left == 0 => Ok(None),
                None => Err(OriginError::Unreachable(format!("it ended {left} bytes early"))),
            }
        })
        .boxed()
    }

    /// All of a body that has at most `max` bytes.
    pub(super) async fn document(&self, incoming: Incoming, max: usize) -> Result<Bytes, OriginError> {
        let mut frames = Frames::new(incoming, self.timeout);
        let mut document = BytesMut::new();
        while let Some(bytes) = frames.next().await? {
            document.extend_from_slice(&bytes);
            if document.len() > max {
                return Err(OriginError::Nonsense(format!("a document of more than {max} bytes")));
            }
        }
        Ok(document.freeze())
    }
}

/// The bytes of an answer, which have to come at the minimum rate or faster.
struct Frames {
    frames: BodyStream<Incoming>,
    timeout: Duration,
    rate: LeastRate,
}

impl Frames {
    fn new(incoming: Incoming, timeout: Duration) -> Self {
        Self { frames: BodyStream::new(incoming), timeout, rate: LeastRate::over(timeout) }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, OriginError> {
        loop {
            let begun = Instant::now();
            let next = tokio::time::timeout(self.timeout, self.frames.next()).await;
            match next.map_err(|_| OriginError::TimedOut)? {
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    if !self.rate.note(begun.elapsed(), bytes.len() as u64) {
                        return Err(OriginError::TimedOut);
                    }
                    return Ok(Some(bytes));
                }
                Some(Err(error)) => return Err(OriginError::Unreachable(innermost(&error))),
                None => return Ok(None),
            }
        }
    }
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(IDLE_TIMEOUT).pool_max_idle_per_host(IDLE_MAX).pool_timer(TokioTimer::new());
    builder
}

/// TLS that trusts the authorities in `ca_file`, or else the machine's.
fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let bad = |why: String| format!("its ca_file {}: {why}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))? {
                let certificate = certificate.map_err(|error| bad(error.to_string()))?;
                roots.add(certificate).map_err(|error| bad(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(bad("it has no certificate".to_owned()));
            }
        }
        // What of the machine's authorities cannot be read is not trusted, and says so when it is needed.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let provider = rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The innermost reason, which is the one that says something.
fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
