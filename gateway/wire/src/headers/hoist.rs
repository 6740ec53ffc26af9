//! Headers in the query of a presigned URL.
//!
//! SDKs move `x-amz-*` headers into the query of a presigned URL, where the signature covers them, and S3
//! treats them as headers. After a presigned URL has been verified they are moved back to the headers, so
//! that the table and the operations see one kind of header only.
//!
//! Checksums are the exception. An SDK presigns before there is a body and puts the checksum of an empty body
//! into the URL. S3 ignores checksums there, and so does mlgw, except for the checksum of a non-empty body.
//! That one is compared with the body if the request itself has no checksum.

use crate::error::{Code, S3Error};
use crate::query::Query;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_formats::checksum::Algorithm;
use percent_encoding::percent_decode_str;

/// Parameters of the signature itself, as SDKs write them.
const SIGNATURE_PARAMETERS: &[&str] = &[
    "X-Amz-Algorithm",
    "X-Amz-Content-Sha256",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
];

/// True if a parameter represents a header.
fn is_header(name: &str) -> bool {
    // Exact matches are the common case, so they are tested first.
    !SIGNATURE_PARAMETERS.contains(&name)
        && begins_with(name, "x-amz-")
        && !SIGNATURE_PARAMETERS.iter().any(|own| name.eq_ignore_ascii_case(own))
        && !is_checksum(name)
}

/// Returns the checksum of a non-empty body in a parameter, as a header.
fn checksum_header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let algorithm = Algorithm::from_header(name)?;
    let text: Vec<u8> = percent_decode_str(value).collect();
    let sum = BASE64_STANDARD.decode(&text).ok().filter(|sum| sum.len() == algorithm.value_bytes())?;
    if sum == algorithm.digest(b"") {
        return None;
    }
    Some((HeaderName::from_static(algorithm.header()), HeaderValue::from_bytes(&text).ok()?))
}

/// True if a request has a checksum outside its query.
fn has_checksum(headers: &HeaderMap) -> bool {
    let mut names = headers.keys().map(HeaderName::as_str);
    headers.contains_key("x-amz-trailer") || names.any(|name| Algorithm::from_header(name).is_some())
}

/// True if a parameter is the checksum of the body, or its algorithm. `x-amz-checksum-mode` does not concern
/// the body; it requests the checksums of an object.
fn is_checksum(name: &str) -> bool {
    let is_value = begins_with(name, "x-amz-checksum-") && !name.eq_ignore_ascii_case("x-amz-checksum-mode");
    is_value || name.eq_ignore_ascii_case("x-amz-sdk-checksum-algorithm")
}

fn begins_with(name: &str, start: &str) -> bool {
    name.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

/// Adds the headers in the query of a presigned URL to the headers. A header that was also sent keeps its
/// sent value. Other requests are unchanged. Returns true if a header was added.
///
/// # Errors
/// `InvalidArgument` for a parameter that is not a valid header.
pub fn hoist(headers: &mut HeaderMap, query: &Query<'_>) -> Result<bool, S3Error> {
    if !query.has("X-Amz-Signature") && !query.has("Signature") {
        return Ok(false);
    }
    let mut found = Vec::new();
    for (name, value) in query.iter() {
        if !is_header(name) {
            found.extend(checksum_header(name, value).filter(|_| !has_checksum(headers)));
            continue;
        }
        let value: Vec<u8> = percent_decode_str(&value.replace('+', " ")).collect();
        match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.trim_ascii())) {
            (Ok(name), Ok(value)) => found.push((name, value)),
            _ => {
                let value = String::from_utf8_lossy(&value).into_owned();
                return Err(S3Error::new(Code::InvalidArgument)
                    .message("The value of a query parameter is not valid as a header value.")
                    .field("ArgumentName", name)
                    .field("ArgumentValue", value));
            }
        }
    }
    let any = !found.is_empty();
    for (name, value) in found {
        headers.entry(name).or_insert(value);
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use super::hoist;
    use crate::error::{Code, S3Error};
    use crate::query::Query;
    use http::{HeaderMap, HeaderValue};

    fn hoisted(query: &str) -> Result<HeaderMap, S3Error> {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-acl", HeaderValue::from_static("private"));
        let any = hoist(&mut headers, &Query::parse(query))?;
        assert_eq!(any, headers.len() > 1);
        Ok(headers)
    }

    #[test]
    fn headers_of_a_presigned_url_are_added() {
        let headers = hoisted(
            "X-Amz-Signature=ab&X-Amz-Date=d&x-amz-expires=1&x-amz-meta-a=b%20c&X-Amz-Acl=public-read\
             &x-id=PutObject&X-Amz-Checksum-Mode=ENABLED",
        )
        .unwrap();
        assert_eq!(headers["x-amz-meta-a"], "b c");
        assert_eq!(headers["x-amz-checksum-mode"], "ENABLED");
        assert_eq!(headers["x-amz-acl"], "private", "the sent header stays");
        assert_eq!(headers.len(), 3);
    }

    #[test]
    fn a_checksum_of_real_bytes_is_compared_unless_the_request_has_another() {
        let query =
            "X-Amz-Signature=ab&X-Amz-Checksum-Crc32=y%2FQ5Jg%3D%3D&x-amz-sdk-checksum-algorithm=CRC32";
        let mut headers = HeaderMap::new();
        assert_eq!(hoist(&mut headers, &Query::parse(query)), Ok(true));
        assert_eq!((headers.len(), &headers["x-amz-checksum-crc32"]), (1, &"y/Q5Jg==".parse().unwrap()));
        for (name, value) in [("x-amz-checksum-sha1", "x"), ("x-amz-trailer", "x-amz-checksum-crc32c")] {
            let mut headers = HeaderMap::from_iter([(
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]);
            assert_eq!(hoist(&mut headers, &Query::parse(query)), Ok(false));
        }
    }

    #[test]
    fn checksums_of_empty_bodies_and_invalid_checksums_are_ignored() {
        for algorithm in mlgw_formats::checksum::Algorithm::ALL {
            use base64::Engine as _;
            let empty = base64::prelude::BASE64_STANDARD.encode(algorithm.digest(b""));
            let empty = empty.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
            let query = format!("X-Amz-Signature=ab&{}={empty}", algorithm.header());
            assert_eq!(hoist(&mut HeaderMap::new(), &Query::parse(&query)), Ok(false), "{query}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-checksum-crc32", HeaderValue::from_static("y/Q5Jg=="));
        let query = "X-Amz-Signature=ab&x-amz-checksum-crc32=AAAAAA%3D%3D&X-Amz-Checksum-Sha256=no\
                     &x-amz-checksum-new=1&x-amz-sdk-checksum-algorithm=CRC32\
                     &X-Amz-Sdk-Checksum-Algorithm=X&x-amz-checksum-type=FULL_OBJECT\
                     &x-amz-checksum-algorithm=CRC32&x-amz-checksum-crc32=%0a";
        assert_eq!(hoist(&mut headers, &Query::parse(query)), Ok(false));
        assert_eq!(headers["x-amz-checksum-crc32"], "y/Q5Jg==", "the sent header stays");
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn other_requests_are_left_alone() {
        assert_eq!(hoisted("x-amz-meta-a=b").unwrap().len(), 1);
    }

    #[test]
    fn an_invalid_header_value_is_refused() {
        let error = hoisted("Signature=ab&x-amz-meta-a=%0a%01b").unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }
}
