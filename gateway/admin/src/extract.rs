//! What a request says in its path and after its question mark. Always: what does not fit is refused as all
//! else is, by an [`ApiError`] in JSON.

use super::ApiError;
use axum::extract::{self, FromRequestParts};
use http::request::Parts;
use serde::de::DeserializeOwned;

/// The parts of the path that its route leaves open.
pub(super) struct Path<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = extract::Path::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0)).map_err(|refused| ApiError::invalid(refused.body_text()))
    }
}

/// What follows the question mark.
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = extract::Query::from_request_parts(parts, state).await;
        query.map(|query| Self(query.0)).map_err(|refused| ApiError::invalid(refused.body_text()))
    }
}
