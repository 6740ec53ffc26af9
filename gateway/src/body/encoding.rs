//! `Content-Encoding` as it is stored: what describes the object, not how it travelled.

use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// The content encoding to store with an object: the header without `aws-chunked`, which only
/// describes the transfer and would make readers decode what is not encoded.
#[must_use]
pub fn stored_content_encoding(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).map(str::trim);
    let kept: Vec<&str> =
        names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("aws-chunked")).collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

#[cfg(test)]
mod tests {
    use super::stored_content_encoding;
    use http::{HeaderMap, HeaderValue};

    #[test]
    fn aws_chunked_is_not_stored() {
        for (sent, stored) in [
            (&["aws-chunked"][..], None),
            (&["aws-chunked,gzip"], Some("gzip")),
            (&["gzip, AWS-Chunked"], Some("gzip")),
            (&["aws-chunked", "gzip, br"], Some("gzip,br")),
            (&["gzip"], Some("gzip")),
            (&[""], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append("content-encoding", HeaderValue::from_static(value));
            }
            assert_eq!(stored_content_encoding(&headers).as_deref(), stored, "{sent:?}");
        }
    }
}
