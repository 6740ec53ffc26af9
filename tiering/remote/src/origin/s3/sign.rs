//! Signs what is sent to an S3 origin.

use super::credentials::Credentials;
use crate::origin::OriginError;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use http::{HeaderName, Request, header};
use mlgw_common::Timestamp;
use std::time::{Duration, UNIX_EPOCH};

/// What is covered beside S3's own headers.
const COVERED: [HeaderName; 3] = [header::HOST, header::CONTENT_TYPE, HeaderName::from_static("content-md5")];

/// Signs requests for one region.
#[derive(Debug)]
pub(super) struct Signer {
    pub(super) credentials: Credentials,
    pub(super) region: String,
}

impl Signer {
    /// Signs a request as of `now`. Its body is not covered: it is a stream, and what protects it is TLS and
    /// its checksum.
    pub(super) async fn sign<B>(
        &self,
        request: &mut Request<B>,
        body: SignableBody<'static>,
        now: Timestamp,
    ) -> Result<(), OriginError> {
        let Some(credentials) = self.credentials.get().await? else { return Ok(()) };
        let cannot = |why: String| OriginError::Nonsense(format!("a request cannot be signed: {why}"));
        let identity = credentials.into();
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("s3")
            .time(UNIX_EPOCH + Duration::from_millis(u64::try_from(now.as_millis()).unwrap_or(0)))
            .settings(settings)
            .build()
            .map_err(|error| cannot(error.to_string()))?
            .into();
        let headers = request.headers().iter().filter_map(|(name, value)| {
            let is_covered = COVERED.contains(name) || name.as_str().starts_with("x-amz-");
            Some((name.as_str(), str::from_utf8(value.as_bytes()).ok()?)).filter(|_| is_covered)
        });
        let uri = request.uri().to_string();
        let signable = SignableRequest::new(request.method().as_str(), uri, headers, body);
        let signature = sign(signable.map_err(|error| cannot(error.to_string()))?, &params);
        let (instructions, _) = signature.map_err(|error| cannot(error.to_string()))?.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }
}
