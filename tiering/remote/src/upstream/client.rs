//! The HTTP client of one upstream.
//!
//! Redirects are followed for WebHDFS alone, whose name node redirects every reader to a data node.

use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use mlgw_carrier::{Client, ClientSettings, Incoming, SettingError, innermost};

use super::settings::{UpstreamKind, UpstreamSettings};
use super::wire::{RequestSender, ResponseBody};

/// Time after which an idle connection is closed. Stores close idle ones after 20 s and more; a connection
/// that is closed while a request is sent costs a retry.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// A name node redirects once to a data node; some gateways add another redirect.
const REDIRECTS_MAX: usize = 3;
const USER_AGENT: &str = concat!("mlgw/", env!("CARGO_PKG_VERSION"));

/// Sends the requests to one upstream.
pub(crate) struct UpstreamClient {
    client: Client<Full<Bytes>>,
    redirects_max: usize,
}

impl UpstreamClient {
    /// The client that `settings` describe.
    ///
    /// # Errors
    /// The file of authorities has none, or the proxy is not a URL.
    pub(crate) fn new(settings: &UpstreamSettings) -> Result<Self, SettingError> {
        let client = Client::new(&ClientSettings {
            ca_file: settings.ca_file.as_deref(),
            proxy: settings.proxy.as_deref(),
            needs_tls: settings.needs_tls(),
            connect_timeout: settings.timeout,
            idle_timeout: IDLE_TIMEOUT,
        })?;
        let redirects_max = if settings.kind == UpstreamKind::WebHdfs { REDIRECTS_MAX } else { 0 };
        Ok(Self { client, redirects_max })
    }
}

impl RequestSender for UpstreamClient {
    async fn send(&self, mut request: Request<Bytes>) -> Result<(Parts, impl ResponseBody), String> {
        request.headers_mut().entry(header::USER_AGENT).or_insert(USER_AGENT.parse().map_err(text)?);
        for _ in 0..self.redirects_max {
            let response = self.client.send(copy(&request)).await.map_err(text)?;
            let Some(target) = redirect(&request, &response) else { return Ok(parts(response)) };
            if target.authority() != request.uri().authority() {
                remove_credentials(request.headers_mut());
            }
            *request.uri_mut() = target;
        }
        self.client.send(request.map(Full::new)).await.map(parts).map_err(text)
    }
}

impl ResponseBody for Incoming {
    async fn piece(&mut self) -> Result<Option<Bytes>, String> {
        while let Some(frame) = self.frame().await {
            if let Ok(bytes) = frame.map_err(|error| innermost(&error))?.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn parts(response: Response<Incoming>) -> (Parts, Incoming) {
    response.into_parts()
}

fn copy(request: &Request<Bytes>) -> Request<Full<Bytes>> {
    let mut copy = Request::new(Full::new(request.body().clone()));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// Target of a redirect that keeps the method: any of a safe request, 307 and 308 of others. Name nodes send
/// whole URLs.
fn redirect<B>(request: &Request<Bytes>, response: &Response<B>) -> Option<Uri> {
    let keeps_method = match response.status() {
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => {
            request.method().is_safe()
        }
        _ => false,
    };
    let target = response.headers().get(header::LOCATION).filter(|_| keeps_method)?;
    target.to_str().ok()?.parse::<Uri>().ok().filter(|target| target.authority().is_some())
}

/// Credentials are for the host that they were made for.
fn remove_credentials(headers: &mut HeaderMap) {
    for name in [header::AUTHORIZATION, header::COOKIE, header::HOST] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn target(method: Method, status: StatusCode, location: &str) -> Option<Uri> {
        let request = Request::builder().method(method).body(Bytes::new()).unwrap();
        let response = Response::builder().status(status).header("location", location).body(()).unwrap();
        redirect(&request, &response)
    }

    #[test]
    fn redirects_that_keep_the_method_are_followed() {
        let url = "http://data-node:9864/webhdfs/v1/a?op=OPEN";
        assert_eq!(target(Method::GET, StatusCode::FOUND, url).unwrap().to_string(), url);
        assert!(target(Method::PUT, StatusCode::TEMPORARY_REDIRECT, url).is_some());
        assert!(target(Method::PUT, StatusCode::SEE_OTHER, url).is_none());
        assert!(target(Method::GET, StatusCode::OK, url).is_none());
        assert!(target(Method::GET, StatusCode::FOUND, "/no/host").is_none());
    }
}
