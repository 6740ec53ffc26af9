//! Errors of the admin API: a status, a code for programs and a message for people.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, Uri, header};
use mlgw_api::AdminErrorBody;
use mlgw_credentials::ChangeKeyError;
use mlgw_wire::error::S3Error;

/// A refused or failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status of the response.
    pub status: StatusCode,
    /// Error code, stable for programs.
    pub code: &'static str,
    /// Message for people.
    pub message: String,
}

impl ApiError {
    /// Creates an error.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// Creates the error for a malformed request (400 `InvalidRequest`).
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidRequest", message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let document = AdminErrorBody { code: self.code.to_owned(), message: self.message };
        let mut response = (self.status, Json(document)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}

/// Maps S3 errors to admin errors with the same code.
impl From<S3Error> for ApiError {
    fn from(error: S3Error) -> Self {
        // Client errors are not logged: a client must not be able to fill the log.
        if let Some(cause) = error.cause().filter(|_| error.status().is_server_error()) {
            tracing::error!(%error, cause, "admin request failed");
        }
        Self::new(error.status(), error.code().as_str(), error.text())
    }
}

impl From<ChangeKeyError> for ApiError {
    fn from(error: ChangeKeyError) -> Self {
        let message = error.to_string();
        match error {
            ChangeKeyError::NoSuchKey(_) => Self::new(StatusCode::NOT_FOUND, "NoSuchAccessKey", message),
            ChangeKeyError::Exists(_) => Self::new(StatusCode::CONFLICT, "AccessKeyExists", message),
            ChangeKeyError::Fixed(_) => Self::new(StatusCode::CONFLICT, "AccessKeyFixed", message),
            ChangeKeyError::Invalid(_) => Self::invalid(message),
            ChangeKeyError::Sealer(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "SealingFailed", message)
            }
            ChangeKeyError::Propose(error) => S3Error::from(error).into(),
            ChangeKeyError::Read(error) => S3Error::from(error).into(),
        }
    }
}

/// Returns the error for a request other than a probe on a connection reserved for probes.
pub(super) fn probes_only_error() -> ApiError {
    let message = "This listener is at its connection limit; only probes are answered.";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", message)
}

pub(super) async fn no_such_route(uri: Uri) -> ApiError {
    let message = format!("no such route: {}; see GET /v1/openapi.json", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "NoSuchRoute", message)
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not support {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
}
