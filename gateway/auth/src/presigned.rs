//! SigV4 in the query: presigned URLs.

use super::canonical::{self, SignatureClaim};
use super::payload::{self, ContentSha256, UNSIGNED};
use super::scope::CredentialScope;
use super::time::{self, AmzDate};
use super::{AuthRequest, Authenticated, ChunkSigner, header_str, no_session_tokens};
use mlgw_wire::error::{Code, S3Error};
use std::borrow::Cow;
use std::sync::Arc;

/// Maximum lifetime of a presigned URL: a week.
const EXPIRES_SECS_MAX: i64 = 7 * 24 * 60 * 60;

/// Names of the signature's parameters in a presigned URL.
const PARAMETERS: &[&str] = &[
    "X-Amz-Algorithm",
    "X-Amz-Content-Sha256",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Security-Token",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
];

/// Decoded parameters of a presigned URL's signature.
struct PresignedParameters<'a> {
    algorithm: Cow<'a, str>,
    credential: Cow<'a, str>,
    date: Cow<'a, str>,
    expires: Cow<'a, str>,
    signed_headers: Cow<'a, str>,
    signature: Cow<'a, str>,
}

/// Verifies a request with a presigned URL.
pub(super) fn verify(request: &AuthRequest<'_>) -> Result<Authenticated, S3Error> {
    let parameters = PresignedParameters::of(request)?;
    if parameters.algorithm != "AWS4-HMAC-SHA256" {
        return Err(query_error("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""));
    }
    let scope = CredentialScope::parse(&parameters.credential, request.rules).map_err(|e| e.in_query())?;
    let date = AmzDate::parse(&parameters.date).ok_or_else(|| {
        query_error("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    })?;
    if !scope.has_day_of(&date) {
        return Err(query_error(format!(
            "Invalid credential date \"{}\". This date is not the same as X-Amz-Date: \"{}\".",
            scope.day,
            date.day()
        )));
    }
    check_period(request, &date, expires_secs(&parameters.expires)?)?;
    if request.query.has("X-Amz-Security-Token") {
        return Err(no_session_tokens());
    }
    let payload = payload_value(request)?;
    let declared = ContentSha256::parse(&payload)?;
    let key = request.key(scope.access_key)?;
    let claim = SignatureClaim {
        scope,
        date,
        signed_headers: &parameters.signed_headers,
        payload: &payload,
        signature: &parameters.signature,
    };
    let signing = canonical::verify(request, &claim, &key)?;
    let payload = declared.signed(|| ChunkSigner::new(signing, &claim));
    Ok(Authenticated { principal: Some(Arc::clone(&key.principal)), payload })
}

impl<'a> PresignedParameters<'a> {
    fn of(request: &AuthRequest<'a>) -> Result<Self, S3Error> {
        check_not_repeated(request)?;
        let get = |name| {
            request.parameter(name).filter(|value| !value.is_empty()).ok_or_else(|| {
                query_error(
                    "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, \
                     X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
                )
            })
        };
        Ok(Self {
            algorithm: get("X-Amz-Algorithm")?,
            credential: get("X-Amz-Credential")?,
            date: get("X-Amz-Date")?,
            expires: get("X-Amz-Expires")?,
            signed_headers: get("X-Amz-SignedHeaders")?,
            signature: get("X-Amz-Signature")?,
        })
    }
}

/// Refuses a URL with a repeated parameter of its signature, because the intended value is ambiguous.
fn check_not_repeated(request: &AuthRequest<'_>) -> Result<(), S3Error> {
    for name in PARAMETERS {
        if request.query.iter().filter(|(given, _)| given == name).count() > 1 {
            return Err(query_error(format!("{name} is specified more than once.")));
        }
    }
    Ok(())
}

fn query_error(message: impl Into<Cow<'static, str>>) -> S3Error {
    S3Error::new(Code::AuthorizationQueryParametersError).message(message)
}

fn expires_secs(text: &str) -> Result<i64, S3Error> {
    match text.parse::<i64>() {
        Err(_) => Err(query_error("X-Amz-Expires should be a number")),
        Ok(secs) if secs < 0 => Err(query_error("X-Amz-Expires must be non-negative")),
        Ok(secs) if secs > EXPIRES_SECS_MAX => Err(query_error(
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be \
             less than 604800 seconds",
        )),
        Ok(secs) => Ok(secs),
    }
}

fn check_period(request: &AuthRequest<'_>, date: &AmzDate, expires_secs: i64) -> Result<(), S3Error> {
    let now = request.now.as_secs();
    let denied = S3Error::new(Code::AccessDenied);
    if date.secs > now + request.rules.skew_secs {
        return Err(denied.message("Request is not yet valid").field("ServerTime", time::format_secs(now)));
    }
    let end = date.secs + expires_secs;
    // A URL with a lifetime of 0 has expired, even within the second in which it was made.
    if now > end || expires_secs == 0 {
        return Err(denied
            .message("Request has expired")
            .field("X-Amz-Expires", expires_secs.to_string())
            .field("Expires", time::format_secs(end))
            .field("ServerTime", time::format_secs(now)));
    }
    Ok(())
}

/// Returns the payload value of a presigned URL, which does not sign the payload by default.
fn payload_value<'a>(request: &AuthRequest<'a>) -> Result<Cow<'a, str>, S3Error> {
    if let Some(value) = header_str(&request.head.headers, payload::HEADER)? {
        return Ok(Cow::Borrowed(value));
    }
    Ok(request.parameter("X-Amz-Content-Sha256").unwrap_or(Cow::Borrowed(UNSIGNED)))
}
