//! `/v1/openapi.json`: the description of the API, held to the code by tests.

use axum::response::IntoResponse;
use http::header;

/// The document.
pub(super) const DOCUMENT: &str = include_str!("../../../docs/openapi.json");

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}
