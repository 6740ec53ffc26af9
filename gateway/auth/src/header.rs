//! SigV4 in the `Authorization` header.

use super::canonical::{self, SignatureClaim};
use super::payload::{self, ContentSha256};
use super::scope::CredentialScope;
use super::time::{self, AmzDate};
use super::{AuthRequest, Authenticated, ChunkSigner, header_str};
use http::HeaderValue;
use http::header::DATE;
use mlgw_wire::error::{Code, S3Error};
use std::sync::Arc;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Components of the header's value.
#[derive(Debug, PartialEq, Eq)]
struct Components<'a> {
    credential: &'a str,
    signed_headers: &'a str,
    signature: &'a str,
}

/// Verifies a request with this `Authorization` header.
pub(super) fn verify(request: &AuthRequest<'_>, value: &HeaderValue) -> Result<Authenticated, S3Error> {
    let value = value.to_str().map_err(|_| malformed("it is not ASCII."))?;
    let components = Components::parse(value)?;
    let scope = CredentialScope::parse(components.credential, request.rules).map_err(|e| e.in_header())?;
    let date = date(request)?;
    if !scope.has_day_of(&date) {
        return Err(malformed("Invalid credential date. Date is not the same as X-Amz-Date."));
    }
    check_skew(request, &date)?;
    let payload = header_str(&request.head.headers, payload::HEADER)?.ok_or_else(|| {
        S3Error::new(Code::InvalidRequest)
            .message("Missing required header for this request: x-amz-content-sha256")
    })?;
    let declared = ContentSha256::parse(payload)?;
    let key = request.key(scope.access_key)?;
    let Components { signed_headers, signature, .. } = components;
    let claim = SignatureClaim { scope, date, signed_headers, payload, signature };
    let signing = canonical::verify(request, &claim, &key)?;
    let payload = declared.signed(|| ChunkSigner::new(signing, &claim));
    Ok(Authenticated { principal: Some(Arc::clone(&key.principal)), payload })
}

impl<'a> Components<'a> {
    /// Parses `AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…`. Spaces after the commas are
    /// optional: s3cmd sends none.
    fn parse(value: &'a str) -> Result<Self, S3Error> {
        let value = value.trim();
        let (algorithm, rest) = value.split_once(char::is_whitespace).unwrap_or((value, ""));
        check_algorithm(algorithm, value)?;
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for component in rest.split(',').map(str::trim) {
            let unknown = || malformed(&format!("the authorization component \"{component}\" is malformed."));
            let (name, value) = component.split_once('=').ok_or_else(unknown)?;
            match name {
                "Credential" => credential = Some(value),
                "SignedHeaders" => signed_headers = Some(value),
                "Signature" => signature = Some(value),
                _ => return Err(unknown()),
            }
        }
        Ok(Self {
            credential: credential.ok_or_else(|| malformed("missing Credential."))?,
            signed_headers: signed_headers.ok_or_else(|| malformed("missing SignedHeaders."))?,
            signature: signature.ok_or_else(|| malformed("missing Signature."))?,
        })
    }
}

fn check_algorithm(algorithm: &str, value: &str) -> Result<(), S3Error> {
    match algorithm {
        ALGORITHM => Ok(()),
        "AWS" => Err(sigv4_required()),
        _ if algorithm.starts_with("AWS4-ECDSA-") => Err(S3Error::not_implemented(algorithm)),
        _ => Err(S3Error::invalid_argument("Unsupported Authorization Type", "Authorization", value)),
    }
}

/// Returns the error for SigV2 where it is not accepted.
pub(super) fn sigv4_required() -> S3Error {
    S3Error::new(Code::InvalidRequest).message(
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
    )
}

fn malformed(clause: &str) -> S3Error {
    S3Error::new(Code::AuthorizationHeaderMalformed)
        .message(format!("The authorization header is malformed; {clause}"))
}

fn date(request: &AuthRequest<'_>) -> Result<AmzDate, S3Error> {
    let headers = &request.head.headers;
    let date = match header_str(headers, "x-amz-date")? {
        Some(value) => AmzDate::parse(value).or_else(|| AmzDate::parse_http(value)),
        None => header_str(headers, DATE.as_str())?.and_then(AmzDate::parse_http),
    };
    date.ok_or_else(|| {
        S3Error::new(Code::AccessDenied)
            .message("AWS authentication requires a valid Date or x-amz-date header")
    })
}

fn check_skew(request: &AuthRequest<'_>, date: &AmzDate) -> Result<(), S3Error> {
    let now = request.now.as_secs();
    let skew_max = request.rules.skew_secs;
    if now.abs_diff(date.secs) <= skew_max.unsigned_abs() {
        return Ok(());
    }
    Err(S3Error::new(Code::RequestTimeTooSkewed)
        .field("RequestTime", date.as_str())
        .field("ServerTime", time::format_secs(now))
        .field("MaxAllowedSkewMilliseconds", (skew_max * 1000).to_string()))
}

#[cfg(test)]
mod tests {
    use super::Components;
    use mlgw_wire::error::Code;

    #[test]
    fn components_come_in_any_order_with_or_without_spaces() {
        let expected =
            Components { credential: "AK/d/r/s/t", signed_headers: "host;x-amz-date", signature: "ab" };
        for value in [
            "AWS4-HMAC-SHA256 Credential=AK/d/r/s/t, SignedHeaders=host;x-amz-date, Signature=ab",
            "AWS4-HMAC-SHA256 Credential=AK/d/r/s/t,SignedHeaders=host;x-amz-date,Signature=ab",
            "AWS4-HMAC-SHA256  Signature=ab ,  SignedHeaders=host;x-amz-date,Credential=AK/d/r/s/t ",
        ] {
            assert_eq!(Components::parse(value).as_ref(), Ok(&expected), "{value}");
        }
    }

    #[test]
    fn other_values_return_the_errors_of_aws() {
        for (value, code, text) in [
            ("AWS AKID:c2ln", Code::InvalidRequest, "Please use AWS4-HMAC-SHA256"),
            ("AWS4-ECDSA-P256-SHA256 Credential=a", Code::NotImplemented, "AWS4-ECDSA-P256-SHA256"),
            ("Bearer abc", Code::InvalidArgument, "Unsupported Authorization Type"),
            ("", Code::InvalidArgument, "Unsupported Authorization Type"),
            ("AWS4-HMAC-SHA256", Code::AuthorizationHeaderMalformed, "component \"\" is malformed"),
            (
                "AWS4-HMAC-SHA256 Credential=a, Signature=b",
                Code::AuthorizationHeaderMalformed,
                "missing SignedHeaders",
            ),
            (
                "AWS4-HMAC-SHA256 Credential=a, Other=b",
                Code::AuthorizationHeaderMalformed,
                "\"Other=b\" is malformed",
            ),
        ] {
            let error = Components::parse(value).unwrap_err();
            assert_eq!(error.code(), code, "{value}");
            assert!(error.text().contains(text), "{value}: {}", error.text());
        }
    }
}
