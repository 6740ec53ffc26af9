//! The HTTP/1.1 client: a pool of connections, with or without TLS, direct or through a proxy.

use crate::guarded::{GuardedConnector, SendGuard};
use crate::proxy::{Proxy, ProxyConnector};
use crate::settings::{ClientSettings, SettingError};
use crate::tls;
use http::{Request, Response, header};
use http_body::Body;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error;
use std::sync::Arc;
use tower::BoxError;

/// Idle connections kept per host.
const IDLE_MAX: usize = 256;

type Direct = HttpsConnector<GuardedConnector>;
type Proxied = HttpsConnector<ProxyConnector<Direct>>;

/// A request that got no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection could be made: the server has received nothing.
    #[error("{0}")]
    Connect(String),
    /// The connection failed later: the server may have acted on the request.
    #[error("{0}")]
    Broken(String),
}

/// A client with a pool of connections. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Client<B> {
    direct: legacy::Client<Direct, B>,
    proxied: Option<(Arc<Proxy>, legacy::Client<Proxied, B>)>,
}

impl<B> Client<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// A client without connections.
    ///
    /// # Errors
    /// The file of authorities cannot be used, the machine has none, or the proxy is not a URL.
    pub fn new(settings: &ClientSettings<'_>) -> Result<Self, SettingError> {
        Self::connecting(settings, None)
    }

    /// A client without connections, which sends only as long as `guard` permits it.
    ///
    /// # Errors
    /// Those of [`Client::new`].
    pub fn guarded(settings: &ClientSettings<'_>, guard: SendGuard) -> Result<Self, SettingError> {
        Self::connecting(settings, Some(guard))
    }

    fn connecting(settings: &ClientSettings<'_>, guard: Option<SendGuard>) -> Result<Self, SettingError> {
        let tls = tls::client_config(settings.authorities)?;
        let mut http = HttpConnector::new();
        http.set_connect_timeout(Some(settings.connect_timeout));
        http.set_nodelay(true);
        http.enforce_http(false);
        let https =
            || HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http().enable_http1();
        let direct = https().wrap_connector(GuardedConnector::new(http, guard));
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_idle_timeout(settings.idle_timeout).pool_max_idle_per_host(IDLE_MAX);
        builder.pool_timer(TokioTimer::new());
        let proxied = match settings.proxy {
            None => None,
            Some(url) => {
                let proxy = Arc::new(Proxy::parse(url)?);
                let connector = https().wrap_connector(ProxyConnector::new(&proxy, direct.clone()));
                Some((proxy, builder.build(connector)))
            }
        };
        Ok(Self { direct: builder.build(direct), proxied })
    }

    /// Sends a request and returns the response as soon as its head has arrived. The caller limits the time.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<Incoming>, SendError> {
        let through = self.proxied.as_ref().filter(|(proxy, _)| proxy.serves(request.uri()));
        let response = match through {
            None => self.direct.request(request).await,
            Some((proxy, client)) => {
                if let Some(authorization) = proxy.authorization_of_forwarded(request.uri()) {
                    request.headers_mut().insert(header::PROXY_AUTHORIZATION, authorization);
                }
                client.request(request).await
            }
        };
        response.map_err(|error| match error.is_connect() {
            true => SendError::Connect(innermost(&error)),
            false => SendError::Broken(innermost(&error)),
        })
    }
}

/// Message of the innermost cause of an error. The outer ones name the layer of the client alone, or a URL
/// whose query may hold a signature.
#[must_use]
pub fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
