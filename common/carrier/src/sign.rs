//! Signs requests with AWS Signature Version 4.

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    self, PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode,
};
use aws_sigv4::sign::v4;
use http::{HeaderName, Request, header};
use mlgw_common::Timestamp;
use std::time::{Duration, UNIX_EPOCH};

/// Headers that a signature covers beside those that begin with `x-amz-`.
const COVERED: [HeaderName; 3] = [header::HOST, header::CONTENT_TYPE, HeaderName::from_static("content-md5")];

/// Scope of a signature: what it is valid for.
#[derive(Clone, Copy, Debug)]
pub struct SigningScope<'a> {
    /// Region of the service.
    pub region: &'a str,
    /// Name of the service: `s3`, or that of the admin API.
    pub service: &'a str,
    /// Time of the request.
    pub time: Timestamp,
}

/// A request that cannot be signed.
#[derive(Debug, thiserror::Error)]
#[error("a request cannot be signed: {0}")]
pub struct SignError(String);

/// Signs a request in place. `body` states what the signature covers of the body. URLs are signed as they
/// are: percent-encoded once, with empty path segments.
///
/// # Errors
/// A header or the URL has characters that cannot be signed.
pub fn sign<B>(
    request: &mut Request<B>,
    body: SignableBody<'_>,
    credentials: Credentials,
    scope: SigningScope<'_>,
) -> Result<(), SignError> {
    let cannot = |error: &dyn std::fmt::Display| SignError(error.to_string());
    let mut settings = SigningSettings::default();
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(scope.region)
        .name(scope.service)
        .time(UNIX_EPOCH + Duration::from_millis(u64::try_from(scope.time.as_millis()).unwrap_or(0)))
        .settings(settings)
        .build()
        .map_err(|error| cannot(&error))?
        .into();
    let headers = request.headers().iter().filter_map(|(name, value)| {
        let is_covered = COVERED.contains(name) || name.as_str().starts_with("x-amz-");
        Some((name.as_str(), str::from_utf8(value.as_bytes()).ok()?)).filter(|_| is_covered)
    });
    let uri = request.uri().to_string();
    let signable = SignableRequest::new(request.method().as_str(), uri, headers, body);
    let signature = http_request::sign(signable.map_err(|error| cannot(&error))?, &params);
    let (instructions, _) = signature.map_err(|error| cannot(&error))?.into_parts();
    instructions.apply_to_request_http1x(request);
    Ok(())
}
