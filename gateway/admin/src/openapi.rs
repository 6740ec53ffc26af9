//! `/v1/openapi.json`: the description of the API.
//!
//! The document is docs/openapi.json. A test generates it from the table of routes and from the types of
//! mlgw-api, and compares it with the file. With `UPDATE_PRINTED=1` the test writes the file.

#[cfg(test)]
mod generate;

#[cfg(test)]
pub(super) use generate::{Operation, generate, schema_of};

use axum::response::IntoResponse;
use http::header;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

/// The document.
pub(super) const DOCUMENT: &str = include_str!("../../../docs/openapi.json");

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

/// Defines types of responses that are not JSON. They exist in the table of routes only.
macro_rules! text_answers {
    ($($(#[doc = $doc:literal])+ $Name:ident: $media_type:literal;)+) => {
        $(
            $(#[doc = $doc])+
            pub(super) enum $Name {}

            impl JsonSchema for $Name {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> Cow<'static, str> {
                    stringify!($Name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({"type": "string", "contentMediaType": $media_type})
                }
            }
        )+
    };
}

text_answers! {
    /// Plain text.
    PlainText: "text/plain";
    /// Metrics in the OpenMetrics text format.
    OpenMetrics: "application/openmetrics-text";
    /// Bytes of a file.
    Binary: "application/octet-stream";
}
