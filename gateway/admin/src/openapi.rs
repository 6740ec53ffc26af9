//! `/v1/openapi.json`: the description of the API, which tests compare with the code.

use axum::response::IntoResponse;
use http::header;

/// The document.
pub(super) const DOCUMENT: &str = include_str!("../../../docs/openapi.json");

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}
