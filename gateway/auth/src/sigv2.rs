//! SigV2 in the query, with which boto3 and awscli still presign in the oldest regions.
//!
//! Only such URLs and POST forms are accepted. The `Authorization` header of SigV2 is refused, as AWS does in
//! every region created since 2014. A setting disables SigV2 completely.

use super::header::sigv4_required;
use super::payload::{self, ContentSha256};
use super::percent;
use super::{AuthRequest, Authenticated, BodyRequirement, header_str, mismatch, no_session_tokens, time};
use crate::key::SigningAccessKey;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::header::CONTENT_TYPE;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::target::bucket_of_host;
use sha1::Sha1;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Query parameters that are part of the signed resource.
const SIGNED_PARAMETERS: &[&str] = &[
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "defaultObjectAcl",
    "delete",
    "encryption",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "retention",
    "select",
    "select-type",
    "storageClass",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];

/// Verifies a request with a SigV2 query.
pub(super) fn verify(request: &AuthRequest<'_>) -> Result<Authenticated, S3Error> {
    if !request.rules.sigv2 {
        return Err(sigv4_required());
    }
    for name in ["AWSAccessKeyId", "Expires", "Signature"] {
        if request.query.iter().filter(|(given, _)| *given == name).count() > 1 {
            return Err(S3Error::invalid_argument(format!("{name} is specified more than once."), name, ""));
        }
    }
    let get = |name| request.parameter(name).filter(|value| !value.is_empty());
    let (Some(access_key), Some(expires), Some(signature)) =
        (get("AWSAccessKeyId"), get("Expires"), get("Signature"))
    else {
        return Err(S3Error::new(Code::AccessDenied).message(
            "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters",
        ));
    };
    check_expiry(request, &expires)?;
    let headers = amz_headers(request);
    if headers.contains_key("x-amz-security-token") {
        return Err(no_session_tokens());
    }
    let key = request.key(&access_key)?;
    let signed = |resource: String| string_to_sign(request, &expires, &headers, &resource);
    let mut candidates = resources(request).map(signed).peekable();
    let likeliest = candidates.peek().cloned().unwrap_or_default();
    if !candidates.any(|text| matches(&key, &text, &signature)) {
        return Err(mismatch(&access_key, &signature, likeliest.as_bytes()));
    }
    let payload = match header_str(&request.head.headers, payload::HEADER)? {
        Some(value) => ContentSha256::parse(value)?.unsigned()?,
        None => BodyRequirement::Unsigned,
    };
    Ok(Authenticated { principal: Some(Arc::clone(&key.principal)), payload })
}

fn check_expiry(request: &AuthRequest<'_>, expires: &str) -> Result<(), S3Error> {
    let denied = S3Error::new(Code::AccessDenied);
    let Ok(end) = expires.parse::<i64>() else {
        return Err(denied.message(format!("Invalid date (should be seconds since epoch): {expires}")));
    };
    let now = request.now.as_secs();
    if now > end {
        return Err(denied
            .message("Request has expired")
            .field("Expires", time::format_secs(end))
            .field("ServerTime", time::format_secs(now)));
    }
    Ok(())
}

/// True if `signature` (base64) is that of `key` over `text`.
pub(super) fn matches(key: &SigningAccessKey, text: &str, signature: &str) -> bool {
    let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(key.secret.expose().as_bytes()) else {
        unreachable!("HMAC takes keys of any length");
    };
    mac.update(text.as_bytes());
    let right = mac.finalize().into_bytes();
    BASE64_STANDARD.decode(signature).is_ok_and(|given| right.ct_eq(&given).into())
}

/// Returns the `x-amz-*` headers, including those that botocore moves into the query when it presigns.
fn amz_headers(request: &AuthRequest<'_>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in request.query.iter() {
        let lower = name.to_ascii_lowercase();
        if lower.starts_with("x-amz-") && !request.head.headers.contains_key(&lower) {
            all.insert(lower, percent::decode_text(value).trim().to_owned());
        }
    }
    for name in request.head.headers.keys().filter(|name| name.as_str().starts_with("x-amz-")) {
        let values = request.head.headers.get_all(name).iter();
        let values: Vec<_> = values.map(|v| String::from_utf8_lossy(v.as_bytes().trim_ascii())).collect();
        all.insert(name.as_str().to_owned(), values.join(","));
    }
    all
}

fn string_to_sign(
    request: &AuthRequest<'_>,
    expires: &str,
    headers: &BTreeMap<String, String>,
    resource: &str,
) -> String {
    let header = |name: &str| {
        let value = request.head.headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()));
        value.unwrap_or_default()
    };
    let method = request.head.method.as_str();
    let mut text =
        format!("{method}\n{}\n{}\n{expires}\n", header("content-md5"), header(CONTENT_TYPE.as_str()));
    for (name, value) in headers {
        text.extend([name.as_str(), ":", value.as_str(), "\n"]);
    }
    text.push_str(resource);
    append_parameters(request, &mut text);
    text
}

fn append_parameters(request: &AuthRequest<'_>, text: &mut String) {
    let decoded = request.query.iter().map(|(name, value)| (name, percent::decode_text(value)));
    let mut signed: Vec<(&str, Cow<'_, str>)> =
        decoded.filter(|(name, _)| SIGNED_PARAMETERS.contains(name)).collect();
    signed.sort_unstable();
    for (i, (name, value)) in signed.iter().enumerate() {
        text.push(if i == 0 { '?' } else { '&' });
        text.push_str(name);
        if !value.is_empty() {
            text.extend(["=", &**value]);
        }
    }
}

/// Returns the resources that a client may have signed, the likeliest first: with the bucket in the host
/// name, below one of the configured domains; the path as it is; and the path with a trailing slash, as
/// botocore signs a bucket.
fn resources<'a>(request: &AuthRequest<'a>) -> impl Iterator<Item = String> + use<'a> {
    let path = request.head.uri.path();
    let host = std::str::from_utf8(request.host()).unwrap_or_default();
    let of_host = bucket_of_host(host, &request.rules.domains).map(|bucket| format!("/{bucket}{path}"));
    let is_bucket = path.len() > 1 && !path[1..].contains('/');
    let of_bucket = is_bucket.then(|| format!("{path}/"));
    of_host.into_iter().chain([path.to_owned()]).chain(of_bucket)
}

#[cfg(test)]
mod tests {
    use super::SIGNED_PARAMETERS;

    #[test]
    fn signed_parameters_are_in_order_and_named_once() {
        assert!(SIGNED_PARAMETERS.is_sorted_by(|a, b| a < b));
    }
}
