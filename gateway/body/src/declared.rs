//! Checksums that a head declares for its body, and the errors if they do not match.

use super::trailer::BodyTrailer;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_auth::BodyRequirement;
use mlgw_common::hex;
use mlgw_formats::checksum::Algorithm;
use mlgw_wire::error::{Code, S3Error};

const PREFIX: &str = "x-amz-checksum-";
static CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");
static SDK_ALGORITHM: HeaderName = HeaderName::from_static("x-amz-sdk-checksum-algorithm");
static TRAILER: HeaderName = HeaderName::from_static("x-amz-trailer");

/// A checksum that a client computed.
pub(super) type ExpectedChecksum = (Algorithm, Vec<u8>);

/// Checksums in the headers of a request.
#[derive(Debug, Default)]
pub(super) struct DeclaredChecksums {
    pub(super) md5: Option<[u8; 16]>,
    /// Checksum in a header.
    pub(super) checksum: Option<ExpectedChecksum>,
    /// Algorithm of a checksum that follows as a trailer.
    trailer_algorithm: Option<Algorithm>,
}

/// Returns the checksum algorithm that a request declares for its body, in a header or as a trailer.
///
/// # Errors
/// Returns an error if the headers contradict each other or name an algorithm unknown to S3.
pub fn declared_algorithm(headers: &HeaderMap) -> Result<Option<Algorithm>, S3Error> {
    DeclaredChecksums::checksums(headers).map(|declared| declared.algorithm())
}

impl DeclaredChecksums {
    /// Parses the headers of a body with this requirement.
    pub(super) fn parse(headers: &HeaderMap, payload: &BodyRequirement) -> Result<Self, S3Error> {
        let mut declared = Self::checksums(headers)?;
        if declared.trailer_algorithm.is_some() && !payload.is_chunked() {
            return Err(invalid("The x-amz-trailer header requires a body with trailers."));
        }
        declared.md5 = Self::parse_md5(headers)?.md5;
        Ok(declared)
    }

    /// Parses the headers of a body that the checksum headers do not describe.
    pub(super) fn parse_md5(headers: &HeaderMap) -> Result<Self, S3Error> {
        let md5 = headers.get(&CONTENT_MD5).map(content_md5).transpose()?;
        Ok(Self { md5, ..Self::default() })
    }

    fn checksums(headers: &HeaderMap) -> Result<Self, S3Error> {
        let checksum = header_checksum(headers)?;
        let promised = declared_trailer(headers)?;
        if checksum.is_some() && promised.is_some() {
            return Err(multiple_checksums());
        }
        let declared = Self { md5: None, checksum, trailer_algorithm: promised };
        declared.check_sdk_algorithm(headers)?;
        Ok(declared)
    }

    /// Returns the declared algorithm, of a header or a trailer.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.trailer_algorithm.or(self.checksum.as_ref().map(|(algorithm, _)| *algorithm))
    }

    fn check_sdk_algorithm(&self, headers: &HeaderMap) -> Result<(), S3Error> {
        let Some(value) = headers.get(&SDK_ALGORITHM) else { return Ok(()) };
        let named = value.to_str().ok().and_then(Algorithm::from_name);
        match (named, self.algorithm()) {
            (Some(named), Some(declared)) if named == declared => Ok(()),
            (Some(_), None) => Err(invalid(
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or \
                 x-amz-trailer headers were found.",
            )),
            _ => Err(invalid("Value for x-amz-sdk-checksum-algorithm header is invalid.")),
        }
    }

    /// Returns the checksum in the trailers, which must be the declared one.
    pub(super) fn trailer(&self, trailers: &[BodyTrailer]) -> Result<Option<ExpectedChecksum>, S3Error> {
        let malformed = || S3Error::new(Code::MalformedTrailerError);
        match (self.trailer_algorithm, trailers) {
            (None, []) => Ok(None),
            (Some(algorithm), [only]) if only.name == algorithm.header() => {
                let value = decode(algorithm, only.value.as_bytes());
                let name = algorithm.header();
                let value =
                    value.ok_or_else(|| invalid(format!("Value for {name} trailing header is invalid.")))?;
                Ok(Some((algorithm, value)))
            }
            _ => Err(malformed()),
        }
    }
}

pub(super) fn check_md5(expected: Option<[u8; 16]>, found: [u8; 16]) -> Result<(), S3Error> {
    let Some(expected) = expected.filter(|expected| *expected != found) else { return Ok(()) };
    Err(S3Error::new(Code::BadDigest)
        .message("The Content-MD5 you specified did not match what we received.")
        .field("ExpectedDigest", BASE64_STANDARD.encode(expected))
        .field("CalculatedDigest", BASE64_STANDARD.encode(found)))
}

pub(super) fn check_sha256(expected: Option<[u8; 32]>, found: Option<[u8; 32]>) -> Result<(), S3Error> {
    let Some(expected) = expected else { return Ok(()) };
    assert!(found.is_some(), "the SHA-256 of a signed body is computed");
    if found == Some(expected) {
        return Ok(());
    }
    Err(S3Error::new(Code::XAmzContentSHA256Mismatch)
        .field("ClientComputedContentSHA256", hex::text(&expected))
        .field("S3ComputedContentSHA256", hex::text(&found.unwrap_or_default())))
}

pub(super) fn check_checksum(expected: &ExpectedChecksum, found: &[ExpectedChecksum]) -> Result<(), S3Error> {
    let (algorithm, _) = expected;
    assert!(found.iter().any(|(a, _)| a == algorithm), "a declared checksum is computed");
    if found.contains(expected) {
        return Ok(());
    }
    let name = algorithm.name();
    Err(S3Error::new(Code::BadDigest)
        .message(format!("The {name} you specified did not match the calculated checksum.")))
}

fn content_md5(value: &HeaderValue) -> Result<[u8; 16], S3Error> {
    let digest = BASE64_STANDARD.decode(value.as_bytes()).ok().and_then(|d| <[u8; 16]>::try_from(d).ok());
    digest.ok_or_else(|| {
        S3Error::new(Code::InvalidDigest)
            .message("The Content-MD5 you specified was invalid.")
            .field("Content-MD5", String::from_utf8_lossy(value.as_bytes()))
    })
}

fn header_checksum(headers: &HeaderMap) -> Result<Option<ExpectedChecksum>, S3Error> {
    let mut found = None;
    for (name, value) in headers {
        let name = name.as_str();
        let Some(suffix) = name.strip_prefix(PREFIX) else { continue };
        if matches!(suffix, "algorithm" | "mode" | "type") {
            continue;
        }
        let algorithm = Algorithm::from_header(name).ok_or_else(|| S3Error::not_implemented(name))?;
        let value = decode(algorithm, value.as_bytes())
            .ok_or_else(|| invalid(format!("Value for {name} header is invalid.")))?;
        if found.replace((algorithm, value)).is_some() {
            return Err(multiple_checksums());
        }
    }
    Ok(found)
}

fn declared_trailer(headers: &HeaderMap) -> Result<Option<Algorithm>, S3Error> {
    let mut found = None;
    for value in headers.get_all(&TRAILER) {
        for name in value.to_str().unwrap_or("?").split(',').map(str::trim) {
            let algorithm = Algorithm::from_header(name)
                .ok_or_else(|| invalid("The value specified in the x-amz-trailer header is not supported"))?;
            if found.replace(algorithm).is_some() {
                return Err(multiple_checksums());
            }
        }
    }
    Ok(found)
}

fn decode(algorithm: Algorithm, text: &[u8]) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text).ok().filter(|value| value.len() == algorithm.value_bytes())
}

fn multiple_checksums() -> S3Error {
    invalid("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> S3Error {
    S3Error::new(Code::InvalidRequest).message(text)
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, declared_algorithm};
    use http::{HeaderMap, HeaderName, HeaderValue};
    use mlgw_wire::error::Code;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs.map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn a_checksum_is_declared_by_header_or_trailer() {
        for (pairs, algorithm) in [
            (&[][..], None),
            (&[("x-amz-checksum-mode", "ENABLED"), ("x-amz-checksum-type", "COMPOSITE")], None),
            (&[("x-amz-checksum-crc32", "AAAAAA==")], Some(Algorithm::Crc32)),
            (&[("x-amz-trailer", "x-amz-checksum-crc64nvme")], Some(Algorithm::Crc64Nvme)),
            (
                &[("x-amz-trailer", "x-amz-checksum-sha1"), ("x-amz-sdk-checksum-algorithm", "sha1")],
                Some(Algorithm::Sha1),
            ),
        ] {
            assert_eq!(declared_algorithm(&headers(pairs)), Ok(algorithm), "{pairs:?}");
        }
    }

    #[test]
    fn contradictions_are_refused_as_aws_does() {
        for (pairs, text) in [
            (
                &[("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-checksum-crc32c", "AAAAAA==")][..],
                "Expecting a single",
            ),
            (
                &[("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-trailer", "x-amz-checksum-crc32")],
                "Expecting a single",
            ),
            (&[("x-amz-checksum-crc32", "AAAA")], "Value for x-amz-checksum-crc32 header is invalid."),
            (&[("x-amz-checksum-crc32", "*")], "Value for x-amz-checksum-crc32 header is invalid."),
            (&[("x-amz-trailer", "x-amz-meta-a")], "x-amz-trailer header is not supported"),
            (&[("x-amz-sdk-checksum-algorithm", "CRC32")], "no corresponding x-amz-checksum-*"),
            (&[("x-amz-sdk-checksum-algorithm", "CRC31")], "x-amz-sdk-checksum-algorithm header is invalid"),
            (
                &[("x-amz-sdk-checksum-algorithm", "SHA1"), ("x-amz-checksum-crc32", "AAAAAA==")],
                "x-amz-sdk-checksum-algorithm header is invalid",
            ),
        ] {
            let error = declared_algorithm(&headers(pairs)).unwrap_err();
            assert_eq!(error.code(), Code::InvalidRequest, "{pairs:?}");
            assert!(error.text().contains(text), "{pairs:?}: {}", error.text());
        }
        let error = declared_algorithm(&headers(&[("x-amz-checksum-xxhash3", "AA==")])).unwrap_err();
        assert_eq!(error.code(), Code::NotImplemented);
    }
}
