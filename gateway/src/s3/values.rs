//! Header values out of text.

use http::HeaderValue;

/// A header value from text that may hold any UTF-8; what HTTP cannot carry at all becomes `?`.
#[must_use]
pub fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or_else(|_| {
        let visible: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        HeaderValue::from_bytes(visible.as_bytes()).unwrap_or(HeaderValue::from_static("?"))
    })
}

/// An ETag in quotes, as headers carry it.
#[must_use]
pub fn etag_value(etag: &str) -> HeaderValue {
    let mut quoted = String::with_capacity(etag.len() + 2);
    quoted.push('"');
    quoted.push_str(etag);
    quoted.push('"');
    header_value(&quoted)
}
