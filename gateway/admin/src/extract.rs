//! Extractors for path segments and query parameters. Malformed input is refused with an [`ApiError`] in
//! JSON, as elsewhere in the API.

use super::ApiError;
use axum::extract::{self, FromRequestParts};
use http::request::Parts;
use serde::de::DeserializeOwned;

/// Variable segments of the path.
pub(super) struct AdminPath<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for AdminPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = extract::Path::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0)).map_err(|refused| ApiError::invalid(refused.body_text()))
    }
}

/// Query parameters.
pub(super) struct AdminQuery<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for AdminQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = extract::Query::from_request_parts(parts, state).await;
        query.map(|query| Self(query.0)).map_err(|refused| ApiError::invalid(refused.body_text()))
    }
}
