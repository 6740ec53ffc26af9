//! `Content-Encoding` as stored: the codings of the object, without those of the transfer, otherwise as sent.

use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};

/// Returns the content encoding to store with an object: the header without `aws-chunked`, which describes
/// only the transfer and would make readers decode bytes that are not encoded.
#[must_use]
pub fn stored_content_encoding(headers: &HeaderMap) -> Option<Vec<u8>> {
    let lines = headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    let is_kept = |name: &&[u8]| !name.trim_ascii().eq_ignore_ascii_case(b"aws-chunked");
    let names = lines.flat_map(|line| line.split(|byte| *byte == b',')).filter(is_kept);
    let kept = names.collect::<Vec<_>>().join(&b',');
    let kept = kept.trim_ascii();
    kept.iter().any(|byte| *byte != b',').then(|| kept.to_vec())
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
            (&["aws-chunked", "gzip, br"], Some("gzip, br")),
            (&["aws-chunked, zstd"], Some("zstd")),
            (&["deflate ,  aws-chunked , gzip"], Some("deflate , gzip")),
            (&["gzip"], Some("gzip")),
            (&["deflate, gzip"], Some("deflate, gzip")),
            (&["deflate", "gzip"], Some("deflate,gzip")),
            (&["x;q=\"a\", identity"], Some("x;q=\"a\", identity")),
            (&[""], None),
            (&[" , "], None),
            (&["aws-chunked,"], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append("content-encoding", HeaderValue::from_static(value));
            }
            assert_eq!(stored_content_encoding(&headers).as_deref(), stored.map(str::as_bytes), "{sent:?}");
        }
    }
}
