//! Headers of requests to an origin that describe a stored object.

use super::tags::format_tags_query;
use super::values::{header_value, metadata_value, stored_value};
use http::{HeaderMap, HeaderName};
use mlgw_formats::schema::{ObjectVersion, Pair};

/// Adds the headers of a PUT that describe an object: stored headers, user metadata and tags.
pub fn describe(version: &ObjectVersion, headers: &mut HeaderMap) {
    let stored = version.headers.iter().filter(|pair| !pair.name.starts_with(':'));
    describe_as(stored, &version.metadata, headers);
    if !version.tags.is_empty() {
        headers.append("x-amz-tagging", header_value(&format_tags_query(&version.tags)));
    }
}

/// Adds stored headers and user metadata as headers of a request to an origin.
pub fn describe_as<'a>(
    stored: impl IntoIterator<Item = &'a Pair>,
    metadata: &[Pair],
    headers: &mut HeaderMap,
) {
    for pair in stored {
        if let Ok(name) = HeaderName::from_bytes(pair.name.as_bytes()) {
            let value = stored_value(&name, &pair.value);
            headers.append(name, value);
        }
    }
    for pair in metadata {
        if let Ok(name) = HeaderName::from_bytes(format!("x-amz-meta-{}", pair.name).as_bytes()) {
            headers.append(name, metadata_value(&pair.value));
        }
    }
}
