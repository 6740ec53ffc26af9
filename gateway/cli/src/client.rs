//! Client of the admin API: signs requests, sends them, and parses the answers.

use super::CliError;
pub use super::discover::ServerTarget;
use super::endpoint::ServerApi;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use mlgw_api::{AdminErrorBody, SERVICE};
use mlgw_carrier::{Authorities, ClientSettings, Credentials, SendError, SignableBody, SigningScope};
use mlgw_common::{Clock as _, SystemClock, Timestamp};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Time limit of an answer. The deletion of a bucket checks every group first.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of opening a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its endpoint has no final `/`.
    target: ServerTarget,
    patience: Duration,
    http: mlgw_carrier::Client<Full<Bytes>>,
}

impl Client {
    /// Returns a client of `target`.
    ///
    /// # Errors
    /// When the endpoint is not an HTTP URL.
    pub fn new(target: ServerTarget) -> Result<Self, CliError> {
        let endpoint = ServerApi::Admin.base_url(&target.endpoint)?;
        if endpoint.starts_with("https:") {
            return Err(CliError::Usage(format!(
                "{endpoint}: the admin API serves plain HTTP on a loopback address; from another host use a \
                 tunnel, such as `ssh -L 9001:127.0.0.1:9001 HOST`, and --endpoint http://127.0.0.1:9001"
            )));
        }
        let http = mlgw_carrier::Client::new(&ClientSettings {
            authorities: Authorities::None,
            proxy: None,
            connect_timeout: CONNECT_PATIENCE,
            idle_timeout: IDLE_TIMEOUT,
        });
        let http = http.map_err(|error| CliError::Failed(error.to_string()))?;
        Ok(Self { target: ServerTarget { endpoint, ..target }, patience: PATIENCE, http })
    }

    /// Returns the client with another time limit for answers.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Returns a client of another listener of the same server. Both use one HTTP client.
    #[must_use]
    pub(super) fn at(&self, endpoint: String) -> Self {
        Self { target: ServerTarget { endpoint, ..self.target.clone() }, ..self.clone() }
    }

    #[cfg(test)]
    pub(super) fn endpoint(&self) -> &str {
        &self.target.endpoint
    }

    /// Requests a document.
    ///
    /// # Errors
    /// See [`CliError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        self.call(Method::GET, path, None::<&()>).await
    }

    /// Sends a request and parses its answer as a document.
    ///
    /// # Errors
    /// See [`CliError`].
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, CliError> {
        let answer = self.send(method, path, body).await?;
        serde_json::from_slice(&answer).map_err(|error| {
            CliError::Failed(format!(
                "unexpected response from {} ({error}): the server may have another version",
                self.target.endpoint
            ))
        })
    }

    /// Sends a request and returns its answer unchanged.
    ///
    /// # Errors
    /// See [`CliError`].
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Bytes, CliError> {
        let failed = |e: String| CliError::Failed(e);
        let body = body.map(serde_json::to_vec).transpose().map_err(|e| failed(e.to_string()))?;
        let url = format!("{}{path}", self.target.endpoint);
        let body = Bytes::from(body.unwrap_or_default());
        let request = signed(&self.target, SystemClock.now(), method, &url, body)?;
        let unreachable = |why: String| {
            CliError::Unreachable(format!(
                "cannot reach {}: {why}. Check that the server runs and that this is its admin address",
                self.target.endpoint
            ))
        };
        let whole = async {
            let answer =
                self.http.send(request).await.map_err(|error: SendError| unreachable(error.to_string()))?;
            let status = answer.status();
            let body = answer.into_body().collect().await.map_err(|e| unreachable(e.to_string()))?.to_bytes();
            Ok::<_, CliError>((status, body))
        };
        let whole = mlgw_common::time::timeout(self.patience, whole).await;
        let (status, body) =
            whole.map_err(|_| unreachable("no answer within the time limit".to_owned()))??;
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }
}

/// Converts an error response to an error with the exit status that it means.
fn refusal(status: StatusCode, body: &[u8]) -> CliError {
    let error = serde_json::from_slice::<AdminErrorBody>(body);
    // Errors in a file are reported as by commands without a server.
    if let (StatusCode::UNPROCESSABLE_ENTITY, Ok(error)) = (status, &error) {
        return CliError::Failed(error.message.clone());
    }
    let message = error
        .map_or_else(|_| format!("the server answered {status}"), |e| format!("{} ({})", e.message, e.code));
    if status.is_server_error() || status == StatusCode::NOT_FOUND {
        CliError::Failed(message)
    } else {
        CliError::Refused(message)
    }
}

/// Returns a signed request of the admin API.
///
/// # Errors
/// When the URL is invalid or the request cannot be signed.
pub fn signed(
    target: &ServerTarget,
    now: Timestamp,
    method: Method,
    url: &str,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, CliError> {
    let cannot = |why: String| CliError::Usage(format!("{url}: {why}"));
    let builder = Request::builder().method(method).uri(url).header(header::CONTENT_TYPE, "application/json");
    let mut request = builder.body(Full::new(body.clone())).map_err(|e| cannot(e.to_string()))?;
    let credentials = Credentials::new(&target.access_key, target.secret.expose(), None, None, SERVICE);
    let scope = SigningScope { region: "us-east-1", service: SERVICE, time: now };
    mlgw_carrier::sign(&mut request, SignableBody::Bytes(&body), credentials, scope)
        .map_err(|error| cannot(error.to_string()))?;
    Ok(request)
}

/// Characters that are encoded in a URL: all but the unreserved ones of RFC 3986.
pub(crate) const ENCODED_IN_URL: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a name as one segment of a URL's path, or one value of its query.
pub(crate) fn path_segment(name: &str) -> String {
    utf8_percent_encode(name, ENCODED_IN_URL).to_string()
}

#[cfg(test)]
mod tests {
    use super::{Client, ServerTarget, refusal};
    use crate::CliError;
    use http::StatusCode;
    use mlgw_common::Secret;

    fn target(endpoint: &str) -> ServerTarget {
        ServerTarget { endpoint: endpoint.into(), access_key: "AK".into(), secret: Secret::new("secret") }
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_unreachable() {
        // Bound and dropped: no program listens there.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let client = Client::new(target(&format!("http://127.0.0.1:{port}"))).unwrap();
        let error = client.get::<serde_json::Value>("/v1/status").await.unwrap_err();
        assert!(matches!(&error, CliError::Unreachable(m) if m.contains("refused")), "{error}");
        assert_eq!(error.status(), 3);
    }

    #[test]
    fn an_endpoint_without_http_is_wrong_usage() {
        for endpoint in ["localhost", "https://h:1", "HTTPS://h:1", "ftp://h"] {
            assert_eq!(Client::new(target(endpoint)).unwrap_err().status(), 2, "{endpoint}");
        }
    }

    #[test]
    fn a_refusal_has_the_message_of_the_server() {
        let body = br#"{"code": "BucketNotEmpty", "message": "It is not empty."}"#;
        let error = refusal(StatusCode::CONFLICT, body);
        assert_eq!((error.status(), error.to_string().as_str()), (4, "It is not empty. (BucketNotEmpty)"));
        assert_eq!(refusal(StatusCode::NOT_FOUND, body).status(), 1);
        assert_eq!(refusal(StatusCode::INTERNAL_SERVER_ERROR, b"?").status(), 1);
    }
}
