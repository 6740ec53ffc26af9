//! SigV4 in the query: presigned URLs.

use super::canonical::{self, Claim};
use super::payload::{self, Declared, UNSIGNED};
use super::scope::Scope;
use super::time::{self, AmzDate};
use super::{Authenticated, ChunkSigner, Request, header_str, no_session_tokens};
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
struct Parameters<'a> {
    algorithm: Cow<'a, str>,
    credential: Cow<'a, str>,
    date: Cow<'a, str>,
    expires: Cow<'a, str>,
    signed_headers: Cow<'a, str>,
    signature: Cow<'a, str>,
}

/// Verifies a request with a presigned URL.
pub(super) fn verify(request: &Request<'_>) -> Result<Authenticated, S3Error> {
    let parameters = Parameters::of(request)?;
    if parameters.algorithm != "AWS4-HMAC-SHA256" {
        return Err(wrong("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""));
    }
    let scope = Scope::parse(&parameters.credential, request.rules).map_err(|e| e.in_query())?;
    let date = AmzDate::parse(&parameters.date)
        .ok_or_else(|| wrong("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\""))?;
    if !scope.is_of(&date) {
        return Err(wrong(format!(
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
    let declared = Declared::parse(&payload)?;
    let key = request.key(scope.access_key)?;
    let claim = Claim {
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

impl<'a> Parameters<'a> {
    fn of(request: &Request<'a>) -> Result<Self, S3Error> {
        check_once(request)?;
        let get = |name| {
            request.parameter(name).filter(|value| !value.is_empty()).ok_or_else(|| {
                wrong(
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
fn check_once(request: &Request<'_>) -> Result<(), S3Error> {
    for name in PARAMETERS {
        if request.query.iter().filter(|(given, _)| given == name).count() > 1 {
            return Err(wrong(format!("{name} is given more than once.")));
        }
    }
    Ok(())
}

fn wrong(message: impl Into<Cow<'static, str>>) -> S3Error {
    S3Error::new(Code::AuthorizationQueryParametersError).message(message)
}

fn expires_secs(text: &str) -> Result<i64, S3Error> {
    match text.parse::<i64>() {
        Err(_) => Err(wrong("X-Amz-Expires should be a number")),
        Ok(secs) if secs < 0 => Err(wrong("X-Amz-Expires must be non-negative")),
        Ok(secs) if secs > EXPIRES_SECS_MAX => Err(wrong(
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be \
             less than 604800 seconds",
        )),
        Ok(secs) => Ok(secs),
    }
}

fn check_period(request: &Request<'_>, date: &AmzDate, expires_secs: i64) -> Result<(), S3Error> {
    let now = request.now.as_secs();
    let denied = S3Error::new(Code::AccessDenied);
    if date.secs > now + request.rules.skew_secs {
        return Err(denied.message("Request is not yet valid").field("ServerTime", time::show(now)));
    }
    let end = date.secs + expires_secs;
    // A URL with a lifetime of 0 has expired, even within the second in which it was made.
    if now > end || expires_secs == 0 {
        return Err(denied
            .message("Request has expired")
            .field("X-Amz-Expires", expires_secs.to_string())
            .field("Expires", time::show(end))
            .field("ServerTime", time::show(now)));
    }
    Ok(())
}

/// Returns the payload value of a presigned URL, which does not sign the payload by default.
fn payload_value<'a>(request: &Request<'a>) -> Result<Cow<'a, str>, S3Error> {
    if let Some(value) = header_str(&request.head.headers, payload::HEADER)? {
        return Ok(Cow::Borrowed(value));
    }
    Ok(request.parameter("X-Amz-Content-Sha256").unwrap_or(Cow::Borrowed(UNSIGNED)))
}
