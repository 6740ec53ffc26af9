//! Connections through an HTTP proxy: `https` URLs by a CONNECT tunnel, `http` URLs by forwarded requests.

use crate::guarded::{ClientStream, Connecting};
use crate::settings::SettingError;
use http::{HeaderValue, Uri};
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use std::task::{Context, Poll};
use tower::{BoxError, Service};

/// Cloud instance metadata endpoints (IMDS); never reached through a proxy.
const METADATA_HOSTS: &str =
    "169.254.169.254,169.254.170.2,169.254.170.23,metadata.google.internal,100.100.100.200";

/// A proxy and the hosts that are reached through it.
#[derive(Debug)]
pub(crate) struct Proxy {
    matcher: Matcher,
    uri: Uri,
    authorization: Option<HeaderValue>,
}

impl Proxy {
    /// Parses the URL of a proxy.
    ///
    /// # Errors
    /// It is not an `http` or `https` URL. The message does not quote it, as it may hold a password.
    pub(crate) fn parse(url: &str) -> Result<Self, SettingError> {
        let matcher = Matcher::builder().all(url).no(METADATA_HOSTS).build();
        let example = Uri::from_static("http://host.invalid/");
        let has_scheme = |uri: &Uri| ["http", "https"].contains(&uri.scheme_str().unwrap_or_default());
        let Some(found) = matcher.intercept(&example).filter(|found| has_scheme(found.uri())) else {
            let problem = "is not a URL of an HTTP proxy; write it as http://host:port".to_owned();
            return Err(SettingError { setting: "proxy", problem });
        };
        let (uri, authorization) = (found.uri().clone(), found.basic_auth().cloned());
        Ok(Self { matcher, uri, authorization })
    }

    /// True if `target` is reached through the proxy.
    pub(crate) fn serves(&self, target: &Uri) -> bool {
        self.matcher.intercept(target).is_some()
    }

    /// `Proxy-Authorization` of a request that the proxy forwards. A tunnel sends its own.
    pub(crate) fn authorization_of_forwarded(&self, target: &Uri) -> Option<HeaderValue> {
        self.authorization.clone().filter(|_| !is_tunneled(target))
    }
}

fn is_tunneled(target: &Uri) -> bool {
    target.scheme_str() == Some("https")
}

/// Connects through a proxy, by means of the connector `C` to the proxy.
#[derive(Clone, Debug)]
pub(crate) struct ProxyConnector<C> {
    tunnel: Tunnel<C>,
    direct: C,
    proxy: Uri,
}

impl<C> ProxyConnector<C> {
    pub(crate) fn new(proxy: &Proxy, connector: C) -> Self
    where
        C: Clone,
    {
        let tunnel = Tunnel::new(proxy.uri.clone(), connector.clone());
        let tunnel = match &proxy.authorization {
            Some(authorization) => tunnel.with_auth(authorization.clone()),
            None => tunnel,
        };
        Self { tunnel, direct: connector, proxy: proxy.uri.clone() }
    }
}

impl<C> Service<Uri> for ProxyConnector<C>
where
    C: Service<Uri, Error = BoxError>,
    C::Response: Read + Write + Unpin + Send + 'static,
    C::Future: Send + 'static,
{
    type Response = ClientStream<C::Response>;
    type Error = BoxError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(cx)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        if is_tunneled(&target) {
            let tunnel = self.tunnel.call(target);
            return Box::pin(async move { Ok(ClientStream::of_proxy(tunnel.await?, false)) });
        }
        let connection = self.direct.call(self.proxy.clone());
        Box::pin(async move { Ok(ClientStream::of_proxy(connection.await?, true)) })
    }
}
