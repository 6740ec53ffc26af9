//! Headers that a presigned URL carries in its query.
//!
//! SDKs move `x-amz-*` headers into the query when they presign, where the signature covers them,
//! and S3 takes them for the headers they were. After a presigned URL has been verified they are
//! put back, so that the table and the operations see one kind of header only.

use crate::s3::error::{Code, S3Error};
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// Parameters that are the signature's own.
const OF_SIGNATURES: &[&str] = &[
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signature",
    "x-amz-signedheaders",
];

/// Puts the headers in the query of a presigned URL among the headers. A header that was also
/// sent stays as it was sent. Other requests are left as they are.
///
/// # Errors
/// `InvalidArgument` for a parameter that cannot be a header.
pub fn hoist(head: &mut Parts) -> Result<(), S3Error> {
    let query = head.uri.query().unwrap_or_default();
    let pairs = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    if !pairs().any(|(name, _)| matches!(name, "X-Amz-Signature" | "Signature")) {
        return Ok(());
    }
    let mut found = Vec::new();
    for (name, value) in pairs() {
        let is_header = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
        if !is_header || OF_SIGNATURES.iter().any(|own| name.eq_ignore_ascii_case(own)) {
            continue;
        }
        let value: Vec<u8> = percent_decode_str(&value.replace('+', " ")).collect();
        match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.trim_ascii())) {
            (Ok(name), Ok(value)) => found.push((name, value)),
            _ => {
                let value = String::from_utf8_lossy(&value).into_owned();
                return Err(S3Error::new(Code::InvalidArgument)
                    .message("A query parameter cannot be the header that it stands for.")
                    .field("ArgumentName", name)
                    .field("ArgumentValue", value));
            }
        }
    }
    for (name, value) in found {
        head.headers.entry(name).or_insert(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::hoist;
    use crate::s3::error::Code;
    use http::Request;
    use http::request::Parts;

    fn head(query: &str) -> Parts {
        let request = Request::put(format!("/b/k?{query}")).header("x-amz-acl", "private").body(()).unwrap();
        request.into_parts().0
    }

    #[test]
    fn a_presigned_url_brings_its_headers() {
        let mut head = head(
            "X-Amz-Signature=ab&X-Amz-Date=d&x-amz-meta-a=b%20c&X-Amz-Acl=public-read&x-id=PutObject&x-amz-sdk-checksum-algorithm=CRC32",
        );
        hoist(&mut head).unwrap();
        assert_eq!(head.headers["x-amz-meta-a"], "b c");
        assert_eq!(head.headers["x-amz-sdk-checksum-algorithm"], "CRC32");
        assert_eq!(head.headers["x-amz-acl"], "private", "what was sent stays");
        assert_eq!(head.headers.len(), 3);
    }

    #[test]
    fn other_requests_are_left_alone() {
        let mut head = head("x-amz-meta-a=b");
        hoist(&mut head).unwrap();
        assert_eq!(head.headers.len(), 1);
    }

    #[test]
    fn what_cannot_be_a_header_is_refused() {
        let error = hoist(&mut head("Signature=ab&x-amz-meta-a=%0a%01b")).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }
}
