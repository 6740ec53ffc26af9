//! The HTTP client of one upstream.
//!
//! Redirects are followed for WebHDFS alone, whose name node redirects every reader to a data node.

use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use mlgw_carrier::{Authorities, Client, ClientSettings, Incoming, SettingError, innermost};

use super::settings::{UpstreamKind, UpstreamSettings};
use super::wire::{RequestSender, ResponseBody};

/// Time after which an idle connection is closed. Stores close idle ones after 20 s and more; a connection
/// that is closed while a request is sent costs a retry.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// A name node redirects once to a data node; some gateways add another redirect.
const REDIRECTS_MAX: usize = 3;
const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("mlgw/", env!("CARGO_PKG_VERSION")));

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
            authorities: Authorities::for_endpoint(settings.ca_file.as_deref(), settings.endpoint.as_deref()),
            proxy: settings.proxy.as_deref(),
            connect_timeout: settings.timeout,
            idle_timeout: IDLE_TIMEOUT,
        })?;
        let redirects_max = if settings.kind == UpstreamKind::WebHdfs { REDIRECTS_MAX } else { 0 };
        Ok(Self { client, redirects_max })
    }
}

impl RequestSender for UpstreamClient {
    async fn send(&self, mut request: Request<Bytes>) -> Result<(Parts, impl ResponseBody), String> {
        request.headers_mut().entry(header::USER_AGENT).or_insert(USER_AGENT);
        if self.redirects_max == 0 {
            return self.client.send(request.map(Full::new)).await.map(Response::into_parts).map_err(text);
        }
        for _ in 0..=self.redirects_max {
            let response = self.client.send(request.clone().map(Full::new)).await.map_err(text)?;
            let Some(target) = redirect(&request, &response) else { return Ok(response.into_parts()) };
            if !is_same_server(&target, request.uri()) {
                remove_credentials(request.headers_mut());
            }
            *request.uri_mut() = target;
        }
        Err(format!("more than {} redirects", self.redirects_max))
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

fn is_same_server(one: &Uri, other: &Uri) -> bool {
    (one.scheme(), one.authority()) == (other.scheme(), other.authority())
}

/// Credentials are for the server that they were made for.
fn remove_credentials(headers: &mut HeaderMap) {
    for name in [header::AUTHORIZATION, header::COOKIE, header::HOST] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

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

    /// Serves `responses` to one connection each, and returns the heads of the requests in lower case.
    async fn serve(listener: TcpListener, responses: Vec<String>) -> Vec<String> {
        let mut heads = Vec::new();
        for response in responses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            heads.push(String::from_utf8(head).unwrap().to_lowercase());
            stream.write_all(response.as_bytes()).await.unwrap();
        }
        heads
    }

    fn redirect_to(host: &str, port: u16) -> String {
        format!(
            "HTTP/1.1 307 Moved\r\nlocation: http://{host}:{port}/next\r\ncontent-length: 0\r\n\
             connection: close\r\n\r\n"
        )
    }

    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn client(redirects_max: usize) -> UpstreamClient {
        let client = Client::new(&ClientSettings {
            authorities: Authorities::None,
            proxy: None,
            connect_timeout: Duration::from_secs(20),
            idle_timeout: IDLE_TIMEOUT,
        });
        UpstreamClient { client: client.unwrap(), redirects_max }
    }

    fn get(port: u16) -> Request<Bytes> {
        let request = Request::builder().uri(format!("http://127.0.0.1:{port}/first"));
        request.header(header::AUTHORIZATION, "secret").body(Bytes::new()).unwrap()
    }

    #[tokio::test]
    async fn credentials_stay_with_their_server() {
        let (listener, port) = listener().await;
        let done = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok".to_owned();
        let responses = vec![redirect_to("127.0.0.1", port), redirect_to("localhost", port), done];
        let server = tokio::spawn(serve(listener, responses));
        let client = client(3);
        let (head, mut body) = client.send(get(port)).await.unwrap();
        assert_eq!((head.status, body.piece().await.unwrap()), (StatusCode::OK, Some("ok".into())));
        let heads = server.await.unwrap();
        let has_secret: Vec<bool> = heads.iter().map(|head| head.contains("authorization: secret")).collect();
        assert_eq!(has_secret, [true, true, false]);
    }

    #[tokio::test]
    async fn redirects_are_limited_or_not_followed() {
        let (server, port) = listener().await;
        let responses = (0..=REDIRECTS_MAX).map(|_| redirect_to("127.0.0.1", port)).collect();
        let server = tokio::spawn(serve(server, responses));
        let refused = client(REDIRECTS_MAX).send(get(port)).await.map(|(head, _)| head.status);
        assert_eq!(refused.unwrap_err(), "more than 3 redirects");
        assert_eq!(server.await.unwrap().len(), REDIRECTS_MAX + 1);

        let (server, port) = listener().await;
        let server = tokio::spawn(serve(server, vec![redirect_to("127.0.0.1", port)]));
        let client = client(0);
        let (head, _) = client.send(get(port)).await.unwrap();
        assert_eq!(head.status, StatusCode::TEMPORARY_REDIRECT);
        server.await.unwrap();
    }
}
