//! Signature Version 4 by AWS's own crate, as an independent counterpart of the server's verification.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4::SigningParams;
use http::Request;
use mlgw_common::{Clock as _, SystemClock};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that SigV4 does not encode are removed from the set.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const ENCODED_IN_PATH: &AsciiSet = &ENCODED.remove(b'/');

/// Encodes a query value in the form that is the same in the signature and in the request.
pub(crate) fn encode(value: &str) -> String {
    utf8_percent_encode(value, ENCODED).to_string()
}

/// `/bucket/key`, encoded.
pub(crate) fn path(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", utf8_percent_encode(key, ENCODED_IN_PATH))
}

pub(super) struct Signer {
    credentials: Credentials,
    service: &'static str,
}

impl Signer {
    pub(super) fn new(service: &'static str, access_key: &str, secret_key: &str) -> Self {
        Self { credentials: Credentials::new(access_key, secret_key, None, None, "mlgw-tests"), service }
    }

    /// Signs a request with an unsigned payload, unless the request declares the hash of its body.
    pub(super) fn sign<B>(&self, request: &mut Request<B>, server: SocketAddr) {
        // The payload declaration of the request, if any; otherwise the payload is unsigned.
        let declared_hash = request.headers_mut().remove("x-amz-content-sha256");
        let body = match declared_hash.as_ref().map(|hash| hash.to_str().expect("a test header")) {
            Some(hash) => SignableBody::Precomputed(hash.to_owned()),
            None => SignableBody::UnsignedPayload,
        };
        self.sign_with(request, server, body);
    }

    /// Signs a request and this body.
    pub(super) fn sign_with<B>(&self, request: &mut Request<B>, server: SocketAddr, body: SignableBody<'_>) {
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let identity = self.credentials.clone().into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region("us-east-1")
            .name(self.service)
            .time(now())
            .settings(settings)
            .build()
            .expect("every parameter is given")
            .into();
        let headers: Vec<(String, String)> = request
            .headers()
            .iter()
            .map(|(name, value)| {
                let value = std::str::from_utf8(value.as_bytes()).expect("a test header");
                (name.to_string(), value.to_owned())
            })
            .collect();
        let signable = SignableRequest::new(
            request.method().as_str(),
            format!("http://{server}{}", request.uri()),
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())),
            body,
        )
        .expect("the request can be signed");
        let (instructions, _) = sign(signable, &params).expect("the request can be signed").into_parts();
        instructions.apply_to_request_http1x(request);
    }
}

fn now() -> SystemTime {
    let millis = u64::try_from(SystemClock.now().as_millis()).expect("after 1970");
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}
